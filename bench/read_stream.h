// SPDX-License-Identifier: MIT
// How fast this machine reads memory: n threads go through a buffer far larger than the caches,
// with three loops (one stream a thread, four streams a thread, one stream with prefetches ahead).
// Thread rule: one owner; its threads live during a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

class ReadStream {
 public:
  /// n_threads as in the model under test. Exits the program when memory cannot be had.
  static std::unique_ptr<ReadStream> create(uint32_t n_threads);
  ~ReadStream();
  ReadStream(const ReadStream&) = delete;
  ReadStream& operator=(const ReadStream&) = delete;
  /// Bytes per second of the best of the three loops, now.
  double best_rate();

 private:
  using Loop = uint64_t (*)(const std::byte* data, size_t bytes);
  ReadStream(uint32_t n_threads, std::byte* data) : n_threads_(n_threads), data_(data) {}
  double rate(Loop loop);
  uint32_t n_threads_;
  std::byte* data_;
};
