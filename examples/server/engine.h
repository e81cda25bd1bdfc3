// SPDX-License-Identifier: MIT
// The model behind the server: context, plan and weights, made from the settings, and text as the
// model has it. Thread rule: all methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "handles.h"
#include "settings.h"

namespace server {

using Tokens = std::vector<int32_t>;
/// A scale for each adapter of --lora, in its order.
using LoraScales = std::vector<float>;

class GrammarCache;

class Engine {
 public:
  /// Plans and loads. Throws LibraryError with the library's sentence where that is refused.
  explicit Engine(const Settings& settings);
  ~Engine();

  const sharpi_model* model() const { return model_.get(); }
  const sharpi_model_summary& info() const { return info_; }
  const sharpi_plan_summary& plan() const { return plan_info_; }
  uint32_t n_ctx() const { return plan_info_.n_ctx; }
  /// What answers have of the adapters that do not say so themselves.
  const LoraScales& lora() const { return lora_; }
  /// Gives a session its adapters. Throws LibraryError.
  void set_lora(sharpi_session* session, const LoraScales& scales) const;
  /// Id, path and scale of each.
  nlohmann::ordered_json lora_json() const;
  /// Sessions go on past their context.
  bool bounded() const { return plan_info_.kv_budget != 0; }
  /// Chunks of a prompt in one call while nobody waits for a step: several where layers are on
  /// several devices, which then compute another chunk each.
  uint32_t chunks_of_call() const { return chunks_of_call_; }
  /// What clients call the model.
  const std::string& name() const { return name_; }

  Tokens tokenize(std::string_view text, uint32_t flags) const;
  Tokens chat_tokens(const sharpi_chat_params& chat) const;
  /// Bytes of the same as text.
  uint64_t chat_bytes(const sharpi_chat_params& chat) const;
  /// No text of so many bytes has fewer tokens, whatever it says.
  uint64_t fewest_tokens(uint64_t bytes) const;
  std::string text_of(const int32_t* tokens, size_t n, uint32_t flags) const;
  /// The bytes that a token adds to a text.
  std::string token_bytes(int32_t token) const;
  GrammarCache& grammars() const { return *grammars_; }
  bool ends(int32_t token) const { return sharpi_token_is_end(model_.get(), token) != 0; }

  /// The plan with its rows by purpose, and the model as the library describes them.
  nlohmann::ordered_json plan_json() const;
  nlohmann::ordered_json model_json() const;

 private:
  void make_plan(const Settings& settings);
  void load_adapters(const Settings& settings);
  uint32_t count_devices() const;

  ContextHandle context_;
  PlanHandle plan_;
  ModelHandle model_;
  std::vector<AdapterHandle> adapters_;  // parallel to lora_
  std::vector<std::string> lora_paths_;
  LoraScales lora_;
  sharpi_plan_summary plan_info_{};
  sharpi_model_summary info_{};
  std::string name_;
  uint32_t chunks_of_call_ = 1;
  mutable std::once_flag longest_once_;
  mutable uint64_t longest_token_ = 0;  // in bytes
  std::unique_ptr<GrammarCache> grammars_;
};

/// Names for JSON.
const char* purpose_name(sharpi_row_purpose purpose);
const char* kind_name(sharpi_row_kind kind);
const char* mixer_name(sharpi_mixer_kind mixer);

}  // namespace server
