// SPDX-License-Identifier: MIT
// `mtp_agrees` of the goldens, exactly. The reference ran the block without a causal mask: each
// position saw the rows of all others, earlier and later ones, so that share is no figure of a
// block that drafts (it sees less than what follows it, and agrees more often: mtp_test). Rows of a
// model of one layer depend on nothing but their own input, so they can be written in any order:
// the position that is asked last sees all others.
#include "api/api_handles.h"
#include "engine_case.h"

namespace sharpi::testing {
namespace {

void greedy_in_f32(sharpi_plan_params* p, sharpi_session_params* s) {
  p->arithmetic = SHARPI_ARITHMETIC_EXACT;
  p->deterministic = 1;
  p->n_chunk = 48;
  p->n_gpu_layers = 0;
  s->n_ctx = 256;
  s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  s->n_draft = 1;
  s->drafters = SHARPI_DRAFT_MTP;
}

/// What the trunk made of a text: its hidden row and its choice behind each token.
struct Trunk {
  std::vector<Logits> hidden;
  std::vector<size_t> best;
};

Trunk read_text(const Chat& chat, const std::vector<int32_t>& tokens, size_t n_embd) {
  Trunk t;
  for (const int32_t token : tokens) {
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_decode(chat.get(), token, &e), SHARPI_OK) << e.text;
    const float* end = chat.get()->p->mtp()->hidden_rows();
    t.hidden.emplace_back(end - n_embd, end);
    t.best.push_back(best_of(chat.logits()));
  }
  return t;
}

/// The block, row by row, each of them at any position and in any slot.
class Block {
 public:
  Block(const MtpModel& model, const SessionShape& shape)
      : model_(&model), ledger_(model.spec(), 0, 0), logits_(model.spec().n_vocab) {
    auto session = model.create_session(shape);
    EXPECT_TRUE(session.is_ok()) << session.status().text();
    session_ = session.take();
  }
  /// The row of a position to a slot; its choice behind `token`, of the rows up to that slot.
  size_t read(uint32_t slot, const Logits& hidden, int32_t token, uint64_t position) {
    ledger_.restart(position - slot, slot);
    SequenceRows q;
    q.session = session_.get();
    q.ledger = &ledger_;
    q.n_rows = 1;
    q.position = position;
    Submission s;
    s.tokens = &token;
    s.n_rows = 1;
    s.sequences = {&q, 1};
    s.hidden_in = hidden.data();
    EXPECT_TRUE(model_->run(s).is_ok());
    EXPECT_TRUE(session_->read_logits(0, logits_.data()).is_ok());
    return best_of(logits_);
  }

 private:
  const MtpModel* model_;
  std::unique_ptr<TierSession> session_;
  KvLedger ledger_;
  Logits logits_;
};

TEST(MtpAgrees, AsOftenAsTheReferenceWithoutAMask) {
  for (const char* name : {"tiny-qwen35", "tiny-qwen35moe"}) {
    const std::optional<Fixture> f = find_fixture(name);
    if (!f) continue;
    auto golden = load_golden(f->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    const Loaded loaded = load(f->gguf_path, setup_with(greedy_in_f32));
    ASSERT_TRUE(loaded.model);
    const Model& model = *loaded.model->p;
    for (const GoldenCase& c : golden.value().cases) {
      const size_t n = c.tokens.size();
      if (n > 200) continue;
      const Chat chat(loaded.model.get());
      const Trunk trunk = read_text(chat, c.tokens, model.spec().n_embd);
      Block block(*model.mtp(), model.plan().session);
      const auto last = static_cast<uint32_t>(n - 2);
      std::vector<uint32_t> slot_of(n - 1);
      const auto read = [&](uint32_t slot, size_t p) {
        slot_of[p] = slot;
        return block.read(slot, trunk.hidden[p], c.tokens[p + 1], p);
      };
      for (uint32_t p = 0; p <= last; ++p) read(p, p);
      size_t agree = 0, behind = last;  // the row in the last slot
      for (size_t p = 0; p < last; ++p) {
        read(slot_of[p], behind);  // whom it makes room for
        if (read(last, p) == trunk.best[p + 1]) ++agree;
        behind = p;
      }
      EXPECT_NEAR(static_cast<double>(agree) / static_cast<double>(n - 2), c.mtp_agrees.value(),
                  1e-6)
          << name << ", " << n << " tokens";
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
