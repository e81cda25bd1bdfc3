// SPDX-License-Identifier: MIT
// The engine below the C boundary, over backends of the test's choice: opening, and verbs that fail
// the test with the library's own sentence. Thread rule: as the engine's.
#pragma once

#include "cpu/cpu_backend.h"
#include "engine/engine_case.h"
#include "engine/session.h"

namespace sharpi::testing {

/// A CPU tier of two threads.
inline Result<std::unique_ptr<Backend>> small_cpu() {
  cpu::CpuBackendOptions options;
  options.n_threads = 2;
  return cpu::make_backend(options);
}

/// A context over the backends of a factory, and the spec of one file.
struct InnerEngine {
  std::shared_ptr<Context> context;
  std::shared_ptr<const ModelSpec> spec;

  static Result<InnerEngine> open(const std::string& path, BackendFactory backends) {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    InnerEngine e;
    SHARPI_TRY_ASSIGN(e.context, Context::create(c, backends));
    SHARPI_TRY_ASSIGN(auto file, GgufFile::open(path));
    SHARPI_TRY_ASSIGN(e.spec, load_model_spec(std::move(file)));
    return e;
  }
  Result<std::shared_ptr<const Plan>> plan(const Edit& edit,
                                           std::shared_ptr<const ModelSpec> draft = nullptr) const {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 256;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    edit(&p, &s);
    return make_plan(spec, context->sizers(), p, {}, nullptr, std::move(draft));
  }
  /// The model of the first tier alone, which is the CPU's here, over the mapped file.
  Result<std::unique_ptr<TierModel>> load_tier(const Plan& plan) const {
    auto placed = std::make_shared<Plan>(plan);
    SHARPI_TRY_ASSIGN(std::shared_ptr<const GgufFile> mapped, spec->file->map_tensors());
    SHARPI_TRY_ASSIGN(placed->spec, reload_spec(*placed->spec, std::move(mapped)));
    return context->backends()[0]->load(std::shared_ptr<const Plan>(std::move(placed)), {});
  }
};

inline std::unique_ptr<Session> make_session(const std::shared_ptr<Model>& model,
                                             const SessionShape& shape) {
  auto made = Session::create(model, shape);
  EXPECT_TRUE(made.is_ok()) << made.status().text();
  return made.is_ok() ? made.take() : nullptr;
}
inline void prefill(Session* s, const std::vector<int32_t>& tokens) {
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  uint32_t committed = 0;
  const Status read = s->prefill(tokens, p, &committed);
  ASSERT_TRUE(read.is_ok()) << read.text();
}
inline void decode(Session* s, int32_t token) {
  const Status read = s->decode(token);
  ASSERT_TRUE(read.is_ok()) << read.text();
}
inline Logits logits_of(const Session& s, const ModelSpec& spec) {
  Logits out(spec.n_vocab);
  EXPECT_TRUE(s.logits(0, out.data()).is_ok());
  return out;
}

}  // namespace sharpi::testing
