// TAPEDECK_HD marks what kernels on every device may call.
#pragma once

#if defined(__CUDACC__)
#define TAPEDECK_HD __host__ __device__
#else
#define TAPEDECK_HD
#endif
