# How Tapedeck's targets are made.

# In MinSizeRel, loops over elements are optimised for speed all the same.
set(TAPEDECK_LOOP_OPTIONS "$<$<CONFIG:MinSizeRel>:-O2;-ftree-vectorize;-fvect-cost-model=dynamic>")
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  set(TAPEDECK_LOOP_OPTIONS "$<$<CONFIG:MinSizeRel>:-O2>")
endif()

# tapedeck_sources(<folder> <word>...): adds <folder>/<word>.cpp to the library, and in a CUDA build
# <folder>/<word>.cu, whichever exist.
function(tapedeck_sources folder)
  set(extensions cpp)
  if(TAPEDECK_HAS_CUDA)
    list(APPEND extensions cu)
  endif()
  foreach(word IN LISTS ARGN)
    set(sources "")
    foreach(extension IN LISTS extensions)
      set(source ${PROJECT_SOURCE_DIR}/${folder}/${word}.${extension})
      if(EXISTS ${source})
        list(APPEND sources ${source})
        # Some deal out work: loops over images are not theirs.
        if(extension STREQUAL cpp AND "${folder}/${word}" MATCHES "^(ops/.*|core/(copy|finite|random))$"
           AND NOT "${folder}/${word}" MATCHES
               "^ops/(conv/(autotune|correlate|dispatch|matrix|plan|winograd_plan)|conv2d|conv_transpose2d.*|view)$")
          set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${TAPEDECK_LOOP_OPTIONS}")
        endif()
      endif()
    endforeach()
    if(NOT sources AND NOT EXISTS ${PROJECT_SOURCE_DIR}/${folder}/${word}.cu)
      message(FATAL_ERROR "there is no ${folder}/${word}.cpp")
    endif()
    target_sources(tapedeck PRIVATE ${sources})
  endforeach()
endfunction()

# tapedeck_micro_kernels(<source>): compiles the source once for each instruction set that this
# architecture may have (TAPEDECK_PORTABLE: that it always has), with TAPEDECK_MICRO_ISA naming it, and adds
# all of them to the library. Only these files may fuse multiplications and additions. TAPEDECK_MICRO_FLAGS:
# more flags, for these files alone.
function(tapedeck_micro_kernels source)
  set(speed $<$<CONFIG:MinSizeRel>:-O2>)
  set(flags_baseline ${speed})
  set(flags_avx2 ${speed} -mavx2 -mfma)
  set(flags_avx512 ${speed} -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma)
  set(isas baseline)
  if(NOT TAPEDECK_PORTABLE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    set(flags_baseline "")  # for CPUs of before 2013; and for float64 where a build is for size
    list(APPEND isas avx2 avx512)
    target_compile_definitions(tapedeck PRIVATE TAPEDECK_MICRO_X86)
  endif()
  foreach(isa IN LISTS isas)
    set(target tapedeck_micro_${isa})
    add_library(${target} OBJECT ${PROJECT_SOURCE_DIR}/${source})
    target_compile_features(${target} PRIVATE cxx_std_20)
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include)
    target_compile_definitions(${target} PRIVATE TAPEDECK_MICRO_ISA=${isa} $<$<CONFIG:MinSizeRel>:TAPEDECK_SMALL>)
    target_compile_options(${target} PRIVATE ${flags_${isa}} -ffp-contract=fast -fno-trapping-math
      -fno-math-errno ${TAPEDECK_MICRO_FLAGS})
    tapedeck_warnings(${target})
    target_sources(tapedeck PRIVATE $<TARGET_OBJECTS:${target}>)
  endforeach()
endfunction()

# The warnings of our own code; nothing of this reaches a consumer.
function(tapedeck_warnings target)
  set(warnings -Wall -Wextra -Wshadow)
  set(cxx_warnings ${warnings} -Wconversion -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    list(APPEND cxx_warnings -Wreserved-identifier)
  endif()
  if(TAPEDECK_WERROR)
    list(APPEND cxx_warnings -Werror)
    set(cuda_werror --Werror=all-warnings)
  endif()
  list(JOIN warnings , cuda_warnings)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${cxx_warnings}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${cuda_warnings};${cuda_werror}>")
endfunction()

# <tapedeck/core/tensor.h> means core/tensor.h, in the tree as after installation: the build folder has
# an include folder of links.
function(tapedeck_configure_library)
  set(links ${PROJECT_BINARY_DIR}/include/tapedeck)
  file(MAKE_DIRECTORY ${links})
  foreach(folder core ops autograd nn)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${links}/${folder} SYMBOLIC)
  endforeach()
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/nn/tapedeck.h ${links}/tapedeck.h SYMBOLIC)

  target_compile_features(tapedeck PUBLIC cxx_std_20)
  set_target_properties(tapedeck PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_include_directories(tapedeck PUBLIC
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
  # The same bits everywhere: no fused multiply-add that the source does not ask for. Nobody reads
  # floating-point traps or errno, and their absence is what lets loops be vectorised.
  target_compile_definitions(tapedeck PRIVATE
    $<$<CONFIG:MinSizeRel>:TAPEDECK_SMALL> $<$<BOOL:${TAPEDECK_PORTABLE}>:TAPEDECK_PORTABLE>)
  target_compile_options(tapedeck PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-trapping-math;-fno-math-errno>")
  target_link_libraries(tapedeck PUBLIC Threads::Threads PRIVATE JPEG::JPEG PNG::PNG ZLIB::ZLIB)
  target_include_directories(tapedeck SYSTEM PRIVATE
    $<TARGET_PROPERTY:nlohmann_json::nlohmann_json,INTERFACE_INCLUDE_DIRECTORIES>)  # headers only
  if("library" IN_LIST TAPEDECK_PRECOMPILE)
    target_precompile_headers(tapedeck PRIVATE <tapedeck/tapedeck.h>)
  endif()
  if(TAPEDECK_FUZZ)
    target_compile_options(tapedeck PRIVATE -fsanitize=fuzzer-no-link)  # counts edges for the fuzzers
  endif()
  if(TAPEDECK_HAS_CUDA)
    tapedeck_cuda(tapedeck)
  endif()
  tapedeck_warnings(tapedeck)
endfunction()

# tapedeck_fuzzer(<word>): a libFuzzer program fuzz_<word> of <word>_fuzz.cpp.
function(tapedeck_fuzzer word)
  add_executable(fuzz_${word} ${word}_fuzz.cpp)
  target_link_libraries(fuzz_${word} PRIVATE tapedeck::tapedeck)
  target_compile_options(fuzz_${word} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${word} PRIVATE -fsanitize=fuzzer)
  tapedeck_warnings(fuzz_${word})
endfunction()
