#include "options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <tapedeck/core/error.h>
#include <tapedeck/nn/model_description.h>

namespace train_decoder {

using tapedeck::check;
using tapedeck::concat;
using tapedeck::Error;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Options, data, size, channels, model, latent, device, epochs, steps,
                                   minutes, batch, loss, ssim_weight, lr, code_lr, schedule, code_init,
                                   code_stddev, unit_ball, clip, ema, precision, seed, threads, workers,
                                   checkpoint_every, sample_every, log_every)

namespace {

constexpr const char* kDescription =
    "Trains a decoder from images without an encoder: each image owns a latent code, which is learned\n"
    "together with the decoder (generative latent optimisation, Bojanowski et al. 2018).";

constexpr const char* kDataHelp =
    "sprites, which the program draws (also with any of\n"
    "sprites:count=2000,size=32,seed=0), an IDX file (.gz or not), a .npy file\n"
    "(uint8, or floating from 0 to 1), or a folder of PNG and JPEG images";

constexpr const char* kFooter =
    "A run folder holds config.json, model.txt, metrics.csv, training.png, reconstructions.png (originals\n"
    "beside what their codes decode to), interpolations.png (each row from one image's code to another's),\n"
    "checkpoint.safetensors and status.json (steps, seconds and, at the end, the mean PSNR).\n"
    "Ctrl-C ends with a checkpoint (exit status 130), a second one aborts. --resume continues to the same\n"
    "bits as an unbroken run, unless its length is set in --minutes. One program at a time trains a run.\n"
    "Exit status: 0 done, or at the step of --stop-at; 1 failed; 2 wrong usage; 128 + n ended by signal n.\n"
    "Environment: TAPEDECK_NUM_THREADS is the number of threads where --threads does not say it.\n\n"
    "Examples:\n"
    "  train_decoder                                        sprites, into runs/sprites-small-1\n"
    "  train_decoder --data t10k-images-idx3-ubyte.gz --minutes 10 --out runs/mnist\n"
    "  train_decoder --data photos/ --model dcgan --latent 128\n"
    "  train_decoder --resume runs/mnist\n\n"
    "A file for --model has one layer a line, from a code [n, latent] to images [n, c, h, w]; # starts a\n"
    "comment, and a size is one number or HxW. The layers and their keys:";

std::string footer() {
  std::string text = kFooter;
  for (const std::string& name : tapedeck::nn::layer_names()) {
    const std::string keys = tapedeck::nn::layer_keys(name);
    text += "\n  " + name +
            (keys.empty() ? "" : std::string(21 - std::min<std::size_t>(20, name.size()), ' ')) + keys;
  }
  return text;
}

/// Throws tapedeck::Error for a text that is not legal.
using Check = std::function<void(const std::string&)>;

CLI::Validator checked_by(Check check_text) {
  return CLI::Validator(
      [check_text = std::move(check_text)](std::string& text) -> std::string {
        try {
          check_text(text);
          return "";
        } catch (const Error& error) {
          return error.what();
        }
      },
      "", "");
}

/// Numbers within [low, high]; rejects NaN.
CLI::Validator within(double low, double high) {
  return checked_by([low, high](const std::string& text) {
    double value = 0;
    check(CLI::detail::lexical_cast(text, value) && value >= low && value <= high, text,
          " is not legal; legal are numbers from ", low, " to ", high);
  });
}

CLI::Validator whole_within(std::int64_t low, std::int64_t high) {
  return checked_by([low, high](const std::string& text) {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, value);
    check(error == std::errc() && next == end && value >= low && value <= high, text,
          " is not legal; legal are whole numbers from ", low, " to ", high);
  });
}

CLI::Validator not_empty() {
  return checked_by([](const std::string& text) { check(!text.empty(), "an empty name is not legal"); });
}

/// Declares every flag over `o`, whose values are the defaults. Returns the flags that choose what is
/// trained and how, which a resumed run keeps.
std::vector<CLI::Option*> declare(CLI::App& app, Options& o) {
  std::vector<CLI::Option*> fixed;
  constexpr std::int64_t kMany = 1'000'000'000;

  const auto what = [&](CLI::Option* option) { fixed.push_back(option->group("What to train")); };
  what(app.add_option("--data", o.data, std::string("Images: ") + kDataHelp)->type_name("SPEC"));
  what(app.add_option("--size", o.size,
                      "Resize and crop images to N or HxW; default: as they are, a folder's to 64")
           ->check(checked_by([](const std::string& text) {
             check(!text.empty(), "an empty size is not legal; legal are N and HxW");
             parse_size(text);
           })));
  what(app.add_option("--channels", o.channels, "Channels of a folder's images")
           ->check(CLI::IsMember({1, 3})));
  what(app.add_option("--model", o.model,
                      "Decoder: small, dcgan, or a file that describes layers, one a line, e.g.\n"
                      "'conv_transpose2d in=64 out=32 kernel=4 stride=2 padding=1'")
           ->type_name("NAME|FILE"));
  what(app.add_option("--latent", o.latent, "Numbers in a latent code")->check(whole_within(1, 65536)));

  const auto how = [&](CLI::Option* option) { fixed.push_back(option->group("How to train")); };
  how(app.add_option("--batch", o.batch, "Images in a step")->check(whole_within(1, kMany)));
  how(app.add_option("--loss", o.loss,
                     "mse, l1, bce (cross entropy; the model must end in sigmoid) or mse+ssim")
          ->check(CLI::IsMember({"mse", "l1", "bce", "mse+ssim"})));
  how(app.add_option("--ssim-weight", o.ssim_weight, "Weight of 1 - SSIM in mse+ssim")
          ->check(within(0, 1e9)));
  how(app.add_option("--lr", o.lr, "Learning rate of the decoder (Adam)")->check(within(0, 1e9)));
  how(app.add_option("--code-lr", o.code_lr, "Learning rate of the codes (Adam)")->check(within(0, 1e9)));
  how(app.add_option("--schedule", o.schedule, "Learning rates over the run: cosine, one-cycle or constant")
          ->check(CLI::IsMember({"cosine", "one-cycle", "constant"})));
  how(app.add_option("--code-init", o.code_init,
                     "Codes at the start: normal (random), pca (principal components of the images, "
                     "which\nreads all of them once) or auto (pca for data of at most 16 million numbers)")
          ->check(CLI::IsMember({"auto", "normal", "pca"})));
  how(app.add_option("--code-stddev", o.code_stddev, "Standard deviation of the codes at the start")
          ->check(within(0, 1e9)));
  how(app.add_flag("--unit-ball", o.unit_ball, "Keep every code within the unit ball"));
  how(app.add_option("--clip", o.clip,
                     "The norm above which the gradients of the decoder's weights, all together, are scaled\n"
                     "down to it; 0: none")
          ->check(within(0, 1e9)));
  how(app.add_option(
             "--ema", o.ema,
             "Decay of a moving average of the decoder's weights, e.g. 0.999, which\npictures and the "
             "final report then use; 0: none")
          ->check(within(0, 0.999999)));
  how(app.add_option("--precision", o.precision,
                     "How exact products are: highest (float32), high (TF32, on a GPU), or of bfloat16 or\n"
                     "float16 numbers, while weights stay float32")
          ->check(CLI::IsMember({"highest", "high", "bfloat16", "float16"})));
  how(app.add_option("--seed", o.seed, "Seed of weights, codes and order")
          ->check(whole_within(0, 9'000'000'000'000'000)));

  const auto length = [&](CLI::Option* option) { return option->group("How long (one of these)"); };
  CLI::Option* epochs =
      length(app.add_option("--epochs", o.epochs, "Passes over the images")->check(whole_within(1, kMany)));
  CLI::Option* steps = length(app.add_option("--steps", o.steps, "Steps")->check(whole_within(1, kMany)));
  CLI::Option* minutes =
      length(app.add_option("--minutes", o.minutes, "Minutes, those before a --resume included")
                 ->check(within(1e-4, 1e9)));
  epochs->excludes(steps)->excludes(minutes);
  steps->excludes(minutes)->default_str("");
  minutes->default_str("");

  const auto machine = [&](CLI::Option* option) { option->group("Machine"); };
  machine(app.add_option("--device", o.device, "cpu, or cuda[:N] in a build that has it"));
  machine(app.add_option("--threads", o.threads,
                         "Threads; 0: one a core. Their number does not change the result")
              ->check(whole_within(0, 1024)));
  machine(app.add_option(
                 "--workers", o.workers,
                 "Threads that prepare batches, on a GPU 4 if this is not given; 0: in the\ntraining thread")
              ->check(whole_within(0, 256)));

  const auto output = [&](CLI::Option* option) { option->group("Output"); };
  output(app.add_option("--out", o.out, "Run folder, new or empty; default: runs/<data>-<model>-<number>")
             ->type_name("FOLDER")
             ->check(not_empty()));
  output(app.add_option("--checkpoint-every", o.checkpoint_every,
                        "Interval in steps (500) or time (30s, 5m); 0: only at the end")
             ->check(checked_by(parse_interval))
             ->type_name("INTERVAL"));
  output(app.add_option("--sample-every", o.sample_every, "The same, for pictures")
             ->check(checked_by(parse_interval))
             ->type_name("INTERVAL"));
  output(app.add_option("--log-every", o.log_every, "Steps in a row of metrics.csv")
             ->check(whole_within(1, kMany)));
  output(
      app.add_option("--memory-snapshot", o.memory_snapshot,
                     "At the end, or when memory runs out: what held how much of the device's memory when,\n"
                     "as a page (.html) or for programs (.json)")
          ->type_name("FILE")
          ->check(checked_by([](const std::string& text) {
            check(text.ends_with(".html") || text.ends_with(".json"), text,
                  " is not legal; legal are names that end in .html and .json");
          })));
  output(app.add_flag("--quiet", o.quiet, "No progress, only the result"));

  const auto other = [&](CLI::Option* option) { option->group("Other"); };
  CLI::Option* resume =
      app.add_option("--resume", o.resume,
                     "Continue the run of this folder; flags of its length, machine and output\n"
                     "may be changed")
          ->type_name("RUN")
          ->check(not_empty());
  other(resume);
  resume->excludes("--out");
  other(
      app.add_option("--stop-at", o.stop_at, "End at this step of the run with a checkpoint, as Ctrl-C does")
          ->check(whole_within(1, kMany)));
  other(app.add_flag("--info", o.info, "Print the data and the model's layers, and train nothing"));
  return fixed;
}

/// What is wrong, in one line.
std::string message(const CLI::App& app, const CLI::ParseError& error) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 1) return concat(option->get_name(), " is given ", option->count(), " times");
  }
  return error.what();
}

/// Parses into `options`. Throws ParserExit.
void parse_over(Options& options, int argc, const char* const* argv) {
  CLI::App app(kDescription, "train_decoder");
  app.footer(footer());
  app.set_help_flag();
  app.get_formatter()->column_width(34);
  app.option_defaults()->always_capture_default();
  const std::vector<CLI::Option*> fixed = declare(app, options);
  app.set_help_flag("-h,--help", "Print this")->group("Other");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    throw ParserExit{0, app.help()};
  } catch (const CLI::ParseError& error) {
    throw ParserExit{2, concat(message(app, error), " (--help lists the flags)")};
  }
  if (!options.resume.empty()) {
    for (const CLI::Option* option : fixed) {
      if (option->count() > 0) {
        throw ParserExit{2, concat(option->get_name(), " cannot be changed by --resume: the run in ",
                                   options.resume, " keeps its own")};
      }
    }
  }
  // A length given now takes the place of another kind of length from the configuration.
  const auto given = [&](const char* name) { return app.get_option(name)->count() > 0; };
  if (given("--epochs") || given("--minutes")) options.steps = 0;
  if (given("--epochs") || given("--steps")) options.minutes = 0;
  // A GPU is faster than one thread draws or reads images.
  if (!given("--workers") && options.resume.empty() && options.device != "cpu") options.workers = 4;
}

}  // namespace

Interval parse_interval(const std::string& text) {
  std::size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(used);
  const bool whole = value == std::floor(value);
  check(value >= 0 && value <= 1e9 && (unit == "s" || unit == "m" || (unit.empty() && whole)), "interval ",
        text, " is not legal; legal are steps (500), seconds (30s) and minutes (5m)");
  if (unit.empty()) return {.steps = static_cast<std::int64_t>(value)};
  return {.seconds = unit == "m" ? value * 60 : value};
}

tapedeck::Size2 parse_size(const std::string& text) {
  if (text.empty()) return 0;
  tapedeck::Size2 size = 0;
  const char* end = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data(), end, size.h);
  size.w = size.h;
  if (error == std::errc() && next != end && *next == 'x') {
    const auto width = std::from_chars(next + 1, end, size.w);
    next = width.ptr;
    error = width.ec;
  }
  check(error == std::errc() && next == end && size.h >= 1 && size.w >= 1 && size.h <= 4096 && size.w <= 4096,
        text, " is not legal; legal are N and HxW, up to 4096");
  return size;
}

Options parse_options(int argc, const char* const* argv) {
  Options options;
  parse_over(options, argc, argv);
  if (options.resume.empty()) return options;
  const std::string path = options.resume + "/config.json";
  std::ifstream file(path);
  check(file.good(), options.resume, " is not a run folder: ", path, " cannot be read");
  std::stringstream text;
  text << file.rdbuf();
  Options resumed = options_from_json(text.str(), path);
  parse_over(resumed, argc, argv);
  resumed.out = options.resume;
  return resumed;
}

std::string to_json(const Options& options) {
  return nlohmann::ordered_json(nlohmann::json(options)).dump(2) + "\n";
}

Options options_from_json(const std::string& text, const std::string& source) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw Error(concat(source, ": not a run's configuration (", error.what(), ")"));
  }
  check(json.is_object(), source, ": not a run's configuration (it is not a JSON object)");

  // Each value must be legal for the flag of that name.
  const nlohmann::json defaults = Options{};
  Options parsed;
  CLI::App app;
  declare(app, parsed);
  for (const auto& [key, value] : defaults.items())
    check(json.contains(key), source, ": ", key, " is missing");
  for (const auto& [key, value] : json.items()) {
    check(defaults.contains(key), source, ": ", key, " is unknown");
    const nlohmann::json& usual = defaults[key];
    if (value == usual) continue;  // also where no flag says it, such as steps 0
    check(std::string_view(value.type_name()) == usual.type_name(), source, ": ", key, ": ", value.dump(),
          " is not legal; legal is a ", usual.type_name());
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    try {
      app.parse(std::vector<std::string>{
          concat(flag, "=", value.is_string() ? value.get<std::string>() : value.dump())});
    } catch (const CLI::ParseError& error) {
      const std::string what = error.what(), prefix = flag + ": ";
      throw Error(concat(source, ": ", key, ": ", what.substr(what.starts_with(prefix) ? prefix.size() : 0)));
    }
  }
  return json.get<Options>();  // the very bits, which a text need not keep
}

std::vector<std::string> flags() {
  Options options;
  CLI::App app;
  app.set_help_flag();
  declare(app, options);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  return names;
}

}  // namespace train_decoder
