// SPDX-License-Identifier: MIT
// Archives of evicted rows: rows of KV heads between where they are stored (in a session, or in
// pinned memory of the host) and flat memory; bounds of blocks of archived keys, and what such
// blocks can count at most, to f32 accuracy. All launchers check their arguments and allocate
// nothing. Thread rule: pure functions.
#pragma once

#include "base/status.h"
#include "cuda/kernels/stream_handle.h"
#include "device/kernel_params.h"

namespace sharpi::cuda {

Status launch_kv_copy(const device::RowCopyParams& p, cudaStream_t stream);
Status launch_key_bounds(const device::KeyBoundsParams& p, cudaStream_t stream);
Status launch_kv_bounds(const device::BoundsParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
