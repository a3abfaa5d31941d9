# The CUDA backend: whether it is built, for which GPUs, and what it links.
#
# Without CMAKE_CUDA_ARCHITECTURES it runs on compute capability 8.0 and above: as machine code on Hopper,
# elsewhere through PTX, which the driver compiles when it first runs.
if(TAPEDECK_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  set(TAPEDECK_HAS_CUDA ${CMAKE_CUDA_COMPILER})
else()
  set(TAPEDECK_HAS_CUDA ${TAPEDECK_CUDA})
endif()

if(TAPEDECK_HAS_CUDA)
  set(TAPEDECK_HAS_CUDA ON)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90a-real)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12.0 REQUIRED)
else()
  set(TAPEDECK_HAS_CUDA OFF)
endif()

# tapedeck_cuda(<target>): what a target with .cu files needs. Nothing of it reaches a consumer but the
# libraries to link.
function(tapedeck_cuda target)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_compile_definitions(${target} PRIVATE TAPEDECK_CUDA)
  # Machine code for one architecture is not compressed unless that is asked for. The denser way asks for newer
  # drivers, which CUDA 13 does anyway.
  set(compress -Xfatbin=-compress-all)
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13)
    set(compress --compress-mode=size)
  endif()
  # constexpr functions of the standard library, and lambdas, may be called in kernels. CMake 3.25 knows no
  # feature cuda_std_20 yet.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;--extended-lambda;${compress}>")
  set(blas CUDA::cublasLt)
  if(TARGET CUDA::cublasLt_static)
    set(blas CUDA::cublasLt_static)
  endif()
  target_link_libraries(${target} PRIVATE CUDA::cudart_static ${blas})
  # Where no GPU runs them, kernels are compiled for their warnings and machine code. These differ in nothing but
  # their sizes, and take longest: wgmma_tf32.cu 125 instead of 361 s.
  if(TAPEDECK_CUDA_SAMPLE)
    foreach(type bfloat16 float16 tf32 tf32x3)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/ops/conv/wgmma_${type}.cu
        PROPERTIES COMPILE_DEFINITIONS TAPEDECK_CUDA_SAMPLE)
    endforeach()
  endif()
  # Random numbers have the CPU's bits (core/random_math.h).
  set_source_files_properties(${PROJECT_SOURCE_DIR}/core/random.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
endfunction()
