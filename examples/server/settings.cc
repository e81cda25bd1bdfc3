// SPDX-License-Identifier: MIT
#include "settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>

#include "host_process.h"
#include "json_document.h"
#include "settings_values.h"

namespace server {
namespace {

using json = nlohmann::ordered_json;

struct Option {
  const char* name;
  const char* value;  // null: a switch
  const char* help;
  void (*set)(Settings&, const std::string& text);
  json (*show)(const Settings&);
};

#define SHOWS(member) [](const Settings& s) -> json { return s.member; }
#define TEXT(member) [](Settings& s, const std::string& t) { s.member = t; }, SHOWS(member)
#define SWITCH(member) \
  [](Settings& s, const std::string& t) { s.member = parse_switch(t); }, SHOWS(member)
#define COUNT(member, low, high) \
  [](Settings& s, const std::string& t) { s.member = parse_count(t, low, high); }, SHOWS(member)
#define LAYERS(member)                                                   \
  [](Settings& s, const std::string& t) { s.member = parse_layers(t); }, \
      [](const Settings& s) -> json { return s.member < 0 ? json("auto") : json(s.member); }
#define BYTES(member)                                                      \
  [](Settings& s, const std::string& t) { s.member = parse_bytes(t); },    \
      [](const Settings& s) -> json {                                      \
        return s.member == SHARPI_ALL_FREE ? json("all") : json(s.member); \
      }
#define REAL(member, low, high)                                                   \
  [](Settings& s, const std::string& t) { s.member = parse_real(t, low, high); }, \
      [](const Settings& s) -> json { return rounded(s.member); }

const Option kOptions[] = {
    {"model", "FILE", "the model, a GGUF file", TEXT(model)},
    {"alias", "NAME", "its name for clients (the file's name)", TEXT(alias)},
    {"config", "FILE", "a JSON object of options: {\"model\": \"...\", \"slots\": 4}",
     TEXT(config)},
    {"host", "ADDRESS", "address to listen on (127.0.0.1)", TEXT(host)},
    {"port", "N", "port to listen on, 0 = any free one, which is printed (8080)",
     COUNT(port, 0, 65535)},
    {"api-key", "KEY", "what clients have to send as Bearer token (none)",
     [](Settings& s, const std::string& t) { s.api_key = t; },
     [](const Settings& s) -> json { return s.api_key.empty() ? "none" : "set"; }},
    {"no-key", nullptr, "with a --host that other machines reach: no key is asked for",
     SWITCH(no_key)},
    {"allow-host", "NAMES",
     "names by which a server without a key may be asked for, besides its own (none)",
     TEXT(allow_host)},
    {"allow-origin", "ORIGINS",
     "pages and applications that may ask: https://chat.example,app://obsidian.md (none)",
     TEXT(allow_origin)},
    {"context", "N|auto|largest",
     "tokens of a conversation; auto = 8192 or the model's own, largest = what fits (auto)",
     [](Settings& s, const std::string& t) {
       s.context_largest = t == "largest";
       s.context = t == "auto" || t == "largest" ? 0 : parse_count(t, 1, 0x7FFFFFFF);
     },
     [](const Settings& s) -> json {
       return s.context_largest ? json("largest") : s.context == 0 ? json("auto") : json(s.context);
     }},
    {"kv-type", "T|K,V", "KV rows: auto, f32, bf16, q8_0, q4, or two of them (auto)",
     [](Settings& s, const std::string& t) { parse_kv_types(t, &s.k_dtype, &s.v_dtype); },
     [](const Settings& s) -> json {
       return std::string(kv_dtype_name(s.k_dtype)) + "," + kv_dtype_name(s.v_dtype);
     }},
    {"kv-type-k", "T", "K rows alone",
     [](Settings& s, const std::string& t) { s.k_dtype = parse_kv_type(t); },
     [](const Settings& s) -> json { return kv_dtype_name(s.k_dtype); }},
    {"kv-type-v", "T", "V rows alone",
     [](Settings& s, const std::string& t) { s.v_dtype = parse_kv_type(t); },
     [](const Settings& s) -> json { return kv_dtype_name(s.v_dtype); }},
    {"kv-budget", "N", "bounded sessions: rows a layer keeps at most, 0 = unbounded (0)",
     COUNT(kv_budget, 0, 0x7FFFFFFF)},
    {"prompt-budget", "N|auto", "rows a layer keeps after the prompt, 0 = all (0)",
     [](Settings& s, const std::string& t) {
       s.prompt_budget = t == "auto" ? SHARPI_BUDGET_AUTO : parse_count(t, 0, 0x7FFFFFFF);
     },
     [](const Settings& s) -> json {
       return s.prompt_budget == SHARPI_BUDGET_AUTO ? json("auto")
              : s.prompt_budget == SHARPI_UNSET     ? json(0)
                                                    : json(s.prompt_budget);
     }},
    {"policy", "NAME",
     "what budgets keep: auto, global, snapkv, defensive, value, span, retrieval, "
     "and with --replay replay, mixed",
     [](Settings& s, const std::string& t) { s.policy = policy_of(t); },
     [](const Settings& s) -> json { return policy_name(s.policy); }},
    {"capture-window", "N", "queries kept to compact by, 0 = none (32)",
     COUNT(capture_window, 0, 65536)},
    {"replay", nullptr, "capture what compaction for questions that nobody knows yet chooses by",
     SWITCH(replay)},
    {"checkpoints", "N", "recurrent states kept a session, for models that have them (4)",
     COUNT(checkpoints, 0, 1024)},
    {"gpu-layers", "N|auto", "layers on the GPU", LAYERS(gpu_layers)},
    {"gpu-ffn", "N|auto", "FFN blocks on the GPU", LAYERS(gpu_ffn)},
    {"gpu-experts", "N|auto", "layers with all routed experts on the GPU", LAYERS(gpu_experts)},
    {"expert-slots", "N|auto", "slots for single experts on the GPU", LAYERS(expert_slots)},
    {"device", "NAME", "the GPU to use, by index, id or name, or cpu (as many as it takes)",
     TEXT(device)},
    {"device-budget", "BYTES", "memory of the GPU to use at most: 800M, 8G, all (all)",
     BYTES(device_budget)},
    {"host-budget", "BYTES", "memory of the host to use at most (all)", BYTES(host_budget)},
    {"gpu-ends", "auto|on|head|off", "embedding and head on the GPU, or the head alone (auto)",
     [](Settings& s, const std::string& t) {
       const std::string choice = parse_choice(t, {"auto", "on", "head", "off"});
       s.gpu_ends = choice == "auto" ? -1 : choice == "on" ? 1 : choice == "head" ? 2 : 0;
     },
     [](const Settings& s) -> json {
       constexpr const char* kChoices[] = {"auto", "off", "on", "head"};
       return kChoices[s.gpu_ends + 1];
     }},
    {"draft", "none|auto|ngram,mtp,model",
     "who drafts: nobody, what there is, or some of: what followed the same words before, the "
     "file's block for it, --draft-model (ngram with --drafts, ngram,model with --draft-model)",
     [](Settings& s, const std::string& t) { s.draft = parse_draft(t); },
     [](const Settings& s) -> json { return draft_name(s.drafters()); }},
    {"draft-model", "FILE", "a smaller model of the same vocabulary, which drafts (none)",
     TEXT(draft_model)},
    {"lora", "FILE[:S],...",
     "adapters (LoRA) with a scale each, which a request's \"lora\" may change (none)",
     [](Settings& s, const std::string& t) { s.loras = parse_loras(t); },
     [](const Settings& s) -> json { return lora_text(s.loras); }},
    {"drafts", "N", "tokens drafted a step, 32 at most (8 where somebody drafts, else 0)",
     [](Settings& s, const std::string& t) { s.drafts = parse_count(t, 0, 32); },
     [](const Settings& s) -> json { return s.n_draft(); }},
    {"draft-vocab", "N",
     "mtp drafts only tokens with ids below it, a multiple of 16, which makes a draft cheaper; 0 = "
     "all (0)",
     COUNT(draft_vocab, 0, INT32_MAX)},
    {"threads", "N", "threads that compute, 0 = one per CPU (0)", COUNT(threads, 0, 4096)},
    {"chunk", "N", "tokens of a prompt read at once while nobody else waits (512)",
     COUNT(chunk, 1, 65536)},
    {"prefill-chunk", "N", "the same between two steps of answers that are being written (128)",
     COUNT(prefill_chunk, 1, 65536)},
    {"exact", nullptr, "f32 activations", SWITCH(exact)},
    {"deterministic", nullptr, "answers do not depend on what else is served",
     SWITCH(deterministic)},
    {"map", nullptr,
     "weights of the CPU in place in the mapped file, which nobody may shorten; else copied",
     SWITCH(map)},
    {"slots", "N", "answers written together, 64 at most (4)", COUNT(slots, 1, 64)},
    {"sessions", "N", "sessions kept, with idle ones (slots + 2)", COUNT(sessions, 0, 4096)},
    {"queue", "N", "requests that may wait; more get 429 (64)", COUNT(queue, 0, 100000)},
    {"queue-timeout", "SECONDS", "how long one may wait; then it gets 503 (60)",
     COUNT(queue_timeout, 1, 86400)},
    {"connections", "N", "requests served at once; more wait (256)", COUNT(connections, 1, 16384)},
    {"max-body", "BYTES", "longest request; longer ones get 413 (16M)", BYTES(max_body)},
    {"request-memory", "BYTES",
     "all requests that are read, and what is made of them; more get 503 (for one of --max-body, "
     "256M at least)",
     [](Settings& s, const std::string& t) { s.request_memory = parse_bytes(t); },
     [](const Settings& s) -> json { return s.request_bytes(); }},
    {"receive-timeout", "SECONDS", "how long a request may take to arrive; then it gets 408 (60)",
     COUNT(receive_timeout, 1, 86400)},
    {"max-tokens", "N", "tokens of an answer that names no limit, 0 = what fits (0)",
     COUNT(max_tokens, 0, 0x7FFFFFFF)},
    {"temp", "X", "temperature where a request has none (0.7)", REAL(temperature, 0, 1e6)},
    {"top-k", "N", "the same of top_k (40)", COUNT(top_k, 0, 0x7FFFFFFF)},
    {"top-p", "X", "the same of top_p (0.95)", REAL(top_p, 0, 1)},
    {"min-p", "X", "the same of min_p (0.05)", REAL(min_p, 0, 1)},
    {"idle", "drop|compact|save",
     "what happens to idle sessions when memory or places run short (drop)",
     [](Settings& s, const std::string& t) {
       s.idle = parse_choice(t, {"drop", "compact", "save"});
     },
     SHOWS(idle)},
    {"idle-budget", "N", "rows a layer that compacted idle sessions keep (a quarter of them)",
     COUNT(idle_budget, 0, 0x7FFFFFFF)},
    {"cache-dir", "FOLDER", "where saved sessions go", TEXT(cache_dir)},
    {"cache-bytes", "BYTES", "what they may take there (4G)", BYTES(cache_bytes)},
    {"ignore-env", nullptr, "do not read SHARPI_KV_DTYPE and SHARPI_SNAPKV_*", SWITCH(ignore_env)},
};

std::string environment_name(const char* option) {
  std::string name = "SHARPI_SERVER_";
  for (const char* c = option; *c != '\0'; ++c) {
    name += *c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return name;
}

const Option* find_option(const std::string& name) {
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const Option& o) { return name == o.name; });
  return found == std::end(kOptions) ? nullptr : found;
}

void apply(Settings& s, const Option& option, const std::string& text, const std::string& where,
           const char* source) {
  try {
    option.set(s, text);
  } catch (const SettingsError& e) {
    throw SettingsError(where + ": \"" + text + "\" is not allowed; allowed: " + e.what());
  }
  s.sources[option.name] = source;
}

void read_file(Settings& s, const std::string& path) {
  std::ifstream in(path_of(path), std::ios::binary);
  if (!in) throw SettingsError("--config: " + path + " cannot be read");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  json file;
  try {
    file = json::parse(text);
  } catch (const json::parse_error& e) {
    throw SettingsError(path + ": not JSON, at byte " + std::to_string(e.byte));
  }
  if (!file.is_object()) throw SettingsError(path + ": not a JSON object");
  for (const auto& [name, value] : file.items()) {
    const Option* option = find_option(name);
    if (option == nullptr || name == "config") {
      throw SettingsError(path + ": there is no option \"" + name + "\"");
    }
    if (value.is_structured() || value.is_null()) {
      throw SettingsError(path + ": " + name + " takes a text, a number, true or false");
    }
    apply(s, *option, value.is_string() ? value.get<std::string>() : value.dump(),
          path + ": " + name, "file");
  }
}

using Flags = std::vector<std::pair<const Option*, std::string>>;

Flags read_flags(const std::vector<std::string>& arguments) {
  Flags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    const size_t equals = name.find('=');
    if (name == "-m") name = "--model";
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Option* option = name.starts_with("--") ? find_option(name.substr(2)) : nullptr;
    if (option == nullptr) {
      throw SettingsError("unknown option " + arguments[i] + "; --help lists the options");
    }
    if (option->value == nullptr) {
      if (equals == std::string::npos) value = "true";
    } else if (equals == std::string::npos) {
      if (i + 1 == arguments.size()) throw SettingsError(name + " needs a value");
      value = arguments[++i];
    }
    flags.emplace_back(option, value);
  }
  return flags;
}

void check_who_may_ask(const Settings& s) {
  if (s.no_key && !s.api_key.empty())
    throw SettingsError("--no-key and --api-key exclude each other");
  if (!is_loopback_name(s.host) && s.api_key.empty() && !s.no_key) {
    throw SettingsError("--host " + s.host +
                        " lets other machines ask: give an --api-key, or say --no-key if all of "
                        "them may");
  }
}

void check_together(const Settings& s) {
  if (s.model.empty()) throw SettingsError("--model is needed; --help lists the options");
  if (s.idle == "save" && s.cache_dir.empty()) {
    throw SettingsError("--idle save needs a --cache-dir");
  }
  if (s.idle == "compact" && s.capture_window == 0) {
    throw SettingsError("--idle compact needs a --capture-window");
  }
  check_who_may_ask(s);
  if (s.request_memory != 0 && s.request_memory < s.longest_request_bytes()) {
    throw SettingsError("--request-memory " + std::to_string(s.request_memory) +
                        " is less than a request of --max-body may take: " +
                        std::to_string(s.longest_request_bytes()));
  }
  if (s.sessions != 0 && s.sessions < s.slots) {
    throw SettingsError("--sessions " + std::to_string(s.sessions) + " is less than --slots " +
                        std::to_string(s.slots));
  }
}

}  // namespace

uint32_t Settings::drafters() const {
  if (draft != SHARPI_UNSET) return draft;
  if (!draft_model.empty()) return SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MODEL;
  return drafts == SHARPI_UNSET || drafts == 0 ? 0 : SHARPI_DRAFT_NGRAM;
}

uint64_t Settings::longest_request_bytes() const {
  return most_request_bytes(max_body);
}

uint64_t Settings::request_bytes() const {
  constexpr uint64_t kUsual = 256ull << 20;
  return request_memory != 0 ? request_memory : std::max(kUsual, longest_request_bytes());
}

uint32_t Settings::n_draft() const {
  if (drafters() == 0) return 0;
  return drafts == SHARPI_UNSET ? kDrafts : drafts;
}

Settings read_settings(const std::vector<std::string>& arguments, const Environment& environment) {
  Settings s;
  for (const Option& option : kOptions) s.sources[option.name] = "default";
  const Flags flags = read_flags(arguments);
  for (const Option& option : kOptions) {
    const auto found = environment.find(environment_name(option.name));
    if (found != environment.end()) {
      apply(s, option, found->second, found->first, "environment");
    }
  }
  for (const auto& [option, value] : flags) {
    if (std::string(option->name) == "config") apply(s, *option, value, "--config", "flag");
  }
  if (!s.config.empty()) read_file(s, s.config);
  for (const auto& [option, value] : flags) {
    apply(s, *option, value, std::string("--") + option->name, "flag");
  }
  check_together(s);
  return s;
}

Environment process_environment() {
  Environment out;
  for (const std::string& entry : environment_texts()) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) out[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return out;
}

json settings_json(const Settings& settings) {
  json out = json::object();
  for (const Option& option : kOptions) {
    out[option.name] = {{"value", option.show(settings)},
                        {"source", settings.sources.at(option.name)}};
  }
  return out;
}

std::string settings_help() {
  std::string out =
      "usage: server --model MODEL.gguf [options]\n"
      "Each option can also stand in the JSON file of --config, or in the environment as\n"
      "SHARPI_SERVER_ and its name (SHARPI_SERVER_KV_TYPE); flags win over the file, the file\n"
      "over the environment.\n";
  for (const Option& option : kOptions) {
    std::string line = std::string("  --") + option.name;
    if (option.value != nullptr) line += std::string(" ") + option.value;
    line.resize(std::max<size_t>(line.size() + 1, 28), ' ');
    out += line + option.help + "\n";
  }
  return out;
}

}  // namespace server
