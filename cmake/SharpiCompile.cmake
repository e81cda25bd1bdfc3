# sharpi_unity(<target>): its sources that have no flags of their own are compiled several at a time,
# if SHARPI_UNITY says so.
function(sharpi_unity target)
  if(SHARPI_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
endfunction()

# The one set of compile settings that every target of the project takes.
add_library(sharpi_compile INTERFACE)
target_compile_features(sharpi_compile INTERFACE cxx_std_20 c_std_11)
target_compile_options(sharpi_compile INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wconversion -fvisibility=hidden>
  $<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>
  $<$<AND:$<BOOL:${SHARPI_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)
if(MINGW)
  # This compiler aligns the stack to 16 bytes and stores vectors of 32 and 64 there as if it were
  # aligned to them (GCC bug 54412): the assembler writes the instructions that need no alignment.
  target_compile_options(sharpi_compile INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wa,-muse-unaligned-vector-move>)
  target_compile_definitions(sharpi_compile INTERFACE _WIN32_WINNT=0x0A00 __USE_MINGW_ANSI_STDIO=1)
endif()
if(SHARPI_SANITIZE)
  target_compile_options(sharpi_compile INTERFACE
    -fsanitize=${SHARPI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_definitions(sharpi_compile INTERFACE SHARPI_SANITIZED)
  target_link_options(sharpi_compile INTERFACE -fsanitize=${SHARPI_SANITIZE})
endif()

# A C linker does not add the C++ runtime by itself when it links the archive.
set(SHARPI_CXX_RUNTIME stdc++ m)
if("c++" IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
  set(SHARPI_CXX_RUNTIME c++ m)
endif()
