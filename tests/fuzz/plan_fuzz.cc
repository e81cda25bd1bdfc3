// SPDX-License-Identifier: MIT
// Hyper-parameters and plans: words of a good file's header are overwritten, then it is planned
// with parameters that the input chooses as well. What is planned adds up, and what is small is
// loaded and holds what its plan says. Byte 0 chooses the file; then 8 bytes of parameters; then
// records of 6 bytes (u16 offset, u32 value) overwrite bytes of the header.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "sharpi.h"
#include "support/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi {
namespace {

void require(bool condition) {
  if (!condition) __builtin_trap();
}

struct Target {
  test::TempFile file;
  std::string head;  // the first bytes of it, where all keys and tensors are
  int fd = -1;

  explicit Target(test::ModelRecipe r) {
    r.n_vocab = 300;
    r.n_layers = 2;
    r.n_embd = r.d_ff = 32;
    r.attention_every = r.global_every = 2;
    require(test::ModelFile(r).write(file.path()));
    fd = open(file.path().c_str(), O_RDWR | O_CLOEXEC);
    head.resize(16384);
    const ssize_t n = pread(fd, head.data(), head.size(), 0);
    require(n > 0);
    head.resize(static_cast<size_t>(n));
  }
  void put(const std::string& bytes) const {
    require(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
};

const std::vector<Target*>& targets() {
  // Never destroyed: they live as long as the program.
  static const auto* all =
      new std::vector<Target*>{new Target(test::tiny_qwen3()),    new Target(test::tiny_gemma4kv()),
                               new Target(test::tiny_qwen35()),   new Target(test::tiny_olmoe()),
                               new Target(test::tiny_qwen3moe()), new Target(test::tiny_gemma4())};
  return *all;
}

sharpi_context* context() {
  static sharpi_context* const made = [] {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.n_threads = 1;
    sharpi_context* out = nullptr;
    require(sharpi_context_create(&c, &out, nullptr) == SHARPI_OK);
    return out;
  }();
  return made;
}

void choose(const uint8_t* b, sharpi_plan_params* p, sharpi_session_params* s) {
  constexpr uint32_t kContexts[] = {SHARPI_UNSET, 1, 63, 64, 512, 4096, 100000, 0xFFFFFFFE};
  constexpr uint64_t kBudgets[] = {SHARPI_ALL_FREE, 0, 1u << 16, 1u << 20, 4u << 20, 1u << 30};
  s->n_ctx = kContexts[b[0] % 8];
  s->k_dtype = b[1] % 5;
  s->v_dtype = b[1] / 5 % 5;
  s->kv_budget = b[2] % 2 * b[2];
  s->capture_window = b[3] % 3 == 0 ? SHARPI_UNSET : b[3];
  s->n_checkpoints = b[4] % 4;
  s->rewind = b[4] / 4;
  p->n_chunk = b[5] == 0 ? SHARPI_UNSET : b[5];
  p->max_logit_rows = 1 + b[6] % 4;
  p->n_sessions = 1 + b[6] / 64;
  p->host_budget = kBudgets[b[7] % 6];
  p->load_mode = b[7] / 6 % 2;
  p->device = 0;
}

uint64_t held(const std::vector<sharpi_memory_row>& rows, bool sessions) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows) {
    require(r.held_bytes >= r.payload_bytes && r.shared_bytes == 0);
    const bool counts = (r.per_session != 0) == sessions && r.transient == 0;
    if (counts && r.kind != SHARPI_ROW_MAPPED) bytes += r.held_bytes;
  }
  return bytes;
}

template <class Call, class Handle>
std::vector<sharpi_memory_row> rows_of(Call call, const Handle* of) {
  uint32_t n = 0;
  call(of, nullptr, sizeof(sharpi_memory_row), 0, &n, nullptr);
  std::vector<sharpi_memory_row> rows(n);
  require(call(of, rows.data(), sizeof(sharpi_memory_row), n, &n, nullptr) == SHARPI_OK);
  return rows;
}

void use(const sharpi_plan* plan, uint64_t model_bytes) {
  sharpi_model* model = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  if (sharpi_model_load(plan, nullptr, nullptr, &model, &e) != SHARPI_OK) {
    require(e.status != SHARPI_E_INTERNAL && e.text[0] != '\0');
    return;
  }
  require(held(rows_of(sharpi_model_memory, model), false) == model_bytes);
  sharpi_session* session = nullptr;
  if (sharpi_session_create(model, nullptr, &session, &e) == SHARPI_OK) {
    const int32_t tokens[] = {1, 2, 3};
    sharpi_session_prefill(session, tokens, 3, nullptr, nullptr, nullptr);
    sharpi_session_decode(session, 4, nullptr);
    sharpi_session_destroy(session);
  }
  sharpi_model_destroy(model);
}

}  // namespace
}  // namespace sharpi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi;
  constexpr size_t kFixed = 9;
  if (size < kFixed) return 0;
  const Target& t = *targets()[data[0] % targets().size()];
  std::string bytes = t.head;
  for (size_t at = kFixed; at + 6 <= size; at += 6) {
    uint16_t offset;
    std::memcpy(&offset, data + at, sizeof offset);
    if (offset + 4u <= bytes.size()) std::memcpy(bytes.data() + offset, data + at + 2, 4);
  }
  t.put(bytes);
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  choose(data + 1, &p, &s);
  p.session = &s;
  sharpi_plan* plan = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  if (sharpi_plan_create(context(), t.file.path().c_str(), &p, &plan, &e) != SHARPI_OK) {
    require(e.status != SHARPI_E_INTERNAL && e.text[0] != '\0');
  } else {
    sharpi_plan_summary info{};
    info.struct_size = sizeof info;
    require(sharpi_plan_info(plan, &info, nullptr) == SHARPI_OK);
    const auto rows = rows_of(sharpi_plan_rows, plan);
    const uint64_t model = held(rows, false), session = held(rows, true);
    require(info.session_held_bytes == session);
    require(info.host_held_bytes == model + info.n_sessions * session);
    require(p.host_budget == SHARPI_ALL_FREE || info.host_peak_bytes <= p.host_budget);
    if (info.host_held_bytes < (32u << 20)) use(plan, model);
    sharpi_plan_destroy(plan);
  }
  t.put(t.head);
  return 0;
}
