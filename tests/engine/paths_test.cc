// SPDX-License-Identifier: MIT
// What a model says about its kernels: every kind of work is named, for few and for many rows, and
// what is not used is said too.
#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

std::string json_of(const Loaded& l) {
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_json(l.model.get(), nullptr, 0, &n, &e), SHARPI_E_BUFFER_TOO_SMALL);
  std::string out(n + 1, '\0');
  EXPECT_EQ(sharpi_model_json(l.model.get(), out.data(), out.size(), &n, &e), SHARPI_OK)
      << text_of(e);
  return out;
}
/// The entry "paths" of the JSON.
std::string paths_of(const Loaded& l) {
  const std::string json = json_of(l), name = "\"paths\": \"";
  const size_t from = json.find(name);
  EXPECT_NE(from, std::string::npos) << json;
  if (from == std::string::npos) return "";
  const size_t first = from + name.size();
  return json.substr(first, json.find('"', first) - first);
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string tier_words() {
  return on_vulkan() ? "vulkan" : on_gpu() ? "cuda" : "cpu";
}
/// What paths begin with: the tier, and what it is there.
std::string first_words() {
  return tier_words() + (on_gpu() && !on_vulkan() ? " sm_" : " ");
}

class Paths : public ModelTest {
 protected:
  Loaded open_with(sharpi_arithmetic arithmetic) const {
    return load(path(), setup_with([=](sharpi_plan_params* p, sharpi_session_params*) {
                  p->arithmetic = arithmetic;
                }));
  }
};

TEST_P(Paths, NameEveryKindOfWork) {
  const Loaded l = open_with(SHARPI_ARITHMETIC_FAST);
  const std::string text = paths_of(l);
  EXPECT_EQ(text.rfind(first_words(), 0), 0u) << text;
  EXPECT_TRUE(has(text, "; q8_0: ")) << text;
  EXPECT_TRUE(has(text, "; attention") || has(text, "; latent attention")) << text;
  EXPECT_EQ(has(text, "; delta net: ") || has(text, "; mamba-2: "), l.info.is_hybrid == 1) << text;
  if (!on_gpu()) return;
  EXPECT_EQ(has(text, "; experts: "), l.info.n_experts != 0) << text;
  if (!on_vulkan()) {
    EXPECT_TRUE(has(text, "own products") || has(text, "cuBLASLt")) << text;
  }
  EXPECT_FALSE(has(text, "cpu ")) << text;
}

/// On a GPU its launches, elsewhere its operations; either way with the head at the end.
TEST_P(Paths, SayWhatAStepDoes) {
  const std::string json = json_of(open_with(SHARPI_ARITHMETIC_FAST));
  const size_t at = json.find("\"step\": [{\"tier\": \"");
  ASSERT_NE(at, std::string::npos) << json;
  const std::string step = json.substr(at, json.find("}]", at) - at);
  EXPECT_TRUE(has(step, "\"" + tier_words() + "\"")) << step;
  EXPECT_TRUE(has(step, "\"does\": [\"embed")) << step;
  EXPECT_TRUE(has(step, "layers 0-") || has(step, "layers 0,") || has(step, "layer 0:")) << step;
  EXPECT_TRUE(has(step, on_gpu() ? "logits\"]" : "\"head\"]")) << step;
}

TEST_P(Paths, ExactArithmeticIsF32Everywhere) {
  const std::string text = paths_of(open_with(SHARPI_ARITHMETIC_EXACT));
  for (const char* narrow : {"f16 streaming", "tensor cores", "int8", "bf16-", "chunks on"}) {
    EXPECT_FALSE(has(text, narrow)) << text;
  }
  EXPECT_TRUE(has(text, "f32")) << text;
}

TEST_P(Paths, ASessionsTextIsTheModelsOrItsBeginning) {
  const Loaded l = open_with(SHARPI_ARITHMETIC_FAST);
  Chat chat(l.model.get());
  const std::string whole = paths_of(l), seen = chat.info().paths;
  if (whole.size() < sizeof(sharpi_session_summary::paths)) {
    EXPECT_EQ(seen, whole);
  } else {
    EXPECT_EQ(seen.size(), sizeof(sharpi_session_summary::paths) - 1);
    EXPECT_EQ(seen, whole.substr(0, seen.size() - 3) + "...");
  }
}

/// A model that nothing drafts for says so; whoever drafts has kernels and a step of its own.
TEST_P(Paths, NameWhoDrafts) {
  const std::string plain = json_of(open_with(SHARPI_ARITHMETIC_FAST));
  EXPECT_TRUE(has(plain, "\"mtp\": null, \"draft\": null}")) << plain;
  const std::string own = path();
  const std::string drafted =
      json_of(load(own, setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                     p->draft_path = own.c_str();
                     s->n_draft = 4;
                     s->drafters = SHARPI_DRAFT_MODEL;
                   })));
  const size_t at = drafted.find("\"draft\": {\"architecture\": ");
  ASSERT_NE(at, std::string::npos) << drafted;
  EXPECT_NE(drafted.find("\"step\": [{\"tier\": ", at), std::string::npos) << drafted;
}

TEST_P(Paths, NameTheBlockForMultiTokenPrediction) {
  const std::string name = GetParam();
  if (name.find("qwen35") == std::string::npos) return;  // the others have none
  const std::string json =
      json_of(load(path(), setup_with([](sharpi_plan_params*, sharpi_session_params* s) {
                     s->n_draft = 4;
                     s->drafters = SHARPI_DRAFT_MTP;
                   })));
  const std::string begin = std::string("\"mtp\": {\"paths\": \"") + first_words();
  const size_t at = json.find(begin);
  ASSERT_NE(at, std::string::npos) << json;
  const std::string mtp = json.substr(at, json.find("\"draft\": ", at) - at);
  EXPECT_TRUE(has(mtp, "; q8_0: ")) << mtp;
  EXPECT_TRUE(has(mtp, "\"step\": [{\"tier\": ")) << mtp;
}

INSTANTIATE_TEST_SUITE_P(Engine, Paths, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
