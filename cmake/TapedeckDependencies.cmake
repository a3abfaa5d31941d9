# The libraries that Tapedeck links. tapedeckConfig.cmake.in finds them again for a consumer.
find_package(Threads REQUIRED)

# tapedeck_find(<package> <Debian package>)
macro(tapedeck_find package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "tapedeck needs ${package}, which was not found: apt-get install ${debian}")
  endif()
endmacro()

tapedeck_find(JPEG libjpeg-dev)
tapedeck_find(PNG libpng-dev)
tapedeck_find(ZLIB zlib1g-dev)
