// Layers of a few elements, for gradient checks of the convolution family.
#pragma once

#include <tapedeck/tapedeck.h>

namespace tapedeck::test {

struct GradientCase {
  Shape x, w;
  ConvTranspose2dOptions options;
  Layout layout = Layout::nchw;
};

inline const GradientCase kGradientCases[] = {
    {{2, 2, 3, 2}, {2, 3, 2, 3}, {.stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 0}}},
    {{2, 2, 2, 3}, {2, 2, 3, 2}, {.stride = {2, 3}, .padding = {1, 1}, .dilation = {2, 1}}, Layout::nhwc},
    {{2, 4, 2, 2},
     {4, 1, 2, 2},
     {.stride = {3, 2}, .output_padding = {2, 0}, .dilation = {1, 2}, .groups = 2}},
    {{2, 3, 2, 3},
     {3, 2, 3, 1},
     {.stride = {1, 2}, .padding = {1, 0}, .output_padding = {0, 1}, .groups = 3}},
    {{3, 3, 2}, {3, 2, 2, 2}, {.stride = 2, .output_padding = {0, 1}}},  // unbatched
    {{2, 2, 1, 1}, {2, 3, 2, 2}, {}},
    // A surplus row that the kernel does not reach, and one that the plain convolution could read past.
    {{1, 1, 2, 2}, {1, 2, 1, 2}, {.stride = 2, .output_padding = {2, 1}, .dilation = {3, 1}}},
};

}  // namespace tapedeck::test
