// The fast kernels of the family, for float and double; kernels.h says which is taken when. Results of the
// two directions are rectified (Rectifier of ops/rectifier.h) while a near cache has them.
#pragma once

#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv/plan.h>

namespace tapedeck::cpu {

/// windows.cpp. `w` and `bias` row-major, bias may be undefined; any layouts of `from` and `to`.
template <class T>
void windows(const ConvTranspose2dGeometry& g, Direction direction, Lanes lanes, const Tensor& from,
             const Tensor& w, const Tensor& bias, const Tensor& to, double negative_slope);

/// correlate.cpp. `from` and `to` nchw; w row-major, bias may be undefined.
template <class T>
void correlate(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to, double negative_slope);

/// winograd.cpp. Of float32, where is_winograd() on both axes; any layouts of `from` and `to`.
void winograd(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
              const Tensor& bias, const Tensor& to, double negative_slope);
/// winograd_weight_grad.cpp. The same; any layouts of x and y.
void winograd_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w);

/// depthwise.cpp. Of float32 where is_depthwise(): groups of one channel at stride 2 along w; x and y nchw.
bool is_depthwise(const ConvTranspose2dGeometry& g);
#ifdef TAPEDECK_SMALL
inline constexpr bool kHasDepthwise = false;  // builds for size leave it out
#else
inline constexpr bool kHasDepthwise = true;
#endif
void depthwise_transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w,
                          const Tensor& bias, const Tensor& y, double negative_slope);
void depthwise_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                     const Tensor& x, double negative_slope);
void depthwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                           const Tensor& w);

/// pixel_sums.cpp. x and y nchw; w row-major.
template <class T>
void pixel_sums(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

/// weight_grad.cpp. Any layouts of x and y; w row-major.
template <class T>
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

/// channelwise_weight_grad.cpp. The same, for narrow groups.
template <class T>
void channelwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                             const Tensor& w);

/// in_place.cpp. x and y nchw; w row-major, bias may be undefined. Not in builds for size.
#ifdef TAPEDECK_SMALL
inline constexpr bool kHasInPlace = false;
#else
inline constexpr bool kHasInPlace = true;
#endif
template <class T>
void in_place_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                    const Tensor& x, double negative_slope);
template <class T>
void in_place_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w);

/// matrix.cpp. Where is_matrix() (matrix.h).
template <class T>
void matrix(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to, double negative_slope);
template <class T>
void matrix_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

}  // namespace tapedeck::cpu
