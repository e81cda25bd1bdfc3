// SPDX-License-Identifier: MIT
// The CPU tier's backend: the context's thread pool, host memory accounting and instruction set.
// Thread rule: immutable after make_backend(); the pool serialises parallel regions.
#pragma once

#include <memory>

#include "base/memory.h"
#include "cpu/isa.h"
#include "tier/tier.h"

namespace sharpi::cpu {

struct CpuBackendOptions {
  uint32_t n_threads = 0;  // 0 = one per CPU this process may use
  Isa isa = Isa::kAuto;
  HostAllocator allocator;
};

Result<std::unique_ptr<Backend>> make_backend(const CpuBackendOptions& options);
/// What a backend of make_backend() counts its memory with.
MemoryMeter& meter_of(Backend& backend);

}  // namespace sharpi::cpu
