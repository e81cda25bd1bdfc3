// SPDX-License-Identifier: MIT
#include "sampling_request.h"

#include <mutex>
#include <random>

namespace server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxBias = 4096;

void read_bias(Fields& fields, const Engine& engine, Sampling* out) {
  const json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) fields.refuse("logit_bias", "is not an object of token ids and numbers");
  if (bias->size() > kMaxBias) fields.refuse("logit_bias", "has more than 4096 entries");
  for (const auto& [key, value] : bias->items()) {
    const bool digits =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const int token = digits ? std::stoi(key) : -1;
    if (token < 0 || static_cast<uint32_t>(token) >= engine.info().n_vocab) {
      fields.refuse("logit_bias", "names \"" + key + "\", which is no token of the model");
    }
    const double amount = value.is_number() ? value.get<double>() : 1000;
    if (!(amount >= -100 && amount <= 100)) {
      fields.refuse("logit_bias", "has a value that is not a number from -100 to 100");
    }
    out->bias_tokens.push_back(token);
    out->bias_values.push_back(static_cast<float>(amount));
  }
}

Sampling read_sampling(Fields& fields, const Settings& settings, const Engine& engine) {
  Sampling out;
  constexpr int64_t kMost = 0x7FFFFFFF;
  out.temperature =
      static_cast<float>(fields.number("temperature", 0, 100).value_or(settings.temperature));
  out.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(settings.top_p));
  out.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(settings.min_p));
  out.top_k = static_cast<uint32_t>(fields.integer("top_k", -1, kMost).value_or(settings.top_k));
  if (out.top_k == UINT32_MAX) out.top_k = 0;  // some clients write -1 for "off"
  const auto penalty = fields.number("repeat_penalty", 1e-3, 1e3);
  const auto same = fields.number("repetition_penalty", 1e-3, 1e3);  // its name elsewhere
  out.repeat_penalty = static_cast<float>(penalty.value_or(same.value_or(1.0)));
  const std::optional<int64_t> seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  out.seed = seed ? static_cast<uint64_t>(*seed) : random_number();
  read_bias(fields, engine, &out);
  return out;
}

// A list of {id, scale}, as llama-server has it: adapters that it does not name have no part.
LoraScales read_lora(Fields& fields, const Engine& engine) {
  const json* list = fields.find("lora");
  if (list == nullptr) return engine.lora();
  if (!list->is_array()) fields.refuse("lora", "is not a list of objects with id and scale");
  LoraScales out(engine.lora().size(), 0.0f);
  for (const json& one : *list) {
    const std::string where = "lora[" + std::to_string(&one - &list->front()) + "]";
    if (!one.is_object()) fields.refuse("lora", "has something that is no object");
    Fields entry(one, where);
    entry.need("id");
    const auto most = static_cast<int64_t>(out.size());
    const int64_t id = *entry.integer("id", 0, 0x7FFFFFFF);
    if (id >= most) {
      entry.refuse("id", "is none of the " + std::to_string(most) + " adapters of --lora");
    }
    out[static_cast<size_t>(id)] =
        static_cast<float>(entry.number("scale", -1e6, 1e6).value_or(1.0));
    entry.finish();
  }
  return out;
}

// Whose request it is, and how to account for it; and what only changes how fast others answer.
void leave_out_bookkeeping(Fields& fields) {
  fields.leave_out({"user", "metadata", "store", "service_tier", "safety_identifier",
                    "prompt_cache_key", "prompt_cache_retention", "cache_prompt", "keep_alive"});
}

void refuse_unsupported(Fields& fields) {
  fields.only("frequency_penalty", 0, "use repeat_penalty");
  fields.only("presence_penalty", 0, "use repeat_penalty");
  fields.only("min_tokens", 0, "an answer ends where the model ends it");
  fields.only("ignore_eos", false, "an answer ends where the model ends it");
}

}  // namespace

std::vector<std::string> read_stops(Fields& fields, const char* name) {
  const json* stop = fields.find(name);
  if (stop == nullptr) return {};
  const json list = stop->is_array() ? *stop : json::array({*stop});
  std::vector<std::string> out;
  for (const json& text : list) {
    if (!text.is_string()) fields.refuse(name, "is not a text or a list of texts");
    const auto value = text.get<std::string>();
    if (value.empty() || value.size() > SHARPI_STOP_BYTES ||
        value.find('\0') != std::string::npos) {
      fields.refuse(name, "has a text that is not of 1 to 128 bytes without a zero byte");
    }
    out.push_back(value);
  }
  if (out.size() > kMaxStops) fields.refuse(name, "has more than 16 texts");
  return out;
}

void check_model(Fields& fields, const Engine& engine) {
  const std::optional<std::string> name = fields.text("model");
  if (name && *name != engine.name()) {
    throw RequestError(
        404, "the model \"" + *name + "\" is not served here; \"" + engine.name() + "\" is",
        "model", "model_not_found");
  }
}

uint64_t random_number() {
  static std::mutex mutex;
  static std::mt19937_64 numbers{std::random_device{}()};
  const std::lock_guard lock(mutex);
  return numbers();
}

std::string new_id(const char* prefix) {
  static const char kDigits[] = "0123456789abcdef";
  std::string out = prefix;
  const uint64_t words[2] = {random_number(), random_number()};
  for (int i = 0; i < 24; ++i) out += kDigits[(words[i / 12] >> (4 * (i % 12))) & 15];
  return out;
}

void check_length(const Engine& engine, const Tokens& prompt, const char* param) {
  if (prompt.empty()) throw RequestError(400, "the prompt has no tokens", param);
  if (!engine.bounded() && prompt.size() >= engine.n_ctx()) {
    throw RequestError(400,
                       "the prompt has " + std::to_string(prompt.size()) + " tokens, the context " +
                           std::to_string(engine.n_ctx()) + ": none would be left for an answer",
                       param, "context_length_exceeded");
  }
}

void check_bytes(const Engine& engine, uint64_t bytes, const char* param) {
  if (engine.bounded() || bytes < engine.n_ctx()) return;
  const uint64_t fewest = engine.fewest_tokens(bytes);
  if (fewest < engine.n_ctx()) return;
  throw RequestError(400,
                     "the prompt has at least " + std::to_string(fewest) + " tokens, the context " +
                         std::to_string(engine.n_ctx()) + ": none would be left for an answer",
                     param, "context_length_exceeded");
}

Tokens read_token_ids(Fields& fields, const std::string& where, const json& list,
                      const Engine& engine) {
  Tokens out;
  for (const json& token : list) {
    const bool fits = token.is_number_unsigned() && token.get<uint64_t>() < engine.info().n_vocab;
    if (!fits) fields.refuse(where.c_str(), "has something that is no token of the model");
    out.push_back(token.get<int32_t>());
  }
  return out;
}

size_t read_n(Fields& fields, const Settings& settings) {
  return static_cast<size_t>(fields.integer("n", 1, settings.slots).value_or(1));
}

void add_choices(const Generation& first, size_t n, const MakeConstraint& make, Asked* asked) {
  for (size_t i = 0; i < n; ++i) {
    Generation next = first;
    next.sampling.seed += i;
    if (i > 0 && make) next.constraint = make();
    asked->generations.push_back(std::move(next));
  }
  asked->per_prompt = n;
}

bool read_common(Fields& fields, const Engine& engine, const Settings& settings,
                 std::initializer_list<const char*> limits, Generation* out) {
  check_model(fields, engine);
  out->sampling = read_sampling(fields, settings, engine);
  out->lora = read_lora(fields, engine);
  out->stops = read_stops(fields, "stop");
  out->max_tokens = settings.max_tokens;
  bool limited = false;
  for (const char* name : limits) {
    const auto limit = fields.integer(name, 1, 0x7FFFFFFF);
    if (limit && !limited) out->max_tokens = static_cast<uint32_t>(*limit);
    limited = limited || limit;
  }
  leave_out_bookkeeping(fields);
  refuse_unsupported(fields);
  return fields.boolean("stream").value_or(false);
}

}  // namespace server
