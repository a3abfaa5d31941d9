// Matrix products by cuBLASLt.
//
// cuBLASLt's matrices are column-major, so what it computes is out^T = op(b)^T op(a)^T: b comes first, and a
// row-major matrix is its own transpose. The bias, one number for each column of out, is then one for each
// row, which its epilogue adds; the same sets negative results to 0, if asked to. Which algorithm fits a
// shape is asked once. Scratch comes from the allocator, so that calls on different streams never share it;
// the result depends on nothing but the arguments.
#include <tapedeck/ops/matmul.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <cublasLt.h>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/strided.h>
#include <tapedeck/core/launch.cuh>

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

struct Types {
  cudaDataType_t data, scale;
  cublasComputeType_t compute;
};

Types types_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::bfloat16:
      return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::float16:
      return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    default:
      break;
  }
  switch (float32_precision()) {
    case Precision::high:
      return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
    case Precision::medium:
      return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_16BF};
    case Precision::highest:
      break;
  }
  return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
}

/// A product of `batch` matrices; the steps are elements between them, 0 for one that all share.
struct Product {
  std::int64_t m, n, k, batch;
  bool ta, tb;
  std::int64_t step_a, step_b;
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
        c(matrix(types.data, p.n, p.m, p.batch, p.m * p.n)) {
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
    if (types.data != types.scale) {
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

const Plan& plan_of(Device device, const Product& p, DType dtype, const void* a, const void* b,
                    const void* c) {
  const Types types = types_of(dtype);
  const std::uint32_t align[] = {alignment_of(a), alignment_of(b), alignment_of(c)};
  using Key =
      std::tuple<int, Product, DType, cublasComputeType_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  static std::mutex mutex;
  static auto* const plans = new std::map<Key, std::unique_ptr<Plan>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan =
      (*plans)[{device.index, p, dtype, types.compute, align[0], align[1], align[2]}];
  if (!plan) {
    const DeviceScope scope(device);
    plan = std::make_unique<Plan>(blas_of(device), p, types, align[0], align[1], align[2]);
  }
  return *plan;
}

/// c = a b, plus the bias, rectified, if the product says so; else plus what c holds, times `beta`. False,
/// with nothing done, when cuBLASLt has no algorithm.
bool multiply(Device device, const Product& p, DType dtype, const void* a, const void* b, const void* bias,
              double beta, void* c) {
  const Plan& plan = plan_of(device, p, dtype, a, b, c);
  if (!plan.found) return false;
  // The descriptor holds the bias's address: a copy of its own, as others may use the plan now.
  cublasLtMatmulDescOpaque_t desc = *static_cast<cublasLtMatmulDesc_t>(plan.desc.get());
  if (p.bias) set(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, narrow_beta = static_cast<float>(beta);
  const double wide_one = 1;
  const bool wide = dtype == DType::float64;
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

/// The matrices of a, b and out for each index of the leading sizes, counted in matrices.
StridedLoop<3> batches(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Shape lead(std::span(out.shape().begin(), out.shape().end() - 2));
  const auto strides = [&](const Tensor& x) {
    Strides of{};
    std::int64_t step = 1;
    for (int d = -3; d >= -x.rank(); --d) {
      of[lead.rank() + d + 2] = x.size(d) == 1 ? 0 : step;
      step *= x.size(d);
    }
    return of;
  };
  return StridedLoop<3>::over(lead, {strides(out), strides(a), strides(b)});
}

}  // namespace

void matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& bias,
            const Tensor& out, double negative_slope) {
  const std::int64_t m = out.size(-2), n = out.size(-1), k = a.size(ta == Transpose::no ? -1 : -2);
  if (k == 0) {
    bias.defined() ? expand(bias, 1, out) : fill(out, 0);
    if (negative_slope != 1) rectify(out, negative_slope);
    return;
  }
  const StridedLoop<3> lead = batches(a, b, out);
  const int inner = lead.rank - 1;
  Product p{m,
            n,
            k,
            lead.sizes[inner],
            ta == Transpose::yes,
            tb == Transpose::yes,
            lead.strides[1][inner] * m * k,
            lead.strides[2][inner] * k * n,
            bias.defined(),
            negative_slope == 0};
  const std::int64_t size = static_cast<std::int64_t>(size_of(out.dtype()));
  // cuBLASLt adds a bias to float64 and to odd shapes itself only where it can; otherwise out holds it
  // before.
  const auto run_all = [&](double beta) {
    for (std::int64_t i = 0; i < lead.count() / p.batch; ++i) {
      std::int64_t at[3] = {}, rest = i;
      for (int d = inner - 1; d >= 0; --d) {
        for (int t = 0; t < 3; ++t) at[t] += rest % lead.sizes[d] * lead.strides[t][d];
        rest /= lead.sizes[d];
      }
      const auto place = [&](const Tensor& x, std::int64_t elements) {
        return static_cast<std::byte*>(x.raw()) + elements * size;
      };
      if (!multiply(out.device(), p, out.dtype(), place(a, at[1] * m * k), place(b, at[2] * k * n),
                    p.bias ? bias.raw() : nullptr, beta, place(out, at[0] * m * n))) {
        return false;
      }
    }
    return true;
  };
  if (p.bias && out.dtype() != DType::float64 && run_all(0)) {
    if (negative_slope != 1 && !p.relu) rectify(out, negative_slope);
    return;
  }
  if (p.bias) expand(bias, 1, out);
  p.bias = p.relu = false;
  check(run_all(bias.defined() ? 1 : 0), "matmul: cuBLASLt has no algorithm for a ", a, " and b ", b);
  if (negative_slope != 1) rectify(out, negative_slope);
}

std::int64_t matmul_workspace(Device device, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k,
                              Transpose ta, Transpose tb, bool has_bias) {
  const Product p{
      m,    n, k, 1, ta == Transpose::yes, tb == Transpose::yes, 0, 0, has_bias && dtype != DType::float64,
      false};
  return static_cast<std::int64_t>(plan_of(device, p, dtype, nullptr, nullptr, nullptr).scratch);
}

}  // namespace tapedeck::cu
