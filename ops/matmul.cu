// Matrix products by cuBLASLt, or those that it is slow at by tiles (matmul_tiles.cu).
//
// cuBLASLt's matrices are column-major, so what it computes is out^T = op(b)^T op(a)^T: b comes first, and a
// row-major matrix is its own transpose. The bias, one number for each column of out, is then one for each
// row, which its epilogue adds; the same sets negative results to 0, if asked to. Which algorithm fits a
// shape is asked once. Scratch comes from the allocator, so that calls on different streams never share it;
// the result depends on nothing but the arguments.
#include <tapedeck/ops/matmul.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include <cublasLt.h>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/strided.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/ops/matmul_tiles.cuh>

namespace tapedeck::cu {

namespace {

void check_blas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "matmul: ", what, ": ", cublasLtGetStatusName(status));
}

cublasLtHandle_t blas_of(Device device) {
  static std::mutex mutex;
  static auto* const handles = new std::map<int, cublasLtHandle_t>;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = (*handles)[device.index];
  if (handle == nullptr) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

struct Types {
  /// Of factors and their product.
  Types(DType factors, DType product) : data(type_of(factors)), result(type_of(product)) {
    if (data == CUDA_R_64F) scale = CUDA_R_64F, compute = CUBLAS_COMPUTE_64F;
    if (data != CUDA_R_32F) return;
    if (float32_precision() == Precision::high) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    if (float32_precision() == Precision::medium) compute = CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  /// What they are to tiles, if those can multiply them.
  std::optional<matmul_tiles::TileMath> tile_math() const {
    using matmul_tiles::TileMath;
    if (result != CUDA_R_32F) return {};
    if (data == CUDA_R_16BF) return TileMath::bfloat16;
    if (data == CUDA_R_16F) return TileMath::float16;
    return compute == CUBLAS_COMPUTE_32F ? TileMath::float32 : TileMath::tf32;  // of Precision::medium, too
  }
  cudaDataType_t data, result, scale = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

/// A product of `batch` matrices; the steps are elements between them, 0 for one that all share.
struct Product {
  std::int64_t m, n, k, batch;
  bool ta, tb;
  std::int64_t step_a, step_b, step_c;
  bool bias, relu;  // relu: of a product with a bias
  auto operator<=>(const Product&) const = default;
};

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { (void)destroy(object); }
};
using MatmulDesc = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_blas(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value), "descriptor");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  check_blas(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value), "layout");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "preference");
}

MatrixLayout matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t batch,
                    std::int64_t step) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), rows),
             "layout");
  MatrixLayout layout(made);
  set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
  set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  return layout;
}

/// The largest power of two up to 256 that divides an address.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return static_cast<std::uint32_t>(address & -address);
}

/// A product that is set up: descriptors, and the algorithm that cuBLASLt suggests.
struct Plan {
  MatmulDesc desc;
  MatrixLayout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t scratch = 0;
  bool found = false;

  Plan(cublasLtHandle_t blas, const Product& p, const Types& types, std::uint32_t align_a,
       std::uint32_t align_b, std::uint32_t align_c)
      : a(matrix(types.data, p.ta ? p.m : p.k, p.ta ? p.k : p.m, p.batch, p.step_a)),
        b(matrix(types.data, p.tb ? p.k : p.n, p.tb ? p.n : p.k, p.batch, p.step_b)),
        c(matrix(types.result, p.n, p.m, p.batch, p.step_c)) {
    cublasLtMatmulDesc_t made = nullptr;
    check_blas(cublasLtMatmulDescCreate(&made, types.compute, types.scale), "descriptor");
    desc.reset(made);
    set(made, CUBLASLT_MATMUL_DESC_TRANSA, p.tb ? CUBLAS_OP_T : CUBLAS_OP_N);  // b comes first
    set(made, CUBLASLT_MATMUL_DESC_TRANSB, p.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
      set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
    }

    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "preference");
    const Preference owner(preference);
    constexpr std::uint64_t kMostScratch = std::uint64_t{32} << 20;
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostScratch);
    // Sums are rounded to 16 bits once: not in parts, nor before a bias is added.
    if (types.result != types.scale) {
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          static_cast<std::uint32_t>(p.bias ? CUBLASLT_REDUCTION_SCHEME_NONE
                                            : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    }
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_b);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_a);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_c);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_c);
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(blas, made, b.get(), a.get(), c.get(),
                                                                 c.get(), preference, 1, &result, &results);
    found = status == CUBLAS_STATUS_SUCCESS && results > 0;
    algorithm = result.algo;
    scratch = result.workspaceSize;
  }
};

const Plan& plan_of(Device device, const Product& p, const Types& types, const void* a, const void* b,
                    const void* c) {
  const std::uint32_t align[] = {alignment_of(a), alignment_of(b), alignment_of(c)};
  using Key = std::tuple<int, Product, cudaDataType_t, cudaDataType_t, cublasComputeType_t, std::uint32_t,
                         std::uint32_t, std::uint32_t>;
  static std::mutex mutex;
  static auto* const plans = new std::map<Key, std::unique_ptr<Plan>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan =
      (*plans)[{device.index, p, types.data, types.result, types.compute, align[0], align[1], align[2]}];
  if (!plan) {
    const DeviceScope scope(device);
    plan = std::make_unique<Plan>(blas_of(device), p, types, align[0], align[1], align[2]);
  }
  return *plan;
}

/// c = a b, plus the bias, rectified, if the product says so; else plus what c holds, times `beta`. False,
/// with nothing done, when cuBLASLt has no algorithm.
bool multiply(Device device, const Product& p, const Types& types, const void* a, const void* b,
              const void* bias, double beta, void* c) {
  const Plan& plan = plan_of(device, p, types, a, b, c);
  if (!plan.found) return false;
  // The descriptor holds the bias's address: a copy of its own, as others may use the plan now.
  cublasLtMatmulDescOpaque_t desc = *static_cast<cublasLtMatmulDesc_t>(plan.desc.get());
  if (p.bias) set(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, narrow_beta = static_cast<float>(beta);
  const double wide_one = 1;
  const bool wide = types.scale == CUDA_R_64F;
  const void* const alpha = wide ? static_cast<const void*>(&wide_one) : &one;
  const void* const scale = wide ? static_cast<const void*>(&beta) : &narrow_beta;
  const Workspace<std::uint8_t> scratch(device, static_cast<std::int64_t>(plan.scratch));
  const DeviceScope scope(device);
  check_blas(
      cublasLtMatmul(blas_of(device), &desc, alpha, b, plan.b.get(), a, plan.a.get(), scale, c, plan.c.get(),
                     c, plan.c.get(), &plan.algorithm, scratch.data(), plan.scratch, stream_of(device)),
      "cublasLtMatmul");
  return true;
}

/// The products that a call is made of: one of `batch` matrices for each index of the loop's other
/// dimensions.
struct Products {
  /// Of tensors of these shapes; the loop counts matrices.
  Products(const Shape& a, Transpose ta, const Shape& b, Transpose tb, const Shape& out, bool bias, bool relu)
      : loop(loop_of(a, b, out)),
        inner(static_cast<int>(std::max_element(loop.sizes, loop.sizes + loop.rank) - loop.sizes)) {
    const std::int64_t m = out[-2], n = out[-1], k = a[ta == Transpose::no ? -1 : -2];
    each = {m,
            n,
            k,
            loop.sizes[inner],
            ta == Transpose::yes,
            tb == Transpose::yes,
            loop.strides[1][inner] * m * k,
            loop.strides[2][inner] * k * n,
            std::max<std::int64_t>(1, loop.strides[0][inner]) * m * n,
            bias,
            relu};
  }
  std::int64_t count() const { return each.batch == 0 ? 0 : loop.count() / each.batch; }
  /// How many in a row begin equally far apart: all, if they are of one dimension.
  std::int64_t even() const { return loop.rank <= 2 ? count() : 1; }
  /// The sizes of so many, if they are computed by tiles.
  std::optional<matmul_tiles::Sizes> tiled(const Types& types) const {
    const auto math = types.tile_math();
    if (!math || count() == 0) return {};
    return matmul_tiles::tiled({each.m, each.n, each.k, each.batch}, each.ta, each.tb, *math, even());
  }
  /// The matrices of a, b and out that product i begins with.
  std::array<std::int64_t, 3> begin(std::int64_t i) const {
    std::array<std::int64_t, 3> at{};
    for (int d = loop.rank - 1; d >= 0; --d) {
      if (d == inner) continue;
      for (std::size_t t = 0; t < 3; ++t) at[t] += i % loop.sizes[d] * loop.strides[t][d];
      i /= loop.sizes[d];
    }
    return at;
  }

  StridedLoop<3> loop;  // out, a, b
  int inner;            // its dimension of most matrices
  Product each{};

 private:
  static StridedLoop<3> loop_of(const Shape& a, const Shape& b, const Shape& out) {
    const Shape lead(std::span(out.begin(), out.end() - 2));
    const auto strides = [&](const Shape& x) {
      Strides of{};
      std::int64_t step = 1;
      for (int d = -3; d >= -x.rank(); --d) {
        of[lead.rank() + d + 2] = x[d] == 1 ? 0 : step;
        step *= x[d];
      }
      return of;
    };
    return StridedLoop<3>::over(lead, {strides(out), strides(a), strides(b)});
  }
};

/// All of them by tiles. False, with nothing done, where these do not compute them.
bool multiply_by_tiles(const Products& products, const Types& types, const Tensor& a, const Tensor& b,
                       const Tensor& bias, double beta, const Tensor& out) {
  const Product& p = products.each;
  const auto at_words = [](const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.raw()) % 4 == 0; };
  const auto sizes = products.tiled(types);
  if (!sizes || !at_words(a) || !at_words(b)) return false;
  const std::int64_t of_word = types.data == CUDA_R_32F ? 1 : 2, of_a = p.m * p.k / of_word,
                     of_b = p.k * p.n / of_word, of_out = p.m * p.n;
  const auto next = products.begin(products.even() > 1 ? 1 : 0);
  for (std::int64_t i = 0; i < products.count(); i += products.even()) {
    const auto at = products.begin(i);
    multiply_tiles(out.device(), {.math = *types.tile_math(),
                                  .sizes = *sizes,
                                  .transposed_a = p.ta,
                                  .transposed_b = p.tb,
                                  .a = static_cast<const float*>(a.raw()) + at[1] * of_a,
                                  .b = static_cast<const float*>(b.raw()) + at[2] * of_b,
                                  .step_a = {p.step_a / of_word, next[1] * of_a},
                                  .step_b = {p.step_b / of_word, next[2] * of_b},
                                  .bias = p.bias ? bias.data<float>() : nullptr,
                                  .beta = static_cast<float>(beta),
                                  .relu = p.relu,
                                  .to = out.data<float>() + at[0] * of_out,
                                  .step_to = {p.step_c, next[0] * of_out},
                                  .inner = p.batch});
  }
  return true;
}

/// The products, each plus what out holds, times `beta`, or plus the bias. False when cuBLASLt has no
/// algorithm.
bool multiply_all(const Products& products, const Tensor& a, const Tensor& b, const Tensor& bias, double beta,
                  const Tensor& out) {
  const Product& p = products.each;
  const Types types(a.dtype(), out.dtype());
  if (multiply_by_tiles(products, types, a, b, bias, beta, out)) return true;
  const auto place = [](const Tensor& x, std::int64_t elements) {
    return static_cast<std::byte*>(x.raw()) + elements * static_cast<std::int64_t>(size_of(x.dtype()));
  };
  for (std::int64_t i = 0; i < products.count(); ++i) {
    const auto at = products.begin(i);
    if (!multiply(out.device(), p, types, place(a, at[1] * p.m * p.k), place(b, at[2] * p.k * p.n),
                  p.bias ? bias.raw() : nullptr, beta, place(out, at[0] * p.m * p.n)))
      return false;
  }
  return true;
}
/// The same without a bias. Throws Error.
void multiply_onto(const Products& products, const Tensor& a, const Tensor& b, double beta,
                   const Tensor& out) {
  check(multiply_all(products, a, b, {}, beta, out), "matmul: cuBLASLt has no algorithm for a ", a, " and b ",
        b);
}

}  // namespace

void matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& bias,
            const Tensor& out, double negative_slope) {
  Products products(a.shape(), ta, b.shape(), tb, out.shape(), bias.defined(), negative_slope == 0);
  Product& p = products.each;
  if (p.k == 0) {
    bias.defined() ? expand(bias, 1, out) : fill(out, 0);
    if (negative_slope != 1) rectify(out, negative_slope);
    return;
  }
  // cuBLASLt adds a bias to float64 and to odd shapes itself only where it can; otherwise out holds it
  // before.
  if (p.bias && out.dtype() != DType::float64 && multiply_all(products, a, b, bias, 0, out)) {
    if (negative_slope != 1 && !p.relu) rectify(out, negative_slope);
    return;
  }
  if (p.bias) expand(bias, 1, out);
  p.bias = p.relu = false;
  multiply_onto(products, a, b, bias.defined() ? 1 : 0, out);
  if (negative_slope != 1) rectify(out, negative_slope);
}

void add_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& out) {
  const Products products(a.shape(), ta, b.shape(), tb, out.shape(), false, false);
  if (products.each.k > 0) multiply_onto(products, a, b, 1, out);
}

std::int64_t matmul_workspace(Device device, DType dtype, const Shape& a, Transpose ta, const Shape& b,
                              Transpose tb, DType product, const Shape& out, bool has_bias) {
  const Products products(a, ta, b, tb, out, has_bias && dtype != DType::float64, false);
  const Product& p = products.each;
  if (const auto sizes = products.tiled(Types(dtype, product))) return tiles_workspace(*sizes);
  return static_cast<std::int64_t>(
      plan_of(device, p, Types(dtype, product), nullptr, nullptr, nullptr).scratch);
}

}  // namespace tapedeck::cu
