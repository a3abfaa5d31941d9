// Kernels that are still to be written. This file shrinks to nothing.
#include <tapedeck/core/error.h>
#include <tapedeck/ops/dropout.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/optimizer_step.h>
#include <tapedeck/ops/pool.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/resample.h>
#include <tapedeck/ops/softmax.h>
#include <tapedeck/ops/view.h>

namespace tapedeck::cu {

namespace {
[[noreturn]] void missing(const char* op) {
  throw Error(concat(op, ": there is no CUDA kernel yet"));
}
}  // namespace

void dropout(const Tensor&, double, std::uint64_t, std::uint64_t, const Tensor&) {
  missing("dropout");
}
void index_select(const Tensor&, int, const Tensor&, const Tensor&) {
  missing("index_select");
}
void index_add(const Tensor&, int, const Tensor&, const Tensor&) {
  missing("index_add");
}
void gather(const Tensor&, int, const Tensor&, const Tensor&) {
  missing("gather");
}
void scatter_add(const Tensor&, int, const Tensor&, const Tensor&) {
  missing("scatter_add");
}
void pointwise_loss(const PointwiseLossCall&, const Tensor&, const Tensor&, const Tensor&) {
  missing("pointwise_loss");
}
void pointwise_loss_sum(const PointwiseLossCall&, double, const Tensor&, const Tensor&, const Tensor&) {
  missing("pointwise_loss_sum");
}
void pointwise_loss_gradient(const PointwiseLossCall&, double, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&) {
  missing("pointwise_loss_gradient");
}
void matmul(const Tensor&, Transpose, const Tensor&, Transpose, const Tensor&, const Tensor&) {
  missing("matmul");
}
void batch_norm_statistics(const Tensor&, const BatchNormOptions&, const Tensor&, const Tensor&,
                           const Tensor&, const Tensor&) {
  missing("batch_norm_statistics");
}
void batch_norm_apply(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                      const Tensor&) {
  missing("batch_norm_apply");
}
void batch_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const BatchNormOptions&, const Tensor&, const Tensor&, const Tensor&) {
  missing("batch_norm_backward");
}
void group_norm(const Tensor&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&,
                const Tensor&) {
  missing("group_norm");
}
void group_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                         const Tensor&, const Tensor&, const Tensor&) {
  missing("group_norm_backward");
}
void sgd(const OptimizerBatch&, const SgdSettings&) {
  missing("sgd");
}
void adam(const OptimizerBatch&, const AdamSettings&) {
  missing("adam");
}
void rmsprop(const OptimizerBatch&, const RmspropSettings&) {
  missing("rmsprop");
}
void global_norm(const Tensors&, const Tensor&) {
  missing("global_norm");
}
void scale_to_norm(const Tensors&, const Tensor&, double, const Tensors&) {
  missing("scale_to_norm");
}
void update_averages(const Tensors&, const Tensors&, double) {
  missing("update_averages");
}
void max_pool2d(const Tensor&, const MaxPool2dOptions&, const Tensor&, const Tensor&) {
  missing("max_pool2d");
}
void sum(const Tensor&, double, const Tensor&) {
  missing("sum");
}
void extreme(Extreme, const Tensor&, const Tensor&) {
  missing("extreme");
}
void extreme_share(const Tensor&, const Tensor&, const Tensor&) {
  missing("extreme_share");
}
void squared_deviation(const Tensor&, double, const Tensor&) {
  missing("squared_deviation");
}
void argmax(const Tensor&, int, const Tensor&) {
  missing("argmax");
}
void expand(const Tensor&, double, const Tensor&) {
  missing("expand");
}
void resample(const Tensor&, const ResampleAxis&, const ResampleAxis&, bool, const Tensor&) {
  missing("resample");
}
void softmax(const Tensor&, int, bool, const Tensor&) {
  missing("softmax");
}
void logsumexp(const Tensor&, const Tensor&) {
  missing("logsumexp");
}
void copy_view(const View&, const View&) {
  missing("copy_view");
}

}  // namespace tapedeck::cu
