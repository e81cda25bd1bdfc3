// SPDX-License-Identifier: MIT
// The chat program as a person meets it: on a terminal, where Ctrl-C is a key, and over several
// turns, of which the model remembers the earlier ones.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "models/real_files.h"
#include "run_program.h"

namespace sharpi::testing {
namespace {

constexpr char kInterrupt = 3;  // what the key sends

/// The program on a terminal of its own, which does not echo.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_GE(master_, 0);
    EXPECT_EQ(::grantpt(master_) | ::unlockpt(master_), 0);
    const std::string name = ::ptsname(master_);
    arguments.insert(arguments.begin(), "chat");
    child_ = ::fork();
    EXPECT_GE(child_, 0);
    if (child_ == 0) run(name, arguments);
  }
  ~Terminal() {
    ::close(master_);
    if (child_ > 0) ::kill(child_, SIGKILL), ::waitpid(child_, nullptr, 0);
  }
  void type(const std::string& keys) const {
    EXPECT_EQ(::write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  /// What appeared up to and with `text`. All of it, and a failure, if the program ends without.
  std::string until(const std::string& text) {
    size_t at = 0;
    while ((at = unread_.find(text)) == std::string::npos) {
      if (more()) continue;
      ADD_FAILURE() << "no \"" << text << "\" in: " << unread_;
      return std::exchange(unread_, {});
    }
    const std::string seen = unread_.substr(0, at + text.size());
    unread_.erase(0, seen.size());
    return seen;
  }
  /// Types a line and waits for the first character of its answer.
  void begin(const std::string& line) {
    type(line + "\n");
    until("reading 100%" + std::string(16, ' '));  // with which the progress takes itself away
    while (unread_.empty() && more()) continue;
    EXPECT_FALSE(unread_.empty()) << "no answer to " << line;
  }
  /// The answer to one line: what stands before the next prompt.
  std::string ask(const std::string& line) {
    type(line + "\n");
    return until("\n> ");
  }
  /// How the program ended.
  int status() {
    int status = -1;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    child_ = -1;
    return status;
  }

 private:
  /// Reads what has appeared; false when the program has ended, or has said nothing for minutes.
  bool more() {
    pollfd wait{master_, POLLIN, 0};
    if (::poll(&wait, 1, 120'000) == 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(master_, buffer, sizeof buffer);
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] != '\r') unread_.push_back(buffer[i]);
    }
    return n > 0;
  }
  [[noreturn]] static void run(const std::string& terminal, std::vector<std::string>& arguments) {
    ::setsid();
    const int slave = ::open(terminal.c_str(), O_RDWR);
    termios settings{};
    if (slave < 0 || ::tcgetattr(slave, &settings) != 0) ::_exit(126);
    settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(slave, TCSANOW, &settings);
    ::ioctl(slave, TIOCSCTTY, 0);
    for (int fd = 0; fd < 3; ++fd) ::dup2(slave, fd);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::execv(kChat.c_str(), argv.data());
    ::_exit(127);
  }

  int master_ = -1;
  pid_t child_ = -1;
  std::string unread_;
};

/// What /save writes.
std::string saved_by(Terminal& terminal) {
  const std::string path =
      ::testing::TempDir() + "sharpi_terminal_" + std::to_string(::getpid()) + ".json";
  const std::string said = terminal.ask("/save " + path);
  EXPECT_NE(said.find(" messages saved"), std::string::npos) << said;
  const std::string json = read_all(path);
  std::remove(path.c_str());
  return json;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<std::string> with(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> all = {"-m", model, "-t", "2", "-g", "0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void expect_left(Terminal& terminal) {
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.status(), 0);
}

TEST(ChatTerminal, TheInterruptKeyStopsAnswersAndNotTheProgram) {
  // Drawn so that an answer does not end by itself.
  Terminal terminal(with(kModel, {"-c", "8192", "-n", "100000", "--temp", "3", "--top-k", "0",
                                  "--top-p", "1", "--min-p", "0"}));
  terminal.until("> ");
  for (int answers = 1; answers <= 2; ++answers) {
    terminal.begin("hello");
    terminal.type(std::string(1, kInterrupt));
    const std::string rest = terminal.until("\n> ");
    EXPECT_NE(rest.find("(stopped)"), std::string::npos) << rest;
    const std::string json = saved_by(terminal);
    EXPECT_EQ(count(json, "\"content\": \"hello\""), static_cast<size_t>(answers)) << json;
    EXPECT_EQ(count(json, "\"role\": \"assistant\""), static_cast<size_t>(answers))
        << "what was said before the key is part of the conversation: " << json;
  }
  // While nothing runs, as early as can be: often the program has written its prompt, and does not
  // wait for a key yet.
  for (int times = 0; times < 32; ++times) {
    terminal.type(std::string(1, kInterrupt));
    terminal.until("(/exit leaves)\n> ");
  }
  expect_left(terminal);
}

TEST(ChatTerminal, EarlierTurnsAreRememberedUntilReset) {
  Terminal terminal(with(kModel, {"-c", "2048", "-n", "24", "--temp", "0"}));
  terminal.until("> ");
  terminal.ask("The code of ember is 97697.");
  const std::string question = "What is the code of ember?", code = "97697";
  const std::string answer = terminal.ask(question);
  EXPECT_NE(answer.find(code), std::string::npos) << answer;
  terminal.ask("The code of wind is 80293.");
  const std::string later = terminal.ask(question);
  EXPECT_NE(later.find(code), std::string::npos) << later;
  EXPECT_EQ(count(saved_by(terminal), "\"role\": \"user\""), 4u);
  terminal.type("/reset\n");
  terminal.until("> ");
  const std::string forgotten = terminal.ask(question);
  EXPECT_EQ(forgotten.find(code), std::string::npos) << forgotten;
  EXPECT_EQ(count(saved_by(terminal), "\"role\": "), 2u);
  expect_left(terminal);
}

TEST(ChatTerminal, AnotherAnswerTakesThePlaceOfTheLastOne) {
  Terminal terminal(with(kModel, {"-c", "2048", "-n", "12", "--temp", "3", "--top-k", "0",
                                  "--top-p", "1", "--min-p", "0", "--seed", "5"}));
  terminal.until("> ");
  terminal.ask("one");
  terminal.ask("two");
  const std::string before = saved_by(terminal);
  terminal.ask("/regen");
  const std::string after = saved_by(terminal);
  EXPECT_EQ(count(before, "\"role\": "), 4u) << before;
  EXPECT_EQ(count(after, "\"role\": "), 4u) << after;
  const size_t last = before.rfind("\"role\": \"assistant\"");
  ASSERT_LT(last, after.size()) << after;
  EXPECT_EQ(after.substr(0, last), before.substr(0, last)) << "only the last answer is another";
  EXPECT_NE(after.substr(last), before.substr(last)) << before;
  expect_left(terminal);
}

/// As `make chat` starts it.
TEST(ChatTerminal, SmolLm2RemembersAndIsStopped) {
  const std::string model = find_real_file(kSmolLm2);
  if (model.empty()) GTEST_SKIP() << absent_text(kSmolLm2);
  Terminal terminal(with(model, {"--exact", "--temp", "0", "-c", "1024"}));
  terminal.until("> ");
  terminal.begin("Tell me a long story about the sea.");
  terminal.type(std::string(1, kInterrupt));
  const std::string story = terminal.until("\n> ");
  EXPECT_NE(story.find("(stopped)"), std::string::npos) << story;
  terminal.type("/reset\n");
  terminal.until("> ");
  const std::string unasked = terminal.ask("And of Italy?");
  EXPECT_EQ(unasked.find("Rome"), std::string::npos) << unasked;
  terminal.type("/reset\n");
  terminal.until("> ");
  const std::string paris = terminal.ask("What is the capital of France?");
  EXPECT_NE(paris.find("The capital of France is Paris."), std::string::npos) << paris;
  const std::string rome = terminal.ask("And of Italy?");
  EXPECT_NE(rome.find("The capital of Italy is Rome."), std::string::npos) << rome;
  expect_left(terminal);
}

}  // namespace
}  // namespace sharpi::testing
