// SPDX-License-Identifier: MIT
// The example programs as a user runs them: what the banner says is in force, what a wrong value
// gives, and the demonstration's answer.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "models/real_files.h"
#include "run_program.h"
#include "support/abi.h"
#include "support/golden.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

const std::string kCompact = test::build_path("examples/compact");
const std::string kPlan = test::build_path("examples/plan");
const std::string kPrompt = test::source_path("examples/demo_prompt.txt");

/// key=value of the one banner line.
std::map<std::string, std::string> banner(const Output& o) {
  std::map<std::string, std::string> pairs;
  std::istringstream lines(o.err);
  int n_banners = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("sharpi: ", 0) != 0) continue;
    ++n_banners;
    std::istringstream words(line.substr(8));
    for (std::string word; words >> word;) {
      const size_t eq = word.find('=');
      EXPECT_NE(eq, std::string::npos) << word;
      pairs[word.substr(0, eq)] = word.substr(eq + 1);
    }
  }
  EXPECT_EQ(n_banners, 1) << o.err;
  return pairs;
}

struct KvCase {
  const char* flag;
  const char* k;
  const char* v;
  unsigned long long row_bytes;  // of K and V of one token in one layer of 256 elements each
};
void PrintTo(const KvCase& c, std::ostream* os) {
  *os << c.flag;
}

class Banner : public ::testing::TestWithParam<KvCase> {};

TEST_P(Banner, TellsTheEffectiveDtypeLayersAndBytes) {
  const KvCase& c = GetParam();
  const Output o =
      generate(std::string("-p 'def f(x):' -n 2 -c 256 -g 0 --temp 0 --kv-type ") + c.flag);
  ASSERT_EQ(o.exit_code, 0) << o.err;
  auto b = banner(o);
  EXPECT_EQ(b["cpu_layers"], "4");
  EXPECT_EQ(b["gpu_layers"], "0");
  EXPECT_EQ(b["cpu_k"], c.k);
  EXPECT_EQ(b["cpu_v"], c.v);
  EXPECT_EQ(b["gpu_k"], "none");
  EXPECT_EQ(b["n_ctx"], "256");
  EXPECT_EQ(b["kv_bytes"], std::to_string(256ull * 4 * c.row_bytes));
  EXPECT_GE(std::stoull(b["kv_held_bytes"]), std::stoull(b["kv_bytes"]));
  EXPECT_GT(std::stoull(b["host_free_bytes"]), 0u);
  EXPECT_EQ(b["threads"], "2");
  EXPECT_EQ(b["arithmetic"], "fast");
}

INSTANTIATE_TEST_SUITE_P(Types, Banner,
                         ::testing::Values(KvCase{"auto", "f32", "f32", 2048},
                                           KvCase{"fp32", "f32", "f32", 2048},
                                           KvCase{"bf16", "bf16", "bf16", 1024},
                                           KvCase{"q8_0", "q8_0", "q8_0", 544},
                                           KvCase{"bf16,q8_0", "bf16", "q8_0", 784}));

TEST(Generate, AnswersTheDemonstration) {
  const Output o = generate("--chat -f '" + kPrompt + "' -n 32 -c 2048 --temp 0 --expect 97697");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "The code of ember is 97697.\n");
}

TEST(Generate, QuietPrintsTheTextAndNothingElse) {
  const Output o = generate("--quiet --chat -f '" + kPrompt + "' -n 32 -c 2048 --temp 0");
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.out, "The code of ember is 97697.\n");
  EXPECT_EQ(o.err, "");
}

TEST(Generate, FailsWhenWhatIsExpectedDoesNotCome) {
  const Output o = generate("--chat -f '" + kPrompt + "' -n 4 -c 2048 --temp 0 --expect 97697");
  EXPECT_EQ(o.exit_code, 1) << o.err;
}

/// Whatever takes the text is full.
TEST(Generate, FailsWhenItsTextCannotBeWritten) {
  const Output o = run("/bin/sh", "-c \"'" + kGenerate + "' --quiet -m '" + kModel +
                                      "' -t 2 -n 4 -p The > /dev/full\"");
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_EQ(o.err, "generate: the text could not be written\n");
}

TEST(Generate, EqualSeedsPrintEqualText) {
  const std::string arguments = "-p 'class Node' -n 24 -c 128 --temp 1.2 --seed ";
  const Output a = generate(arguments + "5"), b = generate(arguments + "5"),
               c = generate(arguments + "6");
  ASSERT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, c.out);
}

TEST(Generate, AnAdapterChangesTheTextByItsScale) {
  const std::string folder = test::source_path("tests/fixtures/rand-llama3");
  const auto text = [&](const std::string& flags) {
    const Output o = run(kGenerate, "-m '" + folder +
                                        "-q8_0.gguf' -p 'abcdef' -n 12 -c 64 -g 0 -t 2 "
                                        "--exact --temp 0 --quiet " +
                                        flags);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o.out;
  };
  const std::string lora = "--lora '" + folder + "-lora.gguf";
  EXPECT_EQ(text(lora + ":0'"), text(""));
  EXPECT_EQ(text(lora + "'"), text(lora + ":1'"));
  EXPECT_NE(text(lora + "'"), text(""));
  EXPECT_NE(text(lora + "'"), text(lora + ":-1'"));
  const Output other = generate(lora + "' -p x -n 1 -c 64 -g 0");
  EXPECT_EQ(other.exit_code, 1) << "of another base";
  EXPECT_NE(other.err.find("SHARPI_E_MISMATCH"), std::string::npos) << other.err;
}

TEST(Generate, StopsAtTheEndOfTheContext) {
  const Output o = generate("-p 'def f(x):' -n 400 -c 32 --seed 3 --temp 2");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("stopped"), std::string::npos) << o.err;
}

struct WrongCase {
  const char* arguments;
  const char* says;
};
void PrintTo(const WrongCase& c, std::ostream* os) {
  *os << c.arguments;
}

class WrongFlag : public ::testing::TestWithParam<WrongCase> {};

TEST_P(WrongFlag, ExitsWithTwoAndTheListOfAllowedValues) {
  const Output o = generate(std::string("-p x -g 0 -n 1 ") + GetParam().arguments);
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_NE(o.err.find(GetParam().says), std::string::npos) << o.err;
}

INSTANTIATE_TEST_SUITE_P(
    Values, WrongFlag,
    ::testing::Values(
        WrongCase{"--kv-type fp16", "auto, fp32, bf16, q8_0"},
        WrongCase{"--kv-type bf16,", "auto, fp32, bf16, q8_0"},
        WrongCase{"--kv-type bf16,bf16,bf16", "auto, fp32, bf16, q8_0"},
        WrongCase{"-c 0", "from 1"}, WrongCase{"-c -5", "from 1"}, WrongCase{"-c 12x", "from 1"},
        WrongCase{"-n 0", "from 1"}, WrongCase{"-t 1025", "from 0 to 1024"},
        WrongCase{"-g many", "auto"}, WrongCase{"--temp -1", "from 0"},
        WrongCase{"--temp nan", "from 0"}, WrongCase{"--top-p 1.5", "from 0 to 1"},
        WrongCase{"--min-p x", "from 0 to 1"}, WrongCase{"--top-k -1", "from 0"},
        WrongCase{"--seed -1", "from 0"}, WrongCase{"--repeat-penalty 0", "from 0.001"},
        WrongCase{"--system hi", "--chat"}, WrongCase{"--no-such-flag", "--help"},
        WrongCase{"--seed", "needs a value"}, WrongCase{"-f also.txt", "one of -p and -f"}));

TEST(Generate, AFailureIsOneSentenceAndExitOne) {
  const Output o = run(kGenerate, "-m no-such-file.gguf -p x");
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_NE(o.err.find("SHARPI_E_NOT_FOUND"), std::string::npos) << o.err;
}

TEST(Plan, PrintsATableJsonAndADrawing) {
  const std::string svg =
      ::testing::TempDir() + "sharpi_plan_" + std::to_string(::getpid()) + ".svg";
  const Output table = run(kPlan, "'" + kModel + "' -c 512 --svg '" + svg + "'");
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("context 512, KV f32/f32"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("KV rows"), std::string::npos) << table.out;
  const std::string drawing = read_all(svg);
  std::remove(svg.c_str());
  EXPECT_EQ(drawing.rfind("<svg", 0), 0u);
  EXPECT_NE(drawing.find("KV rows"), std::string::npos);
  EXPECT_NE(drawing.find("</svg>"), std::string::npos);
  const Output json = run(kPlan, "'" + kModel + "' -c 512 --json");
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(json.out.front(), '{');
  EXPECT_NE(json.out.find("\"n_ctx\""), std::string::npos) << json.out;
}

/// Every number behind `key` in a text.
std::vector<double> numbers(const std::string& text, const std::string& key) {
  std::vector<double> out;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1))
    out.push_back(std::stod(text.substr(at + key.size())));
  return out;
}

TEST(Plan, RowsOfJsonAndDrawingAddUpToTheTotals) {
  const std::string svg =
      ::testing::TempDir() + "sharpi_rows_" + std::to_string(::getpid()) + ".svg";
  const Output json = run(kPlan, "'" + kModel + "' -c 8192 -g 0 --map --json --svg '" + svg + "'");
  ASSERT_EQ(json.exit_code, 0) << json.err;
  double total[2] = {0, 0};  // in host memory, and mapped
  std::vector<double> bytes[2];
  const size_t rows = json.out.find("\"rows\": [");
  ASSERT_NE(rows, std::string::npos) << json.out;
  for (size_t at = json.out.find('{', rows); at != std::string::npos;
       at = json.out.find('{', at + 1)) {
    const std::string row = json.out.substr(at, json.out.find('}', at) - at);
    const size_t mapped = row.find("\"kind\": \"mapped\"") != std::string::npos;
    const double held = numbers(row, "\"held_bytes\": ").at(0);
    total[mapped] += held;
    if (held > 0) bytes[mapped].push_back(held);
  }
  EXPECT_EQ(total[0], numbers(json.out, "\"host_held_bytes\": ").at(0));
  EXPECT_EQ(total[1], numbers(json.out, "\"mapped_bytes\": ").at(0));
  ASSERT_GE(bytes[0].size(), 3u);
  ASSERT_GE(bytes[1].size(), 3u);

  const std::string drawing = read_all(svg);
  std::remove(svg.c_str());
  std::vector<double> widths;  // the host's bar, then the mapped one's
  std::istringstream lines(drawing);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("height=\"34\"") != std::string::npos)
      widths.push_back(numbers(line, "width=\"").at(0));
  }
  ASSERT_EQ(widths.size(), bytes[0].size() + bytes[1].size());
  const double largest = std::max(total[0], total[1]);
  size_t i = 0;
  for (const auto& bar : bytes) {
    for (const double n : bar) EXPECT_NEAR(widths[i++], n / largest * 760, 0.01);
  }
}

/// Few threads and small chunks: what many threads need would fill the budget alone.
TEST(Plan, SaysWhatDoesNotFitAndWhatWould) {
  const std::string rest = " -t 2 -g 0 --chunk 8 --host-mib 16";
  const Output o = run(kPlan, "'" + kModel + "' -c 8192" + rest);
  EXPECT_EQ(o.exit_code, 1);
  for (const char* part : {"SHARPI_E_DOES_NOT_FIT", " more than the host_budget of 16777216",
                           "row \"KV rows\" with ", "would fit: ", "or n_ctx "}) {
    EXPECT_NE(o.err.find(part), std::string::npos) << part << " is not in: " << o.err;
  }
  const auto n_ctx = static_cast<unsigned>(numbers(o.err, "or n_ctx ").at(0));
  const auto with = [&](unsigned n) {
    return run(kPlan, "'" + kModel + "' -c " + std::to_string(n) + rest);
  };
  EXPECT_EQ(with(n_ctx).exit_code, 0);
  EXPECT_EQ(with(n_ctx + 1).exit_code, 1);
  const std::string threads = "'" + kModel + "' -c " + std::to_string(n_ctx) + " -t 64";
  EXPECT_EQ(run(kPlan, threads + " -g 0 --chunk 8 --host-mib 16").exit_code, 1);
}

Output compact(const std::string& arguments) {
  return run(kCompact, "-m '" + kFixtures + "/tiny-qwen35-q8_0.gguf' -t 2 " + arguments);
}

/// The number that stands before `unit` after "before: " or "after: ".
double figure(const Output& o, const std::string& line, const std::string& unit) {
  const size_t start = o.err.find(line + ": "), at = o.err.find(unit, start);
  EXPECT_NE(at, std::string::npos) << o.err;
  const size_t number = o.err.rfind(' ', at - 2) + 1;
  return std::stod(o.err.substr(number));
}

TEST(Compact, AnswersFromAnEighthOfTheRowsAndHoldsLess) {
  const std::string file = test::source_path("examples/compact_prompt.txt");
  for (const char* kv : {"bf16", "q8_0"}) {
    const Output o = compact("-f '" + file + "' --budget 256 --expect 80293 --kv-type " + kv);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_EQ(o.out, "The code of wind is 80293.\n");
    EXPECT_EQ(figure(o, "before", "rows a layer"), 1860.0);
    EXPECT_EQ(figure(o, "after", "rows a layer"), 256.0);
    EXPECT_LT(figure(o, "after", "KiB held"), 1024.0 * figure(o, "before", "MiB held") / 4);
  }
}

TEST(Compact, AQuestionThatComesLaterIsAProbe) {
  const std::string text = read_all(test::source_path("examples/compact_prompt.txt"));
  const size_t question = text.rfind('\n', text.size() - 2);
  const std::string file =
      ::testing::TempDir() + "sharpi_compact_" + std::to_string(::getpid()) + ".txt";
  std::ofstream(file, std::ios::binary) << text.substr(0, question + 1);
  const Output o = compact("-f '" + file + "' --probe 'What is the code of wind?'");
  std::remove(file.c_str());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "The code of wind is 80293.\n");
}

TEST(Compact, FailsWhenTheAnswerIsGoneOrAFlagIsWrong) {
  const std::string file = test::source_path("examples/compact_prompt.txt");
  EXPECT_EQ(compact("-f '" + file + "' --budget 2 --expect 80293").exit_code, 1);
  const Output o = compact("-f '" + file + "' --policy best");
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_NE(o.err.find("value, span, retrieval, replay or mixed"), std::string::npos) << o.err;
  EXPECT_EQ(compact("").exit_code, 2);
}

/// The chat program with a script on stdin.
Output chat(const std::string& arguments, const std::string& script,
            const std::string& model = kModel) {
  const std::string path =
      ::testing::TempDir() + "sharpi_chat_" + std::to_string(::getpid()) + ".txt";
  std::ofstream(path, std::ios::binary) << script;
  const Output o =
      run(kChat, "-m '" + model + "' -t 2 -g 0 --temp 0 " + arguments + " < '" + path + "'");
  std::remove(path.c_str());
  return o;
}

TEST(ChatProgram, AnswersRemembersAndSaves) {
  const std::string saved =
      ::testing::TempDir() + "sharpi_saved_" + std::to_string(::getpid()) + ".json";
  const std::string prompt = read_all(kPrompt);
  const Output o =
      chat("-c 4096 -n 32 --system 'a \"b\"'",
           "/save\n/regen\nhello\n\n/regen\n" + prompt + "/save " + saved + "\n/exit\nnever\n");
  ASSERT_EQ(o.exit_code, 0) << o.err;
  std::istringstream lines(o.out);
  std::string first, again;
  std::getline(lines, first);
  std::getline(lines, again);
  EXPECT_EQ(first, again);
  EXPECT_NE(o.err.find("which FILE?"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("there is no answer yet"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("tokens/s"), std::string::npos) << o.err;
  const std::string json = read_all(saved);
  std::remove(saved.c_str());
  EXPECT_NE(json.find("{\"role\": \"system\", \"content\": \"a \\\"b\\\"\"}"), std::string::npos)
      << json;
  EXPECT_NE(json.find("{\"role\": \"user\", \"content\": \"hello\"}"), std::string::npos) << json;
  EXPECT_EQ(json.find("never"), std::string::npos) << json;
}

TEST(ChatProgram, ADraftModelLeavesTheAnswers) {
  const std::string script = "The code of snow is 12345. What is the code of snow?\nagain\n";
  const Output plain = chat("-c 1024 -n 24 --exact --speeds", script);
  const Output drafted =
      chat("-c 1024 -n 24 --exact --speeds --draft 4 --draft-model '" + kModel + "'", script);
  ASSERT_EQ(drafted.exit_code, 0) << drafted.err;
  EXPECT_EQ(drafted.out, plain.out);
  EXPECT_EQ(plain.err.find("drafts so far"), std::string::npos) << plain.err;
  EXPECT_NE(drafted.err.find("drafts so far"), std::string::npos) << drafted.err;
  const Output absent = chat("--draft-model no-such-drafter.gguf", script);
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(absent.err.find("no-such-drafter.gguf"), std::string::npos) << absent.err;
}

TEST(ChatProgram, GoesOnPastWhatACompactionLeft) {
  std::string long_message;
  while (long_message.size() < 8000) long_message += "The road went down to the river. ";
  const Output o = chat("-c 4096 -n 8", "The code of snow is 12345.\n/compact 8\n" + long_message +
                                            "\nWhat is the code of snow?\n");
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("8 of "), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("full"), std::string::npos) << o.err;
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 3) << o.out;
}

TEST(ChatProgram, CompactsPlansAndGoesOn) {
  const Output o =
      chat("-c 1024 -n 8 --speeds",
           "hello\n/compact\n/compact 0\n/compact many\n/compact 8\n/plan\nagain\n/nothing\n/help\n"
           "/reset\nhello\n");
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const char* part :
       {" rows a layer: nothing to compact", "/compact takes a number of rows from 1 on", "8 of ",
        " rows a layer kept", "KV rows", "no such command", "/regen ", "tokens/s"}) {
    EXPECT_NE(o.err.find(part), std::string::npos) << part << " is not in: " << o.err;
  }
  EXPECT_GE(std::count(o.out.begin(), o.out.end(), '\n'), 3);
}

/// Of few rows not all are the last ones: without the first rows, which many heads lean on, the
/// model says again what it said before.
TEST(ChatProgram, SmolLm2StillAnswersFromFewRows) {
  const std::string model = find_real_file(kSmolLm2);
  if (model.empty()) GTEST_SKIP() << absent_text(kSmolLm2);
  // Without the first rows of the conversation it says that the capital of Spain is Spain.
  const Output o = chat("--exact -n 30 -c 2048 --system 'You are a helpful assistant.'",
                        "What is the capital of France?\nWhat is the capital of Italy?\n"
                        "What is the capital of Germany?\nWhat is the capital of Austria?\n"
                        "/compact 60\nWhat is the capital of Spain?\n",
                        model);
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("60 of "), std::string::npos) << o.err;
  EXPECT_NE(o.out.find("The capital of Spain is Madrid."), std::string::npos) << o.out;
}

TEST(ChatProgram, WrongFlagsAreNamed) {
  EXPECT_EQ(chat("--no-such-flag", "").exit_code, 2);
  EXPECT_EQ(run(kChat, "").exit_code, 2);
  const Output o = chat("--think --no-think", "hello\n");
  EXPECT_NE(o.err.find("SHARPI_CHAT_NO_THINKING"), std::string::npos) << o.err;
}

TEST(ChatProgram, AnInterruptStopsTheAnswerAndNotTheProgram) {
  int in[2], out[2], err[2];
  ASSERT_EQ(::pipe(in) | ::pipe(out) | ::pipe(err), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    for (int* pair : {in, out, err}) ::close(pair[0]), ::close(pair[1]);
    ::execl(kChat.c_str(), "chat", "-m", kModel.c_str(), "-t", "2", "-g", "0", "-c", "8192", "-n",
            "100000", "--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(in[0]), ::close(out[1]), ::close(err[1]);
  const auto say = [&](const std::string& line) {
    ASSERT_EQ(::write(in[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  };
  say("hello\n");
  char byte = 0;
  ASSERT_EQ(::read(out[0], &byte, 1), 1);  // the answer has begun
  ASSERT_EQ(::kill(child, SIGINT), 0);
  say("/nothing\n/exit\n");
  ::close(in[1]);
  std::string said, complained;
  char buffer[4096];
  for (ssize_t n; (n = ::read(out[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  for (ssize_t n; (n = ::read(err[0], buffer, sizeof buffer)) > 0;) {
    complained.append(buffer, static_cast<size_t>(n));
  }
  ::close(out[0]), ::close(err[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << complained;
  EXPECT_NE(complained.find("(stopped)"), std::string::npos) << complained;
  EXPECT_NE(complained.find("no such command"), std::string::npos) << complained;
}

TEST(DemoPrompt, BecomesTheTokensOfItsNeedle) {
  const Loaded l = load(kModel);
  std::string text = read_all(kPrompt);
  ASSERT_FALSE(text.empty());
  text.pop_back();  // its last newline, as generate -f does
  sharpi_message message{};
  message.role = "user";
  message.content = text.c_str();
  message.content_len = text.size();
  sharpi_chat_params chat;
  sharpi_chat_params_init(&chat, sizeof chat);
  chat.messages = &message;
  chat.n_messages = 1;
  std::vector<int32_t> tokens(text.size() + 256);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_chat_tokenize(l.model.get(), &chat, tokens.data(),
                                 static_cast<uint32_t>(tokens.size()), &n, &e),
            SHARPI_OK)
      << text_of(e);
  tokens.resize(n);
  const auto golden = load_golden(kFixtures + "/tiny-qwen3.golden.json");
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  EXPECT_EQ(tokens, golden.value().needles.at(19).prompt);
}

}  // namespace
}  // namespace sharpi::testing
