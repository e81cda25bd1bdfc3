// SPDX-License-Identifier: MIT
// A file that changes between plan and load is refused by name, however it changed. Windows lets
// nobody replace or remove one that a plan has open: there it is still what was planned, and loads.
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "engine/engine_case.h"
#include "support/system.h"

namespace sharpi::testing {
namespace {

class ChangedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(test::ModelFile(for_tier(test::tiny_qwen3())).write(file_.path()));
    context_ = make_context({});
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(try_plan(context_.get(), file_.path(), {}, &plan_, &e), SHARPI_OK) << text_of(e);
  }
  sharpi_status load(sharpi_error* e) const {
    sharpi_model* raw = nullptr;
    const sharpi_status s = sharpi_model_load(plan_.get(), nullptr, nullptr, &raw, e);
    EXPECT_EQ(raw == nullptr, s != SHARPI_OK);
    sharpi_model_destroy(raw);
    return s;
  }
  void refused(sharpi_status status, const std::string& part) const {
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(load(&e), status) << e.text;
    EXPECT_NE(std::string(e.text).find(part), std::string::npos) << e.text;
    EXPECT_NE(std::string(e.text).find(file_.path()), std::string::npos) << "the file is named";
  }
  /// Whether the file is no longer what was planned; `said`: what the system made of the attempt.
  bool is_changed(const std::error_code& said) const {
#ifdef _WIN32
    EXPECT_TRUE(said) << "a file that is in use was changed";
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(load(&e), SHARPI_OK) << text_of(e);
    return false;
#else
    EXPECT_FALSE(said) << said.message();
    return true;
#endif
  }
  test::TempFile file_;
  ContextPtr context_;
  PlanPtr plan_;
};

TEST_F(ChangedFile, TheSameFileLoadsTwice) {
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(load(&e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(load(&e), SHARPI_OK) << text_of(e);
}

TEST_F(ChangedFile, OtherWeightsOfTheSameSizeAreRefused) {
  test::ModelRecipe other = for_tier(test::tiny_qwen3());
  other.seed = 2;
  const test::TempFile next;
  ASSERT_TRUE(test::ModelFile(other).write(next.path()));
  std::error_code said;
  std::filesystem::rename(next.path(), file_.path(), said);
  if (is_changed(said)) refused(SHARPI_E_MISMATCH, "changed after it was planned");
}

TEST_F(ChangedFile, AnotherGeometryIsRefused) {
  test::ModelRecipe other = for_tier(test::tiny_qwen3());
  other.n_layers = 3;
  const test::TempFile next;
  ASSERT_TRUE(test::ModelFile(other).write(next.path()));
  std::error_code said;
  std::filesystem::rename(next.path(), file_.path(), said);
  if (is_changed(said)) refused(SHARPI_E_MISMATCH, "changed after it was planned");
}

TEST_F(ChangedFile, ATouchedFileIsRefusedAndANewPlanLoads) {
  ASSERT_TRUE(test::set_modified(file_.path(), 1000000000, 500));
  refused(SHARPI_E_MISMATCH, "changed after it was planned");
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(try_plan(context_.get(), file_.path(), {}, &plan_, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(load(&e), SHARPI_OK) << text_of(e);
}

TEST_F(ChangedFile, AFileThatIsGoneIsRefused) {
  std::error_code said;
  std::filesystem::remove(file_.path(), said);
  if (is_changed(said)) refused(SHARPI_E_NOT_FOUND, "");
}

}  // namespace
}  // namespace sharpi::testing
