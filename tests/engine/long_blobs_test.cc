// SPDX-License-Identifier: MIT
// Saved sessions that are long enough for threads: every way out gives the same bytes, every way in
// takes them, and an empty session, which reads a blob once and in order, refuses what another one
// refuses.
#include <cstddef>

#include "base/hash.h"
#include "engine/session_blob.h"
#include "engine_case.h"

namespace sharpi::testing {
namespace {

using Blob = std::vector<char>;

/// A blob that comes through a callback.
struct Source {
  const Blob& bytes;
  bool in_order = false;  // a byte is given once, and only behind the one before
  uint64_t fail_from = UINT64_MAX, at = 0, given = 0;
  static int32_t read(void* user, uint64_t at, void* out, uint64_t n) {
    auto* s = static_cast<Source*>(user);
    if ((s->in_order && at != s->at) || at + n > s->bytes.size()) return 9;
    s->at = at + n;
    if ((s->given += n) > s->fail_from) return 5;
    std::memcpy(out, s->bytes.data() + at, n);
    return 0;
  }
};

int32_t take_piece(void* to, const void* data, uint64_t n) {
  const auto* from = static_cast<const char*>(data);
  static_cast<Blob*>(to)->insert(static_cast<Blob*>(to)->end(), from, from + n);
  return 0;
}

class LongBlobs : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    test::ModelRecipe recipe = GetParam();
    recipe.n_heads = recipe.n_kv_heads = recipe.n_kv_heads_global = 8;
    file_.emplace(recipe);
    loaded_ = load(file_->path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
                     p->n_chunk = 512;
                     s->n_ctx = 4096;
                     s->k_dtype = SHARPI_KV_F32;
                     s->v_dtype = SHARPI_KV_Q8_0;  // other bytes are saved than stored
                     s->capture_window = 64;
                   }));
    ASSERT_TRUE(loaded_.model);
    long_.emplace(loaded_.model.get());
    long_->prefill(file_->tokens(kTokens));
    blob_ = saved(*long_);
    ASSERT_GT(blob_.size(), 3u << 20);
  }
  Chat holding(uint32_t n) const {
    Chat chat(loaded_.model.get());
    if (n != 0) chat.prefill(file_->tokens(n, 2));
    return chat;
  }
  sharpi_status restore(const Chat& to, const Blob& blob, bool in_pieces) {
    error_ = SHARPI_ERROR_INIT;
    if (!in_pieces) return sharpi_session_restore(to.get(), blob.data(), blob.size(), &error_);
    Source from{blob, to.info().n_tokens == 0};
    return sharpi_session_restore_from(to.get(), &Source::read, &from, &error_);
  }
  static constexpr uint32_t kTokens = 2400;
  std::optional<MadeModel> file_;
  Loaded loaded_;
  std::optional<Chat> long_;
  Blob blob_;
  sharpi_error error_ = SHARPI_ERROR_INIT;
};

TEST_P(LongBlobs, EveryWayOutAndInGivesTheSameBytes) {
  const uint64_t end = blob_.size() - kBlobSumBytes, sum = striped_hash64(blob_.data(), end);
  EXPECT_EQ(std::memcmp(blob_.data() + end, &sum, sizeof sum), 0);
  Blob pieces;
  ASSERT_EQ(sharpi_session_save_to(long_->get(), take_piece, &pieces, nullptr, &error_), SHARPI_OK)
      << text_of(error_);
  EXPECT_TRUE(pieces == blob_);
  for (const bool in_pieces : {false, true}) {
    for (const uint32_t n : {0u, 900u}) {
      Chat to = holding(n);
      ASSERT_EQ(restore(to, blob_, in_pieces), SHARPI_OK) << n << ": " << text_of(error_);
      EXPECT_TRUE(saved(to) == blob_) << n;
    }
  }
}

TEST_P(LongBlobs, DamageIsRefusedWhereverItIs) {
  Chat empty = holding(0), full = holding(9);
  const Blob before = saved(empty), before_full = saved(full);
  for (const size_t at : {offsetof(BlobHeader, content_id), offsetof(BlobHeader, n_tokens),
                          size_t{200}, blob_.size() / 3, blob_.size() - 9, blob_.size() - 1}) {
    Blob bad = blob_;
    bad[at] = static_cast<char>(bad[at] ^ 16);
    for (const bool in_pieces : {false, true}) {
      for (const Chat* to : {&empty, &full}) {
        EXPECT_EQ(restore(*to, bad, in_pieces), SHARPI_E_FORMAT) << at;
        EXPECT_NE(std::string(error_.text).find("checksum"), std::string::npos) << error_.text;
      }
    }
    ASSERT_TRUE(saved(empty) == before && saved(full) == before_full) << at;
  }
  empty.decode(3);
  Chat fresh = holding(0);
  fresh.decode(3);
  EXPECT_TRUE(same_bits(empty.logits(), fresh.logits()));
}

TEST_P(LongBlobs, ASourceThatFailsLeavesAnEmptySessionEmpty) {
  const Chat empty = holding(0);
  const Blob before = saved(empty);
  for (const uint64_t from :
       {uint64_t{100}, uint64_t{blob_.size() / 2}, uint64_t{blob_.size() - 1}}) {
    Source source{blob_, true, from};
    EXPECT_EQ(sharpi_session_restore_from(empty.get(), &Source::read, &source, &error_),
              SHARPI_E_IO);
    EXPECT_EQ(error_.native_code, 5);
    EXPECT_TRUE(saved(empty) == before) << from;
  }
  EXPECT_EQ(restore(empty, blob_, true), SHARPI_OK) << text_of(error_);
  EXPECT_TRUE(saved(empty) == blob_);
}

INSTANTIATE_TEST_SUITE_P(Engine, LongBlobs,
                         ::testing::Values(test::tiny_qwen3(), test::tiny_qwen35(),
                                           test::tiny_gemma4kv()),
                         [](const auto& p) { return std::string(p.param.arch); });

}  // namespace
}  // namespace sharpi::testing
