// SPDX-License-Identifier: MIT
// Copies of a session's bytes between device and host: contiguous ranges, KV rows (which lie in
// blocks of slots) and captured queries (which lie in a ring buffer). Each copy waits until it is
// done, but for those that are only started.
// Thread rule: any; work runs on the model's stream and has ended when a call returns.
#pragma once

#include "device/device.h"
#include "kv/kv_view.h"

namespace sharpi::device {

/// Captured queries of a layer: `rows` rows of row_bytes, used in turn.
struct QueryRing {
  std::byte* base;
  uint64_t rows, row_bytes;
};

class SessionCopies {
 public:
  /// `device` and `stream` outlive it.
  SessionCopies(const Device& device, const Queue& stream) : device_(&device), stream_(&stream) {}
  /// `what` names the copy in an error.
  Status bytes(void* to, const void* from, uint64_t n, Way way, const char* what) const;
  /// Keys or values of slots [first, first + n), which `host` holds row after row.
  Status rows(const KvView& v, bool value, uint32_t first, uint32_t n, std::byte* host,
              Way way) const;
  /// The same, without waiting: wait() does.
  Status start_rows(const KvView& v, bool value, uint32_t first, uint32_t n, std::byte* host,
                    Way way) const;
  Status wait() const;
  /// Queries of positions [first, first + n), n of the ring's rows at most.
  Status queries(const QueryRing& ring, uint64_t first, uint32_t n, std::byte* host, Way way) const;

 private:
  const Device* device_;
  const Queue* stream_;
};

}  // namespace sharpi::device
