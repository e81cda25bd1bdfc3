// SPDX-License-Identifier: MIT
#include "gguf/gguf_file.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/input_file.h"
#include "gguf/ggml_type.h"
#include "gguf/gguf_parse.h"
#include "gguf/name_index.h"

namespace sharpi {
namespace {

constexpr uint64_t kMaxShards = 99999;  // what the five digits of a shard's file name can say
// Read at first; headers with a large vocabulary have some times as much.
constexpr uint64_t kFirstHeaderBytes = uint64_t{4} << 20;

Status in_file(const std::string& path, const Status& s) {
  return Status::native_error(s.code(), s.native(), "%s: %s", path.c_str(), s.text().c_str());
}

std::string split_suffix(uint64_t i_shard, uint64_t n_shards) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", i_shard + 1, n_shards);
  return text;
}

/// The unsigned value of a key of one shard; `otherwise` if the key is absent.
Result<uint64_t> uint_of(const std::vector<GgufValue>& values, std::string_view key,
                         uint64_t otherwise) {
  for (const GgufValue& value : values) {
    if (value.key == key) return gguf_uint(value);
  }
  return otherwise;
}

}  // namespace

struct GgufFile::Impl {
  struct Shard {
    std::string path;
    InputFile file;                   // closed for a file in memory
    const std::byte* data = nullptr;  // of a file in memory
    uint64_t bytes = 0;
    std::vector<std::byte> header;
    Status read(uint64_t at, void* out, uint64_t n) const {
      if (file.is_open()) return file.read(at, out, n);
      if (n != 0) std::memcpy(out, data + at, n);
      return Status::ok();
    }
  };

  std::vector<std::shared_ptr<const Shard>> shards;
  std::vector<std::shared_ptr<const FileMapping>> mappings;  // of the shards, or none
  std::vector<GgufValue> values;
  std::vector<GgufTensor> tensors;
  std::vector<std::shared_ptr<const std::vector<GgufPart>>> parts;    // tensors refer to them
  std::vector<std::shared_ptr<const std::vector<std::byte>>> copies;  // of gathered rows
  NameIndex value_index, tensor_index;
  uint64_t file_bytes = 0, fingerprint = 0, content_id = 0;
  uint64_t header_bytes = 0;  // of all shards

  /// Parses a shard and takes its tensors; its metadata goes to *metadata.
  Status add_shard(std::shared_ptr<Shard> shard, std::vector<GgufValue>* metadata);
  Status read_header(Shard* shard, GgufShard* parsed) const;
  Status open_shard(const std::string& path, std::vector<GgufValue>* metadata);
  Status index_tensors();
  Status read_gathered(const GgufTensor& t, uint64_t at, std::byte* out, uint64_t n) const;
  Status read_columns(const GgufTensor& t, uint64_t at, std::byte* out, uint64_t n) const;
  Status gather(GgufTensor* t);
};

/// Copies as much of the file as its header takes, which only parsing tells.
Status GgufFile::Impl::read_header(Shard* shard, GgufShard* parsed) const {
  const uint64_t most = std::min(shard->bytes, kMaxHeaderBytes - header_bytes);
  uint64_t seen = 0, want = std::min(shard->bytes, kFirstHeaderBytes);
  for (;;) {
    if (want > most) {
      return Status::error(Code::kFormat,
                           "the header takes %" PRIu64
                           " bytes and more; all headers of a model may "
                           "have %" PRIu64,
                           want, kMaxHeaderBytes);
    }
    shard->header.resize(want);
    SHARPI_TRY(shard->read(seen, shard->header.data() + seen, want - seen));
    seen = want;
    *parsed = {};
    Status done = parse_gguf_shard(shard->header.data(), seen, shard->bytes, parsed);
    if (parsed->needed == 0 && (!done.is_ok() || parsed->header_bytes == seen)) return done;
    if (parsed->needed == 0) {  // once more, over what it takes and no more
      seen = want = parsed->header_bytes;
      std::vector<std::byte>(shard->header.begin(),
                             shard->header.begin() + static_cast<std::ptrdiff_t>(want))
          .swap(shard->header);
      continue;
    }
    want = std::max(parsed->needed, std::min(most, 2 * seen));
  }
}

Status GgufFile::Impl::add_shard(std::shared_ptr<Shard> shard, std::vector<GgufValue>* metadata) {
  GgufShard parsed;
  if (const Status s = read_header(shard.get(), &parsed); !s.is_ok()) {
    return in_file(shard->path, s);
  }
  header_bytes += shard->header.size();
  for (GgufTensor& tensor : parsed.tensors) {
    tensor.shard = static_cast<uint32_t>(shards.size());
    if (shard->data != nullptr) tensor.data = shard->data + tensor.file_offset;
  }
  if (tensors.empty()) {
    tensors = std::move(parsed.tensors);
  } else {
    tensors.insert(tensors.end(), parsed.tensors.begin(), parsed.tensors.end());
  }
  *metadata = std::move(parsed.values);
  shards.push_back(std::move(shard));
  return Status::ok();
}

Status GgufFile::Impl::open_shard(const std::string& path, std::vector<GgufValue>* metadata) {
  const auto shard = std::make_shared<Shard>();
  shard->path = path;
  SHARPI_TRY_ASSIGN(shard->file, InputFile::open(path));
  shard->bytes = shard->file.bytes();
  return add_shard(shard, metadata);
}

Status GgufFile::Impl::index_tensors() {
  tensor_index = {};
  tensor_index.reserve(tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const std::string_view name = tensors[i].name;
    if (const auto earlier = tensor_index.add(name, i)) {
      return Status::error(Code::kFormat, "%s: tensor %u repeats the name %s of tensor %u",
                           shards[tensors[i].shard]->path.c_str(), i, gguf_quoted(name).c_str(),
                           *earlier);
    }
  }
  return Status::ok();
}

GgufFile::GgufFile() : impl_(new Impl) {}
GgufFile::~GgufFile() = default;

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  const std::shared_ptr<GgufFile> file(new GgufFile);
  Impl& impl = *file->impl_;
  SHARPI_TRY(impl.open_shard(path, &impl.values));
  const Result<uint64_t> n_shards = uint_of(impl.values, "split.count", 1);
  if (!n_shards.is_ok()) return in_file(path, n_shards.status());
  if (n_shards.value() > 1) SHARPI_TRY(file->add_split_files(n_shards.value()));
  SHARPI_TRY(file->finish());
  return std::shared_ptr<const GgufFile>(file);
}

Result<std::shared_ptr<const GgufFile>> GgufFile::open_memory(const std::byte* data, uint64_t bytes,
                                                              const std::string& name) {
  const std::shared_ptr<GgufFile> file(new GgufFile);
  Impl& impl = *file->impl_;
  const auto shard = std::make_shared<Impl::Shard>();
  shard->path = name;
  shard->data = data;
  shard->bytes = bytes;
  SHARPI_TRY(impl.add_shard(shard, &impl.values));
  const Result<uint64_t> n_shards = uint_of(impl.values, "split.count", 1);
  if (!n_shards.is_ok()) return in_file(name, n_shards.status());
  if (n_shards.value() > 1) {
    return Status::error(Code::kUnsupported, "%s: a split file cannot be opened from memory",
                         name.c_str());
  }
  SHARPI_TRY(file->finish());
  return std::shared_ptr<const GgufFile>(file);
}

/// Opens the siblings of the first shard and checks that they are the parts it announces.
Status GgufFile::add_split_files(uint64_t n_shards) {
  Impl& impl = *impl_;
  const std::string first = path();
  const auto refuse = [](const std::string& shard, const std::string& why) {
    return Status::error(Code::kFormat, "%s: %s", shard.c_str(), why.c_str());
  };
  const auto number = std::to_string(n_shards);
  if (n_shards > kMaxShards) return refuse(first, "split.count " + number + " is absurd");
  const Result<uint64_t> no = uint_of(impl.values, "split.no", 0);
  if (!no.is_ok()) return in_file(first, no.status());
  if (no.value() != 0) {
    return refuse(first, "this file is part " + std::to_string(no.value() + 1) + " of " + number +
                             " of a split file; open the first part");
  }
  const std::string suffix = split_suffix(0, n_shards);
  if (!first.ends_with(suffix)) {
    return refuse(first, "the first of " + number + " parts must be named *" + suffix);
  }
  const std::string prefix = first.substr(0, first.size() - suffix.size());
  for (uint64_t i = 1; i < n_shards; ++i) {
    const std::string shard = prefix + split_suffix(i, n_shards);
    std::vector<GgufValue> metadata;
    SHARPI_TRY(impl.open_shard(shard, &metadata));
    const Result<uint64_t> its_no = uint_of(metadata, "split.no", UINT64_MAX);
    const Result<uint64_t> its_count = uint_of(metadata, "split.count", UINT64_MAX);
    if (!its_no.is_ok()) return in_file(shard, its_no.status());
    if (!its_count.is_ok()) return in_file(shard, its_count.status());
    if (its_no.value() != i || its_count.value() != n_shards) {
      return refuse(shard, "split.no and split.count do not say part " + std::to_string(i + 1) +
                               " of " + number);
    }
  }
  const Result<uint64_t> announced =
      uint_of(impl.values, "split.tensors.count", impl.tensors.size());
  if (!announced.is_ok()) return in_file(first, announced.status());
  if (announced.value() != impl.tensors.size()) {
    return refuse(first, "split.tensors.count is " + std::to_string(announced.value()) +
                             ", but the parts have " + std::to_string(impl.tensors.size()) +
                             " tensors");
  }
  return Status::ok();
}

namespace {

/// Tensors that stand for all: of each kind, which is a name but for its numbers, one in the middle
/// and the last one, because adapters that were merged into a model change some kinds in all
/// layers, or in the last ones. Few, because each read may have to wait for a disk.
std::vector<uint32_t> sampled_tensors(const std::vector<GgufTensor>& tensors) {
  constexpr size_t kMost = 64;
  std::map<std::string, std::vector<uint32_t>> kinds;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    std::string kind(tensors[i].name);
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    kinds[std::move(kind)].push_back(i);
  }
  std::vector<uint32_t> all;
  for (const auto& [kind, of] : kinds) {
    all.push_back(of.back());
    if (of.size() > 1) all.push_back(of[(of.size() - 1) / 2]);
  }
  std::vector<uint32_t> some(std::min(kMost, all.size()));
  for (size_t i = 0; i < some.size(); ++i) some[i] = all[i * all.size() / some.size()];
  return some;
}

}  // namespace

/// Indexes names, which must be unique, and hashes the headers.
Status GgufFile::finish() {
  Impl& impl = *impl_;
  impl.value_index.reserve(impl.values.size());
  for (uint32_t i = 0; i < impl.values.size(); ++i) {
    const std::string_view key = impl.values[i].key;
    if (const auto earlier = impl.value_index.add(key, i)) {
      return Status::error(Code::kFormat, "%s: metadata %u repeats the key %s of metadata %u",
                           path().c_str(), i, gguf_quoted(key).c_str(), *earlier);
    }
  }
  SHARPI_TRY(impl.index_tensors());
  Hash64 content, copy;
  // Fine-tuned siblings have equal headers, so a few weights count too.
  for (const uint32_t index : sampled_tensors(impl.tensors)) {
    constexpr uint64_t kSampleBytes = 64;
    const GgufTensor& t = impl.tensors[index];
    const uint64_t n = std::min(t.bytes, kSampleBytes);
    std::byte sample[kSampleBytes];
    if (const Status s = read_tensor(t, (t.bytes - n) / 2, sample, n); !s.is_ok()) {
      return in_file(impl.shards[t.shard]->path, s);
    }
    content.add(sample, n);
  }
  for (const auto& shard : impl.shards) {
    content.add(shard->header.data(), shard->header.size());
    content.add_u64(shard->bytes);
    copy.add_u64(static_cast<uint64_t>(shard->file.mtime_ns()));
    impl.file_bytes += shard->bytes;
  }
  impl.content_id = content.value();
  copy.add_u64(impl.content_id);
  impl.fingerprint = copy.value();
  return Status::ok();
}

std::shared_ptr<const GgufFile> GgufFile::with_copies(
    std::span<const std::byte* const> copies) const {
  const std::shared_ptr<GgufFile> file(new GgufFile);
  *file->impl_ = *impl_;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i] != nullptr) file->impl_->tensors[i].data = copies[i];
  }
  return file;
}

namespace {

GgufTensor tensor_of(const GgufPart& part) {
  GgufTensor t = *part.of;
  const uint64_t row = ggml_row_bytes(t.type, t.ne[0]);
  t.name = part.name;
  t.part_of = part.of->name;
  uint64_t n_rows = 0;
  for (const GgufRows& r : part.rows) n_rows += r.n_rows * r.n_runs;
  t.bytes = n_rows * row;
  t.ne[1] = n_rows / part.n_slabs;
  t.ne[2] = part.n_slabs;
  if (part.n_slabs > 1) t.n_dims = 3;
  if (part.columns) {
    std::swap(t.ne[0], t.ne[1]);
    t.type = GgmlType::kF32;
    t.bytes = t.elements() * sizeof(float);
  }
  if (!part.is_one_run()) {
    t.gathered = &part;
    t.data = nullptr;
    return t;
  }
  t.file_offset += part.rows[0].first * row;
  if (t.data != nullptr) t.data += part.rows[0].first * row;
  return t;
}

}  // namespace

Result<std::shared_ptr<const GgufFile>> GgufFile::with_parts(std::vector<GgufPart> parts) const {
  const std::shared_ptr<GgufFile> file(new GgufFile);
  Impl& impl = *file->impl_;
  impl = *impl_;
  for (GgufPart& part : parts) part.type = part.of->type;
  const auto kept = std::make_shared<const std::vector<GgufPart>>(std::move(parts));
  impl.parts.push_back(kept);
  std::unordered_map<const GgufTensor*, size_t> first;
  for (size_t i = kept->size(); i-- > 0;) first[(*kept)[i].of] = i;
  impl.tensors.clear();
  for (const GgufTensor& t : impl_->tensors) {
    const auto found = first.find(&t);
    if (found == first.end()) impl.tensors.push_back(t);
    for (size_t i = found == first.end() ? kept->size() : found->second; i < kept->size(); ++i) {
      if ((*kept)[i].of != &t) break;
      impl.tensors.push_back(tensor_of((*kept)[i]));
      GgufTensor& part = impl.tensors.back();
      if (t.data != nullptr && part.gathered != nullptr) SHARPI_TRY(impl.gather(&part));
    }
  }
  SHARPI_TRY(impl.index_tensors());
  return std::shared_ptr<const GgufFile>(file);
}

Result<std::shared_ptr<const GgufFile>> GgufFile::map_tensors() const {
  const std::shared_ptr<GgufFile> file(new GgufFile);
  *file->impl_ = *impl_;
  auto& mappings = file->impl_->mappings;
  mappings.clear();
  for (const auto& shard : impl_->shards) {
    Result<FileMapping> mapped = shard->file.is_open() ? shard->file.map() : FileMapping();
    if (!mapped.is_ok()) return in_file(shard->path, mapped.status());
    mappings.push_back(std::make_shared<const FileMapping>(mapped.take()));
  }
  for (GgufTensor& t : file->impl_->tensors) {
    const std::byte* data = mappings[t.shard]->data();
    if (t.data != nullptr || data == nullptr) continue;
    if (t.gathered != nullptr) {
      SHARPI_TRY(file->impl_->gather(&t));
    } else {
      t.data = data + t.file_offset;
    }
  }
  return std::shared_ptr<const GgufFile>(file);
}

Status GgufFile::Impl::read_gathered(const GgufTensor& t, uint64_t at, std::byte* out,
                                     uint64_t n) const {
  if (t.gathered->columns) return read_columns(t, at, out, n);
  const uint64_t row = ggml_row_bytes(t.type, t.ne[0]);
  uint64_t begin = 0;  // of the runs, in the part
  for (const GgufRows& r : t.gathered->rows) {
    const uint64_t run = r.n_rows * row, end = begin + run * r.n_runs;
    while (n != 0 && at < end) {
      const uint64_t i = (at - begin) / run, within = (at - begin) % run;
      const uint64_t piece = std::min(n, run - within);
      SHARPI_TRY(shards[t.shard]->read(t.file_offset + (r.first + i * r.period) * row + within, out,
                                       piece));
      at += piece, out += piece, n -= piece;
    }
    begin = end;
  }
  return Status::ok();
}

Status GgufFile::Impl::read_columns(const GgufTensor& t, uint64_t at, std::byte* out,
                                    uint64_t n) const {
  const GgufRows& r = t.gathered->rows[0];
  const uint64_t height = t.ne[0], width = t.ne[1];  // rows of the tensor, and their elements
  const uint64_t row = ggml_row_bytes(t.gathered->type, width);
  const uint64_t slab = height * width * sizeof(float);
  std::vector<std::byte> rows(height * row);
  std::vector<float> values(width), turned(height * width);
  while (n != 0) {
    const uint64_t i = at / slab, within = at % slab, piece = std::min(n, slab - within);
    SHARPI_TRY(shards[t.shard]->read(t.file_offset + (r.first + i * r.period) * row, rows.data(),
                                     rows.size()));
    for (uint64_t j = 0; j < height; ++j) {
      dequantize_row(t.gathered->type, rows.data() + j * row, values.data(), width);
      for (uint64_t o = 0; o < width; ++o) turned[o * height + j] = values[o];
    }
    std::memcpy(out, reinterpret_cast<const std::byte*>(turned.data()) + within, piece);
    at += piece, out += piece, n -= piece;
  }
  return Status::ok();
}

Status GgufFile::Impl::gather(GgufTensor* t) {
  auto copy = std::make_shared<std::vector<std::byte>>(t->bytes);
  SHARPI_TRY(read_gathered(*t, 0, copy->data(), t->bytes));
  t->data = copy->data();
  copies.push_back(std::move(copy));
  return Status::ok();
}

uint64_t GgufFile::gathered_bytes() const {
  uint64_t n = 0;
  for (const GgufTensor& t : impl_->tensors) n += t.gathered != nullptr ? t.bytes : 0;
  return n;
}

Status GgufFile::read_tensor(const GgufTensor& tensor, uint64_t at, void* out,
                             uint64_t bytes) const {
  if (tensor.gathered != nullptr)
    return impl_->read_gathered(tensor, at, static_cast<std::byte*>(out), bytes);
  return impl_->shards[tensor.shard]->read(tensor.file_offset + at, out, bytes);
}

void GgufFile::will_need(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const {
  const Impl::Shard& shard = *impl_->shards[tensor.shard];
  if (shard.file.is_open() && tensor.gathered == nullptr)
    shard.file.will_need(tensor.file_offset + at, bytes);
}

void GgufFile::dont_need(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const {
  const Impl::Shard& shard = *impl_->shards[tensor.shard];
  if (shard.file.is_open() && tensor.gathered == nullptr)
    shard.file.dont_need(tensor.file_offset + at, bytes);
}

Status GgufFile::page_in(const GgufTensor& tensor, uint64_t at, uint64_t bytes) const {
  if (impl_->mappings.empty() || impl_->mappings[tensor.shard]->data() == nullptr ||
      tensor.gathered != nullptr) {
    return Status::ok();
  }
  return impl_->shards[tensor.shard]->file.page_in(*impl_->mappings[tensor.shard],
                                                   tensor.file_offset + at, bytes);
}

bool GgufFile::has_changed() const {
  return std::any_of(impl_->shards.begin(), impl_->shards.end(),
                     [](const auto& shard) { return shard->file.has_changed(); });
}

const std::string& GgufFile::path() const {
  return impl_->shards[0]->path;
}
uint32_t GgufFile::n_shards() const {
  return static_cast<uint32_t>(impl_->shards.size());
}
uint64_t GgufFile::file_bytes() const {
  return impl_->file_bytes;
}
uint64_t GgufFile::fingerprint() const {
  return impl_->fingerprint;
}
uint64_t GgufFile::content_id() const {
  return impl_->content_id;
}

const std::vector<GgufTensor>& GgufFile::tensors() const {
  return impl_->tensors;
}
const std::vector<GgufValue>& GgufFile::values() const {
  return impl_->values;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto i = impl_->tensor_index.find(name);
  return i.has_value() ? &impl_->tensors[*i] : nullptr;
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto i = impl_->value_index.find(key);
  return i.has_value() ? &impl_->values[*i] : nullptr;
}

}  // namespace sharpi
