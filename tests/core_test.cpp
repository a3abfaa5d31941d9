// Shapes, devices, dtypes, contexts, copies and checks for finite numbers.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/context.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/finite.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/core/variable.h>

#include "errors.h"
#include "sanitizers.h"

namespace tapedeck {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kDTypes[] = {DType::float64, DType::float32, DType::bfloat16,
                             DType::float16, DType::int64,   DType::uint8};

// ---- texts ----

TEST(Error, JoinsWhatItIsGiven) {
  EXPECT_EQ(concat("a", std::string("b"), 'c', 1, -2L, 3u, true, 0.5, 1.f / 4, std::uint8_t{7}, Shape({2, 3}),
                   DType::int64, Device{}),
            "abc1-23true0.50.257[2,3]int64cpu");
  EXPECT_EQ(concat(std::numeric_limits<std::uint64_t>::max(), " ", std::numeric_limits<std::int64_t>::min()),
            "18446744073709551615 -9223372036854775808");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(error_of([] { check(1 + 1 == 3, "sum: ", 2, " is not ", 3); }), "sum: 2 is not 3");
  EXPECT_NO_THROW(check(true, "unused"));
}

TEST(Error, NumbersHaveTheFewestDigitsThatMakeThem) {
  EXPECT_EQ(concat(0.1, " ", 1.0 / 3, " ", 300.0, " ", 1e6, " ", 1e-7, " ", -2.5),
            "0.1 0.3333333333333333 300 1e+06 1e-07 -2.5");
  EXPECT_EQ(concat(0.1 + 0.2, " ", 123456789.0, " ", 0.0, " ", -0.0), "0.30000000000000004 123456789 0 -0");
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(concat(kInf, " ", -kInf, " ", std::nan("")), "inf -inf nan");
  for (const double value : {1.0 / 3, 5e-324, std::numeric_limits<double>::max(), 0x1p53 + 2, -1e-300}) {
    EXPECT_EQ(std::strtod(concat(value).c_str(), nullptr), value);
  }
}

// ---- shapes ----

TEST(Shape, CountsAndIndexes) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.count(), 30);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(shape.dim(-3), 0);
  EXPECT_EQ(shape.with(1, 7), Shape({2, 7, 5}));
  EXPECT_EQ(shape.with(-1, 0).count(), 0);
  EXPECT_EQ(shape.without(0), Shape({3, 5}));
  EXPECT_EQ(shape.without(-1), Shape({2, 3}));
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ(Shape({0, 4}).count(), 0);
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_EQ(to_string(Shape()), "[]");
  EXPECT_EQ(to_string(shape), "[2,3,5]");
}

TEST(Shape, RefusesWhatDoesNotFit) {
  const Shape shape{2, 3};
  EXPECT_EQ(error_of([&] { (void)shape[2]; }),
            "shape: dimension 2 is out of range for [2,3]; legal is -2 to 1");
  EXPECT_THAT(error_of([&] { (void)shape.dim(-3); }), HasSubstr("dimension -3 is out of range"));
  EXPECT_EQ(error_of([] { (void)Shape({2, -1}); }), "shape: size -1 of dimension 1 is negative");
  EXPECT_EQ(error_of([] {
              (void)Shape({1, 1, 1, 1, 1, 1, 1, 1, 1});
            }),
            "shape: rank 9 is above the limit of 8");
  EXPECT_THAT(error_of([] {
                (void)Shape({std::int64_t{1} << 32, std::int64_t{1} << 31});
              }),
              HasSubstr("does not fit 63 bits"));
  EXPECT_NO_THROW(Shape({std::int64_t{1} << 31, std::int64_t{1} << 31}));
}

TEST(Shape, BroadcastsAsNumPyDoes) {
  EXPECT_EQ(broadcast("op", {2, 3}, {2, 3}), Shape({2, 3}));
  EXPECT_EQ(broadcast("op", {2, 1}, {3}), Shape({2, 3}));
  EXPECT_EQ(broadcast("op", {}, {4, 1}), Shape({4, 1}));
  EXPECT_EQ(broadcast("op", {5, 1, 7}, {6, 1}), Shape({5, 6, 7}));
  EXPECT_EQ(broadcast("op", {1, 3}, {0, 1}), Shape({0, 3}));
  EXPECT_EQ(
      error_of([] {
        (void)broadcast("add", {2, 3}, {4, 3});
      }),
      "add: shapes [2,3] and [4,3] do not broadcast: sizes 2 and 4 of dimension -2 differ and neither is 1");
  EXPECT_THAT(error_of([] { (void)broadcast("add", {2}, {0}); }), HasSubstr("add: shapes [2] and [0]"));
}

// ---- devices, dtypes, precision ----

TEST(Device, ReadsItsName) {
  EXPECT_TRUE(device("cpu").is_cpu());
  EXPECT_EQ(to_string(device("cpu")), "cpu");
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 3}), "cuda:3");
  for (const char* bad : {"", "CPU", "cpu:0", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1",
                          "cuda: 1", "cuda:99999999999"}) {
    EXPECT_EQ(error_of([&] { (void)device(bad); }),
              concat("device: \"", bad, "\" is not a device; legal are \"cpu\", \"cuda\" and \"cuda:N\""));
  }
  EXPECT_THAT(error_of([] { (void)device("cuda:4096"); }),
              HasSubstr("device: \"cuda:4096\" is not available"));
  if (!has_cuda_backend()) {
    EXPECT_THAT(error_of([] { (void)device("cuda"); }), HasSubstr("this build leaves CUDA out"));
  }
}

TEST(DType, NamesAndSizes) {
  const std::size_t sizes[] = {8, 4, 2, 2, 8, 1};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(parse_dtype(to_string(kDTypes[i])), kDTypes[i]);
    EXPECT_EQ(size_of(kDTypes[i]), sizes[i]);
    EXPECT_EQ(is_floating(kDTypes[i]), i < 4);
    visit(kDTypes[i], [&]<class T>() {
      EXPECT_EQ(dtype_of<T>, kDTypes[i]);
      EXPECT_EQ(sizeof(T), sizes[i]);
    });
  }
  EXPECT_THAT(error_of([] { (void)parse_dtype("float"); }),
              HasSubstr("dtype: \"float\" is not one of float64"));
  EXPECT_THAT(error_of([] { visit_floating("exp", DType::uint8, []<class T>() {}); }),
              HasSubstr("exp: dtype uint8 is not supported; legal are float64"));
}

TEST(Precision, IsAPolicyOfTheProcess) {
  EXPECT_EQ(float32_precision(), Precision::highest);
  set_float32_precision(Precision::medium);
  std::thread([] { EXPECT_EQ(float32_precision(), Precision::medium); }).join();
  set_float32_precision(Precision::highest);
}

// ---- contexts ----

TEST(Context, TheInnermostScopeOfTheThreadCounts) {
  struct Counting final : Allocator {
    void* allocate(std::size_t bytes, Stream stream) override {
      ++allocations;
      last_stream = stream;
      return ::operator new (bytes, std::align_val_t{64});
    }
    void record_stream(void*, Stream) override {}
    void deallocate(void* pointer, std::size_t, Stream stream) noexcept override {
      ++frees;
      last_stream = stream;
      ::operator delete (pointer, std::align_val_t{64});
    }
    int allocations = 0, frees = 0;
    Stream last_stream = nullptr;
  } counting;
  int mark = 0;
  const Context mine(Device{}, &mark, counting);
  {
    Tensor kept;
    {
      const ContextScope scope(mine);
      EXPECT_EQ(&Context::current(Device{}), &mine);
      kept = Tensor::ones({5});
      EXPECT_EQ(counting.allocations, 1);
      EXPECT_EQ(counting.last_stream, &mark);
      const Context inner{Device{}};
      const ContextScope inner_scope(inner);
      (void)Tensor::ones({5});
      std::thread([&] { EXPECT_NE(&Context::current(Device{}), &mine); }).join();
    }
    EXPECT_EQ(counting.allocations, 1);
    (void)Tensor::ones({5});
    EXPECT_EQ(counting.allocations, 1);
    EXPECT_EQ(counting.frees, 0);
  }
  EXPECT_EQ(counting.frees, 1);  // where it came from, on its stream
  EXPECT_EQ(counting.last_stream, &mark);
  EXPECT_THAT(error_of([] {
                (void)Tensor::ones({5}, {.device = {DeviceType::cuda, 99}});
              }),
              HasSubstr("cuda:99"));
}

// ---- copies: every pair of dtypes and layouts ----

/// What C++ makes of a double, by way of float32 for the half types, written for this test.
double converted(double value, DType to) {
  switch (to) {
    case DType::float64:
      return value;
    case DType::float32:
      return static_cast<float>(value);
    case DType::int64:
      return std::trunc(value);
    case DType::uint8:
      return static_cast<double>(static_cast<std::int64_t>(value) & 255);
    case DType::bfloat16:
    case DType::float16: {
      const int bits = to == DType::bfloat16 ? 8 : 11;
      if (value == 0) return 0;
      const double unit = std::ldexp(1.0, std::ilogb(value) + 1 - bits);
      return std::nearbyint(value / unit) * unit;  // to even at a tie
    }
  }
  return 0;
}

TEST(Copy, EveryPairOfDTypesAndLayouts) {
  const int before = num_threads();
  const Shape shapes[] = {{2, 3, 5, 7}, {1, 40, 33, 65}, {3, 1, 4, 4}, {2, 6, 1, 1}, {0, 3, 2, 2}};
  for (int threads : {1, 3}) {
    if (test::kSanitized && threads == 1) continue;
    set_num_threads(threads);
    for (const Shape& shape : shapes) {
      const std::int64_t n = shape[0], c = shape[1], h = shape[2], w = shape[3];
      for (DType from : kDTypes) {
        for (DType to : kDTypes) {
          for (Layout in_layout : {Layout::nchw, Layout::nhwc}) {
            for (Layout out_layout : {Layout::nchw, Layout::nhwc}) {
              const auto offset = [&](Layout layout, std::int64_t i, std::int64_t j, std::int64_t y,
                                      std::int64_t x) {
                return layout == Layout::nchw ? ((i * c + j) * h + y) * w + x : ((i * h + y) * w + x) * c + j;
              };
              const auto value = [&](std::int64_t i) {  // exact in every source type
                const double whole = static_cast<double>(i * 37 % 101);
                return is_floating(from) ? whole / 2 - 13.25 * (from == DType::float64 && to != DType::uint8)
                                         : whole;
              };
              const Tensor in = Tensor::empty(shape, {.dtype = from, .layout = in_layout});
              const Tensor out = Tensor::full(shape, 99, {.dtype = to, .layout = out_layout});
              visit(from, [&]<class T>() {
                for (std::int64_t i = 0; i < in.count(); ++i) {
                  in.data<T>()[i] = convert<T>(value(i));
                  ASSERT_EQ(convert<double>(in.data<T>()[i]), value(i));
                }
              });
              out.copy_(in);
              std::int64_t wrong = 0;
              visit(to, [&]<class T>() {
                for (std::int64_t i = 0; i < n; ++i)
                  for (std::int64_t j = 0; j < c; ++j)
                    for (std::int64_t y = 0; y < h; ++y)
                      for (std::int64_t x = 0; x < w; ++x) {
                        const double got = convert<double>(out.data<T>()[offset(out_layout, i, j, y, x)]);
                        wrong += got != converted(value(offset(in_layout, i, j, y, x)), to);
                      }
              });
              ASSERT_EQ(wrong, 0) << concat(from, " ", in_layout, " to ", to, " ", out_layout, " ", shape);
            }
          }
        }
      }
    }
  }
  set_num_threads(before);
}

TEST(Copy, FillsAndConvertsOnTheWay) {
  for (DType dtype : kDTypes) {
    EXPECT_THAT(Tensor::full({3, 100}, 7, {.dtype = dtype}).to_vector<double>(), Each(7));
    const Tensor x = Tensor::full({2, 3}, 5, {.dtype = dtype});
    EXPECT_EQ(x.to(DType::float64).dtype(), DType::float64);
    EXPECT_TRUE(x.to(dtype).shares_storage(x));
    EXPECT_FALSE(x.clone().shares_storage(x));
  }
  EXPECT_THAT(Tensor::from({-1.9, 2.9, 300.0}, {3}).to_vector<std::int64_t>(), ElementsAre(-1, 2, 300));
  EXPECT_THAT(error_of([] {
                Tensor::zeros({2, 3}).copy_(Tensor::zeros({3, 2}));
              }),
              HasSubstr("copy_: source has shape [3,2] but this tensor has [2,3]"));
  EXPECT_THAT(error_of([] { Tensor().copy_(Tensor::zeros({3})); }),
              HasSubstr("copy_: a tensor is undefined"));
}

// ---- tensors ----

TEST(Tensor, TellsWhatItIs) {
  EXPECT_EQ(to_string(Tensor()), "undefined");
  EXPECT_EQ(to_string(Tensor::empty({2, 3, 1, 4}, {.dtype = DType::bfloat16, .layout = Layout::nhwc})),
            "bfloat16 [2,3,1,4] nhwc on cpu");
  EXPECT_THAT(Tensor::empty({2, 3, 5, 7}).strides(), ElementsAre(105, 35, 7, 1));
  EXPECT_THAT(Tensor::empty({2, 3, 5, 7}, {.layout = Layout::nhwc}).strides(), ElementsAre(105, 1, 21, 3));
  EXPECT_EQ(Tensor::full({1, 1}, 2.5).item(), 2.5);
  EXPECT_THAT(error_of([] { (void)Tensor::zeros({2}).item(); }),
              HasSubstr("item: the tensor has 2 elements"));
  EXPECT_THAT(error_of([] { (void)Tensor().raw(); }), HasSubstr("the tensor is undefined"));
  EXPECT_THAT(error_of([] { (void)Tensor::zeros({2}).data<std::int64_t>(); }),
              HasSubstr("tensor: data<int64> of a float32 tensor"));
  EXPECT_THAT(error_of([] { (void)Tensor::from({1.f, 2.f}, {3}); }), HasSubstr("2 values do not fill [3]"));
  EXPECT_THAT(error_of([] {
                (void)Tensor::zeros({4, 3}).slice(2, 5);
              }),
              HasSubstr("slice: rows 2 to 5 are out of range for [4,3]"));
  EXPECT_THAT(error_of([] {
                (void)Tensor::zeros({2, 3}).reshape({-1, -1});
              }),
              HasSubstr("reshape: only one size may be -1"));
  EXPECT_THAT(error_of([] {
                (void)Tensor::zeros({2, 3}).reshape({5});
              }),
              HasSubstr("reshape: [2,3] has 6 elements but [5] has 5"));
  EXPECT_THAT(error_of([] { (void)Tensor::empty({std::int64_t{1} << 62}, {.dtype = DType::float64}); }),
              HasSubstr("do not fit 64 bits"));
}

TEST(AllFinite, FindsOneBadElementAnywhere) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (double bad : {inf, -inf, std::nan("")}) {
      for (std::int64_t at : {0, 1, 77777, 99999}) {
        const Tensor x = Tensor::full({100000}, 65504, {.dtype = dtype});
        EXPECT_TRUE(all_finite(x));
        x.slice(at, at + 1).fill_(bad);
        EXPECT_FALSE(all_finite(x)) << concat(dtype, " ", bad, " at ", at);
      }
    }
  }
  EXPECT_TRUE(all_finite(Tensor::ones({5}, {.dtype = DType::int64})));
  EXPECT_TRUE(all_finite(Tensor::empty({0})));
}

// ---- variables ----

TEST(Variable, LeavesAndConstants) {
  Variable x = Tensor::ones({2});
  EXPECT_FALSE(x.requires_grad());
  x.set_requires_grad(true);
  const Variable same = x;
  EXPECT_TRUE(same.requires_grad());
  same.set_grad(Tensor::full({2}, 3));
  EXPECT_THAT(x.grad().tensor().to_vector<float>(), Each(3));
  EXPECT_FALSE(x.detach().requires_grad());
  EXPECT_TRUE(x.detach().tensor().shares_storage(x.tensor()));
  x.zero_grad();
  EXPECT_FALSE(same.grad().defined());
  x.set_tensor(Tensor::zeros({3}));
  EXPECT_EQ(same.shape(), Shape({3}));
  x.set_requires_grad(false);
  EXPECT_FALSE(same.requires_grad());

  EXPECT_FALSE(Variable(Tensor()).defined());
  EXPECT_THAT(error_of([] { (void)Variable().tensor(); }), HasSubstr("variable: the variable is undefined"));
  EXPECT_THAT(error_of([] { Variable(Tensor::ones({2})).set_grad(Tensor::ones({2})); }),
              HasSubstr("does not require a gradient"));
  EXPECT_THAT(error_of([] { (void)Variable::parameter(Tensor::ones({2}, {.dtype = DType::int64})); }),
              HasSubstr("a int64 tensor has no gradient"));
  EXPECT_THAT(error_of([] { Variable(Tensor::ones({2})).register_hook({}); }), HasSubstr("register_hook"));
}

}  // namespace
}  // namespace tapedeck
