// SPDX-License-Identifier: MIT
// Needle accuracy against KV budget, as CSV on stdout: which policy keeps the answer?
//   needle_curve FIXTURE.gguf GOLDEN.json [--kv f32|bf16|q8_0] [--budgets 64,128,...] [--needles N]
//                [--modes in,after,probe,bounded,blind] [--policies a,b] [--pool K] [--span F]
//                [--layers 0|1|2]
// Modes: in = the question is in the captured window; after = it is read after compaction; probe =
// the same, but compaction looks through it; bounded = kv_budget with look-ahead, chunk 128; blind
// = bounded without look-ahead. Columns: model,kv,mode,policy,budget,found,needles
#include <cstdio>
#include <cstring>
#include <sstream>

#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kQuestion = 24;  // tokens at a prompt's end that ask

struct Options {
  std::string model, golden, modes = "in,after,probe,bounded,blind";
  std::vector<uint32_t> budgets = {64, 96, 128, 192, 256, 384, 512, 1024};
  sharpi_kv_dtype kv = SHARPI_KV_F32;
  const char* kv_name = "f32";
  size_t needles = 24;
  uint32_t pool = 0, span = 0;  // 0 = the library's default
  std::string policies;         // empty = all
  sharpi_layer_budget layers = SHARPI_LAYER_BUDGET_EQUAL;
};

struct Named {
  sharpi_policy policy;
  const char* name;
};
constexpr Named kPolicies[] = {
    {SHARPI_POLICY_GLOBAL, "global"},       {SHARPI_POLICY_SNAPKV, "snapkv"},
    {SHARPI_POLICY_DEFENSIVE, "defensive"}, {SHARPI_POLICY_VALUE, "value"},
    {SHARPI_POLICY_SPAN, "span"},           {SHARPI_POLICY_RETRIEVAL, "retrieval"}};

ModelSetup setup_for(const Options& o, sharpi_policy policy, uint32_t kv_budget, bool look_ahead) {
  ModelSetup setup;
  setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
    s->k_dtype = s->v_dtype = o.kv;
    s->capture_window = 64;
    if (kv_budget == 0) return;
    p->n_chunk = 128;
    s->kv_budget = kv_budget;
    s->policy = policy;
    s->lookahead = look_ahead ? 1 : 0;
    s->recency = kv_budget <= 64 ? kv_budget / 2 : 64;
  };
  return setup;
}

bool compacted_answer(const Options& o, const Loaded& l, const GoldenNeedle& n,
                      const std::string& mode, sharpi_policy policy, uint32_t budget) {
  Chat chat(l.model.get());
  const bool late = mode != "in";
  const std::vector<int32_t> head(n.prompt.begin(), n.prompt.end() - (late ? kQuestion : 0));
  const std::vector<int32_t> question(n.prompt.end() - kQuestion, n.prompt.end());
  chat.prefill(head);
  sharpi_compact_params p = compact_params(policy, budget);
  if (budget <= 64) p.recency = budget / 2;
  if (o.pool != 0) p.pool_kernel = o.pool;
  if (o.span != 0) p.span = o.span;
  p.layer_budget = o.layers;
  if (mode == "probe") {
    p.probe = question.data();
    p.n_probe = kQuestion;
  }
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_compact(chat.get(), &p, nullptr, &e);
  if (s != SHARPI_OK) {
    std::fprintf(stderr, "%s\n", text_of(e).c_str());
    return false;
  }
  if (late) chat.prefill(question);
  return answers(l.model.get(), chat, n);
}

void run(const Options& o) {
  auto golden = load_golden(o.golden);
  if (!golden.is_ok()) {
    std::fprintf(stderr, "%s\n", golden.status().text().c_str());
    return;
  }
  const auto& needles = golden.value().needles;
  const size_t n = std::min(o.needles, needles.size());
  const Loaded plain = load(o.model, setup_for(o, SHARPI_POLICY_SPAN, 0, false));
  size_t full = 0;
  for (size_t i = 0; i < n; ++i) {
    Chat chat(plain.model.get());
    chat.prefill(needles[i].prompt);
    full += answers(plain.model.get(), chat, needles[i]) ? 1 : 0;
  }
  std::printf("%s,%s,full,none,0,%zu,%zu\n", golden.value().arch.c_str(), o.kv_name, full, n);
  std::stringstream modes(o.modes);
  for (std::string mode; std::getline(modes, mode, ',');) {
    for (const Named& policy : kPolicies) {
      if (!o.policies.empty() && o.policies.find(policy.name) == std::string::npos) continue;
      for (const uint32_t budget : o.budgets) {
        const bool bounded = mode == "bounded" || mode == "blind";
        Loaded own;
        if (bounded) own = load(o.model, setup_for(o, policy.policy, budget, mode == "bounded"));
        size_t found = 0;
        for (size_t i = 0; i < n; ++i) {
          if (!bounded) {
            found += compacted_answer(o, plain, needles[i], mode, policy.policy, budget) ? 1 : 0;
            continue;
          }
          Chat chat(own.model.get());
          chat.prefill(needles[i].prompt);
          found += answers(own.model.get(), chat, needles[i]) ? 1 : 0;
        }
        std::printf("%s,%s,%s,%s,%u,%zu,%zu\n", golden.value().arch.c_str(), o.kv_name,
                    mode.c_str(), policy.name, budget, found, n);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace sharpi::testing

int main(int argc, char** argv) {
  sharpi::testing::Options o;
  if (argc < 3) {
    std::fprintf(
        stderr,
        "usage: needle_curve FIXTURE.gguf GOLDEN.json [--kv T] [--budgets a,b] [--needles N] "
        "[--modes in,after,probe,bounded,blind]\n");
    return 2;
  }
  o.model = argv[1];
  o.golden = argv[2];
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--needles") o.needles = std::stoul(value);
    if (flag == "--modes") o.modes = value;
    if (flag == "--pool") o.pool = static_cast<uint32_t>(std::stoul(value));
    if (flag == "--span") o.span = static_cast<uint32_t>(std::stoul(value));
    if (flag == "--policies") o.policies = value;
    if (flag == "--layers") o.layers = static_cast<sharpi_layer_budget>(std::stoul(value));
    if (flag == "--kv") {
      o.kv_name = argv[i + 1];
      o.kv = value == "bf16" ? SHARPI_KV_BF16 : value == "q8_0" ? SHARPI_KV_Q8_0 : SHARPI_KV_F32;
    }
    if (flag == "--budgets") {
      o.budgets.clear();
      std::stringstream list(value);
      for (std::string one; std::getline(list, one, ',');) {
        o.budgets.push_back(static_cast<uint32_t>(std::stoul(one)));
      }
    }
  }
  sharpi::testing::run(o);
  return 0;
}
