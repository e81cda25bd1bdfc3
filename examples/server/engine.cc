// SPDX-License-Identifier: MIT
#include "engine.h"

#include <algorithm>
#include <array>
#include <set>

#include "grammar_cache.h"
#include "host_process.h"
#include "settings_values.h"

namespace server {
namespace {

using json = nlohmann::ordered_json;

sharpi_session_params session_template(const Settings& s) {
  sharpi_session_params p;
  sharpi_session_params_init(&p, sizeof p);
  p.k_dtype = p.tail_k_dtype = s.k_dtype;
  p.v_dtype = p.tail_v_dtype = s.v_dtype;
  p.kv_budget = s.kv_budget;
  p.prompt_budget = s.prompt_budget;
  p.policy = s.policy;
  p.capture_window = s.replay ? std::max(s.capture_window, 64u) : s.capture_window;
  p.replay = s.replay ? 1 : 0;
  p.n_checkpoints = s.checkpoints;
  p.n_draft = s.n_draft();
  p.drafters = s.drafters();
  p.n_draft_vocab = s.draft_vocab;
  return p;
}

// The most that a plan takes.
constexpr uint32_t kMaxBatch = 64;

// Sessions of one pass. Drafts of several sessions have as many rows together, so there is room for
// those of all: rows of a batch are memory that the sessions share.
uint32_t max_batch(const Settings& s) {
  if (s.slots == 1) return 1;
  return std::max(s.slots, std::min(kMaxBatch, s.slots * (s.n_draft() + 1)));
}

sharpi_plan_params plan_template(const Settings& s) {
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  p.n_gpu_layers = s.gpu_layers;
  p.n_gpu_ffn = s.gpu_ffn;
  p.n_gpu_experts = s.gpu_experts;
  p.n_expert_slots = s.expert_slots;
  p.gpu_ends = s.gpu_ends;
  p.arithmetic = s.exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
  p.deterministic = s.deterministic ? 1 : 0;
  p.load_mode = s.map ? SHARPI_LOAD_MAP : SHARPI_LOAD_COPY;
  p.n_chunk = s.chunk;
  p.max_batch = max_batch(s);
  p.max_logit_rows = 8;    // rows of a prompt at a time, whose tokens have log-probabilities
  p.n_sessions = s.slots;  // idle ones live on what the budgets have room for besides
  p.device_budget = s.device_budget;
  p.host_budget = s.host_budget;
  p.draft_path = s.draft_model.empty() ? nullptr : s.draft_model.c_str();
  return p;
}

// What an encoder's plan has no use for is not asked of it.
void leave_out_sessions(sharpi_session_params* session, sharpi_plan_params* plan) {
  const uint32_t n_ctx = session->n_ctx;
  sharpi_session_params_init(session, sizeof *session);
  session->n_ctx = n_ctx;
  plan->draft_path = nullptr;
  plan->n_chunk = SHARPI_UNSET;  // a text is read in one pass
  plan->n_sessions = 1;          // one embedder serves all
}

// What the model is, from the file's header alone.
sharpi_model_summary summary_of(sharpi_context* context, const std::string& path) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_params session;
  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = 8;
  sharpi_plan_params params;
  sharpi_plan_params_init(&params, sizeof params);
  params.n_gpu_layers = 0;
  params.session = &session;
  sharpi_plan* plan = nullptr;
  check(sharpi_plan_create(context, path.c_str(), &params, &plan, &err), err);
  const PlanHandle owned(plan);
  sharpi_model_summary info{};
  info.struct_size = sizeof info;
  check(sharpi_plan_model(plan, &info, &err), err);
  return info;
}

}  // namespace

Engine::Engine(const Settings& settings) : grammars_(std::make_unique<GrammarCache>()) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params params;
  sharpi_context_params_init(&params, sizeof params);
  params.n_threads = settings.threads;
  if (!settings.ignore_env) params.flags |= SHARPI_CONTEXT_READ_ENV;
  sharpi_context* context = nullptr;
  check(sharpi_context_create(&params, &context, &err), err);
  context_.reset(context);
  make_plan(settings);
  sharpi_model* model = nullptr;
  check(sharpi_model_load(plan_.get(), nullptr, nullptr, &model, &err), err);
  model_.reset(model);
  info_.struct_size = sizeof info_;
  check(sharpi_model_info(model, &info_, &err), err);
  load_adapters(settings);
  constexpr uint32_t kChunksOfDevice = 4;  // at a call's ends some devices have nothing to do
  if (const uint32_t n = count_devices(); n > 1) chunks_of_call_ = n * kChunksOfDevice;
  name_ = settings.alias.empty() ? utf8_of(path_of(settings.model).stem()) : settings.alias;
}

Engine::~Engine() = default;

/// With layers of the model, if all of them are GPUs; the host counts as one device alone.
uint32_t Engine::count_devices() const {
  std::array<sharpi_segment_info, 64> rows{};
  uint32_t n = 0;
  sharpi_error err = SHARPI_ERROR_INIT;
  if (sharpi_model_segments(model_.get(), rows.data(), sizeof rows[0],
                            static_cast<uint32_t>(rows.size()), &n, &err) != SHARPI_OK)
    return 1;
  std::set<uint32_t> devices;
  for (uint32_t i = 0; i < n; ++i) devices.insert(rows[i].device);
  return devices.count(0) != 0 ? 1 : static_cast<uint32_t>(devices.size());
}

void Engine::load_adapters(const Settings& settings) {
  for (const LoraFile& l : settings.loras) {
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_adapter* adapter = nullptr;
    check(sharpi_adapter_load(model_.get(), l.path.c_str(), &adapter, &err), err);
    adapters_.emplace_back(adapter);
    lora_paths_.push_back(l.path);
    lora_.push_back(l.scale);
  }
}

void Engine::set_lora(sharpi_session* session, const LoraScales& scales) const {
  if (adapters_.empty()) return;
  std::vector<sharpi_adapter_use> uses;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    if (scales[i] != 0) uses.push_back({adapters_[i].get(), scales[i], 0});
  }
  sharpi_error err = SHARPI_ERROR_INIT;
  check(sharpi_session_set_adapters(session, uses.data(), sizeof(sharpi_adapter_use),
                                    static_cast<uint32_t>(uses.size()), &err),
        err);
}

json Engine::lora_json() const {
  json out = json::array();
  for (size_t i = 0; i < lora_.size(); ++i)
    out.push_back({{"id", i}, {"path", lora_paths_[i]}, {"scale", rounded(lora_[i])}});
  return out;
}

void Engine::make_plan(const Settings& settings) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_params session = session_template(settings);
  const sharpi_model_summary info = summary_of(context_.get(), settings.model);
  if (settings.context_largest) {
    session.n_ctx = SHARPI_UNSET;
  } else if (settings.context != 0) {
    session.n_ctx = settings.context;
  } else {
    session.n_ctx = info.n_ctx_train != 0 ? std::min(info.n_ctx_train, 8192u) : 8192u;
  }
  sharpi_plan_params params = plan_template(settings);
  if (info.is_encoder != 0) leave_out_sessions(&session, &params);
  params.session = &session;
  std::vector<const char*> adapters;
  for (const LoraFile& l : settings.loras) adapters.push_back(l.path.c_str());
  params.adapters = adapters.data();
  params.n_adapters = static_cast<uint32_t>(adapters.size());
  if (!settings.device.empty())
    check(sharpi_device_find(context_.get(), settings.device.c_str(), &params.device, &err), err);
  sharpi_plan* plan = nullptr;
  check(sharpi_plan_create(context_.get(), settings.model.c_str(), &params, &plan, &err), err);
  plan_.reset(plan);
  plan_info_.struct_size = sizeof plan_info_;
  check(sharpi_plan_info(plan, &plan_info_, &err), err);
}

Tokens Engine::tokenize(std::string_view text, uint32_t flags) const {
  return sized<Tokens, uint32_t>([&](int32_t* to, uint32_t cap, uint32_t* n, auto* err) {
    return sharpi_tokenize(model_.get(), text.data(), text.size(), flags, to, cap, n, err);
  });
}

Tokens Engine::chat_tokens(const sharpi_chat_params& chat) const {
  return sized<Tokens, uint32_t>([&](int32_t* to, uint32_t cap, uint32_t* n, auto* err) {
    return sharpi_chat_tokenize(model_.get(), &chat, to, cap, n, err);
  });
}

uint64_t Engine::chat_bytes(const sharpi_chat_params& chat) const {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t size = 0;
  const sharpi_status status = sharpi_chat_format(model_.get(), &chat, nullptr, 0, &size, &err);
  if (status != SHARPI_E_BUFFER_TOO_SMALL) check(status, err);
  return size;
}

uint64_t Engine::fewest_tokens(uint64_t bytes) const {
  std::call_once(longest_once_, [this] {
    longest_token_ = 4;  // a character that the vocabulary lacks is one token
    for (int32_t i = 0; static_cast<uint32_t>(i) < info_.n_vocab; ++i) {
      longest_token_ = std::max<uint64_t>(longest_token_, token_bytes(i).size());
    }
  });
  // Some tokenizers compose characters first (NFC), which leaves a third of the bytes at least.
  return bytes / (3 * longest_token_);
}

std::string Engine::text_of(const int32_t* tokens, size_t n, uint32_t flags) const {
  return sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, auto* err) {
    return sharpi_detokenize(model_.get(), tokens, static_cast<uint32_t>(n), flags, to, cap, len,
                             err);
  });
}

std::string Engine::token_bytes(int32_t token) const {
  return sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, auto* err) {
    return sharpi_token_bytes(model_.get(), token, to, cap, len, err);
  });
}

json Engine::plan_json() const {
  json out =
      json::parse(sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, auto* err) {
        return sharpi_plan_json(plan_.get(), to, cap, len, err);
      }));
  return out;
}

json Engine::model_json() const {
  json out =
      json::parse(sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, auto* err) {
        return sharpi_model_json(model_.get(), to, cap, len, err);
      }));
  out["name"] = name_;
  out["general_name"] = info_.name;
  out["n_ctx_train"] = info_.n_ctx_train;
  out["n_parameters"] = info_.n_parameters;
  out["file_bytes"] = info_.file_bytes;
  out["is_hybrid"] = info_.is_hybrid != 0;
  return out;
}

const char* purpose_name(sharpi_row_purpose purpose) {
  static const char* const kNames[] = {
      "?",          "weights",     "kv",     "recurrent", "checkpoints", "capture",
      "compaction", "activations", "logits", "staging",   "experts",     "graphs",
      "tables",     "library",     "driver", "kv chunk",  "adapters"};
  return purpose < std::size(kNames) ? kNames[purpose] : kNames[0];
}

const char* kind_name(sharpi_row_kind kind) {
  static const char* const kNames[] = {"?", "device", "pinned", "anonymous", "mapped"};
  return kind < std::size(kNames) ? kNames[kind] : kNames[0];
}

const char* mixer_name(sharpi_mixer_kind mixer) {
  static const char* const kNames[] = {"?", "attention", "window", "delta net"};
  return mixer < std::size(kNames) ? kNames[mixer] : kNames[0];
}

}  // namespace server
