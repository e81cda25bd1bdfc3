// SPDX-License-Identifier: MIT
// What tests of adapters share: adapters of every weight that they may change, made for a model's
// file, and the same model with an adapter merged into its weights. Thread rule: as sharpi.h.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_case.h"
#include "model/adapter_file.h"
#include "support/adapter_writer.h"

namespace sharpi::testing {

struct DestroyAdapter {
  void operator()(sharpi_adapter* p) const { sharpi_adapter_destroy(p); }
};
using AdapterPtr = std::unique_ptr<sharpi_adapter, DestroyAdapter>;

inline AdapterPtr load_adapter(const sharpi_model* model, const std::string& path) {
  sharpi_adapter* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_adapter_load(model, path.c_str(), &out, &e), SHARPI_OK) << text_of(e);
  return AdapterPtr(out);
}

inline void choose(const Chat& chat, const std::vector<sharpi_adapter_use>& uses) {
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_adapters(chat.get(), uses.data(), sizeof(sharpi_adapter_use),
                                        static_cast<uint32_t>(uses.size()), &e),
            SHARPI_OK)
      << text_of(e);
}

/// The weights of a model that adapters may change, each once: not those whose rows a file has in
/// turns with others'.
inline std::vector<const TensorRef*> adaptable(const ModelSpec& spec) {
  std::vector<const TensorRef*> out;
  for (const LayerSpec& l : spec.layers) {
    for (const TensorRef* w : l.mixer_products()) {
      if (w->n_experts > 1) continue;  // matrices of single heads, whose adapters are refused
      const bool unread = l.kv_source() >= 0 && (w == &l.attention.k || w == &l.attention.v);
      if (*w && !unread && w->tensor->gathered == nullptr) out.push_back(w);
    }
    const FfnSpec& f = l.ffn;
    for (const TensorRef* w : {&f.shared_gate, &f.shared_up, &f.shared_down})
      if (*w) out.push_back(w);
    if (f.kind != FfnKind::kDense) continue;
    for (const TensorRef* w : {&f.gate, &f.up, &f.down})
      if (*w) out.push_back(w);
  }
  return out;
}

inline std::shared_ptr<const ModelSpec> mapped_spec(const std::string& path) {
  auto file = GgufFile::open(path);
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  auto mapped = file.value()->map_tensors();
  EXPECT_TRUE(mapped.is_ok()) << mapped.status().text();
  auto spec = load_model_spec(mapped.value());
  EXPECT_TRUE(spec.is_ok()) << spec.status().text();
  return spec.value();
}

/// An adapter of all of them, in a temporary file; where a file has one matrix for several, of
/// that. Its change to a product is about `gain` times as large as a product of a random weight.
class MadeAdapter {
 public:
  MadeAdapter(const ModelSpec& spec, uint64_t rank, uint64_t seed, double gain = 0.5,
              GgmlType type = GgmlType::kF32) {
    test::AdapterWriter w(spec.architecture, static_cast<float>(2 * rank));
    std::map<std::string, std::pair<uint64_t, uint64_t>> whole;  // inputs and outputs
    for (const TensorRef* t : adaptable(spec)) {
      if (t->tensor->part_of.empty()) {
        w.pair(*t, rank, seed++, type, gain / 2);
        continue;
      }
      auto& [n_in, n_out] = whole[std::string(t->tensor->part_of)];
      n_in = t->n_in;
      n_out += t->n_out;
    }
    for (const auto& [name, n] : whole)
      w.pair(name, n.first, n.second, rank, seed++, type, gain / 2);
    EXPECT_TRUE(w.write(file_.path()));
  }
  const std::string& path() const { return file_.path(); }

 private:
  test::TempFile file_;
};

/// A half of a pair, as f32.
inline std::vector<float> values_of(const GgufFile& file, const GgufTensor& t) {
  std::vector<std::byte> stored(t.bytes);
  EXPECT_TRUE(file.read_tensor(t, 0, stored.data(), stored.size()).is_ok());
  std::vector<float> out(t.elements());
  dequantize_row(t.type, stored.data(), out.data(), out.size());
  return out;
}

/// Adds scale alpha / rank B A to the weights of a model that is to be written, in double. Pre:
/// `spec` is that of the same model, with f32 weights.
inline void merge(test::ModelFile* model, const ModelSpec& spec, const std::string& adapter_path,
                  double scale) {
  auto adapter = open_adapter(adapter_path, spec);
  ASSERT_TRUE(adapter.is_ok()) << adapter.status().text();
  const AdapterFile& a = adapter.value();
  const auto raw = GgufFile::open(spec.file->path());
  ASSERT_TRUE(raw.is_ok()) << raw.status().text();
  for (const AdapterPair& p : a.pairs) {
    const GgufTensor& w = spec.file->tensors()[p.tensor];
    const std::string_view name = w.part_of.empty() ? w.name : w.part_of;
    std::vector<float>& values = model->tensor(name).values;
    if (values.empty()) values = values_of(*raw.value(), *raw.value()->find_tensor(name));
    const auto low = values_of(*a.file, *p.a), high = values_of(*a.file, *p.b);
    for (uint64_t o = 0; o < p.n_out; ++o) {
      for (uint64_t i = 0; i < p.n_in; ++i) {
        double sum = 0;
        for (uint64_t j = 0; j < p.rank; ++j)
          sum += double{high[(p.first_row + o) * p.rank + j]} * double{low[j * p.n_in + i]};
        values[(p.first_row + o) * p.n_in + i] +=
            static_cast<float>(scale * double{a.alpha} / p.rank * sum);
      }
    }
  }
}

/// Room for adapters of this rank; otherwise as the tests of the numbers have it.
inline Edit with_rank(uint32_t rank, sharpi_arithmetic arithmetic = SHARPI_ARITHMETIC_EXACT,
                      bool deterministic = true) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->adapter_rank = rank;
    p->arithmetic = arithmetic;
    p->deterministic = deterministic;
    p->n_chunk = 32;
    p->max_logit_rows = 32;
    s->n_ctx = 256;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
}

/// Why this model is not on the GPU of this program with adapters: the library's sentence. Empty:
/// it is, or models are on the CPU.
inline std::string why_not_on_gpu(const std::string& path) {
  if (!on_gpu()) return {};
  const ModelSetup setup = setup_with(with_rank(8));
  const ContextPtr context = make_context(setup);
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = try_plan(context.get(), path, setup, &plan, &e);
  EXPECT_TRUE(s == SHARPI_OK || s == SHARPI_E_UNSUPPORTED) << text_of(e);
  return s == SHARPI_OK ? std::string() : std::string(e.text);
}

/// A program whose models are to be on a GPU tier that refuses adapters is skipped as a whole.
class AdapterEnvironment final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (::testing::Test::IsSkipped()) return;
    const MadeModel model(test::tiny_llama());
    const std::string why = why_not_on_gpu(model.path());
    if (why.empty()) return;
    std::printf("skipped as a whole: %s\n", why.c_str());
    GTEST_SKIP() << why;
  }
};

}  // namespace sharpi::testing
