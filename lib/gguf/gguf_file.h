// SPDX-License-Identifier: MIT
// A GGUF model on disk: the metadata and the tensor table, which are copies, and the tensors, which
// stay in the file until somebody reads or maps them. Everything is validated in open(); afterwards
// every string and array that the accessors hand out lies inside memory that lives as long as this
// object. What somebody does to the file afterwards reaches tensors only.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3)
// Thread rule: immutable after open(); any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/ggml_type.h"

namespace sharpi {

enum class GgufValueType : int32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// One metadata value. Scalars and array elements stay in the header until they are asked for.
struct GgufValue {
  std::string_view key;
  GgufValueType type = GgufValueType::kU32;
  GgufValueType element = GgufValueType::kU32;  // of an array; equal to `type` otherwise
  uint64_t count = 1;                           // array elements; 1 for a scalar
  const std::byte* data = nullptr;              // first element (strings: the first length field)
};

struct GgufPart;

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  uint32_t n_dims = 0;
  std::array<uint64_t, 4> ne{1, 1, 1, 1};  // ne[0] is contiguous
  uint64_t bytes = 0;                      // exact size of the data
  uint32_t shard = 0;
  uint64_t file_offset = 0;  // of the data in its shard
  // `bytes` long: a copy (with_copies()), mapped (map_tensors()), or of a file in memory; else
  // null.
  const std::byte* data = nullptr;
  std::string_view
      part_of;  // the tensor whose rows it is some of (with_parts()); empty: it is whole
  // A part whose rows do not lie one behind the other: file_offset is that of the whole tensor, and
  // mapping the file gathers the rows in memory.
  const GgufPart* gathered = nullptr;
  uint64_t elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
};

/// Runs of rows of a tensor: the first run begins at row `first`, each of the others `period` rows
/// behind the one before it.
struct GgufRows {
  uint64_t first = 0, n_rows = 0;  // of a run
  uint64_t n_runs = 1, period = 0;
};

/// Rows of a tensor of two dimensions that are taken for a tensor of their own.
struct GgufPart {
  std::string name;
  const GgufTensor* of = nullptr;
  std::vector<GgufRows> rows;  // in the part's order
  /// The part has three dimensions, the last of which counts slabs of equally many rows.
  uint64_t n_slabs = 1;
  /// Its rows are, in f32, the columns of each run of rows, which is a slab. Of one GgufRows.
  bool columns = false;
  GgmlType type = GgmlType::kF32;  // of the tensor: set by with_parts()
  bool is_one_run() const { return rows.size() == 1 && rows[0].n_runs == 1 && !columns; }
};

class GgufFile {
 public:
  /// Opens and validates `path` (and its sibling shards when it is the first of a split file).
  /// Fails with kNotFound, kIo, kFormat (malformed: the text names the section, the index and the
  /// offending value) or kUnsupported (version, big-endian). Maps nothing: of
  /// tensors it reads a few bytes (fingerprint()), and they have no `data`.
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);
  /// The same over bytes that the caller keeps alive and unchanged for as long as the object lives;
  /// `name` stands for the path in error texts. Refuses split files.
  static Result<std::shared_ptr<const GgufFile>> open_memory(const std::byte* data, uint64_t bytes,
                                                             const std::string& name);
  /// The same file with memory for some tensors: copies[i] for tensor i, or null where nothing
  /// changes. The caller keeps that memory. Allocates.
  std::shared_ptr<const GgufFile> with_copies(std::span<const std::byte* const> copies) const;
  /// The same file, in which parts stand in the place of the tensors that they are of, to be read,
  /// mapped and copied as any tensor. kFormat if there is a tensor of a part's name, kIo if rows
  /// that are gathered from a mapping cannot be read. Pre: parts of one tensor follow each other in
  /// `parts`.
  Result<std::shared_ptr<const GgufFile>> with_parts(std::vector<GgufPart> parts) const;
  /// The same file with mapped data for tensors that have none, as long as the result lives; of
  /// those that are gathered, copies. If another process shortens the file, touching what is gone
  /// ends this process (SIGBUS).
  Result<std::shared_ptr<const GgufFile>> map_tensors() const;
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const;
  uint32_t n_shards() const;
  uint64_t file_bytes() const;  // all shards
  /// 64-bit hash over metadata and tensor table bytes, a few weights, sizes and modification times:
  /// equal for an unchanged file, used by plans and saved sessions.
  uint64_t fingerprint() const;
  /// Like fingerprint(), without modification times: identifies the model rather than the copy.
  uint64_t content_id() const;

  const std::vector<GgufTensor>& tensors() const;              // file order
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if absent
  const std::vector<GgufValue>& values() const;                // file order
  const GgufValue* find_value(std::string_view key) const;     // nullptr if absent

  // Typed access. Absent key: nullopt. Present with an unsuited type or out of range: kFormat, with
  // the key, what was found and what is expected. Integers of any width and sign are accepted.
  Result<std::optional<uint64_t>> get_uint(std::string_view key) const;
  Result<std::optional<double>> get_float(std::string_view key) const;  // any numeric type
  Result<std::optional<bool>> get_bool(std::string_view key) const;     // bool or integer 0/1
  Result<std::optional<std::string_view>> get_string(std::string_view key) const;
  /// Integer or bool array; a scalar gives one element.
  Result<std::optional<std::vector<int64_t>>> get_int_array(std::string_view key) const;
  Result<std::optional<std::vector<float>>> get_float_array(std::string_view key) const;
  /// Views into the header; an array of 150k strings costs one pass.
  Result<std::optional<std::vector<std::string_view>>> get_string_array(std::string_view key) const;

  /// Any value as text: scalars in full, strings raw, arrays as "[a, b, ...]" (all elements).
  std::string value_text(const GgufValue& value) const;

  /// Copies [at, at + bytes) of a tensor's data. From the file, never a mapping: kMismatch if it
  /// became shorter.
  Status read_tensor(const GgufTensor& tensor, uint64_t at, void* out, uint64_t bytes) const;
  /// Advice to the system: a part of a tensor will be read soon, or not again.
  void will_need(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const;
  void dont_need(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const;
  /// Makes a part of a tensor that map_tensors() mapped present; kMismatch if the file became
  /// shorter.
  Status page_in(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const;
  /// A file's size or time of modification differ from those at open().
  bool has_changed() const;
  /// What map_tensors() gathers in memory.
  uint64_t gathered_bytes() const;

 private:
  GgufFile();
  Status add_split_files(uint64_t n_shards);
  Status finish();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sharpi
