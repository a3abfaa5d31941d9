#include "session.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include <tapedeck/core/backend.h>

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

/// Sums over the steps since the last line of metrics, and the learning rates of the last of them. Part of a
/// checkpoint, so that the lines of a resumed run are those of an unbroken one.
struct Meter {
  double loss = 0, psnr = 0;
  std::int64_t steps = 0;
  double lr = 0, code_lr = 0;

  void add(const StepResult& result) {
    loss += result.loss;
    psnr += result.psnr;
    ++steps;
    lr = result.lr;
    code_lr = result.code_lr;
  }
  Tensor tensor() const { return Tensor::from({loss, psnr, static_cast<double>(steps), lr, code_lr}, {5}); }
  static Meter from(const Tensor& tensor) {
    const auto values = tensor.to_vector<double>();
    check(values.size() == 5, "checkpoint: meter is not 5 numbers");
    check(values[2] >= 0 && values[2] < 0x1p53, "checkpoint: meter counts ", values[2], " steps");
    return {values[0], values[1], static_cast<std::int64_t>(values[2]), values[3], values[4]};
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
  if (!options.resume.empty()) return nn::ModelDescription::load(RunFolder(options.resume).model());
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
  const Shape image = dataset->image_shape();
  check(dataset->size() > 0 && image.count() > 0, "--data ", options.data, ": has ", dataset->size(),
        " images ", image, ", which leaves nothing to learn");
  return dataset;
}

/// `data` by a name that holds in every current directory.
std::string absolute(const std::string& data) {
  if (data == "sprites" || data.starts_with("sprites:")) return data;
  return std::filesystem::absolute(data).lexically_normal();
}

/// checkpoint.safetensors: all that the next steps depend on.
struct Checkpoint {
  nn::StateDict state;  // empty: there is none yet
  data::Metadata metadata;
};

/// Throws tapedeck::Error when the checkpoint is not of this model.
Checkpoint load_checkpoint(const RunFolder& folder, const nn::ModelDescription& description) {
  Checkpoint checkpoint;
  if (!std::filesystem::exists(folder.checkpoint())) return checkpoint;
  checkpoint.state = data::load_safetensors(folder.checkpoint(), &checkpoint.metadata);
  check(checkpoint.metadata.contains("model"), folder.checkpoint(), ": not a checkpoint of train_decoder");
  check(checkpoint.metadata["model"] == description.text(), folder.model(), ": is not the model of ",
        folder.checkpoint(), "; put it back, or start a run of its own with --model ", folder.model());
  return checkpoint;
}

/// A run and everything that belongs to it.
class Session {
 public:
  /// Goes on from the checkpoint, if there is one.
  Session(const Options& options, const RunFolder& folder, const nn::ModelDescription& description,
          Length length, Trainer& trainer, Checkpoint checkpoint)
      : options_(options),
        folder_(folder),
        description_(description),
        length_(length),
        trainer_(trainer),
        seconds_before_(load(std::move(checkpoint.state))),
        saved_step_(trainer.steps()),
        metrics_(folder.metrics(), trainer.steps() - meter_.steps),  // later lines come anew
        display_(options.quiet) {}

  /// Trains to the end, or until a signal comes. Returns the exit status.
  int run() {
    // Only now, when the checkpoint is loaded and nothing can be wrong with what was asked for.
    Options stored = options_;
    stored.data = absolute(options_.data);
    write_atomically(folder_.model(), description_.text());
    write_atomically(folder_.config(), to_json(stored));
    const InterruptGuard guard;
    try {
      train();
    } catch (const std::exception& error) {
      display_.end_line();
      if (!rescue()) throw;
      throw Error(concat(error.what(), "; what was learned until step ", saved_step_,
                         " is saved: ", resume_command()));
    }
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

  void train() {
    Timer checkpoints(options_.checkpoint_every), pictures(options_.sample_every);
    log();  // a line that an error kept from being written
    while (!over() && !stopped()) {
      step();
      if (over() || stopped()) break;
      if (checkpoints.due(trainer_.steps())) save();
      if (pictures.due(trainer_.steps())) write_pictures(trainer_, metrics_, folder_);
    }
    count(trainer_.last());
    if (recent_.any()) display_.show(progress(), true);
    display_.end_line();
    save();
    if (meter_.steps > 0) write_metrics();  // of an interval that may still grow: the meter goes on
    write_pictures(trainer_, metrics_, folder_);
  }

  void step() {
    const auto before = Clock::now();
    count(trainer_.step(fraction()));
    if (trainer_.steps() % options_.log_every == 0) count(trainer_.last());
    seconds_ += seconds_since(before);
    log();
    if (recent_.any()) display_.show(progress());
  }

  /// Counts what a step came to, when that is known.
  void count(const std::optional<StepResult>& result) {
    if (!result) return;
    recent_.add(*result, std::exchange(seconds_, 0));
    meter_.add(*result);
  }

  /// Ends an interval of metrics.csv, if this step does.
  void log() {
    if (meter_.steps == 0 || trainer_.steps() % options_.log_every != 0) return;
    write_metrics();
    meter_ = {};
  }

  void write_metrics() {
    const auto steps = static_cast<double>(meter_.steps);
    metrics_.append({.step = trainer_.steps(),
                     .epoch = trainer_.epoch(),
                     .seconds = elapsed(),
                     .loss = meter_.loss / steps,
                     .psnr = meter_.psnr / steps,
                     .lr = meter_.lr,
                     .code_lr = meter_.code_lr,
                     .images_per_second = recent_.images_per_second()});
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

  /// Continues from `state`, if there is any. Returns the seconds that the run took before.
  double load(nn::StateDict state) {
    if (state.empty()) return 0;
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
    count(trainer_.last());
    nn::StateDict state = trainer_.state_dict();
    state.emplace_back("meter", meter_.tensor());
    const Shape image = trainer_.dataset().image_shape();
    data::save_safetensors(folder_.checkpoint(), state,
                           {{"format", "tapedeck train_decoder 1"},
                            {"model", description_.text()},
                            {"latent", std::to_string(options_.latent)},
                            {"image", concat(image[0], "x", image[1], "x", image[2])}});
    write_status(folder_.status(), {.step = trainer_.steps(), .seconds = elapsed()});
    saved_step_ = trainer_.steps();
  }

  /// After an error: saves what was learned since the last checkpoint, if it is worth anything. Returns
  /// whether it did.
  bool rescue() {
    if (!trainer_.whole() || trainer_.steps() == saved_step_) return false;
    try {
      save();
      return true;
    } catch (const std::exception&) {
      return false;  // the first error tells more
    }
  }

  std::string resume_command() const { return concat("train_decoder --resume ", folder_.path(), " goes on"); }

  int stop() {
    std::printf("stopped after step %lld; %s\n", static_cast<long long>(trainer_.steps()),
                resume_command().c_str());
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
  double seconds_ = 0;  // of steps since the last that was counted
  double fraction_before_ = 0, seconds_before_;
  std::int64_t saved_step_;
  Metrics metrics_;
  ProgressDisplay display_;
  Clock::time_point start_ = Clock::now();
};

/// The file of --memory-snapshot, if it is asked for.
void write_memory(const Options& options, const std::optional<Trainer>& trainer) {
  if (options.memory_snapshot.empty()) return;
  std::vector<std::string> snapshots = {memory_snapshot(device(options.device))};
  std::string graphs = trainer ? trainer->graph_memory() : "";
  if (!graphs.empty()) snapshots.push_back(std::move(graphs));
  std::string list;
  for (const std::string& snapshot : snapshots) list += (list.empty() ? "[" : ",\n") + snapshot;
  write_atomically(options.memory_snapshot,
                   options.memory_snapshot.ends_with(".json") ? list + "]\n" : memory_page(snapshots));
}

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
  check(options.device == "cpu" || has_cuda_backend(), "--device ", options.device,
        ": this build of train_decoder has no CUDA; legal is cpu");
  const bool resume = !options.resume.empty();
  std::optional<RunFolder> folder;
  if (resume) folder = RunFolder::locked(options.resume);
  const auto dataset = open_data(options);
  const nn::ModelDescription description = describe_model(options, dataset->image_shape());
  Checkpoint checkpoint;
  if (resume) checkpoint = load_checkpoint(*folder, description);
  const Length length = length_of(options, dataset->size());
  set_float32_precision(options.precision == "high" ? Precision::high : Precision::highest);

  if (!options.memory_snapshot.empty()) record_memory_history(device(options.device), true);
  std::optional<Trainer> trainer;
  int status = 0;
  try {
    trainer.emplace(options, dataset, description, length.steps);
    if (checkpoint.state.empty()) trainer->initialise();
    if (!resume) folder = RunFolder::create(options.out, options.data, options.model);
    status = Session(options, *folder, description, length, *trainer, std::move(checkpoint)).run();
  } catch (const Error&) {
    try {
      write_memory(options, trainer);
    } catch (const Error&) {  // the first error tells more
    }
    throw;
  }
  write_memory(options, trainer);
  return status;
}

}  // namespace train_decoder
