#include <tapedeck/nn/data/open.h>

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/random.h>
#include <tapedeck/nn/data/image.h>
#include <tapedeck/nn/data/image_folder.h>
#include <tapedeck/nn/data/loader.h>
#include <tapedeck/nn/data/npy.h>
#include <tapedeck/nn/data/sprites.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

Tensor plain(float value, std::int64_t h = 4, std::int64_t w = 4) {
  return Tensor::full({3, h, w}, value);
}

std::string error_of(const std::string& spec, const OpenOptions& options = {}) {
  return message_of<Error>([&] { open_dataset(spec, options); });
}

TEST(ImageFolder, FindsSortsAndLabels) {
  const TemporaryFolder folder;
  for (const char* name : {"b/deep/2.PNG", "a/10.png", "a/9.png", "b/1.jpeg", ".hidden/x.png", "a/.x.png"}) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    save_png(folder / name, plain(0.2f));  // told by content, so a .jpeg may be a PNG
  }
  write_text(folder / "a/notes.txt", "no image");
  const ImageFolder images(folder.path(), {.size = 2, .labels = true});
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    paths.push_back(images.path(i).substr(folder.path().string().size() + 1));
    labels.push_back(images.label(i).value());
  }
  EXPECT_THAT(paths, ElementsAre("a/10.png", "a/9.png", "b/1.jpeg", "b/deep/2.PNG"));
  EXPECT_THAT(labels, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(images.classes(), ElementsAre("a", "b"));
  EXPECT_THAT(images.get(2).to_vector<float>(), Each(FloatNear(0.2f, 1e-6f)));
  EXPECT_EQ(ImageFolder(folder.path()).label(0), std::nullopt);

  save_png(folder / "loose.png", plain(0.2f));
  EXPECT_THAT(message_of<Error>([&] { ImageFolder(folder.path(), {.labels = true}); }),
              HasSubstr("loose.png: has no class: it is in no subfolder"));
}

TEST(ImageFolder, FitsImagesOfAnySize) {
  const TemporaryFolder folder;
  save_png(folder / "1.png", plain(1, 7, 30));
  save_png(folder / "2.png", Tensor::zeros({1, 3, 2}));
  write_text(folder / "3.jpg", read_text(test_file("rgb.jpg")));
  const ImageFolder colour(folder.path(), {.size = {4, 6}}), grey(folder.path(), {.size = 5, .channels = 1});
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(colour.get(i).shape(), (Shape{3, 4, 6}));
    EXPECT_EQ(grey.get(i).shape(), (Shape{1, 5, 5}));
  }
  EXPECT_THAT(colour.get(0).to_vector<float>(), Each(FloatNear(1, 1e-6f)));
  EXPECT_THAT(colour.get(1).to_vector<float>(), Each(0));
}

TEST(ImageFolder, NamesTheBrokenFile) {
  const TemporaryFolder folder;
  save_png(folder / "1.png", plain(1));
  const std::string whole = read_text(folder / "1.png");
  write_text(folder / "2.png", whole.substr(0, whole.size() / 2));
  DataLoader loader(ImageFolder(folder.path(), {.size = 4}), {.batch_size = 1, .workers = 2});
  EXPECT_THAT(message_of<Error>([&] {
                for ([[maybe_unused]] const Batch& batch : loader) {
                }
              }),
              HasSubstr(concat("load_image: ", folder / "2.png", ": PNG: truncated")));
}

TEST(ImageFolder, ChecksItsArguments) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<Error>([&] { ImageFolder(folder.path().string()); }),
              HasSubstr(": there are no .png, .jpg or .jpeg files in this folder or its subfolders"));
  EXPECT_THAT(message_of<Error>([&] { ImageFolder("/nowhere"); }),
              HasSubstr("image_folder: /nowhere: cannot read: No such file or directory"));
  EXPECT_THAT(message_of<Error>([&] { ImageFolder(folder.path(), {.channels = 2}); }),
              HasSubstr("channels 2"));
  EXPECT_THAT(message_of<Error>([&] { ImageFolder(folder.path(), {.size = 0}); }), HasSubstr("size 0 x 0"));
}

TEST(OpenDataset, KnowsSprites) {
  EXPECT_EQ(open_dataset("sprites")->size(), SpritesOptions{}.count);
  const auto sprites = open_dataset("sprites:count=7,size=16,seed=3");
  EXPECT_EQ(sprites->size(), 7);
  EXPECT_EQ(sprites->get(2).to_vector<float>(),
            Sprites({.count = 7, .size = 16, .seed = 3}).get(2).to_vector<float>());
  EXPECT_EQ(open_dataset("sprites", {.size = 20})->get(2).to_vector<float>(),
            Sprites({.size = 20}).get(2).to_vector<float>());
  EXPECT_EQ(open_dataset("sprites:size=20", {.size = 10})->image_shape(), (Shape{3, 10, 10}));
  // Drawn as large as is needed, and cropped: never enlarged.
  const Tensor tall = open_dataset("sprites", {.size = {9, 20}})->get(2),
               whole = Sprites({.size = 20}).get(2);
  ASSERT_EQ(tall.shape(), (Shape{3, 9, 20}));
  const int above = (20 - 9) / 2;
  for (int k = 0; k < 3 * 9 * 20; ++k) {
    const int c = k / (9 * 20), y = k / 20 % 9, x = k % 20;
    EXPECT_NEAR(tall.data<float>()[k], whole.data<float>()[(c * 20 + y + above) * 20 + x], 1e-6) << k;
  }
  EXPECT_EQ(error_of("sprites:count=x"),
            "open_dataset: sprites: count \"x\" is not a whole number, or too large");
  EXPECT_EQ(error_of("sprites:count=7z"),
            "open_dataset: sprites: count \"7z\" is not a whole number, or too large");
  EXPECT_EQ(error_of("sprites:size=5000"), "sprites: size 5000 is not legal; legal is 1 to 4096");
  EXPECT_EQ(error_of("sprites:count=2000000000"),
            "sprites: count 2000000000 is not legal; legal is 0 to 1000000000");
  EXPECT_EQ(error_of("sprites:colour=1"),
            "open_dataset: sprites: \"colour\" is unknown; legal are count, size and seed");
  EXPECT_THAT(error_of("sprites:"), HasSubstr("\"\" is unknown"));
  EXPECT_THAT(error_of("sprites:size=0"), HasSubstr("sprites: size 0 is not legal"));
}

TEST(OpenDataset, KnowsFilesByTheirContent) {
  const TemporaryFolder folder;
  save_npy(folder / "any.name", Tensor::full({5, 3, 8, 8}, 0.5));
  EXPECT_EQ(open_dataset(folder / "any.name")->image_shape(), (Shape{3, 8, 8}));
  const auto resized = open_dataset(folder / "any.name", {.size = {4, 6}});
  EXPECT_EQ(resized->size(), 5);
  EXPECT_EQ(resized->get(4).shape(), (Shape{3, 4, 6}));
  EXPECT_NEAR(resized->get(4).data<float>()[0], 0.5, 1e-6);

  const std::string images(
      "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02"
      "abcd",
      20),
      labels("\0\0\x08\x01\0\0\0\x02\x07\x09", 10);
  write_text(folder / "t-images-idx3-ubyte", images);
  EXPECT_EQ(open_dataset(folder / "t-images-idx3-ubyte")->label(0), std::nullopt);
  write_text(folder / "t-labels-idx1-ubyte", labels);
  EXPECT_EQ(open_dataset(folder / "t-images-idx3-ubyte")->label(1), 9);
  EXPECT_EQ(open_dataset(folder.path())->image_shape(), (Shape{1, 1, 2}));  // the only one in the folder
  write_text(folder / "u-images-idx3-ubyte", images);
  EXPECT_THAT(error_of(folder.path()), HasSubstr("has several IDX files; name one, such as "));
}

TEST(OpenDataset, NamesTheFirstValueOutsideItsRange) {
  const TemporaryFolder folder;
  const std::string path = folder / "images.npy";
  const std::string tail = "; legal are 0 to 1, or uint8 elements, which are divided by 255";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [value, text] : {std::pair{1.5f, "1.5"}, {-0.25f, "-0.25"}, {nan, "nan"}}) {
    for (const DType dtype : {DType::float64, DType::float32, DType::float16}) {
      for (const std::int64_t image : {0, 700, 999}) {
        Tensor images = rand({1000, 3, 8, 8});
        images.data<float>()[image * 3 * 8 * 8 + 190] = value;
        if (image == 700) images.data<float>()[900 * 3 * 8 * 8] = 77;  // a later one
        save_npy(path, images.to(dtype));
        EXPECT_EQ(error_of(path),
                  concat("open_dataset: ", path, ": image ", image, " has the value ", text, tail));
      }
    }
  }
  save_npy(path, Tensor::from({0.0, 1.0, 0.5, -0.0}, {2, 1, 1, 2}));
  EXPECT_EQ(open_dataset(path)->size(), 2);
  // An IDX file of one float image, 1 x 1, of 2 (0x40000000).
  write_text(path, std::string("\0\0\x0d\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01\x40\0\0\0", 20));
  EXPECT_EQ(error_of(path), concat("open_dataset: ", path, ": image 0 has the value 2", tail));
}

TEST(OpenDataset, KnowsFoldersOfImages) {
  const TemporaryFolder folder;
  save_png(folder / "1.png", plain(0.2f));
  EXPECT_EQ(open_dataset(folder.path())->image_shape(), (Shape{3, 64, 64}));
  EXPECT_EQ(open_dataset(folder.path(), {.size = 8, .channels = 1})->image_shape(), (Shape{1, 8, 8}));
  EXPECT_THAT(error_of(folder / "1.png"), HasSubstr("is one image, not a dataset; legal is \"sprites\""));
}

TEST(OpenDataset, SaysWhatIsLegal) {
  const TemporaryFolder folder;
  write_text(folder / "text", "some text");
  write_text(folder / "empty", "");
  EXPECT_THAT(error_of("no-such-thing"),
              HasSubstr("open_dataset: \"no-such-thing\" is no file or folder; legal is \"sprites\""));
  EXPECT_THAT(error_of(folder / "text"), HasSubstr("has an unknown format; legal is"));
  EXPECT_THAT(error_of(folder / "empty"), HasSubstr("has an unknown format; legal is"));
  EXPECT_THAT(error_of(""), HasSubstr("\"\" is no file or folder"));
  EXPECT_THAT(error_of("sprites", {.size = -1}), HasSubstr("size -1 x -1 is not legal"));
}

}  // namespace
}  // namespace tapedeck::data
