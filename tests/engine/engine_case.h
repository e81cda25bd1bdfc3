// SPDX-License-Identifier: MIT
// What the tests of engine behaviour share: a trained model with its prompts as a test parameter,
// small models made on the spot, and comparisons of logits.
// Thread rule: as sharpi.h.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/abi.h"
#include "support/golden.h"
#include "support/tiny_model.h"

namespace sharpi::testing {

using Logits = std::vector<float>;

/// "tiny-qwen3" as a part of a test's name.
std::string short_name(const std::string& model);
std::string model_name(const ::testing::TestParamInfo<std::string>& info);
/// "qwen3_0": the architecture and the place in the list.
std::string recipe_name(const ::testing::TestParamInfo<test::ModelRecipe>& info);

const char* dtype_text(sharpi_kv_dtype d);

/// All that rows can be stored as.
std::vector<sharpi_kv_dtype> stored_dtypes();

bool same_bits(const Logits& a, const Logits& b);
double distance(const Logits& a, const Logits& b);
size_t best_of(const Logits& l);
/// Best minus second best.
float gap_of(const Logits& l);
void expect_same_rows(const std::vector<Logits>& got, const std::vector<Logits>& want,
                      const std::string& what);
/// The best token is the same wherever the reference prefers it by more than 0.25.
void expect_same_argmax(const std::vector<Logits>& got, const std::vector<Logits>& want,
                        const std::string& what, float least_gap = 0.25f);
/// Root mean square of all logits, less those of `other` where there are any.
double rms_of(const std::vector<Logits>& rows, const std::vector<Logits>* other = nullptr);

/// Rows of the last call, oldest first.
std::vector<Logits> rows_of(const Chat& chat, uint32_t n);

using Edit = std::function<void(sharpi_plan_params*, sharpi_session_params*)>;

ModelSetup setup_with(Edit edit, uint32_t n_threads = 2);

std::vector<int32_t> slice(const std::vector<int32_t>& v, size_t from, size_t to);

/// A trained model by name.
class ModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { open(GetParam()); }
  void open(const std::string& name);
  const std::string& path() const { return fixture_->gguf_path; }
  /// The longest golden prompt, repeated up to n tokens.
  std::vector<int32_t> tokens(size_t n) const;
  std::optional<Fixture> fixture_;
  Golden golden_;
};

/// The recipe with heads that the GPU's kernels know, when models of this program go there.
test::ModelRecipe for_tier(test::ModelRecipe recipe);

/// A small random model in a temporary file.
class MadeModel {
 public:
  explicit MadeModel(const test::ModelRecipe& recipe);
  const std::string& path() const { return file_.path(); }
  std::vector<int32_t> tokens(size_t n, uint32_t seed = 1) const;

 private:
  test::TempFile file_;
  uint32_t n_vocab_;
};

std::vector<uint32_t> reachable(const Chat& chat);

std::vector<char> saved(const Chat& chat);
using MemoryRows = std::vector<sharpi_memory_row>;

/// Rows of a plan, a model or a session, by the call that lists them.
template <class Call, class Handle>
MemoryRows rows_of_handle(Call call, const Handle* handle) {
  MemoryRows rows(256);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(call(handle, rows.data(), sizeof rows[0], 256, &n, &e), SHARPI_OK) << text_of(e);
  rows.resize(n);
  return rows;
}

/// Writes NaN over the output norm of a model's file.
void spoil(const std::string& path, uint32_t n_embd);

}  // namespace sharpi::testing
