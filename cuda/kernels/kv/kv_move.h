// SPDX-License-Identifier: MIT
// Compaction's move: bytes of kept rows go to the front of their range, in place, one kernel for
// every codec. Also the conversion of stored rows to canonical bytes and back (blobs).
// All launchers check their arguments and allocate nothing.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/kernel_params.h"
#include "kv/kv_view.h"

namespace sharpi::cuda {

using device::KvMoveJob;

/// `jobs` in device memory; max_bytes = the largest `bytes` among them.
Status launch_kv_move(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                      cudaStream_t stream);
/// The same of jobs with tables.
Status launch_kv_head_move(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                           cudaStream_t stream);

/// Rows of all heads become blocks of one head, in place (device/head_moves.h); units of memory
/// change places.
Status launch_kv_take_apart(const device::ApartParams& p, cudaStream_t stream);
Status launch_kv_move_units(const device::UnitMoveParams& p, cudaStream_t stream);

/// Rows [first, first + n) of n_elements each between the store's layout and canonical bytes
/// (34-byte q8_0 blocks; f32 and bf16 are copied): what KvStore::read_rows and write_rows move.
struct KvCanonicalParams {
  std::byte* rows = nullptr;  // address of row 0
  uint64_t block_stride = 0;
  uint32_t row_bytes = 0;
  KvDtype dtype = KvDtype::kF32;
  uint32_t n_elements = 0;
  uint32_t first = 0, n = 0;
  std::byte* canonical = nullptr;  // device, n * row_bytes
  bool to_store = false;           // canonical -> rows, else rows -> canonical
};
Status launch_kv_canonical(const KvCanonicalParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
