// SPDX-License-Identifier: MIT
// What the compiled kernels that are launched with dynamic shared memory may have: the plans beside
// the kernels count on it, launch_families_test and step_plans_test add it to what the plans say,
// and tools/ci/cuda_images.py reads these lines and holds every compiled image against them. A
// kernel whose limit is raised to all that a block has must have none of its own, or the call fails
// on devices that have no more. Plain C++. Thread rule: none.
#pragma once

#include <cstdint>

namespace sharpi::cuda {

struct KernelLimit {
  const char* kernel;
  uint32_t threads;       // of a block, at most
  uint32_t static_bytes;  // of shared memory, at most; what the device itself takes apart
  uint32_t blocks;        // of a multiprocessor at once whose registers must be there
};

// clang-format off: the script reads a kernel a line.
inline constexpr KernelLimit kKernelLimits[] = {
    {"attention_f32_kernel", 128, 128, 1},
    {"attention_flash_kernel", 128, 0, 1},
    {"attention_flash_sm90_kernel", 256, 0, 1},
    {"attention_ring_kernel", 128, 17024, 2},
    {"attention_specialized_sm90_kernel", 512, 0, 1},
    {"attention_step_kernel", 256, 8704, 1},
    {"attention_wide_kernel", 256, 0, 1},
    {"chain_kernel", 640, 0, 1},
    {"chain_registers_kernel", 512, 0, 1},
    {"chain_rows_registers_kernel", 512, 0, 1},
    {"delta_prepare_kernel", 256, 0, 1},
    {"delta_scan_kernel", 256, 0, 1},
    {"gemm_kernel", 128, 0, 2},
    {"gemm_sm90_kernel", 384, 0, 1},
    {"latent_attention_kernel", 256, 0, 1},
    {"moe_step_kernel", 640, 0, 1},
    {"qkv_kernel", 256, 1024, 1},
    {"replay_kernel", 256, 0, 1},
    {"replay_warpgroup_kernel", 256, 0, 1},
    {"row_kernel", 384, 0, 1},
    {"score_kernel", 256, 1024, 1},
    {"score_warpgroup_kernel", 640, 256, 1},
    {"stream_kernel", 384, 0, 1},
    {"top_k_part_kernel", 512, 4096, 1},
};
// clang-format on

}  // namespace sharpi::cuda
