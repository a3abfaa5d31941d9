// The tensor memory accelerator's maps, by the driver's function.
#include <cudaTypedefs.h>

#include <algorithm>

#include <tapedeck/ops/conv/tensor_map.cuh>

namespace tapedeck::cu::conv_gemm {

using namespace tapedeck::conv_gemm;

namespace {

/// The driver's function, found at run time: programs do not link with the driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &result),
               "cudaGetDriverEntryPointByVersion");
    check(function != nullptr,
          "conv: this driver has no cuTensorMapEncodeTiled; legal are drivers for CUDA 12 and later");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return found;
}

CUtensorMapDataType type_of(DType dtype) {
  if (dtype == DType::bfloat16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (dtype == DType::float16) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
}

CUtensorMap map_of(CUtensorMapDataType type, const void* first, const cuuint64_t (&sizes)[5],
                   const cuuint64_t (&strides)[4], const cuuint32_t (&sides)[5], CUtensorMapSwizzle swizzle,
                   CUtensorMapL2promotion brings = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encoder()(&map, type, 5, const_cast<void*>(first), sizes, strides, sides, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, brings, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "conv: cuTensorMapEncodeTiled failed with error ", static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap image_map(const ChannelsLast& images, DType dtype, int n, int groups, const PlaneAxis& h,
                      const PlaneAxis& w, const BoxTile& box) {
  const auto bytes = static_cast<cuuint64_t>(size_of(dtype));
  const ImageStrides& s = images.strides;
  const auto pixels = [](const PlaneAxis& a) {
    return static_cast<cuuint64_t>(std::max(1, (a.size - a.remainder + a.step - 1) / a.step));
  };
  const auto u32 = [](int i) { return static_cast<cuuint32_t>(i); };
  const cuuint64_t sizes[5] = {static_cast<cuuint64_t>(images.group_channels), pixels(w),
                               static_cast<cuuint64_t>(n), pixels(h), static_cast<cuuint64_t>(groups)};
  const cuuint64_t strides[4] = {
      static_cast<cuuint64_t>(s.w) * w.step * bytes, static_cast<cuuint64_t>(s.n) * bytes,
      static_cast<cuuint64_t>(s.h) * h.step * bytes, images.group_channels * bytes};
  const cuuint32_t sides[5] = {static_cast<cuuint32_t>(kPixelBytes / bytes), u32(box.pitch), u32(box.images),
                               u32(box.slice()), 1};
  const char* const first =
      static_cast<const char*>(images.data) +
      (static_cast<std::int64_t>(h.remainder) * s.h + static_cast<std::int64_t>(w.remainder) * s.w) *
          static_cast<std::int64_t>(bytes);
  // Of pixels far apart those between are not brought.
  const bool apart = w.step > 2 && s.w * bytes % 256 != 0;
  return map_of(type_of(dtype), first, sizes, strides, sides, CU_TENSOR_MAP_SWIZZLE_128B,
                apart ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

CUtensorMap piece_map(const Tensor& images, int groups, const GatheredPieces& pieces) {
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const DType dtype = images.dtype();
  const std::int64_t apart = pieces.apart, width = pieces.flat ? apart * pieces.channel : pieces.width,
                     height = pieces.flat ? 1 : images.size(2), channels = images.size(1) / groups,
                     bytes = static_cast<std::int64_t>(size_of(dtype)), channel = bytes * pieces.channel;
  const cuuint64_t sizes[5] = {u64(width), u64(height), u64(channels / apart), u64(groups),
                               u64(images.size(0))},
                   strides[4] = {u64(bytes * width), u64(apart * channel), u64(channels * channel),
                                 u64(images.size(1) * channel)};
  const cuuint32_t sides[5] = {static_cast<cuuint32_t>(pieces.pixels), 1,
                               static_cast<cuuint32_t>(pieces.vectors * kGatheredElements), 1, 1};
  const bool is_float = dtype == DType::float32;
  return map_of(is_float ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type_of(dtype), images.read(), sizes, strides,
                sides,
                is_float                 ? CU_TENSOR_MAP_SWIZZLE_NONE
                : pieces.row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap weight_map(const Tensor& w, int groups, int rows) {
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const std::int64_t near = w.size(1), taps = w.size(2) * w.size(3), far = w.size(0) / groups,
                     bytes = static_cast<std::int64_t>(size_of(w.dtype())), row = taps * near * bytes;
  const cuuint64_t sizes[5] = {u64(near), u64(taps), u64(far), u64(groups), 1},
                   strides[4] = {u64(near * bytes), u64(row), u64(far * row), u64(far * row)};
  const cuuint32_t sides[5] = {static_cast<cuuint32_t>(kPixelBytes / bytes), 1, static_cast<cuuint32_t>(rows),
                               1, 1};
  return map_of(type_of(w.dtype()), w.read(), sizes, strides, sides, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap pixel_map(const Tensor& to, int groups, int fold, const ResultAxis& h, const ResultAxis& w,
                      int bytes, int columns, int images, int rows) {
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const auto u32 = [](int i) { return static_cast<cuuint32_t>(i); };
  const std::int64_t all = to.size(1) * fold, channels = all / groups, pixel = 2 * all,
                     row = to.size(3) / fold * pixel;
  const cuuint64_t sizes[5] = {u64(channels), u64(std::max(1, w.count)), u64(to.size(0)),
                               u64(std::max(1, h.count)), u64(groups)},
                   strides[4] = {u64(w.step * pixel), u64(to.size(2) * row), u64(h.step * row),
                                 u64(2 * channels)};
  const cuuint32_t sides[5] = {u32(bytes / 2), u32(columns), u32(images), u32(rows), 1};
  return map_of(type_of(to.dtype()), static_cast<const char*>(to.raw()) + h.first * row + w.first * pixel,
                sizes, strides, sides,
                bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                              : CU_TENSOR_MAP_SWIZZLE_32B);
}

CUtensorMap result_map(const Tensor& to, int first_row, int row_step, int rows, int pitch,
                       const ResultBox& box, int parities) {
  const DType dtype = to.dtype();
  const auto u32 = [](int i) { return static_cast<cuuint32_t>(i); };
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype)), row = to.size(3) * bytes,
                     channel = to.size(2) * row;
  const cuuint64_t sizes[5] = {u64(to.size(3)), u64(to.size(0)), u64(rows), 2, u64(to.size(1) / 2)},
                   strides[4] = {u64(to.size(1) * channel), u64(row_step * row), u64(channel),
                                 u64(2 * channel)};
  const cuuint32_t sides[5] = {u32(pitch), u32(box.images), u32(box.rows), u32(parities), 8};
  return map_of(dtype == DType::float32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type_of(dtype),
                static_cast<const char*>(to.raw()) + first_row * row, sizes, strides, sides,
                CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap row_map(const Tensor& images, const RowBoxes& boxes, int columns, int channels, bool swizzled) {
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const auto bytes = static_cast<std::int64_t>(size_of(images.dtype()));
  const std::int64_t plane = std::int64_t{boxes.height} * boxes.width, c = images.size(1),
                     apart = boxes.apart, row = boxes.flat ? apart * plane : boxes.width;
  const cuuint64_t sizes[5] = {u64(row), u64(boxes.flat ? 1 : boxes.height), u64(c / apart),
                               u64(images.size(0)), 1},
                   strides[4] = {u64(row * bytes), u64(apart * plane * bytes), u64(c * plane * bytes),
                                 u64(c * plane * bytes)};
  const cuuint32_t sides[5] = {static_cast<cuuint32_t>(columns), 1,
                               static_cast<cuuint32_t>(channels / boxes.apart), 1, 1};
  // (type_of() has float32 rounded to TF32.)
  return map_of(bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type_of(images.dtype()), images.read(), sizes,
                strides, sides, swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

CUtensorMap pair_map_of_x(const Tensor& x, const PairGradPlan& p) {
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const std::int64_t plane = std::int64_t{p.x_h} * p.x_w, channel = plane * p.element_bytes;
  const cuuint64_t sizes[5] = {u64(plane), u64(p.ci), u64(p.groups), u64(p.n), 1},
                   strides[4] = {u64(channel), u64(p.ci * channel), u64(p.groups * p.ci * channel),
                                 u64(p.groups * p.ci * channel)};
  const cuuint32_t sides[5] = {static_cast<cuuint32_t>(p.box_pixels()), static_cast<cuuint32_t>(p.x_rows), 1,
                               1, 1};
  return map_of(type_of(x.dtype()), x.read(), sizes, strides, sides, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap pair_map_of_y(const Tensor& y, const PairGradPlan& p) {
  constexpr int kBytes = 8;  // of what it takes for an element
  const auto u64 = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const auto u32 = [](int i) { return static_cast<cuuint32_t>(i); };
  const std::int64_t channel = std::int64_t{p.y_h} * p.y_w * p.element_bytes, group = p.co * channel;
  const cuuint64_t sizes[5] = {u64(channel / kBytes), u64(p.co), u64(p.groups), u64(p.n), 1},
                   strides[4] = {u64(channel), u64(group), u64(p.groups * group), u64(p.groups * group)};
  const cuuint32_t sides[5] = {u32(p.y_channel_bytes / kBytes), u32(p.y_rows), 1, 1, 1};
  return map_of(CU_TENSOR_MAP_DATA_TYPE_UINT64, y.read(), sizes, strides, sides, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace tapedeck::cu::conv_gemm
