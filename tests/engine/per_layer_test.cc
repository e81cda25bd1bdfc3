// SPDX-License-Identifier: MIT
// Tables of per-layer embeddings whose slices begin and end anywhere in a block of their type.
#include "api/backends.h"
#include "cpu/cpu_workspace.h"
#include "engine/inner_engine.h"
#include "gguf/ggml_type.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

struct Case {
  GgmlType type;
  uint32_t d_ple;
};

/// Slices that are blocks, lie within one, and lie across the end of one.
constexpr Case kCases[] = {{GgmlType::kQ8_0, 32},  {GgmlType::kQ8_0, 16},  {GgmlType::kQ8_0, 24},
                           {GgmlType::kQ8_0, 48},  {GgmlType::kQ4_0, 4},   {GgmlType::kQ4_0, 20},
                           {GgmlType::kQ4_K, 256}, {GgmlType::kQ4_K, 128}, {GgmlType::kQ6_K, 64},
                           {GgmlType::kQ6_K, 160}};

test::ModelRecipe recipe_of(const Case& c) {
  test::ModelRecipe recipe = for_tier(test::tiny_gemma4());
  recipe.d_ple = c.d_ple;
  recipe.table_type = c.type;
  recipe.n_embd = 256;
  return recipe;
}

/// Logits of three tokens, read one by one, behind a prompt; some threads have rows of their own.
std::vector<Logits> logits_of(const std::string& path, const std::vector<int32_t>& prompt) {
  const Loaded l = load(path, setup_with(
                                  [](sharpi_plan_params* p, sharpi_session_params* s) {
                                    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                                    s->n_ctx = 128;
                                  },
                                  4));
  Chat chat(l.model.get());
  chat.prefill(prompt);
  std::vector<Logits> out = {chat.logits()};
  for (const int32_t token : {3, 4}) {
    chat.decode(token);
    out.push_back(chat.logits());
  }
  return out;
}

/// Whoever asks for blocks on the GPU reads why the model does not go there.
void expect_refusal(const std::string& path, const std::string& want) {
  const ContextPtr context = make_context({});
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  const ModelSetup setup = setup_with([](sharpi_plan_params* p, auto) { p->n_gpu_layers = 1; });
  EXPECT_EQ(try_plan(context.get(), path, setup, &plan, &e), SHARPI_E_UNSUPPORTED);
  EXPECT_NE(std::string(e.text).find(want), std::string::npos) << e.text;
}

TEST(PerLayerEmbeddings, SlicesMayBeginInTheMiddleOfABlock) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(ggml_traits(c.type).name) + ", slices of " + std::to_string(c.d_ple));
    const test::TempFile stored, floats;
    test::ModelFile file(recipe_of(c));
    ASSERT_TRUE(file.write(stored.path()));
    // The same values as f32.
    const auto opened = GgufFile::open(stored.path());
    ASSERT_TRUE(opened.is_ok()) << opened.status().text();
    const auto mapped = opened.value()->map_tensors();
    ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
    const GgufTensor* table = mapped.value()->find_tensor("per_layer_token_embd.weight");
    ASSERT_EQ(table->type, c.type);
    for (auto& t : file.tensors()) {
      const GgufTensor* from = mapped.value()->find_tensor(t.name);
      t.values.resize(from->elements());
      dequantize_row(from->type, from->data, t.values.data(), t.values.size());
      t.type = GgmlType::kF32;
    }
    ASSERT_TRUE(file.write(floats.path()));
    if (test::suites_tier() == "cuda" && c.d_ple % 8 != 0) {
      const std::string want = "has per-layer embeddings of " + std::to_string(c.d_ple) +
                               " elements; the GPU takes multiples of 8";
      expect_refusal(stored.path(), want);
      expect_refusal(floats.path(), want);
      continue;
    }
    std::vector<int32_t> prompt(24);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 37 % 300);
    const auto want = logits_of(floats.path(), prompt), got = logits_of(stored.path(), prompt);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(distance(got[i], want[i]), 2e-3) << i;
  }
}

/// Logits do not show it: what lies behind the scratch is written before it is read.
TEST(PerLayerEmbeddings, ScratchOfARowHoldsEveryBlockOfASlice) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(ggml_traits(c.type).name) + ", slices of " + std::to_string(c.d_ple));
    const MadeModel file(recipe_of(c));
    const auto engine = InnerEngine::open(file.path(), api::make_backends);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    const ModelSpec& spec = *engine.value().spec;
    const auto plan = engine.value().plan([](auto* p, auto*) { p->n_gpu_layers = 0; });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    const uint64_t block = ggml_traits(c.type).block_elements;
    uint64_t most = 0;  // from the block that a slice begins in to the end of the one it ends in
    for (uint64_t first = 0; first < spec.n_layers() * uint64_t{c.d_ple}; first += c.d_ple)
      most = std::max(most, round_up(first + c.d_ple, block) - first / block * block);
    EXPECT_GE(cpu::ple_slice_floats(spec), most);
    const Plan& made = *plan.value();
    const cpu::WorkspaceLayout layout =
        cpu::make_workspace_layout(spec, made.placement, made.model, made.session, {}, 2);
    EXPECT_GE(layout.size_of(cpu::Buf::kPleTmp), layout.max_rows * most * sizeof(float));
  }
}

}  // namespace
}  // namespace sharpi::testing
