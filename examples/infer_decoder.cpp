// Inference with a decoder that train_decoder trained.
//
//   infer_decoder checkpoint.safetensors random [count] [picture.png] [seed]
//   infer_decoder checkpoint.safetensors between i j [picture.png]
//
// `random` draws codes that are spread as the learned ones are; `between` goes from image i's code to
// image j's in 10 steps. The checkpoint holds all that is needed: the model's description, its weights
// and the codes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

namespace {

nn::StateDict part_of(const nn::StateDict& all, const std::string& prefix) {
  nn::StateDict part;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) part.emplace_back(name.substr(prefix.size()), tensor);
  }
  return part;
}

/// mean + sum_i e_i (z_i - mean) / sqrt(n) with independent standard normal e_i: a Gaussian with exactly
/// the mean and the covariance of the codes z_1 .. z_n.
Variable random_codes(const Variable& codes, std::int64_t count) {
  const Variable middle = mean(codes, {0}, true);
  const double scale = 1 / std::sqrt(static_cast<double>(codes.size(0)));
  return matmul(randn({count, codes.size(0)}), codes - middle) * scale + middle;
}

Variable codes_between(const Variable& codes, std::int64_t i, std::int64_t j) {
  const Variable from = slice(codes, 0, i, i + 1), to = slice(codes, 0, j, j + 1);
  Variables steps;
  for (int k = 0; k < 10; ++k) steps.push_back(from * (1 - k / 9.0) + to * (k / 9.0));
  return cat(steps, 0);
}

/// Throws Error, naming `what`, unless `text` is a whole number from `least` to `most`.
std::int64_t number(const char* what, const std::string& text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  check(error == std::errc() && next == end && value >= least && value <= most, what, " \"", text,
        "\" is not legal; legal are whole numbers from ", least, " to ", most);
  return value;
}

void run(const std::vector<std::string>& arguments) {
  const auto argument = [&](std::size_t i, const char* fallback) {
    return i < arguments.size() ? arguments[i] : std::string(fallback);
  };
  const std::string& path = arguments[0];
  data::Metadata metadata;
  const nn::StateDict state = data::load_safetensors(path, &metadata);
  check(metadata.contains("model"), path, ": not a checkpoint of train_decoder");

  nn::Sequential decoder = nn::ModelDescription::parse(metadata["model"], path).build();
  decoder.load_state_dict(part_of(state, "decoder."));
  if (const nn::StateDict averages = part_of(state, "average."); !averages.empty()) {
    // Weights averaged over the training are better than the last ones. Running statistics of batch
    // normalisation are averages already.
    const Variables parameters = decoder.parameters();
    for (const auto& [name, tensor] : averages) {
      if (name.starts_with("average.")) parameters.at(std::stoul(name.substr(8))).tensor().copy_(tensor);
    }
  }
  decoder.eval();
  const nn::StateDict table = part_of(state, "codes.");
  check(!table.empty(), path, ": has no codes");
  const Variable codes = table[0].second;

  Variable chosen;
  std::string picture;
  if (arguments[1] == "random") {
    const std::int64_t count = number("count", argument(2, "64"), 1, 10000);
    manual_seed(static_cast<std::uint64_t>(
        number("seed", argument(4, "0"), 0, std::numeric_limits<std::int64_t>::max())));
    chosen = random_codes(codes, count);
    picture = argument(3, "random.png");
  } else {
    check(arguments[1] == "between" && arguments.size() >= 4, "legal are: random, and between i j");
    const std::int64_t last = codes.size(0) - 1;
    chosen =
        codes_between(codes, number("image", arguments[2], 0, last), number("image", arguments[3], 0, last));
    picture = argument(4, "between.png");
  }
  data::save_png(picture, data::make_grid(decoder(chosen).tensor(),
                                          {.columns = std::min<std::int64_t>(10, chosen.size(0))}));
  std::printf("%lld images: %s\n", static_cast<long long>(chosen.size(0)), picture.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: infer_decoder checkpoint.safetensors random [count] [picture.png] [seed]\n"
                 "       infer_decoder checkpoint.safetensors between i j [picture.png]\n");
    return 2;
  }
  try {
    run({argv + 1, argv + argc});
    check(std::fflush(stdout) == 0, "stdout cannot be written");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "infer_decoder: %s\n", error.what());
    return 1;
  }
}
