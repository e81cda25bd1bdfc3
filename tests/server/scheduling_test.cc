// SPDX-License-Identifier: MIT
// Several requests at once: decoding together, shared prefixes, readers that go away, full queues,
// sessions that have to make room.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "connection.h"
#include "served.h"

namespace server {
namespace {

// A request on a socket of its own, whose answer nobody has to read.
class Socket {
 public:
  Socket(int port, const json& body) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string text = body.dump();
    const std::string request =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
        "application/json\r\n"
        "Content-Length: " +
        std::to_string(text.size()) + "\r\n\r\n" + text;
    EXPECT_EQ(send(fd_, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  }
  ~Socket() { hang_up(); }
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void close_half() { shutdown(fd_, SHUT_WR); }
  /// The server's end of it, which is in this process, too.
  int others_end() const {
    sockaddr_in own{}, other{};
    socklen_t size = sizeof own;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size);
    for (int fd = 3; fd < 1024; ++fd) {
      size = sizeof other;
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &size) == 0 &&
          other.sin_port == own.sin_port) {
        return fd;
      }
    }
    return -1;
  }

 private:
  int fd_;
};

void large(Settings& s) {
  s.context = 32768;
}

TEST(Scheduling, AnswersWrittenTogetherAreThoseWrittenAlone) {
  const Served served([](Settings& s) {
    s.slots = 3;
    s.sessions = 4;
  });
  const json how = {{"temperature", 1}, {"seed", 5}, {"max_tokens", 16}};
  std::vector<std::string> alone, together(8);
  for (int i = 0; i < 8; ++i) {
    alone.push_back(Served::content(served.chat(words("code", i + 1), how)));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      together[i] = Served::content(served.chat(words("code", static_cast<int>(i) + 1), how));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
  EXPECT_LT(served.metric("sharpi_steps_total"), 16 * 16);
}

TEST(Scheduling, APromptBeginsWithWhatASessionHolds) {
  const Served served;
  const std::string text = words("code", 100);
  const json first = served.chat(text + "one");
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const json again = served.chat(text + "one");
  const int n = again["usage"]["prompt_tokens"].get<int>();
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], n - 1);
  EXPECT_EQ(again["choices"], first["choices"]);
  EXPECT_EQ(again["sharpi_session"], first["sharpi_session"]);
}

TEST(Scheduling, ABusySessionIsForkedForAPromptThatBeginsLikeIt) {
  const Served served(large);
  json body = endless(served, true);
  const std::string text = words("code", 200);
  body["messages"][0]["content"] = text + "one";
  Socket writer(served.port(), body);
  ASSERT_TRUE(served.becomes([&] { return served.metric("sharpi_requests_writing") == 1; }));
  const json other = served.chat(text + "two");
  EXPECT_EQ(served.metric("sharpi_session_forks_total"), 1);
  EXPECT_GT(other["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 200);
  const Served fresh(large);
  EXPECT_EQ(Served::content(fresh.chat(text + "two")), Served::content(other));
}

TEST(Scheduling, AHybridIsCutBackToACheckpoint) {
  const Served served({}, "tiny-qwen35-q8_0.gguf");
  const std::string rules = words("code", 60);
  const auto ask = [&](const Served& whom, const std::string& question) {
    const json messages = json::array(
        {{{"role", "system"}, {"content", rules}}, {{"role", "user"}, {"content", question}}});
    return whom.chat("", {{"messages", messages}});
  };
  ask(served, "where is it?");
  const json other = ask(served, words("which", 20));
  EXPECT_GE(other["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 60);
  const Served fresh({}, "tiny-qwen35-q8_0.gguf");
  EXPECT_EQ(ask(fresh, words("which", 20))["choices"], other["choices"]);
}

TEST(Scheduling, AReaderThatGoesAwayEndsItsAnswer) {
  const Served served(large);
  for (const bool stream : {true, false}) {
    for (const bool half : {true, false}) {
      const double before = served.metric("sharpi_cancelled_total");
      Socket reader(served.port(), endless(served, stream));
      ASSERT_TRUE(served.becomes([&] { return served.metric("sharpi_requests_writing") == 1; }));
      half ? reader.close_half() : reader.hang_up();
      EXPECT_TRUE(
          served.becomes([&] { return served.metric("sharpi_cancelled_total") == before + 1; }));
      EXPECT_EQ(served.metric("sharpi_requests_writing"), 0);
    }
  }
  EXPECT_EQ(served.get("/v1/sharpi/sessions").body["sessions"][0]["state"], "idle");
}

// Counted from a moment between two steps at which the server's end of the connection is closed.
TEST(Scheduling, AReaderThatGoesAwayCostsAtMostOneTokenMore) {
  Served served(large);
  for (const bool stream : {true, false}) {
    const double before = served.metric("sharpi_cancelled_total");
    Socket reader(served.port(), endless(served, stream));
    ASSERT_TRUE(served.becomes([&] { return served.metric("sharpi_requests_writing") == 1; }));
    size_t held = 0;
    served.between_steps([&](SessionCache& sessions) {
      const int end = reader.others_end();
      reader.close_half();
      ASSERT_TRUE(served.becomes([&] { return is_gone(end); }));
      held = sessions.find("s1")->tokens.size();
    });
    ASSERT_TRUE(
        served.becomes([&] { return served.metric("sharpi_cancelled_total") == before + 1; }));
    const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
    EXPECT_EQ(session["id"], "s1");
    EXPECT_LE(session["n_tokens"].get<size_t>(), held + 1);
  }
}

TEST(Scheduling, AFullQueueIsSaidAtOnceAndALongWaitInTheEnd) {
  const Served served([](Settings& s) {
    large(s);
    s.slots = 1;
    s.queue = 1;
    s.queue_timeout = 1;
  });
  Socket writer(served.port(), endless(served, true));
  ASSERT_TRUE(served.becomes([&] { return served.metric("sharpi_requests_writing") == 1; }));
  const json body = endless(served, false);
  std::thread waiter([&] {
    const Answered late = served.post("/v1/chat/completions", body);
    EXPECT_EQ(late.status, 503);
    EXPECT_EQ(late.body["error"]["message"], "no place became free in 1 seconds");
    EXPECT_EQ(late.headers.count("Retry-After"), 1u);
  });
  ASSERT_TRUE(served.becomes([&] { return served.metric("sharpi_requests_waiting") == 1; }));
  const Answered full = served.post("/v1/chat/completions", body);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.body["error"]["message"], "the queue is full: 1 requests wait");
  EXPECT_EQ(full.headers.count("Retry-After"), 1u);
  waiter.join();
}

TEST(Scheduling, ASessionIsCompactedBetweenTwoSteps) {
  const Served served(large);
  json ids = json::array();
  for (int i = 0; i < 100; ++i) ids.push_back(300 + i % 50);
  json ask = {{"prompt", ids}, {"max_tokens", 1}, {"temperature", 0}};
  const json first = served.post("/v1/completions", ask).body;
  const std::string path =
      "/v1/sharpi/sessions/" + first["sharpi_session"].get<std::string>() + "/compact";
  const Answered report =
      served.post(path, {{"budget", 32}, {"policy", "snapkv"}, {"recency", 24}});
  ASSERT_EQ(report.status, 200) << report.body.dump();
  EXPECT_EQ(report.body["rows_after"], 32);
  EXPECT_EQ(report.body["policy"], "snapkv");
  EXPECT_LT(report.body["held_after"].get<uint64_t>(), report.body["held_before"].get<uint64_t>());
  const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
  EXPECT_EQ(session["is_compacted"], true);
  EXPECT_EQ(session["last_compaction"], report.body);
  EXPECT_EQ(session["layers"][0]["rows"], 32);
  // It goes on from the rows that were kept, also beyond the room that it was left.
  for (int i = 0; i < 1500; ++i) ask["prompt"].push_back(400 + i % 50);
  const json next = served.post("/v1/completions", ask).body;
  EXPECT_EQ(next["usage"]["prompt_tokens_details"]["cached_tokens"], 100);
  EXPECT_EQ(next["sharpi_session"], first["sharpi_session"]);
  EXPECT_EQ(served.post("/v1/sharpi/sessions/s99/compact", {{"budget", 8}}).status, 404);
  const Answered missing = served.post(path, json::object());
  EXPECT_EQ(missing.body["error"]["message"], "budget is missing");
  const Answered wrong = served.post(path, {{"budget", 8}, {"policy", "best"}});
  EXPECT_EQ(wrong.status, 400);
  const Answered refused = served.post(path, {{"budget", 8}, {"recency", 9}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.body["error"]["code"], "SHARPI_E_INVALID_ARGUMENT");
}

TEST(Scheduling, IdleSessionsAreSavedAndComeBack) {
  const std::string folder =
      ::testing::TempDir() + "sharpi_server_sessions_" + std::to_string(getpid());
  const Served served([&](Settings& s) {
    s.slots = s.sessions = 1;
    s.idle = "save";
    s.cache_dir = folder;
  });
  const json first = served.chat(words("code", 100));
  served.chat(words("snow", 100));
  EXPECT_EQ(served.metric("sharpi_sessions_saved_total"), 1);
  const json again = served.chat(words("code", 100));
  EXPECT_EQ(served.metric("sharpi_sessions_restored_total"), 1);
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 100);
  EXPECT_EQ(again["choices"], first["choices"]);
}

// Room for one session and a half; places for four.
void short_of_memory(Settings& s) {
  const auto shape = [](Settings& of) {
    large(of);
    of.slots = 1;
  };
  const Served served(shape);
  shape(s);
  s.sessions = 4;
  s.host_budget =
      served.engine().plan().host_held_bytes + served.engine().plan().session_held_bytes / 2;
}

TEST(Scheduling, IdleSessionsAreSavedWhereMemoryRunsShort) {
  const std::string folder =
      ::testing::TempDir() + "sharpi_server_short_" + std::to_string(getpid());
  const Served served([&](Settings& s) {
    short_of_memory(s);
    s.idle = "save";
    s.cache_dir = folder;
  });
  const json first = served.chat(words("code", 100));
  EXPECT_FALSE(Served::content(served.chat(words("snow", 100))).empty());
  EXPECT_EQ(served.metric("sharpi_sessions_saved_total"), 1);
  EXPECT_EQ(served.metric("sharpi_sessions"), 1);
  const json again = served.chat(words("code", 100));
  EXPECT_EQ(served.metric("sharpi_sessions_restored_total"), 1);
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 100);
  EXPECT_EQ(again["choices"], first["choices"]);
  EXPECT_EQ(served.metric("sharpi_sessions_dropped_total"), 0);
}

TEST(Scheduling, IdleSessionsAreCompactedWhereMemoryRunsShort) {
  const Served served([](Settings& s) {
    short_of_memory(s);
    s.idle = "compact";
  });
  const json first = served.chat(words("code", 100));
  EXPECT_FALSE(Served::content(served.chat(words("snow", 100))).empty());
  EXPECT_EQ(served.metric("sharpi_sessions_compacted_total"), 1);
  EXPECT_EQ(served.metric("sharpi_sessions_dropped_total"), 0);
  EXPECT_EQ(served.metric("sharpi_sessions"), 2);
}

TEST(Scheduling, BoundedSessionsGoOnPastTheirContext) {
  const Served served([](Settings& s) {
    s.context = 512;
    s.kv_budget = 128;
    s.chunk = 64;
  });
  const json answer = served.chat(words("code", 700), {{"max_tokens", 20}});
  EXPECT_GT(answer["usage"]["prompt_tokens"].get<int>(), 512);
  const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
  EXPECT_LE(session["n_slots_max"].get<int>(), 512);
  const Answered refused =
      served.post("/v1/completions", {{"prompt", "code"}, {"echo", true}, {"logprobs", 1}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.body["error"]["message"],
            "echo has no logprobs where sessions are bounded: their prompts are read at once");
}

TEST(Start, TheTypesOfKeysAndValuesAreThoseOfTheRows) {
  const Served wide;
  const Served served([](Settings& s) {
    s.k_dtype = SHARPI_KV_Q8_0;
    s.v_dtype = SHARPI_KV_Q4;
  });
  const char* const question = "The code of ember is 97697. What is the code of ember?";
  const json answer = served.chat(question, {{"max_tokens", 30}});
  EXPECT_EQ(Served::content(answer), "The code of ember is 97697.");
  wide.chat(question, {{"max_tokens", 30}});
  const auto held = [](const Served& by) {
    return by.get("/v1/sharpi/sessions").body["sessions"][0]["kv_payload_bytes"].get<uint64_t>();
  };
  const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
  EXPECT_EQ(session["k_dtype"], "q8_0");
  EXPECT_EQ(session["v_dtype"], "q4");
  EXPECT_EQ(session["layers"][0]["v_dtype"], "q4");
  // 34 and 18 bytes for 32 elements, beside 128 and 128.
  EXPECT_EQ(held(served) * 256, held(wide) * 52);
  EXPECT_EQ(served.get("/v1/sharpi/plan").body["plan"]["v_dtype"], "q4");
}

TEST(Start, WhatCannotBeMetIsRefusedWithTheSentenceOfThePlan) {
  const auto refusal = [](const std::function<void(Settings&)>& change) -> std::string {
    try {
      const Served served(change);
    } catch (const LibraryError& e) {
      return e.what();
    }
    return "taken";
  };
  EXPECT_NE(refusal([](Settings& s) { s.drafts = 64; }).find("draft"), std::string::npos);
  EXPECT_EQ(refusal([](Settings& s) { s.draft = SHARPI_DRAFT_MTP; }),
            "drafters has MTP, but the file has no block for multi-token prediction");
  EXPECT_EQ(refusal([](Settings& s) {
              s.draft = SHARPI_DRAFT_NGRAM;
              s.drafts = 0;
            }),
            "drafters is 1 but n_draft is 0");
  EXPECT_EQ(refusal([](Settings& s) { s.draft = SHARPI_DRAFT_MODEL; }),
            "drafters has MODEL, but draft_path is null");
  EXPECT_EQ(refusal([](Settings& s) {
              s.draft = SHARPI_DRAFT_NGRAM;
              s.draft_vocab = 512;
            }),
            "n_draft_vocab is 512, but drafters is 1: only 2 (MTP) and 4 (AUTO) use it");
  EXPECT_EQ(refusal([](Settings& s) {
              s.draft = SHARPI_DRAFT_NGRAM;
              s.draft_model = s.model;
            }),
            "draft_path is given, but drafters is 1: only 8 (MODEL) and 4 (AUTO) use it");
  EXPECT_EQ(refusal([](Settings& s) {
              s.draft_model = fixture_path("tiny-gemma4kv-q8_0.gguf");
            }).rfind("the draft model has another vocabulary: ", 0),
            0u);
  EXPECT_NE(refusal([](Settings& s) { s.draft_model = "no-such-drafter"; }).find("no-such-drafter"),
            std::string::npos);
  EXPECT_NE(refusal([](Settings& s) { s.host_budget = 1 << 20; }).find("more than the host_budget"),
            std::string::npos);
  EXPECT_NE(refusal([](Settings& s) { s.model = "no-such-file"; }).find("no-such-file"),
            std::string::npos);
}

}  // namespace
}  // namespace server
