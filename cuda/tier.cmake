# The option of the CUDA tier (cmake/SharpiGpuTiers.cmake), AUTO = on when the machine has nvcc: enables the
# CUDA language.
set(SHARPI_CUDA_ARCHITECTURES "" CACHE STRING
  "Architectures of the kernels; empty: machine code for all that the toolkit knows from 8.0 to 12.0, and PTX of the last for later ones")

# The oldest toolkit that compiles the tier (CI does so), and the first that knows 10.0 and 12.0.
set(SHARPI_LEAST_CUDA 12.4)
set(SHARPI_BLACKWELL_CUDA 12.8)

# The version of an nvcc, "" if it does not say one.
function(sharpi_nvcc_version nvcc out)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  set(version "")
  if(status EQUAL 0 AND text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(version "${CMAKE_MATCH_1}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Architectures for a toolkit of this version.
function(sharpi_cuda_architectures version out)
  if(version VERSION_LESS SHARPI_BLACKWELL_CUDA)
    set(${out} "80-real;86-real;89-real;90" PARENT_SCOPE)
  else()
    set(${out} "80-real;86-real;89-real;90-real;100-real;120" PARENT_SCOPE)
  endif()
endfunction()

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(SHARPI_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(SHARPI_NVCC)
    set(CMAKE_CUDA_COMPILER "${SHARPI_NVCC}")
  endif()
endif()
# What the compiler says of itself, before CMake tries it.
set(nvcc "${CMAKE_CUDA_COMPILER}")
if(NOT nvcc AND DEFINED ENV{CUDACXX})
  set(nvcc "$ENV{CUDACXX}")
endif()
set(nvcc_version "")
if(nvcc)
  sharpi_nvcc_version("${nvcc}" nvcc_version)
endif()
if(nvcc_version AND nvcc_version VERSION_LESS SHARPI_LEAST_CUDA)
  sharpi_tier_lacks(cuda "CUDA toolkit ${nvcc_version} (${nvcc}) is too old for the CUDA tier: at least "
    "${SHARPI_LEAST_CUDA} is needed; CUDACXX names another nvcc, SHARPI_CUDA=OFF leaves the tier out")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  if(SHARPI_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "${SHARPI_CUDA_ARCHITECTURES}")
  else()
    sharpi_cuda_architectures("${nvcc_version}" CMAKE_CUDA_ARCHITECTURES)
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  check_language(CUDA)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  sharpi_tier_lacks(cuda "no CUDA compiler was found; set CUDACXX")
  return()
endif()
enable_language(CUDA)

# How nvcc compresses the kernels' images. Its mode `size` makes them about a fifth of the default's, and
# the driver (12.4 or later) takes longer to unpack what a process uses; so it is for modules that carry
# several architectures, which are downloaded.
list(LENGTH CMAKE_CUDA_ARCHITECTURES architectures)
set(compress default)
if(architectures GREATER 1 AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL SHARPI_BLACKWELL_CUDA)
  set(compress size)
endif()
set(SHARPI_CUDA_COMPRESS "${compress}" CACHE STRING
  "nvcc's --compress-mode for kernel images: default, size, speed, balance or none (toolkits before 12.8: default)")
find_package(CUDAToolkit REQUIRED)
set(SHARPI_WITH_CUDA ON)
set(SHARPI_CUDA_LIBS CUDA::cudart_static)  # static: no library of CUDA is named by ours
set(SHARPI_CUDA_PC_LIBS " -lcudart_static -lrt")
