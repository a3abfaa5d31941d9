#include "trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "init.h"

namespace train_decoder {

using namespace tapedeck;

namespace {

/// The steps of a schedule when the run ends by time: fine enough to be smooth.
constexpr std::int64_t kTicks = 1000;

void append(nn::StateDict& all, const std::string& prefix, const nn::StateDict& part) {
  for (const auto& [name, tensor] : part) all.emplace_back(prefix + name, tensor);
}

nn::StateDict part_of(const nn::StateDict& all, const std::string& prefix) {
  nn::StateDict part;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) part.emplace_back(name.substr(prefix.size()), tensor);
  }
  return part;
}

std::vector<std::int64_t> numbers(const nn::StateDict& all, const std::string& name, std::size_t count) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
  check(found != all.end() && found->second.dtype() == DType::int64 &&
            found->second.count() == static_cast<std::int64_t>(count),
        "checkpoint: ", name, " is missing, or not ", count, " whole numbers");
  return found->second.to_vector<std::int64_t>();
}

data::DataLoaderOptions loader_options(const Options& options) {
  return {.batch_size = options.batch,
          .shuffle = true,
          .seed = static_cast<std::uint64_t>(options.seed),
          .workers = options.workers,
          .pinned = device(options.device).is_cuda()};
}

DType product_type(const Options& options) {
  if (options.precision == "bfloat16") return DType::bfloat16;
  return options.precision == "float16" ? DType::float16 : DType::float32;
}

}  // namespace

Tensor psnr(const Tensor& images, const Tensor& originals) {
  const NoTape no_tape;
  return clamp(nn::psnr(images, originals), std::numeric_limits<double>::lowest(), 100).tensor();
}

Trainer::Trainer(const Options& options, std::shared_ptr<const Dataset> dataset,
                 const nn::ModelDescription& description, std::int64_t length)
    : options_(options),
      device_(device(options.device)),
      dataset_(std::move(dataset)),
      decoder_((manual_seed(static_cast<std::uint64_t>(options.seed)), description.build())),
      codes_({.num_embeddings = dataset_->size(), .embedding_dim = options.latent}),
      loader_(dataset_, loader_options(options)),
      batches_(loader_, device_),
      train_(device_, [this](const Tensors& batch) { return train_on(batch); }),
      results_(CopyStream::make(device_)),
      length_(length) {
  const Shape image = dataset_->image_shape();
  const Shape made = description.trace(decoder_, {1, options.latent}).back().output;
  check(made == Shape{1, image[0], image[1], image[2]}, "--model ", options.model, ": makes ", made,
        " of codes ", Shape{1, options.latent}, ", but the images of ", options.data, " are ", image);
  check(options.loss != "bce" || std::string_view(decoder_[decoder_.size() - 1].kind()) == "Sigmoid",
        "--loss bce: needs a model whose last layer is sigmoid");
  decoder_.to(device_);
  codes_.to(device_);

  // A code moves once an epoch. Momentum would move it in all the steps between, so it has none. Adam's
  // second moment fades between visits as the decoder's does not; undoing that makes code_lr mean the
  // same for any number of images.
  const double visits = 1 - std::pow(0.999, static_cast<double>(loader_.size()));
  const double code_lr = options.code_lr * std::sqrt(0.001 / visits);
  optimizer_ = std::make_unique<optim::Adam>(
      std::vector<optim::ParamGroup>{{.parameters = decoder_.parameters(), .lr = options.lr},
                                     {.parameters = codes_.parameters(), .lr = code_lr, .momentum = 0.0}},
      optim::Adam::Options{});
  if (options.ema > 0) {
    average_ = std::make_unique<optim::ExponentialMovingAverage>(
        decoder_.parameters(),
        optim::ExponentialMovingAverage::Options{.decay = options.ema, .warmup = true});
  }
  if (options.precision == "float16") scaler_.emplace(device_);
  set_schedule(length > 0 ? length : kTicks);
}

void Trainer::initialise() {
  // Principal components are better, but take a pass over the images: at once for small data only.
  const bool small = dataset_->size() <= (std::int64_t{1} << 24) / dataset_->image_shape().count();
  if (options_.code_init == "pca" || (options_.code_init == "auto" && small)) {
    codes_.weight.tensor().copy_(principal_codes(*dataset_, options_.latent, options_.code_stddev));
  } else {
    normal_(codes_.weight.tensor(), 0, options_.code_stddev);
  }
  start_at_mean_colour(decoder_, *dataset_);
}

void Trainer::set_schedule(std::int64_t length) {
  if (options_.schedule == "constant") return;
  // Up in a line, then down a cosine; "cosine" has just enough of the way up to start gently.
  const std::int64_t up =
      std::max<std::int64_t>(1, length * (options_.schedule == "one-cycle" ? 30 : 2) / 100);
  schedule_ = std::make_unique<optim::SequentialLR>(
      *optimizer_,
      std::vector<std::shared_ptr<optim::Scheduler>>{
          std::make_shared<optim::LinearWarmup>(
              *optimizer_, optim::LinearWarmup::Options{.total_iters = up, .start_factor = 0.04}),
          std::make_shared<optim::CosineAnnealingLR>(
              *optimizer_,
              optim::CosineAnnealingLR::Options{.t_max = std::max<std::int64_t>(1, length - up)})},
      std::vector<std::int64_t>{up});
}

void Trainer::advance_schedule(double fraction) {
  if (!schedule_) return;
  const std::int64_t target =
      length_ > 0 ? std::min(steps_, length_) : static_cast<std::int64_t>(std::min(fraction, 1.0) * kTicks);
  schedule_->apply(target);  // steps and ticks are counted here: a resumed run may change between them
}

const data::Batch& Trainer::next_batch() {
  if (batch_) ++*batch_;
  while (!batch_ || *batch_ == std::default_sentinel) {
    batch_.reset();  // one loop at a time
    batch_.emplace(batches_.begin());
  }
  return **batch_;
}

Variable Trainer::loss(const Variable& codes, const Variable& images, Variable& output) {
  if (options_.loss == "bce") {
    // The last layer is a sigmoid: the loss takes what goes into it, which is accurate for large values.
    Variable logits = codes;
    for (std::size_t i = 0; i + 1 < decoder_.size(); ++i) logits = decoder_[i](logits);
    output = sigmoid(logits.detach());
    return nn::binary_cross_entropy_with_logits(logits, images);
  }
  output = decoder_(codes);
  if (options_.loss == "l1") return nn::l1_loss(output, images);
  if (options_.loss == "mse+ssim") {
    // The usual window, but no larger than the images; it must be odd.
    const std::int64_t side = std::min({images.size(2), images.size(3), std::int64_t{11}});
    return nn::mse_loss(output, images) +
           nn::ssim_loss(output, images, {.window_size = side - 1 + side % 2}) * options_.ssim_weight;
  }
  return nn::mse_loss(output, images);
}

std::optional<StepResult> Trainer::step(double fraction) {
  const data::Batch& batch = next_batch();  // may throw, for files, with the state still whole
  whole_ = false;
  advance_schedule(fraction);
  decoder_.train();
  const Tensor values = train_({batch.images, batch.indices})[0];
  const std::optional<StepResult> before = last();  // while this one is computed
  whole_ = false;
  if (results_ != nullptr) {
    {
      const ContextScope pinned(pinned_context());
      values_ = Tensor::empty(values.shape(), {DType::float64});
    }
    results_->copy(values.clone(), values_);  // a clone: the next step writes the values
  } else {
    values_ = values;
  }
  last_ = {.images = batch.images.size(0),
           .lr = optimizer_->groups()[0].lr,
           .code_lr = optimizer_->groups()[1].lr};
  ++steps_;
  whole_ = true;
  return before;
}

std::optional<StepResult> Trainer::last() {
  if (!last_) return {};
  StepResult result = *std::exchange(last_, std::nullopt);
  whole_ = false;
  if (results_ != nullptr) results_->wait();
  result.loss = values_.data<double>()[0], result.psnr = values_.data<double>()[1];
  check(std::isfinite(result.loss), "step ", steps_ - 1, ": the loss is ", result.loss,
        "; a smaller --lr or --code-lr may help");
  whole_ = true;
  return result;
}

Tensors Trainer::train_on(const Tensors& batch) {
  const Tensor &images = batch[0], &indices = batch[1];
  optimizer_->zero_grad();
  Variable value, output;
  {
    Tape tape;
    {
      const Autocast products(product_type(options_));
      value = loss(codes_(indices), images, output);
    }
    tape.backward(scaler_ ? scaler_->scale(value) : value);
  }
  if (scaler_) {
    scaler_->unscale(decoder_.parameters());
    scaler_->unscale(codes_.parameters());
  }
  if (options_.clip > 0) optim::clip_grad_norm(decoder_.parameters(), options_.clip);
  if (scaler_) {
    scaler_->step(*optimizer_);
    scaler_->update();
  } else {
    optimizer_->step();
  }
  if (options_.unit_ball) project_codes();
  if (average_) average_->update();
  const NoTape no_tape;
  return {stack({cast(value, DType::float64), mean(psnr(output.tensor().to(DType::float32), images))}, 0)
              .tensor()};
}

void Trainer::project_codes() {
  NoTape no_tape;
  const Variable codes = codes_.weight;
  const Variable norm = sqrt(sum(square(codes), {1}, true));
  codes.tensor().copy_((codes / clamp(norm, 1, std::numeric_limits<double>::max())).tensor());
}

Tensor Trainer::codes(const std::vector<std::int64_t>& images) const {
  NoTape no_tape;
  const Tensor indices = Tensor::from(images, {static_cast<std::int64_t>(images.size())});
  return index_select(codes_.weight, 0, indices.to(device_)).tensor();
}

Tensor Trainer::decode(const Tensor& codes) {
  NoTape no_tape;
  std::optional<optim::ExponentialMovingAverage::Scope> averaged;
  if (average_) averaged.emplace(*average_);
  decoder_.eval();
  return decoder_(codes.to(device_)).tensor().to(Device{});
}

double Trainer::mean_psnr(const std::function<bool()>& stop) {
  double sum = 0;
  data::DataLoader loader(dataset_, {.batch_size = 256, .workers = options_.workers});
  for (const data::Batch& batch : loader) {
    if (stop()) return std::numeric_limits<double>::quiet_NaN();
    const Tensor made = decode(codes(batch.indices.to_vector<std::int64_t>()));
    for (const double value : psnr(made, batch.images).to_vector<double>()) sum += value;
  }
  return sum / static_cast<double>(dataset_->size());
}

nn::StateDict Trainer::state_dict() const {
  nn::StateDict state;
  append(state, "decoder.", decoder_.state_dict());
  append(state, "codes.", codes_.state_dict());
  append(state, "optimizer.", optimizer_->state_dict());
  if (schedule_) append(state, "schedule.", schedule_->state_dict());
  if (average_) append(state, "average.", average_->state_dict());
  if (scaler_) append(state, "scaler.", scaler_->state_dict());
  const Generator& generator = default_generator();
  const auto signed_number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  state.emplace_back("loader", Tensor::from({batches_.epoch(), batches_.position()}, {2}));
  state.emplace_back("generator",
                     Tensor::from({signed_number(generator.seed()), signed_number(generator.offset())}, {2}));
  state.emplace_back("steps", Tensor::from({steps_}, {1}));
  return state;
}

void Trainer::load_state_dict(const nn::StateDict& state) {
  decoder_.load_state_dict(part_of(state, "decoder."));
  codes_.load_state_dict(part_of(state, "codes."));
  optimizer_->load_state_dict(part_of(state, "optimizer."));
  if (schedule_) schedule_->load_state_dict(part_of(state, "schedule."));
  if (average_) average_->load_state_dict(part_of(state, "average."));
  if (scaler_) scaler_->load_state_dict(part_of(state, "scaler."));
  const auto loader = numbers(state, "loader", 2), generator = numbers(state, "generator", 2);
  batch_.reset();
  batches_.seek(loader[0], loader[1]);
  default_generator().set_state(static_cast<std::uint64_t>(generator[0]),
                                static_cast<std::uint64_t>(generator[1]));
  steps_ = numbers(state, "steps", 1)[0];
  last_.reset();
}

}  // namespace train_decoder
