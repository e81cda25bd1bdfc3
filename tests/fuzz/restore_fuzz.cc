// SPDX-License-Identifier: MIT
// Feeds forged blobs to restore, their lengths and checksums put right, as somebody would who means
// harm. An input is a list of edits of good blobs: byte 0 chooses the model, the blob, and whether
// the session is empty, then records of 6 bytes (u16 offset in units of 4, u32 value) overwrite
// words of its first 256 KiB. Whatever is refused leaves the session bit for bit as it was;
// whatever is taken is used up, and saving it gives the blob again.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/session_blob.h"
#include "sharpi.h"
#include "support/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi {
namespace {

using Blob = std::vector<char>;

void require(bool condition) {
  if (!condition) __builtin_trap();
}
void ok(sharpi_status status) {
  require(status == SHARPI_OK);
}

Blob save(const sharpi_session* session) {
  uint64_t n = 0;
  sharpi_session_save(session, nullptr, 0, &n, nullptr);
  Blob blob(n);
  ok(sharpi_session_save(session, blob.data(), n, &n, nullptr));
  return blob;
}

/// One model, a session to attack, and blobs to start from.
struct Target {
  sharpi_context* context = nullptr;
  sharpi_plan* plan = nullptr;
  sharpi_model* model = nullptr;
  sharpi_session* session = nullptr;
  std::vector<Blob> blobs;  // the first is the session's own

  explicit Target(test::ModelRecipe recipe) {
    recipe.n_vocab = 300;
    const test::TempFile file;
    require(test::ModelFile(recipe).write(file.path()));
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.n_threads = 1;
    ok(sharpi_context_create(&c, &context, nullptr));
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 96;
    s.rewind = 8;
    s.capture_window = 4;
    s.n_checkpoints = 2;
    s.per_layer_budgets = 1;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_chunk = 16;
    p.device = 0;
    p.n_sessions = 2;
    p.session = &s;
    ok(sharpi_plan_create(context, file.path().c_str(), &p, &plan, nullptr));
    ok(sharpi_model_load(plan, nullptr, nullptr, &model, nullptr));
    session = make_session();
    for (const uint32_t n : {9u, 70u}) blobs.push_back(make_blob(n, false));
    blobs.push_back(make_blob(70, true));
    blobs.push_back(make_blob(70, true, SHARPI_LAYER_BUDGET_SHARED));
    ok(sharpi_session_restore(session, blobs[0].data(), blobs[0].size(), nullptr));
  }
  sharpi_session* make_session() const {
    sharpi_session* s = nullptr;
    ok(sharpi_session_create(model, nullptr, &s, nullptr));
    sharpi_sampler_params p;
    sharpi_sampler_params_init(&p, sizeof p);
    p.seed = 1;
    ok(sharpi_session_set_sampler(s, &p, nullptr));
    return s;
  }
  Blob make_blob(uint32_t n, bool compacted,
                 sharpi_layer_budget mode = SHARPI_LAYER_BUDGET_PYRAMID) const {
    sharpi_session* s = make_session();
    read(s, n);
    sharpi_session_checkpoint(s, 1, nullptr);
    if (compacted) {
      compact(s, mode);
      read(s, 5);
    }
    Blob blob = save(s);
    sharpi_session_destroy(s);
    return blob;
  }
  static void read(sharpi_session* s, uint32_t n) {
    std::vector<int32_t> tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(i * 7 % 299);
    ok(sharpi_session_prefill(s, tokens.data(), n, nullptr, nullptr, nullptr));
  }
  static void compact(sharpi_session* s, sharpi_layer_budget mode = SHARPI_LAYER_BUDGET_SHARED) {
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 20;
    c.recency = 4;
    c.layer_budget = mode;
    c.headroom = 16;
    sharpi_session_compact(s, &c, nullptr, nullptr);
  }
  void use_up() const {
    sharpi_session_decode(session, 1, nullptr);
    int32_t token = 0;
    uint32_t n = 0;
    sharpi_session_step(session, nullptr, &token, 1, &n, nullptr);
    compact(session);
    sharpi_session* twin = nullptr;
    if (sharpi_session_fork(session, &twin, nullptr) == SHARPI_OK) sharpi_session_destroy(twin);
    uint32_t lengths[16];
    if (sharpi_session_reachable(session, lengths, 16, &n, nullptr) == SHARPI_OK) {
      while (n-- > 0) sharpi_session_truncate(session, lengths[n], nullptr);
    }
    sharpi_session_decode(session, 1, nullptr);
  }
};

const std::vector<Target*>& targets() {
  // Never destroyed: they live as long as the program.
  static const auto* all =
      new std::vector<Target*>{new Target(test::tiny_qwen3()), new Target(test::tiny_qwen35()),
                               new Target(test::tiny_gemma4kv())};
  return *all;
}

void seal(Blob* blob) {
  const uint64_t total = blob->size();
  std::memcpy(blob->data() + offsetof(BlobHeader, total_bytes), &total, sizeof total);
  const uint64_t sum = striped_hash64(blob->data(), blob->size() - kBlobSumBytes);
  std::memcpy(blob->data() + blob->size() - kBlobSumBytes, &sum, sizeof sum);
}

}  // namespace
}  // namespace sharpi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi;
  if (size == 0) return 0;
  const Target& t = *targets()[data[0] % targets().size()];
  Blob bad = t.blobs[data[0] / 16 % 8 % t.blobs.size()];
  const size_t longest = 2 * bad.size();  // however often it is made longer
  for (size_t at = 1; at + 6 <= size; at += 6) {
    uint16_t word;
    uint32_t value;
    std::memcpy(&word, data + at, sizeof word);
    std::memcpy(&value, data + at + 2, sizeof value);
    if (word == 0xFFFF) {  // another length
      bad.resize(std::clamp<size_t>(value % longest, 80, longest));
    } else if (word * 4ull + 4 + kBlobSumBytes <= bad.size()) {
      std::memcpy(bad.data() + word * 4ull, &value, sizeof value);
    }
  }
  seal(&bad);
  sharpi_error e = SHARPI_ERROR_INIT;
  const Blob& full = t.blobs[0];
  if (data[0] >= 128) ok(sharpi_session_truncate(t.session, 0, nullptr));
  const Blob base = data[0] >= 128 ? save(t.session) : full;
  if (sharpi_session_restore(t.session, bad.data(), bad.size(), &e) != SHARPI_OK) {
    require(e.text[0] != '\0' && e.status != SHARPI_E_INTERNAL);
    require(save(t.session) == base);
  } else {
    require(save(t.session) == bad);
    t.use_up();
  }
  ok(sharpi_session_restore(t.session, full.data(), full.size(), nullptr));
  return 0;
}
