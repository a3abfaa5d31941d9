// The convolution family as matrix products of tiles, by a Math of gemm_tile.cuh.
#pragma once

#include <tapedeck/ops/prologue.h>
#include <tapedeck/ops/conv/gemm_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h, for tensors of the type that Math takes, where
/// fits(g). gemm_map.cuh.
template <class Math>
void map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
         const Tensor& bias, const Tensor& to);

/// The weight's gradient. gemm_weight_grad.cuh.
template <class Math>
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

/// Whether the next two run on a device. wgmma.cu.
bool has_wgmma(Device device);
/// The same by Hopper's instructions, for Tf32, Tf32x3 and Half. Whether `to` is rectified, too: negative
/// results multiplied by the slope. `shared`: as of map_way(). `prologue`: of boxes of copies.
/// wgmma_choice.cuh.
template <class Math>
bool wgmma_map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to, double negative_slope, bool shared = false,
               const Prologue& prologue = {});
template <class Math>
void wgmma_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w,
                       const Prologue& prologue = {});
/// The same of stride 2 along w, over nchw images as they lie, for Tf32 and Half, if there is a plan
/// (pair_grad_plan.h) and these begin at whole vectors; returns whether there was. wgmma_pairs.cu.
template <class Math>
bool pair_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

/// Lets a kernel have more than 48 KB of shared memory.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute");
}

}  // namespace tapedeck::cu::conv_gemm
