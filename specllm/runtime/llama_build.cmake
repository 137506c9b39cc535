# CMake includes this file inside llama.cpp's own project() (see CMAKE_PROJECT_<NAME>_INCLUDE), so that nothing is patched.

# llama-cpp-python asks for llama.cpp's command-line library and its HTTP client, which Python never loads: half of the
# compile time. A plain variable hides the cached one that llama-cpp-python forces.
set(LLAMA_BUILD_COMMON OFF)
set(LLAMA_TOOLS_INSTALL OFF)

# The build writes down by whom and for what it was made: a stripped library does not say. runtime/backend.py reads it.
set(specllm_compiler ${CMAKE_CXX_COMPILER_ID})
if (specllm_compiler STREQUAL "GNU")
    set(specllm_compiler "GCC")
elseif (specllm_compiler STREQUAL "Clang")
    set(specllm_compiler "clang")
endif()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/specllm-build.json
    "{\"compiler\": \"${specllm_compiler} ${CMAKE_CXX_COMPILER_VERSION}\", \"cpu\": \"${SPECLLM_CPU}\"}\n")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/specllm-build.json DESTINATION ${SKBUILD_PLATLIB_DIR}/llama_cpp/lib)
