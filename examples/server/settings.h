// SPDX-License-Identifier: MIT
// What the server was told: options by flag, then by the file of --config, then by the environment
// (SHARPI_SERVER_ and the option's name), then their defaults. One table has all of them.
// Thread rule: read-only once made.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sharpi.h"

namespace server {

/// An adapter, and how much of it answers have that do not say so themselves.
struct LoraFile {
  std::string path;
  float scale = 1;
};

struct Settings {
  std::string model;
  std::string alias;  // empty: the file's name
  std::string config;
  std::string host = "127.0.0.1";
  uint32_t port = 8080;                  // 0: any free one
  std::string api_key;                   // empty: none is asked for
  bool no_key = false;                   // that is wanted, also where other machines may ask
  std::string allow_host, allow_origin;  // lists with commas
  uint32_t context = 0;  // 0: 8192, or what the model was trained for if that is less
  bool context_largest = false;
  sharpi_kv_dtype k_dtype = SHARPI_KV_AUTO, v_dtype = SHARPI_KV_AUTO;
  uint32_t kv_budget = 0;
  uint32_t prompt_budget = SHARPI_UNSET;
  sharpi_policy policy = SHARPI_POLICY_AUTO;
  uint32_t capture_window = 32;
  bool replay = false;
  uint32_t checkpoints = 4;
  int32_t gpu_layers = -1, gpu_ffn = -1, gpu_experts = -1, expert_slots = -1, gpu_ends = -1;
  std::string device;  // as sharpi_device_find() reads it; empty: what the library takes
  uint64_t device_budget = SHARPI_ALL_FREE, host_budget = SHARPI_ALL_FREE;
  // SHARPI_DRAFT_*; not set: NGRAM where `drafts` asks for some, and MODEL where there is one.
  uint32_t draft = SHARPI_UNSET;
  std::string draft_model;         // a GGUF file; empty: none
  uint32_t drafts = SHARPI_UNSET;  // not set: kDrafts where `draft` names a drafter
  uint32_t draft_vocab = 0;        // 0: all tokens
  std::vector<LoraFile> loras;     // adapters, by the ids that requests name
  uint32_t threads = 0;
  uint32_t chunk = 512;
  uint32_t prefill_chunk = 128;
  bool exact = false, deterministic = false, map = false, ignore_env = false;
  uint32_t slots = 4;
  uint32_t sessions = 0;  // 0: two more than slots
  uint32_t queue = 64;
  uint32_t queue_timeout = 60;
  uint32_t connections = 256;
  uint64_t max_body = 16ull << 20;
  uint64_t request_memory = 0;  // 0: request_bytes() says how much
  uint32_t receive_timeout = 60;
  uint32_t max_tokens = 0;  // 0: as many as the context has room for
  float temperature = 0.7f, top_p = 0.95f, min_p = 0.05f;
  uint32_t top_k = 40;
  std::string idle = "drop";
  uint32_t idle_budget = 0;
  std::string cache_dir;
  uint64_t cache_bytes = 4ull << 30;

  static constexpr uint32_t kDrafts = 8;
  /// SHARPI_DRAFT_* of what both options say together.
  uint32_t drafters() const;
  /// Tokens a step; 0 without a drafter.
  uint32_t n_draft() const;
  /// What the longest body and what is made of it may take, and what all together may.
  uint64_t longest_request_bytes() const;
  uint64_t request_bytes() const;
  uint32_t live_sessions() const { return sessions != 0 ? sessions : slots + 2; }
  /// Where each option's value came from: "flag", "file", "environment" or "default".
  std::map<std::string, std::string> sources;
};

/// A wrong option, with the sentence to print.
class SettingsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Environment = std::map<std::string, std::string>;

/// Reads all sources. @param arguments without the program's name. Throws SettingsError.
Settings read_settings(const std::vector<std::string>& arguments, const Environment& environment);
/// The environment of this process.
Environment process_environment();
/// Every option with its value and source; of the key only whether there is one.
nlohmann::ordered_json settings_json(const Settings& settings);
/// The list of options for --help.
std::string settings_help();
/// A KV dtype as text: "auto", "f32", "bf16", "q8_0", "q4".
const char* kv_dtype_name(sharpi_kv_dtype dtype);
/// SHARPI_DRAFT_* as text: "none", "auto", "ngram", "ngram,mtp", "ngram,model" and so on.
const char* draft_name(uint32_t drafters);
/// A policy by its name; throws SettingsError for a wrong one.
sharpi_policy policy_of(const std::string& name);
const char* policy_name(sharpi_policy policy);

}  // namespace server
