// SPDX-License-Identifier: MIT
// What a session says about itself. Thread rule: plain functions that read; as Session's const
// calls.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/tier_sizer.h"
#include "sharpi.h"

namespace sharpi {

struct SessionCore;
struct SessionState;

/// sharpi_session_info().
void summarise(const SessionState& s, sharpi_session_summary* out);
/// sharpi_session_layer().
Status describe_session_layer(const SessionCore& core, uint32_t layer, sharpi_layer_info* out);
/// Every byte that is the session's own or its drafters', row by row as the plan has them.
std::vector<MemoryRow> session_memory(const SessionState& s);
/// Positions of the live rows of a KV head, by slot.
Status kept_positions(const SessionCore& core, uint32_t layer, uint32_t kv_head,
                      std::vector<uint32_t>* out);

}  // namespace sharpi
