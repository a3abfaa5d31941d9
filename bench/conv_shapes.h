// The layers that PyTorch's ConvTranspose2d was timed with (bench/compare_gpu.py), for benchmarks and tests.
#pragma once

#include <istream>
#include <string>

#include <tapedeck/ops/conv_transpose2d.h>

namespace tapedeck::bench {

struct ConvShape {
  std::string name;
  std::int64_t n, ci, h, w, co;
  Size2 kernel;
  ConvTranspose2dOptions options;

  Shape x() const { return {n, ci, h, w}; }
  Shape weight() const { return {ci, co / options.groups, kernel.h, kernel.w}; }
};

inline const ConvShape kConvShapes[] = {
    {"kb57", 8, 64, 1024, 1024, 64, 3, {}},
    {"kb65", 8, 64, 512, 512, 64, {3, 7}, {}},
    {"kb69", 64, 64, 128, 256, 128, {3, 5}, {}},
    {"kb71", 8, 32, 512, 1024, 32, 3, {}},
    {"kb75",
     16,
     32,
     128,
     256,
     64,
     {3, 5},
     {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}},
    {"kb78", 8, 32, 512, 1024, 32, {3, 7}, {.padding = {1, 3}}},
    {"kb81", 16, 32, 64, 128, 64, 3, {.stride = 5, .padding = 1, .dilation = 2}},
    {"dcgan1", 128, 100, 1, 1, 512, 4, {}},
    {"dcgan2", 128, 512, 4, 4, 256, 4, {.stride = 2, .padding = 1}},
    {"dcgan3", 128, 256, 8, 8, 128, 4, {.stride = 2, .padding = 1}},
    {"dcgan4", 128, 128, 16, 16, 64, 4, {.stride = 2, .padding = 1}},
    {"dcgan5", 128, 64, 32, 32, 3, 4, {.stride = 2, .padding = 1}},
    {"vae1", 128, 64, 7, 7, 64, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"vae2", 128, 64, 14, 14, 32, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"unet_up", 16, 1024, 28, 28, 512, 2, {.stride = 2}},
    {"depthwise", 32, 256, 56, 56, 256, 4, {.stride = 2, .padding = 1, .groups = 256}},
    {"big", 32, 512, 64, 64, 256, 4, {.stride = 2, .padding = 1}},
};

/// Everything but the name: N CI H W CO KH KW SH SW PH PW OPH OPW DH DW GROUPS.
inline std::istream& operator>>(std::istream& in, ConvShape& c) {
  ConvTranspose2dOptions& o = c.options;
  in >> c.n >> c.ci >> c.h >> c.w >> c.co;
  for (Size2* size : {&c.kernel, &o.stride, &o.padding, &o.output_padding, &o.dilation})
    in >> size->h >> size->w;
  return in >> o.groups;
}

}  // namespace tapedeck::bench
