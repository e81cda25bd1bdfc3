// SPDX-License-Identifier: MIT
// A cursor over untrusted bytes: every read checks first that the bytes are there, and a read that
// fails leaves the cursor where it was. Of a longer file it sees the first bytes; a step past them
// fails too, and says how many it takes.
// Thread rule: one owner.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sharpi {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

/// Any number at any alignment.
template <class T>
T load_unaligned(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

class GgufCursor {
 public:
  /// The first `seen` bytes of `bytes`.
  GgufCursor(const std::byte* data, uint64_t seen, uint64_t bytes)
      : data_(data), seen_(seen), bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_ - position_; }  // in the file
  const std::byte* here() const { return data_ + position_; }
  /// More than what is seen: that many of the first bytes are needed. 0 = no step failed for that.
  uint64_t needed() const { return needed_; }

  template <class T>
  [[nodiscard]] bool read(T* out) {
    if (!has(sizeof(T))) return false;
    *out = load_unaligned<T>(here());
    position_ += sizeof(T);
    return true;
  }

  [[nodiscard]] bool skip(uint64_t bytes) {
    if (!has(bytes)) return false;
    position_ += bytes;
    return true;
  }

  [[nodiscard]] bool read_bytes(uint64_t bytes, std::string_view* out) {
    if (!has(bytes)) return false;
    *out = {reinterpret_cast<const char*>(here()), bytes};
    position_ += bytes;
    return true;
  }

 private:
  bool has(uint64_t bytes) {
    if (remaining() < bytes) return false;
    if (seen_ - position_ >= bytes) return true;
    needed_ = position_ + bytes;
    return false;
  }
  const std::byte* data_;
  uint64_t seen_, bytes_;
  uint64_t position_ = 0, needed_ = 0;
};

}  // namespace sharpi
