# A dry run's llama-server is compiled for longer than it runs: files in batches, and the slow half of the optimizer only
# for what multiplies matrices. Read after each project() of llama.cpp (CMAKE_PROJECT_INCLUDE).
if(PROJECT_NAME STREQUAL "ggml")
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
elseif(PROJECT_NAME STREQUAL "llama.cpp")
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
  # Its helpers refuse to be compiled beside its inner parts.
  cmake_language(DEFER CALL set_target_properties mtmd PROPERTIES UNITY_BUILD OFF)
endif()
