// SPDX-License-Identifier: MIT
// Sessions whose KV rows have other types than the plan's: narrower ones are what a plan of their
// own gives, wider ones fit only where workspaces, which all sessions share, have room for their
// rows.
#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

constexpr sharpi_kv_dtype kTypes[] = {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_Q4};

Edit of_type(sharpi_kv_dtype type, uint32_t n_ctx) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 48;
    p->deterministic = 1;
    s->n_ctx = n_ctx;
    s->k_dtype = s->v_dtype = type;
  };
}

sharpi_session_params session_of(sharpi_kv_dtype type) {
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 96;
  s.k_dtype = s.v_dtype = type;
  return s;
}

/// Before, the CPU let wider rows in, whose chunks were then written behind the end of its scratch.
TEST(SessionRows, OfWindowsFitThePlansWorkspacesOrAreRefused) {
  uint32_t n_refused = 0, n_taken = 0;
  for (const test::ModelRecipe& recipe : {test::tiny_gemma3(), test::tiny_gemma4()}) {
    test::ModelRecipe wide = recipe;
    wide.head_dim = wide.head_dim_swa = 64;  // whole blocks of every type
    wide.n_ctx = 16384;
    const MadeModel file(wide);
    const std::vector<int32_t> tokens = file.tokens(80);
    for (size_t of_plan = 0; of_plan < std::size(kTypes); ++of_plan) {
      for (size_t of_session = 0; of_session < std::size(kTypes); ++of_session) {
        SCOPED_TRACE(recipe.arch + ", plan " + std::to_string(kTypes[of_plan]) + ", session " +
                     std::to_string(kTypes[of_session]));
        const Loaded loaded = load(file.path(), setup_with(of_type(kTypes[of_plan], 16384)));
        ASSERT_TRUE(loaded.model);
        const sharpi_session_params params = session_of(kTypes[of_session]);
        if (of_session < of_plan) {  // wider
          sharpi_session* session = nullptr;
          sharpi_error e = SHARPI_ERROR_INIT;
          EXPECT_EQ(sharpi_session_create(loaded.model.get(), &params, &session, &e),
                    SHARPI_E_DOES_NOT_FIT);
          EXPECT_NE(std::string(e.text).find("a KV row of the sliding-window layers takes "),
                    std::string::npos)
              << e.text;
          EXPECT_EQ(session, nullptr);
          ++n_refused;
          continue;
        }
        Chat chat(loaded.model.get(), &params);
        chat.prefill(tokens);
        const Loaded own = load(file.path(), setup_with(of_type(kTypes[of_session], 96)));
        Chat want(own.model.get(), &params);
        want.prefill(tokens);
        EXPECT_TRUE(same_bits(chat.logits(), want.logits()));
        ++n_taken;
      }
    }
  }
  EXPECT_EQ(n_refused, 12u);
  EXPECT_EQ(n_taken, 20u);
}

}  // namespace
}  // namespace sharpi::testing
