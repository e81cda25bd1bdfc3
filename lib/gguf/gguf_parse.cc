// SPDX-License-Identifier: MIT
#include "gguf/gguf_parse.h"

#include <algorithm>
#include <cinttypes>

#include "base/checked.h"
#include "gguf/gguf_reader.h"

namespace sharpi {
namespace {

constexpr uint64_t kHeaderBytes = 24;     // magic, version, tensor count, metadata count
constexpr uint64_t kMinValueBytes = 14;   // key of one byte, type, value of one byte
constexpr uint64_t kMinTensorBytes = 33;  // name of one byte, one dimension, type, offset
constexpr uint64_t kMaxKeyBytes = 65536;
constexpr uint64_t kMaxNameBytes = 63;  // the limit of the format's reference implementation
// Far above any published model (tens of keys, tens of thousands of tensors), and a bound on the
// tables that a file of many tiny entries makes us build.
constexpr uint64_t kMaxValues = uint64_t{1} << 16;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
// Vocabularies have hundreds of thousands of entries; whoever reads an array takes memory for it.
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 22;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;

/// The entry that is being read, for error texts: "metadata 3 of 12" or "tensor 0 of 5 ("x")".
struct Entry {
  const char* section;
  uint64_t index, count;
  std::string_view name;
};

std::string text_of(const Entry& e) {
  std::string text = e.section;
  text += ' ' + std::to_string(e.index) + " of " + std::to_string(e.count);
  if (!e.name.empty()) text += " (" + gguf_quoted(e.name) + ")";
  return text;
}

Status ends_inside(const Entry& e, const char* part) {
  return Status::error(Code::kFormat, "%s: the file ends inside %s", text_of(e).c_str(), part);
}

/// A length-prefixed string. `part` names it in error texts.
Status read_string(GgufCursor& in, const Entry& e, const char* part, std::string_view* out) {
  uint64_t length = 0;
  if (!in.read(&length)) return ends_inside(e, part);
  if (!in.read_bytes(length, out)) {
    return Status::error(Code::kFormat,
                         "%s: the length %" PRIu64 " of %s exceeds the %" PRIu64
                         " bytes that are left in the file",
                         text_of(e).c_str(), length, part, in.remaining());
  }
  return Status::ok();
}

Status check_bools(const Entry& e, const std::byte* p, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (std::to_integer<uint8_t>(p[i]) > 1) {
      return Status::error(Code::kFormat, "%s: bool %" PRIu64 " is stored as %u, not 0 or 1",
                           text_of(e).c_str(), i, std::to_integer<unsigned>(p[i]));
    }
  }
  return Status::ok();
}

bool is_value_type(int32_t id) {
  return id >= 0 && id <= 12;
}

class ShardParser {
 public:
  ShardParser(const std::byte* data, uint64_t seen, uint64_t bytes, GgufShard* out)
      : seen_(seen), bytes_(bytes), in_(data, seen, bytes), out_(out) {}

  Status parse() {
    uint64_t n_tensors = 0, n_values = 0;
    SHARPI_TRY(parse_header(&n_tensors, &n_values));
    out_->values.reserve(std::min(n_values, seen_ / kMinValueBytes));
    for (uint64_t i = 0; i < n_values; ++i) SHARPI_TRY(parse_value({"metadata", i, n_values, {}}));
    SHARPI_TRY(check_count("tensors", n_tensors, kMinTensorBytes, kMaxTensors));
    out_->tensors.reserve(std::min(n_tensors, seen_ / kMinTensorBytes));
    for (uint64_t i = 0; i < n_tensors; ++i) SHARPI_TRY(parse_tensor({"tensor", i, n_tensors, {}}));
    out_->header_bytes = in_.position();
    return place_tensors();
  }
  uint64_t needed() const { return in_.needed(); }

 private:
  Status parse_header(uint64_t* n_tensors, uint64_t* n_values);
  Status check_count(const char* what, uint64_t n, uint64_t min_bytes, uint64_t limit) const;
  Status parse_value(Entry e);
  Status parse_array(const Entry& e, GgufValue* value);
  Status take_alignment(const Entry& e, const GgufValue& value);
  Status parse_tensor(Entry e);
  Status parse_shape(const Entry& e, GgufTensor* tensor);
  Status place_tensors();

  uint64_t seen_, bytes_;
  GgufCursor in_;
  GgufShard* out_;
  uint64_t alignment_ = kDefaultAlignment;
};

Status ShardParser::parse_header(uint64_t* n_tensors, uint64_t* n_values) {
  std::string_view magic;
  uint32_t version = 0;
  if (in_.read_bytes(4, &magic) && magic != "GGUF") {
    return Status::error(Code::kFormat, "not a GGUF file: it starts with %s",
                         gguf_quoted(magic).c_str());
  }
  if (!in_.read(&version) || !in_.read(n_tensors) || !in_.read(n_values)) {
    return Status::error(Code::kFormat,
                         "header: a file of %" PRIu64 " bytes is shorter than the %" PRIu64
                         " bytes of a GGUF header",
                         bytes_, kHeaderBytes);
  }
  if (version != 0 && (version & 0xFFFFu) == 0) {
    return Status::error(Code::kUnsupported, "header: the file is big-endian");
  }
  if (version != 2 && version != 3) {
    return Status::error(Code::kUnsupported,
                         "header: GGUF version %u is not supported (versions 2 and 3 are)",
                         version);
  }
  SHARPI_TRY(check_count("metadata values", *n_values, kMinValueBytes, kMaxValues));
  return check_count("tensors", *n_tensors, kMinTensorBytes, kMaxTensors);
}

/// Refuses a count that the rest of the file cannot hold, before memory is reserved for it.
Status ShardParser::check_count(const char* what, uint64_t n, uint64_t min_bytes,
                                uint64_t limit) const {
  if (n > limit) {
    return Status::error(Code::kFormat, "header: %" PRIu64 " %s exceed the limit of %" PRIu64, n,
                         what, limit);
  }
  if (n > in_.remaining() / min_bytes) {
    return Status::error(Code::kFormat,
                         "header: %" PRIu64 " %s do not fit in the %" PRIu64
                         " bytes that are left in the file",
                         n, what, in_.remaining());
  }
  return Status::ok();
}

Status ShardParser::parse_value(Entry e) {
  GgufValue value;
  SHARPI_TRY(read_string(in_, e, "its key", &value.key));
  if (value.key.empty()) {
    return Status::error(Code::kFormat, "%s: the key is empty", text_of(e).c_str());
  }
  if (value.key.size() > kMaxKeyBytes) {
    return Status::error(Code::kFormat, "%s: the key has %zu bytes, the limit is %" PRIu64,
                         text_of(e).c_str(), value.key.size(), kMaxKeyBytes);
  }
  e.name = value.key;
  int32_t id = 0;
  if (!in_.read(&id)) return ends_inside(e, "its type");
  if (!is_value_type(id)) {
    return Status::error(Code::kFormat, "%s: its value type %d is unknown", text_of(e).c_str(), id);
  }
  value.type = value.element = static_cast<GgufValueType>(id);
  value.data = in_.here();
  if (value.type == GgufValueType::kArray) {
    SHARPI_TRY(parse_array(e, &value));
  } else if (value.type == GgufValueType::kString) {
    std::string_view ignored;
    SHARPI_TRY(read_string(in_, e, "its string", &ignored));
  } else {
    if (!in_.skip(gguf_value_bytes(value.type))) return ends_inside(e, "its value");
    if (value.type == GgufValueType::kBool) SHARPI_TRY(check_bools(e, value.data, 1));
  }
  if (value.key == "general.alignment") SHARPI_TRY(take_alignment(e, value));
  out_->values.push_back(value);
  return Status::ok();
}

Status ShardParser::parse_array(const Entry& e, GgufValue* value) {
  int32_t id = 0;
  if (!in_.read(&id) || !in_.read(&value->count)) return ends_inside(e, "its array header");
  if (!is_value_type(id)) {
    return Status::error(Code::kFormat, "%s: its array element type %d is unknown",
                         text_of(e).c_str(), id);
  }
  value->element = static_cast<GgufValueType>(id);
  if (value->element == GgufValueType::kArray) {
    return Status::error(Code::kFormat, "%s: nested arrays are not part of the format",
                         text_of(e).c_str());
  }
  value->data = in_.here();
  const uint64_t element_bytes = gguf_value_bytes(value->element);
  const uint64_t min_bytes = element_bytes != 0 ? element_bytes : sizeof(uint64_t);
  if (value->count > in_.remaining() / min_bytes) {
    return Status::error(Code::kFormat,
                         "%s: %" PRIu64 " array elements of type %s do not fit in the %" PRIu64
                         " bytes that are left in the file",
                         text_of(e).c_str(), value->count, gguf_type_name(value->element),
                         in_.remaining());
  }
  if (value->count > kMaxArrayElements) {
    return Status::error(Code::kFormat,
                         "%s: %" PRIu64 " array elements exceed the limit of %" PRIu64,
                         text_of(e).c_str(), value->count, kMaxArrayElements);
  }
  if (element_bytes != 0) {
    if (!in_.skip(value->count * element_bytes)) return ends_inside(e, "its array");
    if (value->element != GgufValueType::kBool) return Status::ok();
    return check_bools(e, value->data, value->count);
  }
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t length = 0;
    if (!in_.read(&length)) return ends_inside(e, "the length of a string of its array");
    if (!in_.skip(length)) {
      return Status::error(Code::kFormat,
                           "%s: the length %" PRIu64 " of string %" PRIu64 " of %" PRIu64
                           " exceeds the %" PRIu64 " bytes that are left in the file",
                           text_of(e).c_str(), length, i, value->count, in_.remaining());
    }
  }
  return Status::ok();
}

Status ShardParser::take_alignment(const Entry& e, const GgufValue& value) {
  if (value.type != GgufValueType::kU32) {
    return Status::error(Code::kFormat, "%s: it is %s, but u32 is expected", text_of(e).c_str(),
                         gguf_type_name(value).c_str());
  }
  const uint64_t alignment = load_unaligned<uint32_t>(value.data);
  if (alignment < kMinAlignment || (alignment & (alignment - 1)) != 0) {
    return Status::error(Code::kFormat,
                         "%s: alignment %" PRIu64 " is not a power of two of at least %" PRIu64,
                         text_of(e).c_str(), alignment, kMinAlignment);
  }
  alignment_ = alignment;
  return Status::ok();
}

Status ShardParser::parse_tensor(Entry e) {
  GgufTensor tensor;
  SHARPI_TRY(read_string(in_, e, "its name", &tensor.name));
  if (tensor.name.empty()) {
    return Status::error(Code::kFormat, "%s: the name is empty", text_of(e).c_str());
  }
  e.name = tensor.name;
  if (tensor.name.size() > kMaxNameBytes) {
    return Status::error(Code::kFormat, "%s: the name has %zu bytes, the limit is %" PRIu64,
                         text_of(e).c_str(), tensor.name.size(), kMaxNameBytes);
  }
  SHARPI_TRY(parse_shape(e, &tensor));
  uint32_t type_id = 0;
  if (!in_.read(&type_id)) return ends_inside(e, "its type");
  const GgmlTypeTraits* traits = ggml_type_traits(type_id);
  if (traits == nullptr) {
    return Status::error(Code::kFormat, "%s: its tensor type %u is unknown", text_of(e).c_str(),
                         type_id);
  }
  tensor.type = static_cast<GgmlType>(type_id);
  if (tensor.ne[0] % traits->block_elements != 0) {
    return Status::error(Code::kFormat,
                         "%s: a row of %" PRIu64 " elements is no multiple of the %u of a %s block",
                         text_of(e).c_str(), tensor.ne[0], traits->block_elements, traits->name);
  }
  if (!checked_mul(tensor.elements() / traits->block_elements, traits->block_bytes,
                   &tensor.bytes)) {
    return Status::error(Code::kFormat, "%s: its size in bytes overflows", text_of(e).c_str());
  }
  if (!in_.read(&tensor.file_offset)) return ends_inside(e, "its offset");
  out_->tensors.push_back(tensor);
  return Status::ok();
}

Status ShardParser::parse_shape(const Entry& e, GgufTensor* tensor) {
  if (!in_.read(&tensor->n_dims)) return ends_inside(e, "its number of dimensions");
  if (tensor->n_dims < 1 || tensor->n_dims > 4) {
    return Status::error(Code::kFormat, "%s: it has %u dimensions, expected 1 to 4",
                         text_of(e).c_str(), tensor->n_dims);
  }
  uint64_t elements = 1;
  for (uint32_t d = 0; d < tensor->n_dims; ++d) {
    uint64_t& ne = tensor->ne[d];
    if (!in_.read(&ne)) return ends_inside(e, "its dimensions");
    if (ne == 0 || ne > INT64_MAX) {
      return Status::error(Code::kFormat, "%s: dimension %u is %" PRId64 ", expected at least 1",
                           text_of(e).c_str(), d, static_cast<int64_t>(ne));
    }
    if (!checked_mul(elements, ne, &elements) || elements > INT64_MAX) {
      return Status::error(Code::kFormat, "%s: the product of its dimensions overflows",
                           text_of(e).c_str());
    }
  }
  return Status::ok();
}

/// Turns the offsets of the table into file offsets, once it is sure that every tensor lies in the
/// file, aligned, and that no two share a byte.
Status ShardParser::place_tensors() {
  std::vector<GgufTensor>& tensors = out_->tensors;
  if (tensors.empty()) return Status::ok();
  const uint64_t n = tensors.size();
  const uint64_t data_start = round_up(in_.position(), alignment_);
  for (uint64_t i = 0; i < n; ++i) {
    GgufTensor& t = tensors[i];
    const Entry e{"tensor", i, n, t.name};
    if (t.file_offset % alignment_ != 0) {
      return Status::error(Code::kFormat,
                           "%s: offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                           text_of(e).c_str(), t.file_offset, alignment_);
    }
    uint64_t begin = 0, end = 0;
    if (!checked_add(data_start, t.file_offset, &begin) || !checked_add(begin, t.bytes, &end) ||
        end > bytes_) {
      return Status::error(Code::kFormat,
                           "%s: %" PRIu64 " bytes at data offset %" PRIu64
                           " lie outside the file of %" PRIu64 " bytes",
                           text_of(e).c_str(), t.bytes, t.file_offset, bytes_);
    }
    t.file_offset = begin;
  }
  std::vector<uint32_t> order(n);
  for (uint32_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const uint64_t at_a = tensors[a].file_offset, at_b = tensors[b].file_offset;
    return at_a != at_b ? at_a < at_b : a < b;
  });
  for (uint64_t i = 1; i < n; ++i) {
    const GgufTensor &low = tensors[order[i - 1]], &high = tensors[order[i]];
    if (low.file_offset + low.bytes > high.file_offset) {
      return Status::error(Code::kFormat, "%s: its data overlaps that of tensor %u (%s)",
                           text_of({"tensor", order[i], n, high.name}).c_str(), order[i - 1],
                           gguf_quoted(low.name).c_str());
    }
  }
  return Status::ok();
}

}  // namespace

Status parse_gguf_shard(const std::byte* data, uint64_t seen, uint64_t bytes, GgufShard* out) {
  ShardParser parser(data, seen, bytes, out);
  Status parsed = parser.parse();
  out->needed = parser.needed();
  return parsed;
}

uint32_t gguf_value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

const char* gguf_type_name(GgufValueType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<int32_t>(type)];
}

std::string gguf_type_name(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) return gguf_type_name(value.type);
  return std::string("array of ") + gguf_type_name(value.element);
}

std::string gguf_quoted(std::string_view text) {
  constexpr size_t kShown = 64;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 32 && byte < 127) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  out += text.size() > kShown ? "...\"" : "\"";
  return out;
}

}  // namespace sharpi
