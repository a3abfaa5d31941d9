# What `cmake --install` puts in place: the library, its headers, and a package for find_package(tapedeck).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tapedeck EXPORT tapedeckTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder core ops autograd nn)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapedeck
    FILES_MATCHING PATTERN "*.h" PATTERN tapedeck.h EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/nn/tapedeck.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapedeck)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tapedeck)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tapedeckConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(EXPORT tapedeckTargets NAMESPACE tapedeck:: DESTINATION ${package})
install(FILES ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake ${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake
  DESTINATION ${package})
