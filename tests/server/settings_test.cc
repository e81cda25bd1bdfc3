// SPDX-License-Identifier: MIT
// Options: flags over file over environment, and refusals that name what is wrong.
#include "settings.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace server {
namespace {

class ServerSettings : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    path_ = ::testing::TempDir() + "sharpi_server_settings.json";
    std::ofstream(path_) << text;
    return path_;
  }
  ~ServerSettings() override {
    if (!path_.empty()) std::remove(path_.c_str());
  }
  static std::string refusal(const std::vector<std::string>& arguments,
                             const Environment& environment = {}) {
    try {
      read_settings(arguments, environment);
    } catch (const SettingsError& e) {
      return e.what();
    }
    return "taken";
  }
  std::string path_;
};

TEST_F(ServerSettings, FlagWinsOverFileOverEnvironmentOverDefault) {
  const Environment environment = {{"SHARPI_SERVER_MODEL", "env.gguf"},
                                   {"SHARPI_SERVER_SLOTS", "2"},
                                   {"SHARPI_SERVER_KV_TYPE", "bf16"},
                                   {"SHARPI_SERVER_TOP_K", "7"}};
  const std::string config = file(R"({"slots": 3, "kv-type": "f32", "temp": 0.25})");
  const Settings s = read_settings({"--config", config, "--kv-type=q8_0,bf16"}, environment);
  EXPECT_EQ(s.model, "env.gguf");
  EXPECT_EQ(s.slots, 3u);
  EXPECT_EQ(s.k_dtype, SHARPI_KV_Q8_0);
  EXPECT_EQ(s.v_dtype, SHARPI_KV_BF16);
  EXPECT_EQ(s.top_k, 7u);
  EXPECT_FLOAT_EQ(s.temperature, 0.25f);
  EXPECT_EQ(s.port, 8080u);
  EXPECT_EQ(s.sources.at("model"), "environment");
  EXPECT_EQ(s.sources.at("slots"), "file");
  EXPECT_EQ(s.sources.at("kv-type"), "flag");
  EXPECT_EQ(s.sources.at("port"), "default");
}

TEST_F(ServerSettings, TheFileMayBeNamedByTheEnvironment) {
  const std::string config = file(R"({"model": "f.gguf", "exact": true})");
  const Settings s = read_settings({}, {{"SHARPI_SERVER_CONFIG", config}});
  EXPECT_EQ(s.model, "f.gguf");
  EXPECT_TRUE(s.exact);
}

TEST_F(ServerSettings, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal({}), "--model is needed; --help lists the options");
  EXPECT_EQ(refusal({"--modle", "x"}), "unknown option --modle; --help lists the options");
  EXPECT_EQ(refusal({"-m", "x", "--slots"}), "--slots needs a value");
  for (const char* slots : {"0", "65"}) {
    EXPECT_EQ(
        refusal({"-m", "x", "--slots", slots}),
        "--slots: \"" + std::string(slots) + "\" is not allowed; allowed: a number from 1 to 64");
  }
  EXPECT_EQ(refusal({"-m", "x", "--drafts", "33"}),
            "--drafts: \"33\" is not allowed; allowed: a number from 0 to 32");
  EXPECT_EQ(refusal({"-m", "x", "--kv-type", "q7"}),
            "--kv-type: \"q7\" is not allowed; allowed: auto, f32, bf16, q8_0, q4");
  EXPECT_EQ(refusal({"-m", "x"}, {{"SHARPI_SERVER_POLICY", "best"}}),
            "SHARPI_SERVER_POLICY: \"best\" is not allowed; allowed: auto, global, snapkv, "
            "defensive, value, span, retrieval, replay, mixed");
  EXPECT_EQ(refusal({"-m", "x", "--idle", "save"}), "--idle save needs a --cache-dir");
  EXPECT_EQ(refusal({"-m", "x", "--slots", "4", "--sessions", "2"}),
            "--sessions 2 is less than --slots 4");
  const std::string config = file(R"({"modle": "x"})");
  EXPECT_EQ(refusal({"--config", config}), config + ": there is no option \"modle\"");
  EXPECT_EQ(refusal({"--config", file("{\"model\": }")}), config + ": not JSON, at byte 11");
}

TEST_F(ServerSettings, WhoDraftsAndHowMuchCanBeSaidApart) {
  struct Case {
    std::vector<std::string> flags;
    uint32_t drafters, n_draft;
    const char* shown;
  };
  const uint32_t both = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP;
  const uint32_t with_model = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MODEL;
  const Case cases[] = {
      {{}, 0, 0, "none"},
      {{"--drafts", "5"}, SHARPI_DRAFT_NGRAM, 5, "ngram"},
      {{"--drafts", "0"}, 0, 0, "none"},
      {{"--draft", "ngram"}, SHARPI_DRAFT_NGRAM, 8, "ngram"},
      {{"--draft", "mtp", "--drafts", "3"}, SHARPI_DRAFT_MTP, 3, "mtp"},
      {{"--draft", "ngram,mtp"}, both, 8, "ngram,mtp"},
      {{"--draft=auto"}, SHARPI_DRAFT_AUTO, 8, "auto"},
      {{"--draft", "model"}, SHARPI_DRAFT_MODEL, 8, "model"},
      {{"--draft", "ngram,mtp,model"}, both | SHARPI_DRAFT_MODEL, 8, "ngram,mtp,model"},
      {{"--draft-model", "d"}, with_model, 8, "ngram,model"},
      {{"--draft-model", "d", "--drafts", "3"}, with_model, 3, "ngram,model"},
      {{"--draft-model", "d", "--draft", "auto"}, SHARPI_DRAFT_AUTO, 8, "auto"},
      {{"--draft", "none", "--drafts", "5"}, 0, 0, "none"}};
  for (Case c : cases) {
    c.flags.insert(c.flags.begin(), {"-m", "x"});
    const Settings s = read_settings(c.flags, {});
    EXPECT_EQ(s.drafters(), c.drafters) << c.shown;
    EXPECT_EQ(s.n_draft(), c.n_draft) << c.shown;
    EXPECT_EQ(settings_json(s)["draft"]["value"], c.shown);
    EXPECT_EQ(settings_json(s)["drafts"]["value"], c.n_draft) << c.shown;
  }
  const Environment environment = {{"SHARPI_SERVER_DRAFT", "mtp"}, {"SHARPI_SERVER_DRAFTS", "4"}};
  const std::string config = file(R"({"draft": "ngram"})");
  EXPECT_EQ(read_settings({"-m", "x"}, environment).drafters(), SHARPI_DRAFT_MTP);
  const Settings filed = read_settings({"-m", "x", "--config", config}, environment);
  EXPECT_EQ(filed.drafters(), SHARPI_DRAFT_NGRAM);
  EXPECT_EQ(filed.n_draft(), 4u);
  const Settings flagged =
      read_settings({"-m", "x", "--config", config, "--draft", "auto"}, environment);
  EXPECT_EQ(flagged.drafters(), SHARPI_DRAFT_AUTO);
  EXPECT_EQ(flagged.sources.at("draft"), "flag");
  EXPECT_EQ(read_settings({"-m", "x"}, {}).draft_vocab, 0u);
  const Settings part = read_settings({"-m", "x", "--draft", "mtp", "--draft-vocab", "512"}, {});
  EXPECT_EQ(settings_json(part)["draft-vocab"]["value"], 512u);
  EXPECT_EQ(part.sources.at("draft-vocab"), "flag");
  EXPECT_EQ(refusal({"-m", "x", "--draft", "best"}),
            "--draft: \"best\" is not allowed; allowed: none, auto, or of ngram,mtp,model one or "
            "several in this order");
}

TEST_F(ServerSettings, TheDraftModelIsNamedByFlagOverFileOverEnvironment) {
  const Environment environment = {{"SHARPI_SERVER_DRAFT_MODEL", "env.gguf"}};
  EXPECT_EQ(read_settings({"-m", "x"}, {}).draft_model, "");
  const Settings of_environment = read_settings({"-m", "x"}, environment);
  EXPECT_EQ(of_environment.draft_model, "env.gguf");
  EXPECT_EQ(of_environment.sources.at("draft-model"), "environment");
  const std::string config = file(R"({"draft-model": "file.gguf"})");
  EXPECT_EQ(read_settings({"-m", "x", "--config", config}, environment).draft_model, "file.gguf");
  const Settings flagged =
      read_settings({"-m", "x", "--config", config, "--draft-model=flag.gguf"}, environment);
  EXPECT_EQ(flagged.draft_model, "flag.gguf");
  EXPECT_EQ(settings_json(flagged)["draft-model"]["value"], "flag.gguf");
  EXPECT_EQ(settings_json(flagged)["draft-model"]["source"], "flag");
}

TEST_F(ServerSettings, AdaptersHaveScales) {
  const Settings s = read_settings(
      {"--model", "m.gguf", "--lora", "a.gguf,b.gguf:0.5, C:\\c.gguf:-2,d:e.gguf"}, {});
  ASSERT_EQ(s.loras.size(), 4u);
  EXPECT_EQ(s.loras[0].path, "a.gguf");
  EXPECT_EQ(s.loras[0].scale, 1.0f);
  EXPECT_EQ(s.loras[1].path, "b.gguf");
  EXPECT_EQ(s.loras[1].scale, 0.5f);
  EXPECT_EQ(s.loras[2].path, "C:\\c.gguf");
  EXPECT_EQ(s.loras[2].scale, -2.0f);
  EXPECT_EQ(s.loras[3].path, "d:e.gguf") << "no number: a part of the path";
  EXPECT_EQ(settings_json(s)["lora"]["value"], "a.gguf:1,b.gguf:0.5,C:\\c.gguf:-2,d:e.gguf:1");
  EXPECT_NE(refusal({"--model", "m.gguf", "--lora", ":0.5"}).find("files of adapters"),
            std::string::npos);
}

TEST_F(ServerSettings, TheEndsOfTheModelCanBePlaced) {
  EXPECT_EQ(read_settings({"-m", "x"}, {}).gpu_ends, -1);
  EXPECT_EQ(read_settings({"-m", "x"}, {}).device, "");
  EXPECT_EQ(read_settings({"-m", "x", "--device", "H200"}, {}).device, "H200");
  EXPECT_EQ(read_settings({"-m", "x", "--gpu-ends", "off"}, {}).gpu_ends, 0);
  EXPECT_EQ(read_settings({"-m", "x", "--gpu-ends", "on"}, {}).gpu_ends, 1);
  EXPECT_EQ(read_settings({"-m", "x", "--gpu-ends", "head"}, {}).gpu_ends, 2);
  EXPECT_EQ(refusal({"-m", "x", "--gpu-ends", "2"}),
            "--gpu-ends: \"2\" is not allowed; allowed: auto, on, head, off");
}

TEST_F(ServerSettings, BytesHaveUnits) {
  EXPECT_EQ(read_settings({"-m", "x", "--host-budget", "3G"}, {}).host_budget, 3ull << 30);
  EXPECT_EQ(read_settings({"-m", "x", "--host-budget", "all"}, {}).host_budget, SHARPI_ALL_FREE);
  EXPECT_EQ(refusal({"-m", "x", "--host-budget", "3X"}),
            "--host-budget: \"3X\" is not allowed; allowed: all, or bytes such as 4096, 800M, 8G");
}

TEST_F(ServerSettings, TheKeyIsNeverShown) {
  const Settings s = read_settings({"-m", "x", "--api-key", "secret"}, {});
  const std::string shown = settings_json(s).dump();
  EXPECT_EQ(shown.find("secret"), std::string::npos);
  EXPECT_EQ(settings_json(s)["api-key"]["value"], "set");
  EXPECT_NE(settings_help().find("--kv-type-v"), std::string::npos);
}

}  // namespace
}  // namespace server
