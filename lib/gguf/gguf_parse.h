// SPDX-License-Identifier: MIT
// The structure of one GGUF file (one shard), read and validated from its bytes. Time and memory
// are bounded by the size of the file, whatever it claims about itself.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"

namespace sharpi {

/// The metadata and the tensor table of one file.
struct GgufShard {
  std::vector<GgufValue> values;    // file order; views into the bytes
  std::vector<GgufTensor> tensors;  // file order; `shard` is left at 0
  uint64_t header_bytes = 0;        // end of the tensor table
  /// Bytes from the file's beginning that must be seen to go on; 0 = enough were.
  uint64_t needed = 0;
};

/// The most bytes that the headers of a model's files may have together: an order of magnitude more
/// than any published model's.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;

/// Parses the header of a file of `bytes` bytes of which the first `seen` are at `data`. Fills
/// *out, or says what is wrong with which entry; where more must be seen, out->needed says how
/// much. Tensors get no data pointers. Names are checked for form but not for uniqueness, which
/// concerns all shards together.
Status parse_gguf_shard(const std::byte* data, uint64_t seen, uint64_t bytes, GgufShard* out);

/// Bytes of one value or array element; 0 for strings and arrays.
uint32_t gguf_value_bytes(GgufValueType type);
/// "u32", "string", ...; "array of u32" for a whole array value.
const char* gguf_type_name(GgufValueType type);
std::string gguf_type_name(const GgufValue& value);

/// A scalar of any integer type as an unsigned number; kFormat names the key and what was found.
Result<uint64_t> gguf_uint(const GgufValue& value);

/// The text in quotes for an error message: unprintable bytes as \xNN, long texts cut.
std::string gguf_quoted(std::string_view text);

}  // namespace sharpi
