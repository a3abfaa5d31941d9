// Generative latent optimisation: a decoder and one latent code for each image, learned together.
//
//   min over theta, z_1 .. z_n of  sum_i loss(decoder_theta(z_i), x_i)
//
// (Bojanowski, Joulin, Lopez-Paz, Szlam: "Optimizing the latent space of generative networks", ICML
// 2018, arXiv 1707.05776). There is no encoder: z_i is the i-th row of an embedding, and its gradient
// comes through the decoder like any other.
#pragma once

#include <memory>
#include <optional>

#include <tapedeck/tapedeck.h>

#include "options.h"

namespace train_decoder {

/// What one step came to.
struct StepResult {
  double loss = 0;
  double psnr = 0;  // mean of the batch's images, before the step
  std::int64_t images = 0;
  double lr = 0, code_lr = 0;
};

/// The PSNR of each image in dB for values in [0,1], float64 [n]; 100 stands for equal images.
tapedeck::Tensor psnr(const tapedeck::Tensor& images, const tapedeck::Tensor& originals);

class Trainer {
 public:
  using Dataset = tapedeck::data::Dataset;

  /// `length`: the steps of the whole run, or 0 when it ends by time. Draws from the thread's default
  /// generator, which it seeds. Throws tapedeck::Error when the model does not make images of the data's
  /// shape.
  Trainer(const Options& options, std::shared_ptr<const Dataset> dataset,
          const tapedeck::nn::ModelDescription& description, std::int64_t length);

  /// Sets what a new run starts from: the codes, and the output's bias.
  void initialise();

  /// One step on the next batch. `fraction` in [0, 1] is how much of a run by time is over. On a GPU all that
  /// a step computes is one CUDA graph, while the next batch is copied, and nobody waits for it: what comes
  /// back is what the step before came to, if nobody asked for that. Throws tapedeck::Error when its loss is
  /// not finite.
  std::optional<StepResult> step(double fraction);
  /// What the last step came to, once.
  std::optional<StepResult> last();

  std::int64_t steps() const { return steps_; }
  /// Whether state_dict() is that between two steps: no step that began to compute has thrown.
  bool whole() const { return whole_; }
  std::int64_t epoch() const { return batches_.epoch(); }
  const Dataset& dataset() const { return *dataset_; }

  /// The codes of images, [k, latent].
  tapedeck::Tensor codes(const std::vector<std::int64_t>& images) const;
  /// What codes [k, latent] decode to, on the CPU, in evaluation mode and with the averaged weights if
  /// there are such. Buffers (the running statistics of batch normalisation) are those of training: they
  /// are averages already, and torch.optim.swa_utils.AveragedModel copies them, too.
  tapedeck::Tensor decode(const tapedeck::Tensor& codes);
  /// The mean over all images of their PSNR. `stop()` is asked between batches; NaN when it says so.
  double mean_psnr(const std::function<bool()>& stop);

  /// memory_snapshot() of what steps as graphs use; empty where there are none.
  std::string graph_memory() const { return train_.memory_snapshot(); }

  /// All that the next steps depend on.
  tapedeck::nn::StateDict state_dict() const;
  /// Continues from `state` to the same bits. Throws tapedeck::Error when it does not fit.
  void load_state_dict(const tapedeck::nn::StateDict& state);

 private:
  tapedeck::Variable loss(const tapedeck::Variable& codes, const tapedeck::Variable& images,
                          tapedeck::Variable& output);
  const tapedeck::data::Batch& next_batch();
  /// {the loss and the mean PSNR, float64 [2]}, of one step on {images, indices}.
  tapedeck::Tensors train_on(const tapedeck::Tensors& batch);
  void project_codes();
  void set_schedule(std::int64_t length);
  void advance_schedule(double fraction);

  Options options_;
  tapedeck::Device device_;
  std::shared_ptr<const Dataset> dataset_;
  tapedeck::nn::Sequential decoder_;
  tapedeck::nn::Embedding codes_;
  std::unique_ptr<tapedeck::optim::Adam> optimizer_;
  std::unique_ptr<tapedeck::optim::Scheduler> schedule_;  // null: constant
  std::unique_ptr<tapedeck::optim::ExponentialMovingAverage> average_;
  std::optional<tapedeck::optim::GradScaler> scaler_;  // for float16
  tapedeck::data::DataLoader loader_;
  tapedeck::data::DeviceLoader batches_;
  std::optional<tapedeck::data::DeviceLoader::Iterator> batch_;
  tapedeck::CapturedStep train_;
  std::unique_ptr<tapedeck::CopyStream> results_;  // null on the CPU
  tapedeck::Tensor values_;                        // train_on() of the last step, on the CPU when it is there
  std::optional<StepResult> last_;                 // without those
  std::int64_t length_, steps_ = 0;
  bool whole_ = true;
};

}  // namespace train_decoder
