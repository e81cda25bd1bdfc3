// SPDX-License-Identifier: MIT
// Adapter files: what is read of a good one, and that every bent one is refused with the reason.
#include "model/adapter_file.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/adapter_writer.h"
#include "support/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // ../fuzz/adapter_fuzz.cc

namespace sharpi {
namespace {

using test::AdapterWriter;

/// An adapter of rank 4 for one weight.
AdapterWriter adapter_of(const std::string& weight, uint64_t n_in, uint64_t n_out) {
  AdapterWriter w("qwen3", 8.0f);
  w.pair(weight, n_in, n_out, 4, 1);
  return w;
}

std::shared_ptr<const ModelSpec> base_of(const test::ModelRecipe& recipe) {
  auto made = test::load_model(test::ModelFile(recipe), /*sparse=*/true);
  EXPECT_TRUE(made.is_ok()) << made.status().text();
  return made.is_ok() ? made.value() : nullptr;
}

Result<AdapterFile> read(const AdapterWriter& writer, const ModelSpec& base,
                         std::vector<std::byte>* bytes) {
  *bytes = writer.bytes();
  SHARPI_TRY_ASSIGN(auto file, GgufFile::open_memory(bytes->data(), bytes->size(), "adapter.gguf"));
  return read_adapter(std::move(file), base);
}

void expect_refused(const AdapterWriter& writer, Code code, const std::vector<const char*>& texts,
                    const test::ModelRecipe& recipe = test::tiny_qwen3()) {
  const auto base = base_of(recipe);
  ASSERT_NE(base, nullptr);
  std::vector<std::byte> bytes;
  const auto got = read(writer, *base, &bytes);
  ASSERT_FALSE(got.is_ok()) << texts[0];
  EXPECT_EQ(got.status().code(), code) << got.status().text();
  for (const char* text : texts)
    EXPECT_NE(got.status().text().find(text), std::string::npos) << got.status().text();
}

constexpr const char* kQ = "blk.0.attn_q.weight";

TEST(AdapterFileTest, ReadsPairsOfAllTypes) {
  const auto base = base_of(test::tiny_qwen3());
  ASSERT_NE(base, nullptr);
  const GgmlType types[] = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0};
  for (const GgmlType type : types) {
    AdapterWriter w("qwen3", 16.0f);
    w.pair("blk.1.ffn_down.weight", 96, 64, 32, 2, type);
    w.pair(kQ, 64, 128, 8, 1, type == GgmlType::kQ8_0 ? GgmlType::kF16 : type);
    std::vector<std::byte> bytes;
    const auto got = read(w, *base, &bytes);
    ASSERT_TRUE(got.is_ok()) << got.status().text();
    const AdapterFile& a = got.value();
    ASSERT_EQ(a.pairs.size(), 2u);
    EXPECT_EQ(a.max_rank, 32u);
    EXPECT_EQ(a.alpha, 16.0f);
    EXPECT_EQ(a.name, "adapter.gguf");
    EXPECT_EQ(a.parameter_count(), (64u + 128u) * 8 + (96u + 64u) * 32);
    EXPECT_LT(a.pairs[0].tensor, a.pairs[1].tensor) << "in the order of the model's tensors";
    for (const AdapterPair& p : a.pairs) {
      const bool is_q = base->file->tensors()[p.tensor].name == kQ;
      EXPECT_EQ(p.rank, is_q ? 8u : 32u);
      EXPECT_EQ(p.scale, is_q ? 2.0f : 0.5f);
      EXPECT_EQ(p.n_in, is_q ? 64u : 96u);
    }
  }
}

TEST(AdapterFileTest, AlphaOfZeroMeansScaleOne) {
  const auto base = base_of(test::tiny_qwen3());
  AdapterWriter w("qwen3", 0.0f);
  w.pair(kQ, 64, 128, 4, 1);
  std::vector<std::byte> bytes;
  const auto got = read(w, *base, &bytes);
  ASSERT_TRUE(got.is_ok()) << got.status().text();
  EXPECT_EQ(got.value().pairs[0].scale, 1.0f);
}

TEST(AdapterFileTest, DeltaNetsAndSharedExpertsAreAdapted) {
  const auto base = base_of(test::tiny_qwen35moe());
  ASSERT_NE(base, nullptr);
  AdapterWriter w("qwen35moe", 8.0f);
  const LayerSpec& l = base->layers[0];
  uint64_t seed = 1;
  const auto add = [&](const TensorRef& t) {
    ASSERT_TRUE(t);
    w.pair(std::string(t.tensor->name), t.n_in, t.n_out, 4, seed++);
  };
  for (const TensorRef* t : l.mixer_products()) add(*t);
  for (const TensorRef* t : {&l.ffn.shared_gate, &l.ffn.shared_up, &l.ffn.shared_down}) add(*t);
  std::vector<std::byte> bytes;
  const auto got = read(w, *base, &bytes);
  ASSERT_TRUE(got.is_ok()) << got.status().text();
  EXPECT_EQ(got.value().pairs.size(), 8u);
}

/// An adapter of a matrix that files have for several weights is one of each, with rows of B.
TEST(AdapterFileTest, MatricesOfSeveralWeightsAreTakenApart) {
  const test::ModelRecipe recipe = test::tiny_phi3();
  const auto base = base_of(recipe);
  ASSERT_NE(base, nullptr);
  const uint64_t q = uint64_t{recipe.n_heads} * recipe.head_dim,
                 kv = uint64_t{recipe.n_kv_heads} * recipe.head_dim;
  AdapterWriter w("phi3", 8.0f);
  w.pair("blk.0.attn_qkv.weight", recipe.n_embd, q + 2 * kv, 4, 1);
  w.pair("blk.0.ffn_up.weight", recipe.n_embd, 2 * uint64_t{recipe.d_ff}, 4, 2);
  std::vector<std::byte> bytes;
  const auto got = read(w, *base, &bytes);
  ASSERT_TRUE(got.is_ok()) << got.status().text();
  ASSERT_EQ(got.value().pairs.size(), 5u);
  const LayerSpec& l = base->layers[0];
  const TensorRef* want[] = {&l.attention.q, &l.attention.k, &l.attention.v, &l.ffn.gate,
                             &l.ffn.up};
  const uint64_t first[] = {0, q, q + kv, 0, recipe.d_ff};
  for (size_t i = 0; i < 5; ++i) {
    const AdapterPair& p = got.value().pairs[i];
    EXPECT_EQ(p.tensor, tensor_index(*base, *want[i])) << i;
    EXPECT_EQ(p.first_row, first[i]) << i;
    EXPECT_EQ(p.n_out, want[i]->n_out) << i;
  }
  AdapterWriter one("phi3", 8.0f);
  one.pair("blk.0.ffn_up.weight", recipe.n_embd, recipe.d_ff, 4, 2);
  expect_refused(one, Code::kMismatch, {"another base", "{64, 192}"}, recipe);
}

/// But not where rows of the weights take turns in it.
TEST(AdapterFileTest, MatricesOfWeightsByTurnsAreRefused) {
  const test::ModelRecipe recipe = test::tiny_qwen3next();
  for (const char* name : {"blk.0.ssm_in.weight", "blk.1.ssm_ba.weight"}) {
    AdapterWriter w("qwen3next", 8.0f);
    w.pair(name, recipe.n_embd, name[4] == '0' ? 192 : 8, 4, 1);
    expect_refused(w, Code::kUnsupported, {name, "several weights by turns"}, recipe);
  }
}

TEST(AdapterFileTest, RefusesWhatIsNoLora) {
  AdapterWriter model = adapter_of(kQ, 64, 128);
  model.type("model");
  expect_refused(model, Code::kFormat, {"no adapter", "\"model\""});
  AdapterWriter none = adapter_of(kQ, 64, 128);
  none.type("");
  expect_refused(none, Code::kFormat, {"no adapter", "general.type"});
  AdapterWriter control = adapter_of(kQ, 64, 128);
  control.kind("control_vector");
  expect_refused(control, Code::kUnsupported, {"control_vector", "lora"});
  AdapterWriter invoked = adapter_of(kQ, 64, 128);
  invoked.gguf().array("adapter.alora.invocation_tokens", std::vector<uint32_t>{1, 2});
  expect_refused(invoked, Code::kUnsupported, {"adapter.alora.invocation_tokens"});
  expect_refused(AdapterWriter("qwen3", 1.0f), Code::kFormat, {"without tensors"});
}

TEST(AdapterFileTest, RefusesAnotherBaseByNameAndShape) {
  AdapterWriter other("llama", 8.0f);
  other.pair(kQ, 64, 128, 4, 1);
  expect_refused(other, Code::kMismatch, {"\"llama\"", "\"qwen3\""});
  expect_refused(adapter_of("blk.7.attn_q.weight", 64, 128), Code::kMismatch,
                 {"blk.7.attn_q.weight", "does not have", "another base"});
  expect_refused(adapter_of(kQ, 32, 128), Code::kMismatch,
                 {"another base", kQ, "{32, 4}", "{4, 128}", "{64, 128}"});
  expect_refused(adapter_of(kQ, 64, 64), Code::kMismatch, {"{64, 4}", "{4, 64}", "{64, 128}"});
}

TEST(AdapterFileTest, RefusesHalvesAndRanks) {
  AdapterWriter a("qwen3", 8.0f);
  a.half(std::string(kQ) + ".lora_a", {64, 4}, 1);
  expect_refused(a, Code::kFormat, {"blk.0.attn_q.weight.lora_a, but no", ".lora_b"});
  AdapterWriter b("qwen3", 8.0f);
  b.half(std::string(kQ) + ".lora_b", {4, 128}, 1);
  expect_refused(b, Code::kFormat, {".lora_b, but no blk.0.attn_q.weight.lora_a"});
  AdapterWriter ranks("qwen3", 8.0f);
  ranks.half(std::string(kQ) + ".lora_a", {64, 4}, 1);
  ranks.half(std::string(kQ) + ".lora_b", {8, 128}, 1);
  expect_refused(ranks, Code::kFormat, {"ranks 4 and 8"});
  AdapterWriter none("qwen3", 8.0f);
  none.half(std::string(kQ) + ".lora_a", {64, 0}, 1);
  none.half(std::string(kQ) + ".lora_b", {0, 128}, 1);
  expect_refused(none, Code::kFormat, {"0"});
  AdapterWriter huge("qwen3", 8.0f);
  huge.half(std::string(kQ) + ".lora_a", {64, 5000}, 1);
  huge.half(std::string(kQ) + ".lora_b", {5000, 128}, 1);
  expect_refused(huge, Code::kFormat, {"rank 5000", "4096"});
}

TEST(AdapterFileTest, RefusesAlphaThatIsNoNumber) {
  for (const float alpha :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    AdapterWriter w("qwen3", alpha);
    w.pair(kQ, 64, 128, 4, 1);
    expect_refused(w, Code::kFormat, {"adapter.lora.alpha", "no finite number"});
  }
  AdapterWriter none("qwen3");
  none.pair(kQ, 64, 128, 4, 1);
  expect_refused(none, Code::kFormat, {"has no adapter.lora.alpha"});
}

TEST(AdapterFileTest, RefusesWeightsThatAdaptersDoNotChange) {
  expect_refused(adapter_of("token_embd.weight", 64, 320), Code::kUnsupported,
                 {"token_embd.weight", "embedding table or the head"});
  test::ModelRecipe untied = test::tiny_qwen3();
  untied.tied = false;
  expect_refused(adapter_of("output.weight", 64, 320), Code::kUnsupported,
                 {"output.weight", "embedding table or the head"}, untied);
  expect_refused(adapter_of("blk.0.attn_norm.weight", 64, 1), Code::kUnsupported,
                 {"blk.0.attn_norm.weight", "not supported"});
  AdapterWriter experts("qwen3moe", 8.0f);
  experts.pair("blk.0.ffn_gate_exps.weight", 64, 32, 4, 1);
  expect_refused(experts, Code::kUnsupported, {"ffn_gate_exps", "routed experts"},
                 test::tiny_qwen3moe());
  AdapterWriter heads("deepseek2", 8.0f);
  heads.pair("blk.0.attn_k_b.weight", 32, 48, 4, 1);
  expect_refused(heads, Code::kUnsupported, {"attn_k_b", "single heads"}, test::tiny_deepseek2());
  AdapterWriter norm = adapter_of(kQ, 64, 128);
  norm.half("blk.0.attn_norm.weight", {64}, 1);
  expect_refused(norm, Code::kUnsupported, {"neither a .lora_a nor a .lora_b"});
}

/// Every byte of the header in turn gets values that break it: the reader refuses with a reason, or
/// reads what is then there, and never reads beyond it.
TEST(AdapterFileTest, BentBytesAreRefusedOrRead) {
  AdapterWriter w = adapter_of(kQ, 64, 128);
  const std::vector<std::byte> good = w.bytes();
  ASSERT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(good.data()), good.size()), 0);
  for (size_t at = 0; at < 512; ++at) {
    for (const uint8_t value : std::initializer_list<uint8_t>{0, 1, 127, 255}) {
      std::vector<std::byte> bent = good;
      bent[at] = std::byte{value};
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bent.data()), bent.size());
    }
  }
}

}  // namespace
}  // namespace sharpi
