// SPDX-License-Identifier: MIT
#include "model/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "gguf/ggml_type.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

/// The weights of a model that adapters change, and where they are.
class AdaptableWeights {
 public:
  struct Weight {
    const TensorRef* ref = nullptr;
    uint32_t layer = 0;
    bool of_ffn = false;
  };
  explicit AdaptableWeights(const ModelSpec& base) {
    for (uint32_t l = 0; l < base.n_layers(); ++l) {
      for (const TensorRef* w : adaptable_in_mixer(base.layers[l])) add({w, l, false});
      for (const TensorRef* w : adaptable_in_ffn(base.layers[l])) add({w, l, true});
    }
  }
  /// Null: adapters do not change it.
  const Weight* find(const GgufTensor* tensor) const {
    const auto at = weights_.find(tensor);
    return at == weights_.end() ? nullptr : &at->second;
  }

 private:
  void add(const Weight& w) { weights_.emplace(w.ref->tensor, w); }
  std::map<const GgufTensor*, Weight> weights_;
};

/// A text of a file, shortened so that a sentence has room for it.
std::string shown(std::string_view text) {
  return std::string(text.substr(0, 64));
}

std::string shape_of(const GgufTensor& t) {
  std::string text = "{";
  uint32_t n = 4;
  while (n > 2 && t.ne[n - 1] == 1) --n;
  for (uint32_t d = 0; d < n; ++d) text += (d == 0 ? "" : ", ") + std::to_string(t.ne[d]);
  return text + "}";
}

class AdapterReader {
 public:
  AdapterReader(std::shared_ptr<const GgufFile> file, const ModelSpec& base)
      : base_(base), weights_(base) {
    out_.file = std::move(file);
  }

  Result<AdapterFile> run() {
    SHARPI_TRY(read_keys());
    SHARPI_TRY(pair_up());
    for (const auto& [name, halves] : halves_) SHARPI_TRY(add_pair(name, halves));
    if (out_.pairs.empty())
      return Status::error(Code::kFormat, "%s is an adapter without tensors", path());
    std::sort(out_.pairs.begin(), out_.pairs.end(),
              [](const AdapterPair& x, const AdapterPair& y) { return x.tensor < y.tensor; });
    return std::move(out_);
  }

 private:
  using Weight = AdaptableWeights::Weight;
  struct Halves {
    const GgufTensor* a = nullptr;
    const GgufTensor* b = nullptr;
  };
  const GgufFile& file() const { return *out_.file; }
  const char* path() const { return out_.file->path().c_str(); }

  Result<std::string> require_text(const char* key) const {
    SHARPI_TRY_ASSIGN(const auto value, file().get_string(key));
    if (value) return std::string(*value);
    return Status::error(Code::kFormat, "%s is no adapter: it has no %s", path(), key);
  }

  Status read_keys() {
    SHARPI_TRY_ASSIGN(const std::string type, require_text("general.type"));
    if (type != "adapter") {
      return Status::error(Code::kFormat, "%s is no adapter: its general.type is \"%s\"", path(),
                           shown(type).c_str());
    }
    SHARPI_TRY_ASSIGN(const std::string kind, require_text("adapter.type"));
    if (kind != "lora") {
      return Status::error(Code::kUnsupported,
                           "%s is an adapter of type \"%s\"; only \"lora\" is supported", path(),
                           shown(kind).c_str());
    }
    SHARPI_TRY_ASSIGN(const std::string arch, require_text("general.architecture"));
    if (arch != base_.architecture) {
      return Status::error(Code::kMismatch,
                           "%s is for architecture \"%s\", but the model is \"%s\"", path(),
                           shown(arch).c_str(), base_.architecture.c_str());
    }
    SHARPI_TRY(read_alpha());
    SHARPI_TRY(refuse_other_keys());
    SHARPI_TRY_ASSIGN(const auto name, file().get_string("general.name"));
    const std::string& full = file().path();
    out_.name =
        name && !name->empty() ? std::string(*name) : full.substr(full.find_last_of("/\\") + 1);
    return Status::ok();
  }

  Status read_alpha() {
    constexpr const char* kKey = "adapter.lora.alpha";
    SHARPI_TRY_ASSIGN(const auto alpha, file().get_float(kKey));
    if (!alpha) return Status::error(Code::kFormat, "%s has no %s", path(), kKey);
    out_.alpha = static_cast<float>(*alpha);
    if (std::isfinite(out_.alpha)) return Status::ok();
    return Status::error(Code::kFormat, "%s of %s is %g, which is no finite number", kKey, path(),
                         *alpha);
  }

  /// A key about the adapter that nothing reads may say that it is to be used otherwise.
  Status refuse_other_keys() const {
    constexpr std::string_view kKnown[] = {"adapter.type", "adapter.lora.alpha",
                                           "adapter.lora.task_name", "adapter.lora.prompt_prefix"};
    for (const GgufValue& v : file().values()) {
      if (v.key.substr(0, 8) != "adapter.") continue;
      if (std::find(std::begin(kKnown), std::end(kKnown), v.key) != std::end(kKnown)) continue;
      return Status::error(Code::kUnsupported,
                           "%s has the key %s, by which nothing here uses an adapter", path(),
                           shown(v.key).c_str());
    }
    return Status::ok();
  }

  Status pair_up() {
    for (const GgufTensor& t : file().tensors()) {
      constexpr size_t kSuffix = 7;
      const std::string_view end =
          t.name.size() <= kSuffix ? std::string_view() : t.name.substr(t.name.size() - kSuffix);
      if (end != ".lora_a" && end != ".lora_b") {
        return Status::error(
            Code::kUnsupported,
            "the adapter has a tensor %s, which is neither a .lora_a nor a .lora_b",
            shown(t.name).c_str());
      }
      Halves& h = halves_[t.name.substr(0, t.name.size() - kSuffix)];
      (end == ".lora_a" ? h.a : h.b) = &t;
    }
    return Status::ok();
  }

  Status add_pair(std::string_view name, const Halves& h) {
    const std::string text = shown(name);
    if (h.a == nullptr || h.b == nullptr) {
      return Status::error(Code::kFormat, "the adapter has %s.lora_%c, but no %s.lora_%c",
                           text.c_str(), h.a != nullptr ? 'a' : 'b', text.c_str(),
                           h.a != nullptr ? 'b' : 'a');
    }
    for (const GgufTensor* t : {h.a, h.b}) {
      if (ggml_traits(t->type).computable) continue;
      return Status::error(Code::kUnsupported,
                           "the adapter's %s has type %s, which nothing computes",
                           shown(t->name).c_str(), ggml_traits(t->type).name);
    }
    SHARPI_TRY_ASSIGN(const std::vector<const Weight*> weights, find_weights(name));
    uint64_t n_out = 0;
    for (const Weight* w : weights) n_out += w->ref->n_out;
    SHARPI_TRY(check_shapes(text, weights[0]->ref->n_in, n_out, h));
    AdapterPair p;
    p.a = h.a;
    p.b = h.b;
    p.rank = static_cast<uint32_t>(h.a->ne[1]);
    p.scale = out_.alpha == 0.0f ? 1.0f : out_.alpha / static_cast<float>(p.rank);
    out_.max_rank = std::max(out_.max_rank, p.rank);
    for (const Weight* w : weights) {
      p.tensor = tensor_index(base_, *w->ref);
      p.layer = w->layer;
      p.of_ffn = w->of_ffn;
      p.n_in = w->ref->n_in;
      p.n_out = w->ref->n_out;
      out_.pairs.push_back(p);
      p.first_row += w->ref->n_out;
    }
    return Status::ok();
  }

  /// The weight of this name; of a matrix that the file has for several, all of them.
  Result<std::vector<const Weight*>> find_weights(std::string_view name) const {
    std::vector<const Weight*> out;
    for (const GgufTensor& t : base_.file->tensors()) {
      if (t.part_of != name) continue;
      if (t.gathered != nullptr) {
        return Status::error(
            Code::kUnsupported,
            "the adapter changes %s, rows of which are of several weights by turns; "
            "adapters of such a matrix are not supported",
            shown(name).c_str());
      }
      SHARPI_TRY_ASSIGN(const Weight* const w, find_weight(t.name));
      out.push_back(w);
    }
    if (!out.empty()) return out;
    SHARPI_TRY_ASSIGN(const Weight* const w, find_weight(name));
    out.push_back(w);
    return out;
  }

  Result<const Weight*> find_weight(std::string_view name) const {
    const GgufTensor* const t = base_.file->find_tensor(name);
    if (t == nullptr) {
      return Status::error(
          Code::kMismatch,
          "the adapter changes %s, which the model does not have: it is of another "
          "base",
          shown(name).c_str());
    }
    const Weight* const w = weights_.find(t);
    if (w != nullptr) return w;
    const bool end = t == base_.token_embd.tensor || t == base_.output.tensor;
    const char* what = end            ? "the embedding table or the head"
                       : t->ne[2] > 1 ? "routed experts or of single heads"
                                      : "such a tensor";
    return Status::error(Code::kUnsupported,
                         "the adapter changes %s: adapters of %s are not supported, only those of "
                         "attention, delta nets, Mamba-2, and dense or shared FFNs",
                         shown(name).c_str(), what);
  }

  static Status check_shapes(const std::string& name, uint64_t n_in, uint64_t n_out,
                             const Halves& h) {
    const GgufTensor &a = *h.a, &b = *h.b;
    const bool flat = a.ne[2] == 1 && a.ne[3] == 1 && b.ne[2] == 1 && b.ne[3] == 1;
    if (!flat || a.ne[0] != n_in || b.ne[1] != n_out) {
      return Status::error(Code::kMismatch,
                           "the adapter is of another base: for %s it has %s and %s, but the "
                           "model's weight is {%llu, %llu}",
                           name.c_str(), shape_of(a).c_str(), shape_of(b).c_str(),
                           static_cast<ull>(n_in), static_cast<ull>(n_out));
    }
    if (a.ne[1] != b.ne[0]) {
      return Status::error(Code::kFormat,
                           "the two halves of the adapter's %s have ranks %llu and %llu",
                           name.c_str(), static_cast<ull>(a.ne[1]), static_cast<ull>(b.ne[0]));
    }
    if (a.ne[1] >= 1 && a.ne[1] <= kMaxAdapterRank) return Status::ok();
    return Status::error(Code::kFormat, "the adapter's %s has rank %llu; it must be 1 to %u",
                         name.c_str(), static_cast<ull>(a.ne[1]), kMaxAdapterRank);
  }

  const ModelSpec& base_;
  const AdaptableWeights weights_;
  AdapterFile out_;
  std::map<std::string_view, Halves> halves_;
};

}  // namespace

std::vector<const TensorRef*> adaptable_in_mixer(const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  const bool own_rows = layer.kv_source() < 0;
  std::vector<const TensorRef*> out;
  for (const TensorRef* w : layer.mixer_products()) {
    const bool unread = !own_rows && (w == &a.k || w == &a.v);
    const bool by_head = w == &a.latent.k_b || w == &a.latent.v_b;  // products of heads
    if (*w && !unread && !by_head) out.push_back(w);
  }
  return out;
}

std::vector<const TensorRef*> adaptable_in_ffn(const LayerSpec& layer) {
  const FfnSpec& f = layer.ffn;
  std::vector<const TensorRef*> out;
  const auto add = [&](std::initializer_list<const TensorRef*> weights) {
    for (const TensorRef* w : weights)
      if (*w) out.push_back(w);
  };
  add({&f.shared_gate, &f.shared_up, &f.shared_down});
  if (f.kind == FfnKind::kDense) add({&f.gate, &f.up, &f.down});
  return out;
}

uint64_t AdapterFile::parameter_count() const {
  uint64_t n = 0;
  for (const AdapterPair& p : pairs) n += (p.n_in + p.n_out) * p.rank;
  return n;
}

Result<AdapterFile> read_adapter(std::shared_ptr<const GgufFile> file, const ModelSpec& base) {
  return AdapterReader(std::move(file), base).run();
}

Result<AdapterFile> open_adapter(const std::string& path, const ModelSpec& base) {
  SHARPI_TRY_ASSIGN(auto file, GgufFile::open(path));
  return read_adapter(std::move(file), base);
}

}  // namespace sharpi
