// Which kernel computes the convolution family on the CPU.
//
// windows     (windows.cpp) conv_transpose2d and conv2d: windows of channels-last pixels times packed
// weights;
//             the lanes of vectors are result channels or, where those are few, channels that are read.
// weight_grad (weight_grad.cpp) the weight gradient: sums of outer products of channels.
// matrix      (matrix.cpp) all three, where x is one pixel and y a row-major map of the kernel's size.
// reference   the definition, one output at a time, for every dtype and layout. Slow; what the others are
//             tested against and timed beside.
//
// cpu::conv_transpose2d, cpu::conv2d and cpu::conv_transpose2d_weight_grad (declared beside their ops)
// choose. TAPEDECK_CONV_ALGORITHM=reference in the environment, or set_conv_algorithm(), forces the
// reference kernel.
#pragma once

#include <string_view>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

enum class ConvAlgorithm : std::uint8_t { automatic, reference };

/// Which kernels the convolution family uses from now on, in every thread. The default is `automatic`, or
/// what TAPEDECK_CONV_ALGORITHM names.
void set_conv_algorithm(ConvAlgorithm algorithm);
/// Throws Error when TAPEDECK_CONV_ALGORITHM names none.
ConvAlgorithm conv_algorithm();
/// The algorithm of a name. Throws Error for an unknown one.
ConvAlgorithm parse_conv_algorithm(std::string_view name);

namespace cpu::reference {
// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y);
void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x);
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
}  // namespace cpu::reference

}  // namespace tapedeck
