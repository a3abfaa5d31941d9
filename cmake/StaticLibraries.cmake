# For the preset `static`, after project(): find_library() takes static libraries only.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)

# What prints the type of an uncaught exception brings a demangler of 45 kB; main() catches them all.
add_link_options(LINKER:--defsym=_ZN9__gnu_cxx27__verbose_terminate_handlerEv=abort)
