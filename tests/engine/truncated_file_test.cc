// SPDX-License-Identifier: MIT
// A model file that another process shortens at any moment, with default parameters: every call
// gives a status, no signal ends the process, and a model that is loaded does not notice.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>

#include "engine_case.h"

namespace sharpi::testing {
namespace {

enum Call { kPlan, kLoad, kSession, kPrefill, kStep, kNewSession, kCalls };

bool is_answer(sharpi_status s) {
  return s == SHARPI_E_MISMATCH || s == SHARPI_E_FORMAT || s == SHARPI_E_IO;
}

/// What a host does, in a process of its own. Before each call it says so and waits for a word.
class Host {
 public:
  Host(const std::string& path, int says, int hears) : path_(path), says_(says), hears_(hears) {}

  /// 0 = every status was right.
  int run() {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_context* context = nullptr;
    if (sharpi_context_create(nullptr, &context, &e) != SHARPI_OK) return 10;
    const int code = use(context);
    sharpi_context_destroy(context);
    return code;
  }

 private:
  bool announce(Call call) {
    const char letter = static_cast<char>('a' + call);
    char word = 0;
    return write(says_, &letter, 1) == 1 && read(hears_, &word, 1) == 1;
  }

  int use(sharpi_context* context) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 128;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    if (!announce(kPlan)) return 11;
    PlanPtr plan;
    sharpi_plan* made = nullptr;
    sharpi_status status = sharpi_plan_create(context, path_.c_str(), &p, &made, &e);
    plan.reset(made);
    if (status != SHARPI_OK) return is_answer(status) ? 0 : 12;
    if (!announce(kLoad)) return 11;
    ModelPtr model;
    sharpi_model* loaded = nullptr;
    status = sharpi_model_load(plan.get(), nullptr, nullptr, &loaded, &e);
    model.reset(loaded);
    if (status != SHARPI_OK) return is_answer(status) ? 0 : 13;
    return chat(model.get());
  }

  /// Nothing of the file is needed any more.
  int chat(const sharpi_model* model) {
    sharpi_error e = SHARPI_ERROR_INIT;
    const std::array<int32_t, 5> tokens{1, 2, 3, 4, 5};
    for (const bool again : {false, true}) {
      if (!announce(again ? kNewSession : kSession)) return 11;
      sharpi_session* made = nullptr;
      if (sharpi_session_create(model, nullptr, &made, &e) != SHARPI_OK) return 14;
      const SessionPtr session(made);
      if (!again && !announce(kPrefill)) return 11;
      if (sharpi_session_prefill(made, tokens.data(), 5, nullptr, nullptr, &e) != SHARPI_OK)
        return 15;
      if (!again && !announce(kStep)) return 11;
      int32_t next = 0;
      uint32_t got = 0;
      for (int i = 0; i < 4; ++i) {
        // A damaged number would be the file's fault; here it was read before it was damaged.
        if (sharpi_session_step(made, nullptr, &next, 1, &got, &e) != SHARPI_OK) return 16;
      }
    }
    return 0;
  }

  std::string path_;
  int says_, hears_;
};

class TruncatedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    // Some megabytes, so that there is a middle to be reached.
    test::ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 4, recipe.d_ff = 512, recipe.n_vocab = 2000, recipe.n_embd = 256;
    ASSERT_TRUE(test::ModelFile(recipe).write(file_.path()));
    const int fd = open(file_.path().c_str(), O_RDONLY);
    bytes_ = lseek(fd, 0, SEEK_END);
    whole_.resize(static_cast<size_t>(bytes_));
    ASSERT_EQ(pread(fd, whole_.data(), whole_.size(), 0), bytes_);
    close(fd);
  }
  void write_whole() {
    const int fd = open(file_.path().c_str(), O_WRONLY | O_TRUNC | O_CREAT, 0600);
    ASSERT_EQ(write(fd, whole_.data(), whole_.size()), bytes_);
    close(fd);
  }

  /// Lets a host do everything, and shortens the file some microseconds after it announced a call.
  void cut(Call when, long microseconds, off_t length) {
    write_whole();
    int to_host[2], from_host[2];
    ASSERT_EQ(pipe(to_host), 0);
    ASSERT_EQ(pipe(from_host), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(to_host[1]), close(from_host[0]);
      _exit(Host(file_.path(), from_host[1], to_host[0]).run());
    }
    close(to_host[0]), close(from_host[1]);
    char letter = 0;
    while (read(from_host[0], &letter, 1) == 1) {
      const bool now = letter == 'a' + when;
      if (now && microseconds == 0) shorten(length);
      if (write(to_host[1], "w", 1) != 1) break;
      if (!now || microseconds == 0) continue;
      const timespec pause{0, microseconds * 1000};
      nanosleep(&pause, nullptr);
      shorten(length);
    }
    close(to_host[1]), close(from_host[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status) << ", cut to " << length
                                      << " in call " << when << " after " << microseconds << " us";
    EXPECT_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) == 0)
        << "code " << WEXITSTATUS(status) << ", cut to " << length << " in call " << when
        << " after " << microseconds << " us";
  }
  void shorten(off_t length) { ASSERT_EQ(truncate(file_.path().c_str(), length), 0); }

  test::TempFile file_;
  off_t bytes_ = 0;
  std::string whole_;
};

TEST_F(TruncatedFile, BeforeAnyCallIsAStatusOrNothing) {
  for (int call = kPlan; call < kCalls; ++call) {
    for (const off_t length : {off_t{0}, off_t{4096}, bytes_ / 2, bytes_ - 1})
      cut(static_cast<Call>(call), 0, length);
  }
}

TEST_F(TruncatedFile, WhileAFileIsPlannedOrLoadedIsAStatus) {
  for (const Call call : {kPlan, kLoad}) {
    for (long microseconds = 50; microseconds <= 4000; microseconds += 260)
      cut(call, microseconds, microseconds % 4 == 0 ? 0 : bytes_ / 2);
  }
}

TEST_F(TruncatedFile, WhileAModelIsUsedIsNotNoticed) {
  for (const Call call : {kPrefill, kStep, kNewSession}) {
    for (long microseconds = 50; microseconds <= 1000; microseconds += 230)
      cut(call, microseconds, 0);
  }
}

}  // namespace
}  // namespace sharpi::testing
