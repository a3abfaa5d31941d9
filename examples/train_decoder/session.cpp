#include "session.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "interrupt.h"
#include "models.h"
#include "pictures.h"
#include "progress.h"
#include "run_folder.h"
#include "trainer.h"

namespace train_decoder {

using namespace tapedeck;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Whether it is time again for something.
class Timer {
 public:
  explicit Timer(const std::string& interval) : interval_(parse_interval(interval)) {}

  bool due(std::int64_t step) {
    const bool by_steps = interval_.steps > 0 && step % interval_.steps == 0;
    const bool by_time = interval_.seconds > 0 && seconds_since(last_) >= interval_.seconds;
    if (by_steps || by_time) last_ = Clock::now();
    return by_steps || by_time;
  }

 private:
  Interval interval_;
  Clock::time_point last_ = Clock::now();
};

/// Sums over the steps since the last line of metrics. Part of a checkpoint, so that the lines of a
/// resumed run are those of an unbroken one.
struct Meter {
  double loss = 0, psnr = 0, steps = 0;

  void add(const StepResult& result) {
    loss += result.loss;
    psnr += result.psnr;
    ++steps;
  }
  Tensor tensor() const { return Tensor::from({loss, psnr, steps}, {3}); }
  static Meter from(const Tensor& tensor) {
    const auto values = tensor.to_vector<double>();
    check(values.size() == 3, "checkpoint: meter is not 3 numbers");
    return {values[0], values[1], values[2]};
  }
};

/// How fast and how good it is at present: averages that forget in a few seconds.
class Recent {
 public:
  void add(const StepResult& result, double seconds) {
    const double keep = std::exp(-seconds / 3);
    images_ = images_ * keep + static_cast<double>(result.images);
    seconds_ = seconds_ * keep + seconds;
    weight_ = weight_ * 0.95 + 0.05;
    loss_ = loss_ * 0.95 + 0.05 * result.loss;
    psnr_ = psnr_ * 0.95 + 0.05 * result.psnr;
  }
  double images_per_second() const { return seconds_ > 0 ? images_ / seconds_ : 0; }
  bool any() const { return weight_ > 0; }
  double loss() const { return loss_ / weight_; }
  double psnr() const { return psnr_ / weight_; }

 private:
  double images_ = 0, seconds_ = 0, weight_ = 0, loss_ = 0, psnr_ = 0;
};

/// When the run is over: after a number of steps, or else a time.
struct Length {
  std::int64_t steps = 0;
  double seconds = 0;

  double fraction(std::int64_t step, double elapsed) const {
    return steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : elapsed / seconds;
  }
};

Length length_of(const Options& options, std::int64_t images) {
  if (options.steps > 0) return {.steps = options.steps};
  if (options.minutes > 0) return {.seconds = options.minutes * 60};
  const std::int64_t batches = (images + options.batch - 1) / options.batch;
  check(options.epochs <= std::numeric_limits<std::int64_t>::max() / batches, "--epochs ", options.epochs,
        ": too many");
  return {.steps = options.epochs * batches};
}

nn::ModelDescription describe_model(const Options& options, const Shape& image) {
  if (options.model == "small" || options.model == "dcgan") {
    return nn::ModelDescription::parse(decoder_description(options.model, options.latent, image),
                                       options.model);
  }
  check(std::filesystem::exists(options.model), "--model ", options.model,
        ": neither small nor dcgan, and there is no such file");
  return nn::ModelDescription::load(options.model);
}

std::shared_ptr<const data::Dataset> open_data(const Options& options) {
  auto dataset =
      data::open_dataset(options.data, {.size = parse_size(options.size), .channels = options.channels});
  check(dataset->size() > 0, "--data ", options.data, ": there are no images");
  return dataset;
}

/// A run and everything that belongs to it.
class Session {
 public:
  /// Goes on from the folder's checkpoint, if there is one.
  Session(const Options& options, const RunFolder& folder, const nn::ModelDescription& description,
          Length length, Trainer& trainer)
      : options_(options),
        folder_(folder),
        description_(description),
        length_(length),
        trainer_(trainer),
        seconds_before_(load()),
        metrics_(folder.metrics(), trainer.steps()),
        display_(options.quiet) {}

  /// Trains to the end, or until a signal comes. Returns the exit status.
  int run() {
    // Only now, when the checkpoint is loaded and nothing can be wrong with what was asked for.
    data::write_atomically(folder_.model(), description_.text());
    data::write_atomically(folder_.config(), to_json(options_));
    const InterruptGuard guard;
    Timer checkpoints(options_.checkpoint_every), pictures(options_.sample_every);
    while (!over() && !stopped()) {
      step();
      if (over() || stopped()) break;
      if (checkpoints.due(trainer_.steps())) save();
      if (pictures.due(trainer_.steps())) write_pictures(trainer_, metrics_, folder_);
    }
    if (recent_.any()) display_.show(progress(), true);
    display_.end_line();
    save();
    write_pictures(trainer_, metrics_, folder_);
    return over() ? finish() : stop();
  }

 private:
  double elapsed() const { return seconds_before_ + seconds_since(start_); }
  double fraction() const { return length_.fraction(trainer_.steps(), elapsed()); }
  bool over() const { return fraction() >= 1; }
  bool stopped() const {
    return InterruptGuard::signal_received() != 0 ||
           (options_.stop_at > 0 && trainer_.steps() >= options_.stop_at);
  }

  void step() {
    const auto before = Clock::now();
    const StepResult result = trainer_.step(fraction());
    recent_.add(result, seconds_since(before));
    meter_.add(result);
    if (trainer_.steps() % options_.log_every == 0) {
      metrics_.append({.step = trainer_.steps(),
                       .epoch = trainer_.epoch(),
                       .seconds = elapsed(),
                       .loss = meter_.loss / meter_.steps,
                       .psnr = meter_.psnr / meter_.steps,
                       .lr = trainer_.lr(),
                       .code_lr = trainer_.code_lr(),
                       .images_per_second = recent_.images_per_second()});
      meter_ = {};
    }
    display_.show(progress());
  }

  Progress progress() const {
    const double done = fraction(), here = done - fraction_before_;
    return {.step = trainer_.steps(),
            .fraction = done,
            .loss = recent_.loss(),
            .psnr = recent_.psnr(),
            .images_per_second = recent_.images_per_second(),
            .seconds_left = here > 0 ? (1 - done) / here * seconds_since(start_) : 0};
  }

  /// Continues from the checkpoint. Returns the seconds that the run took before.
  double load() {
    if (!std::filesystem::exists(folder_.checkpoint())) return 0;
    nn::StateDict state = data::load_safetensors(folder_.checkpoint());
    std::erase_if(state, [&](const auto& entry) {
      if (entry.first != "meter") return false;
      meter_ = Meter::from(entry.second);
      return true;
    });
    try {
      trainer_.load_state_dict(state);
    } catch (const Error& error) {
      throw Error(concat(folder_.checkpoint(), ": ", error.what()));
    }
    const double seconds = read_status(folder_.status()).seconds;
    fraction_before_ = length_.fraction(trainer_.steps(), seconds);
    return seconds;
  }

  void save() {
    nn::StateDict state = trainer_.state_dict();
    state.emplace_back("meter", meter_.tensor());
    const Shape image = trainer_.dataset().image_shape();
    data::save_safetensors(folder_.checkpoint(), state,
                           {{"format", "tapedeck train_decoder 1"},
                            {"model", description_.text()},
                            {"latent", std::to_string(options_.latent)},
                            {"image", concat(image[0], "x", image[1], "x", image[2])}});
    write_status(folder_.status(), {.step = trainer_.steps(), .seconds = elapsed()});
  }

  int stop() {
    std::printf("stopped after step %lld; train_decoder --resume %s goes on\n",
                static_cast<long long>(trainer_.steps()), folder_.path().c_str());
    const int signal = InterruptGuard::signal_received();
    return signal ? 128 + signal : 0;
  }

  int finish() {
    const double seconds = elapsed();
    const double psnr = trainer_.mean_psnr([] { return InterruptGuard::signal_received() != 0; });
    if (std::isnan(psnr)) return stop();
    write_status(folder_.status(),
                 {.finished = true, .step = trainer_.steps(), .seconds = seconds, .mean_psnr = psnr});
    std::printf(
        "%lld steps in %s; mean PSNR over all %lld training images (the images' PSNRs averaged): %.2f dB\n"
        "pictures and checkpoint: %s\n",
        static_cast<long long>(trainer_.steps()), duration(seconds).c_str(),
        static_cast<long long>(trainer_.dataset().size()), psnr, folder_.path().c_str());
    return 0;
  }

  const Options& options_;
  const RunFolder& folder_;
  const nn::ModelDescription& description_;
  Length length_;
  Trainer& trainer_;
  Meter meter_;
  Recent recent_;
  double fraction_before_ = 0, seconds_before_;
  Metrics metrics_;
  ProgressDisplay display_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

void print_info(const Options& options) {
  const auto dataset = open_data(options);
  const Shape image = dataset->image_shape();
  const nn::ModelDescription description = describe_model(options, image);
  const nn::Sequential model = description.build();
  const auto rows = description.trace(model, {1, options.latent});
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf("data    %s: %lld images %s\n", options.data.c_str(), number(dataset->size()),
              to_string(image).c_str());
  std::printf("codes   %lld x %lld numbers\n", number(dataset->size()), number(options.latent));
  std::printf("model   %s: %lld parameters\n", options.model.c_str(), number(model.parameter_count()));
  const Length length = length_of(options, dataset->size());
  if (length.steps > 0) {
    std::printf("length  %lld steps\n\n", number(length.steps));
  } else {
    std::printf("length  %s\n\n", duration(length.seconds).c_str());
  }
  std::size_t width = 5;
  for (const auto& row : rows) width = std::max(width, row.text.size());
  std::printf("%-*s  %-16s %12s\n", static_cast<int>(width), "layer", "output", "parameters");
  for (const auto& row : rows) {
    std::printf("%-*s  %-16s %12lld\n", static_cast<int>(width), row.text.c_str(),
                to_string(row.output.without(0)).c_str(), number(row.parameters));
  }
}

int train(const Options& options) {
  const bool resume = !options.resume.empty();
  const RunFolder earlier(options.resume);
  const auto dataset = open_data(options);
  const nn::ModelDescription description =
      resume ? nn::ModelDescription::load(earlier.model()) : describe_model(options, dataset->image_shape());
  const Length length = length_of(options, dataset->size());
  Trainer trainer(options, dataset, description, length.steps);
  if (!resume || !std::filesystem::exists(earlier.checkpoint())) trainer.initialise();
  const RunFolder folder = resume ? earlier : RunFolder::create(options.out, options.data, options.model);
  return Session(options, folder, description, length, trainer).run();
}

}  // namespace train_decoder
