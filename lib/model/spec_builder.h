// SPDX-License-Identifier: MIT
// What the architecture files share to read a model: typed metadata keys under the architecture's
// prefix, and tensors looked up by rules that check presence, shape and type. Every refusal names
// the key or the tensor, what the file holds and what is expected.
// Owned by load_model_spec() for the length of one load.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "model/model_spec.h"

namespace sharpi {

/// Upper bounds of what a header may claim. They lie far above published models and keep every
/// product that later code forms (rows, state and scratch sizes) inside 64 bits, and every row
/// length inside 32.
namespace limits {
inline constexpr uint64_t kLayers = 1024;
inline constexpr uint64_t kEmbd = uint64_t{1} << 20;
inline constexpr uint64_t kVocab = uint64_t{1} << 28;
inline constexpr uint64_t kContext = (uint64_t{1} << 31) - 1;  // positions are int32 in the ABI
inline constexpr uint64_t kHeads = 4096;
inline constexpr uint64_t kHeadDim = 1024;  // that attention computes on any tier
inline constexpr uint64_t kFf = uint64_t{1} << 24;
inline constexpr uint64_t kExperts = 65536;
inline constexpr uint64_t kStateDim = 1024;
inline constexpr uint64_t kConvKernel = 64;
}  // namespace limits

/// Inclusive bounds of an integer key.
struct Range {
  uint64_t min = 1, max = 1;
};

/// One extent of an expected shape and where it comes from: key names in which '%' stands for the
/// architecture, for example "%.attention.head_count * %.attention.key_length".
struct Extent {
  uint64_t n = 1;
  const char* origin = "";
};

enum class WeightKind : uint8_t {
  kF32,         // norms, routers, biases: read as float without conversion
  kComputable,  // matrices: any type that the kernels know
};

/// One tensor to find: where its reference goes, its name, its type rule, its shape.
struct TensorRule {
  TensorRef* out;
  const char* name;  // layer tensors: without the "blk.N." prefix
  WeightKind kind;
  Extent n_in;
  Extent n_out = {};
  Extent n_experts = {};
  bool optional = false;
};

class SpecBuilder {
 public:
  /// `file` outlives the builder; `arch` is general.architecture.
  SpecBuilder(const GgufFile& file, std::string arch);

  const GgufFile& file() const { return file_; }
  const std::string& arch() const { return arch_; }
  /// `key` with the architecture's prefix.
  std::string full_key(std::string_view key) const;
  /// Replaces '%' by the architecture's name.
  std::string expand(std::string_view origin) const;

  // Keys, without their prefix. A value out of range, or of an unsuited type, is kFormat.
  bool has_key(std::string_view key) const;
  Result<uint32_t> require_uint(std::string_view key, Range range) const;
  Result<uint32_t> uint_or(std::string_view key, uint32_t fallback, Range range) const;
  /// Finite and in [min, max].
  Result<double> require_float(std::string_view key, double min, double max) const;
  Result<double> float_or(std::string_view key, double fallback, double min, double max) const;
  /// A scalar (the same for all) or an array of exactly n_blocks values.
  Result<std::vector<uint32_t>> per_block(std::string_view key, uint32_t n_blocks,
                                          Range range) const;
  Result<std::vector<uint32_t>> per_block_or(std::string_view key, uint32_t n_blocks,
                                             const std::vector<uint32_t>& fallback,
                                             Range range) const;
  /// An array of exactly n_blocks booleans; a scalar is refused.
  Result<std::vector<bool>> flags_per_block(std::string_view key, uint32_t n_blocks) const;

  // Tensors.
  bool has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }
  bool has_layer_tensor(uint32_t block, std::string_view name) const;
  /// Finds and checks all of `rules`; the references are filled in. A rule that is optional leaves
  /// its reference empty when the file has no such tensor.
  Status load(std::initializer_list<TensorRule> rules);
  Status load_layer(uint32_t block, std::initializer_list<TensorRule> rules);

  /// The tensor of a rule, checked as load_layer() does, of which nothing is used; null: there is
  /// none.
  Result<const GgufTensor*> find_in_layer(uint32_t block, const TensorRule& rule) const;

  /// Tensors of a block that files of this architecture may carry and that nothing reads.
  void leave_out(uint32_t block, std::initializer_list<const char*> names);

  /// Set once block_count is known: missing tensors of a block then name the key.
  void set_n_blocks(uint32_t n_blocks) { n_blocks_ = n_blocks; }
  /// Refuses tensors of blocks beyond block_count, and all others that no rule asked for, by name:
  /// leaving them out would change the results in silence. But for towers of images and sound and
  /// what projects them into the text model: text is read without them, and they are told in words.
  Result<std::string> check_leftovers() const;

 private:
  Status load_one(const TensorRule& rule, const std::string& name);
  Status check(const TensorRule& rule, const GgufTensor& tensor, const std::string& name) const;
  Status missing(const TensorRule& rule, const std::string& name) const;
  Result<std::optional<uint32_t>> find_uint(std::string_view key, Range range) const;
  Status absent(std::string_view key) const;

  const GgufFile& file_;
  std::string arch_;
  uint32_t n_blocks_ = 0;
  std::unordered_set<const GgufTensor*> used_;
};

/// The N of "blk.N.", or nullopt for other names.
std::optional<uint64_t> block_of(std::string_view name);
/// "blk.N.name".
std::string layer_tensor_name(uint32_t block, std::string_view name);

}  // namespace sharpi
