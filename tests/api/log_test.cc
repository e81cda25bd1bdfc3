// SPDX-License-Identifier: MIT
// What a host's log gets: decisions once, and nothing while tokens are read.
#include <mutex>

#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

struct Lines {
  std::vector<std::pair<sharpi_log_level, std::string>> all;
  static void take(void* user, sharpi_log_level level, const char* text, size_t len) {
    static_cast<Lines*>(user)->all.emplace_back(level, std::string(text, len));
  }
  size_t count(sharpi_log_level level, const std::string& part) const {
    size_t n = 0;
    for (const auto& [l, text] : all) n += l == level && text.find(part) != std::string::npos;
    return n;
  }
};

Loaded open(const std::string& path, Lines* lines, sharpi_log_level level) {
  ModelSetup setup;
  setup.edit_context = [=](sharpi_context_params* p) {
    p->log = Lines::take;
    p->log_user_data = lines;
    p->log_level = level;
  };
  setup.edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 16;
    s->n_ctx = SHARPI_UNSET;
    s->kv_budget = 64;
  };
  return load(path, setup);
}

TEST(Log, SaysWhatWasFoundPlannedAndLoadedAndNothingWhileTokensAreRead) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 65536;
  const MadeModel file(recipe);
  Lines lines;
  {
    const Loaded l = open(file.path(), &lines, SHARPI_LOG_DEBUG);
    ASSERT_TRUE(l.model);
    // A processor without vectors, or one that is taken for such a one, is said to be slow.
    const size_t slow = lines.count(SHARPI_LOG_INFO, "device 0: generic kernels");
    EXPECT_EQ(slow, lines.count(SHARPI_LOG_INFO, "(scalar, "));
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "device 0: "), 1 + slow);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "planned " + file.path() + ": "), 1u);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "chunks of 16"), 1u);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "loaded " + file.path() + " in "), 1u);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "kernels: "), 1u);
    EXPECT_EQ(lines.count(SHARPI_LOG_DEBUG, "row: "), l.plan_info.n_rows);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "planned: "), l.plan_info.n_fallbacks);
    Chat chat(l.model.get());
    const size_t before = lines.all.size();
    // Of a bounded session: it compacts on the way.
    chat.prefill(file.tokens(200));
    for (int32_t t = 0; t < 200; ++t) chat.decode(t);
    int32_t token = 0;
    uint32_t n = 0;
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(sharpi_session_step(chat.get(), nullptr, &token, 1, &n, nullptr), SHARPI_OK);
    sharpi_session* both[] = {chat.get()};
    ASSERT_EQ(sharpi_decode_batch(both, &token, 1, nullptr), SHARPI_OK);
    EXPECT_EQ(lines.all.size(), before) << lines.all.back().second;
  }
  for (const auto& [level, text] : lines.all) {
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_LE(level, SHARPI_LOG_DEBUG);
  }
}

TEST(Log, SaysThatKernelsAreTheGenericOnes) {
  for (const uint32_t isa : {SHARPI_ISA_SCALAR, SHARPI_ISA_AUTO}) {
    Lines lines;
    ModelSetup setup;
    setup.edit_context = [&](sharpi_context_params* p) {
      p->cpu_isa = isa;
      p->log = Lines::take;
      p->log_user_data = &lines;
      p->log_level = SHARPI_LOG_INFO;
    };
    const ContextPtr context = make_context(setup);
    ASSERT_TRUE(context);
    const bool generic = lines.count(SHARPI_LOG_INFO, "(scalar, ") == 1;
    EXPECT_TRUE(generic || isa == SHARPI_ISA_AUTO);
    EXPECT_EQ(lines.count(SHARPI_LOG_INFO, "device 0: generic kernels"), generic ? 1u : 0u);
  }
}

TEST(Log, SaysWhichPartsOfAFileAreLeftOut) {
  test::ModelFile made(test::tiny_qwen3());
  made.add_tensor("a.conv1d.weight", GgmlType::kF32, {64, 32});
  const test::TempFile file;
  ASSERT_TRUE(made.write(file.path()));
  Lines lines;
  const Loaded l = open(file.path(), &lines, SHARPI_LOG_WARN);
  ASSERT_TRUE(l.model);
  EXPECT_EQ(lines.count(SHARPI_LOG_WARN, "left out: an audio tower (1 tensor a.*)"), 1u);
  std::string json(1 << 16, '\0');
  size_t n = 0;
  ASSERT_EQ(sharpi_model_json(l.model.get(), json.data(), json.size(), &n, nullptr), SHARPI_OK);
  EXPECT_NE(json.find("\"left_out\": \"an audio tower (1 tensor a.*)\""), std::string::npos);
}

TEST(Log, LinesAboveTheLevelAreNotDelivered) {
  const MadeModel file(test::tiny_qwen3());
  Lines info, warn;
  ASSERT_TRUE(open(file.path(), &info, SHARPI_LOG_INFO).model);
  EXPECT_EQ(info.count(SHARPI_LOG_DEBUG, ""), 0u);
  EXPECT_GT(info.all.size(), 3u);
  ASSERT_TRUE(open(file.path(), &warn, SHARPI_LOG_WARN).model);
  EXPECT_TRUE(warn.all.empty());
}

}  // namespace
}  // namespace sharpi::testing
