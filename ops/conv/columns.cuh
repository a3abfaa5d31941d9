// Products of all pixels with all taps, which are added up behind (columns.cu), or of pixels that are
// gathered for all taps before (columns_gathered.cu).
#pragma once

#include <algorithm>
#include <type_traits>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/conv_axis32.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

/// Whether this can compute a call on tensors of this type and layouts.
bool columns_fits(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from, Layout to);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void columns(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
             const Tensor& bias, const Tensor& to, double negative_slope);
/// The bytes that it takes beside its tensors.
std::int64_t columns_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from,
                               Device device);

/// The same of conv2d where conv_columns::gathers().
bool gathered_columns_fit(const ConvTranspose2dGeometry& g, DType dtype);
void gathered_columns(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                      const Tensor& x, double negative_slope);
/// Without a bias, as a gradient has none.
std::int64_t gathered_columns_workspace(const ConvTranspose2dGeometry& g, DType dtype, Device device);
/// And of conv_transpose2d_weight_grad.
bool columns_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y);
void columns_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
std::int64_t columns_weight_grad_workspace(const ConvTranspose2dGeometry& g, DType dtype, Device device);

/// Products of tensors of T: those of 16 bits are rounded when they are added.
template <class T>
using ProductOf = std::conditional_t<std::is_same_v<T, double>, double, float>;
inline DType type_of_products(DType dtype) {
  return dtype == DType::float64 ? DType::float64 : DType::float32;
}

/// Threads that keep all multiprocessors of an H200 busy come before few instructions.
inline constexpr std::int64_t kBusy = 132 * 2048;

using conv_columns::kLineThreads;
using conv_columns::LineTiles;

/// For a kernel of the device, the current one, whose blocks have such tiles; arguments as of LineTiles and
/// share().
template <class... P>
LineTiles line_tiles(Device device, std::int64_t width, std::int64_t lines, std::int64_t columns,
                     std::int64_t period, double setup, void (*kernel)(P...)) {
  LineTiles tiles(width, columns, period);
  int resident = 0;  // blocks of a multiprocessor
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, tiles.threads_x * tiles.threads_y, 0),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  tiles.share(lines, std::int64_t{multiprocessors(device)} * std::max(1, resident), setup);
  return tiles;
}

}  // namespace tapedeck::cu
