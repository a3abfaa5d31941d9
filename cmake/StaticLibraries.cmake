# For the preset `static`, after project(): find_library() takes static libraries only.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
