// SPDX-License-Identifier: MIT
// What adapters (LoRA) cost a plan: their weights, once each, and for every call in flight the
// scratch of their low-rank products. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/adapter_file.h"
#include "plan/block_placement.h"
#include "plan/tier_sizer.h"

namespace sharpi {

/// Bytes of one half of a pair of a rank, for n inputs or outputs: f32, at a multiple of 64.
uint64_t adapter_half_bytes(uint64_t n, uint32_t rank);
/// The pairs that a device computes: those of blocks that `runs` has there.
std::vector<const AdapterPair*> adapter_pairs_on(const AdapterFile& adapter, const Placement& runs,
                                                 DeviceIndex device);
/// Bytes of the elements of pairs, and of what they take with every half aligned.
uint64_t adapter_payload_bytes(std::span<const AdapterPair* const> pairs);
uint64_t adapter_bytes(std::span<const AdapterPair* const> pairs);
/// The row of an adapter's pairs in host memory, those of blocks that are placed there; none
/// without any.
std::vector<MemoryRow> host_adapter_rows(const AdapterFile& adapter, const Placement& placement);
/// The rank that a request's calls have scratch for: what it says, else the largest of its
/// adapters. kInvalidArgument: less than one of them has. kUnsupported: an encoder.
Result<uint32_t> resolve_adapter_rank(const ModelSpec& spec, uint32_t asked,
                                      std::span<const AdapterFile> adapters);

}  // namespace sharpi
