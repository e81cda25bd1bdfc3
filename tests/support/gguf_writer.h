// SPDX-License-Identifier: MIT
// Builds GGUF files in memory for tests: well-formed ones from keys, arrays and tensors, and
// malformed ones by forcing single fields or patching bytes at known places.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gguf/gguf_file.h"

namespace sharpi::test {

using Bytes = std::vector<std::byte>;

void append_bytes(Bytes& out, const void* data, uint64_t bytes);
/// Appends the bytes of a number.
template <class T>
void append(Bytes& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  append_bytes(out, &value, sizeof value);
}
/// Appends a length-prefixed string.
void append_string(Bytes& out, std::string_view text);

/// Overwrites the bytes at `offset` with a number.
template <class T>
void patch(Bytes& bytes, uint64_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

struct TensorEntry {
  std::string name;
  std::vector<uint64_t> ne;
  uint32_t type_id = 0;
  Bytes data;
  std::optional<uint64_t> forced_offset;  // written instead of the true one
  std::optional<uint32_t> forced_n_dims;  // written instead of ne.size()
};

/// Where the parts of a written file begin.
struct GgufLayout {
  std::vector<uint64_t> values;   // first byte of each key's length
  std::vector<uint64_t> tensors;  // first byte of each name's length
  uint64_t table_end = 0;         // end of the tensor table
  uint64_t data = 0;              // first byte of the tensor data
  uint64_t end = 0;               // file size
};

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  /// A scalar; its stored type follows the C++ type (bool, [u]int8..64_t, float, double, string).
  template <class T>
  GgufWriter& value(std::string_view key, const T& v) {
    Bytes payload;
    encode(payload, v);
    return raw_value(key, type_of<T>(), payload);
  }
  template <class T>
  GgufWriter& array(std::string_view key, const std::vector<T>& items) {
    Bytes payload;
    append(payload, type_of<T>());
    append(payload, uint64_t{items.size()});
    for (const auto& item : items) encode(payload, static_cast<const T&>(item));
    return raw_value(key, id(GgufValueType::kArray), payload);
  }
  /// Any type id with any payload.
  GgufWriter& raw_value(std::string_view key, int32_t type_id, const Bytes& payload);

  /// Writes general.alignment and pads accordingly.
  GgufWriter& alignment(uint32_t bytes);
  /// The three keys of one part of a split file.
  GgufWriter& split(uint16_t no, uint16_t count, int32_t n_tensors);

  GgufWriter& tensor(std::string_view name, GgmlType type, std::vector<uint64_t> ne, Bytes data);
  GgufWriter& tensor_f32(std::string_view name, std::vector<uint64_t> ne,
                         const std::vector<float>& data);
  /// Seeded finite values of about the given standard deviation (see random_rows).
  GgufWriter& tensor_random(std::string_view name, GgmlType type, std::vector<uint64_t> ne,
                            uint64_t seed, double deviation = 1.0);

  std::vector<TensorEntry>& tensors() { return tensors_; }
  std::optional<uint64_t> forced_n_tensors, forced_n_values;

  Bytes bytes(GgufLayout* layout = nullptr) const;
  /// Creates or replaces the file; false if the system refuses.
  [[nodiscard]] bool write(const std::string& path) const;

 private:
  static constexpr int32_t id(GgufValueType type) { return static_cast<int32_t>(type); }
  template <class T>
  static constexpr int32_t type_of() {
    if constexpr (std::is_same_v<T, bool>) return id(GgufValueType::kBool);
    if constexpr (std::is_same_v<T, uint8_t>) return id(GgufValueType::kU8);
    if constexpr (std::is_same_v<T, int8_t>) return id(GgufValueType::kI8);
    if constexpr (std::is_same_v<T, uint16_t>) return id(GgufValueType::kU16);
    if constexpr (std::is_same_v<T, int16_t>) return id(GgufValueType::kI16);
    if constexpr (std::is_same_v<T, uint32_t>) return id(GgufValueType::kU32);
    if constexpr (std::is_same_v<T, int32_t>) return id(GgufValueType::kI32);
    if constexpr (std::is_same_v<T, uint64_t>) return id(GgufValueType::kU64);
    if constexpr (std::is_same_v<T, int64_t>) return id(GgufValueType::kI64);
    if constexpr (std::is_same_v<T, float>) return id(GgufValueType::kF32);
    if constexpr (std::is_same_v<T, double>) return id(GgufValueType::kF64);
    return id(GgufValueType::kString);
  }
  template <class T>
  static void encode(Bytes& out, const T& v) {
    if constexpr (std::is_same_v<T, bool>)
      append(out, static_cast<uint8_t>(v));
    else if constexpr (std::is_arithmetic_v<T>)
      append(out, v);
    else
      append_string(out, v);
  }

  uint32_t version_;
  uint32_t alignment_ = 32;
  std::vector<Bytes> values_;
  std::vector<TensorEntry> tensors_;
};

/// Seeded bytes of n elements of a computable type whose values are finite and spread around zero
/// with about the given standard deviation (MXFP4: within a factor of two of it).
Bytes random_rows(GgmlType type, uint64_t n, uint64_t seed, double deviation = 1.0);

/// Path of one part of a split file; i_part counts from 0.
std::string split_path(const std::string& prefix, uint32_t i_part, uint32_t n_parts);

}  // namespace sharpi::test
