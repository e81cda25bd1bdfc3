// SPDX-License-Identifier: MIT
// Lists of rows of KV heads that are copied between where a session stores them and flat memory of
// the device, where a head's row is as an archive has it (kv/row_archive.h): its planes one behind
// the other. The jobs and the lists that they read are one block, which is written in pinned memory
// for an address on the device. Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "device/kernel_params.h"
#include "kv/kv_view.h"
#include "kv/row_archive.h"

namespace sharpi::device {

/// A KV head's rows on the device, for kernels: in a view of all heads, or (head 0) of it alone.
struct StoredHead {
  KvView view;
  uint32_t head = 0;
};

class RowCopies {
 public:
  /// Jobs of a head's rows and scores.
  static constexpr uint32_t kJobsOfHead = 2 * kMostKvPlanes + 1;
  static constexpr uint64_t bytes_of(uint64_t n_jobs, uint64_t n_listed) {
    return n_jobs * sizeof(RowCopyJob) + n_listed * sizeof(uint32_t);
  }
  /// `to`: room for bytes_of() what will be added; `base`: the same on the device.
  RowCopies(std::byte* to, const std::byte* base, uint32_t most_jobs)
      : to_(to), base_(base), most_jobs_(most_jobs) {
    params_.jobs = reinterpret_cast<const RowCopyJob*>(base);
  }

  /// A list of slots, which jobs name: next() says one after the other.
  template <class Next>
  const uint32_t* list(uint32_t n, Next&& next) {
    const uint64_t at = bytes();
    n_listed_ += n;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t slot = next();
      std::memcpy(to_ + at + i * sizeof slot, &slot, sizeof slot);
    }
    return reinterpret_cast<const uint32_t*>(base_ + at);
  }
  const uint32_t* list(std::span<const uint32_t> slots) {
    const uint64_t at = bytes();
    n_listed_ += slots.size();
    if (!slots.empty()) std::memcpy(to_ + at, slots.data(), slots.size_bytes());
    return reinterpret_cast<const uint32_t*>(base_ + at);
  }
  /// Of places in an archive (kBegins).
  const uint32_t* list_of_places(std::span<const uint32_t> places) {
    return list(static_cast<uint32_t>(places.size()),
                [at = places.data()]() mutable { return *at++ & ~kBegins; });
  }
  /// Rows of one copy: at slots of a list(), or at the first n.
  struct Rows {
    uint32_t n = 0;
    const uint32_t* slots = nullptr;
    bool to_rows = false;
    uint32_t flat_bytes = 0;  // from row to row in flat memory; 0: one lies behind the other
  };
  /// A side of a head's rows.
  void add(const StoredHead& of, bool value, std::byte* flat, const Rows& rows);
  /// Rows of bytes that lie one behind the other, by slot.
  void add(std::byte* stored, uint32_t row_bytes, std::byte* flat, const Rows& rows);

  uint64_t bytes() const { return bytes_of(most_jobs_, n_listed_); }
  const RowCopyParams& params() const { return params_; }

 private:
  void put(const RowCopyJob& job);
  std::byte* to_;
  const std::byte* base_;
  uint32_t most_jobs_;
  uint64_t n_listed_ = 0;
  RowCopyParams params_;
};

}  // namespace sharpi::device
