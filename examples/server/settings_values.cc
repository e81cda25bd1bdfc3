// SPDX-License-Identifier: MIT
#include "settings_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "http_message.h"

namespace server {
namespace {

struct NamedType {
  const char* name;
  sharpi_kv_dtype dtype;
};
const NamedType kTypes[] = {{"auto", SHARPI_KV_AUTO}, {"f32", SHARPI_KV_F32},
                            {"fp32", SHARPI_KV_F32},  {"bf16", SHARPI_KV_BF16},
                            {"q8_0", SHARPI_KV_Q8_0}, {"q8", SHARPI_KV_Q8_0},
                            {"q4", SHARPI_KV_Q4},     {"tq4", SHARPI_KV_Q4}};

struct NamedPolicy {
  const char* name;
  sharpi_policy policy;
};
const NamedPolicy kPolicies[] = {
    {"auto", SHARPI_POLICY_AUTO},           {"global", SHARPI_POLICY_GLOBAL},
    {"snapkv", SHARPI_POLICY_SNAPKV},       {"defensive", SHARPI_POLICY_DEFENSIVE},
    {"value", SHARPI_POLICY_VALUE},         {"span", SHARPI_POLICY_SPAN},
    {"retrieval", SHARPI_POLICY_RETRIEVAL}, {"replay", SHARPI_POLICY_REPLAY},
    {"mixed", SHARPI_POLICY_MIXED},
};

struct NamedDraft {
  const char* name;
  uint32_t drafters;
};
const NamedDraft kDrafters[] = {
    {"none", 0},
    {"ngram", SHARPI_DRAFT_NGRAM},
    {"mtp", SHARPI_DRAFT_MTP},
    {"ngram,mtp", SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP},
    {"model", SHARPI_DRAFT_MODEL},
    {"ngram,model", SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MODEL},
    {"mtp,model", SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL},
    {"ngram,mtp,model", SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL},
    {"auto", SHARPI_DRAFT_AUTO}};

bool parse_whole(const std::string& text, uint64_t* out, std::string* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc()) return false;
  *rest = std::string(end, static_cast<size_t>(text.data() + text.size() - end));
  return true;
}

}  // namespace

bool parse_switch(const std::string& text) {
  if (text == "true" || text == "1" || text == "on") return true;
  if (text == "false" || text == "0" || text == "off") return false;
  throw SettingsError("true or false");
}

uint32_t parse_count(const std::string& text, uint32_t low, uint32_t high) {
  uint64_t value = 0;
  std::string rest;
  if (!parse_whole(text, &value, &rest) || !rest.empty() || value < low || value > high) {
    throw SettingsError("a number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<uint32_t>(value);
}

int32_t parse_layers(const std::string& text) {
  if (text == "auto" || text == "-1") return -1;
  uint64_t value = 0;
  std::string rest;
  if (!parse_whole(text, &value, &rest) || !rest.empty() || value > 0x7FFFFFFF) {
    throw SettingsError("auto, or a number from 0");
  }
  return static_cast<int32_t>(value);
}

std::vector<LoraFile> parse_loras(const std::string& text) {
  std::vector<LoraFile> out;
  for (const std::string& one : parse_list(text)) {
    LoraFile file{one, 1.0f};
    const size_t colon = one.rfind(':');
    const char* end = one.data() + one.size();
    float scale = 0;
    // What stands behind a colon and is no number is a part of the path.
    if (colon != std::string::npos) {
      const auto [rest, error] = std::from_chars(one.data() + colon + 1, end, scale);
      if (error == std::errc() && rest == end) file = {one.substr(0, colon), scale};
    }
    if (file.path.empty() || !std::isfinite(file.scale)) {
      throw SettingsError("files of adapters with commas between, each with :SCALE behind it or 1");
    }
    out.push_back(file);
  }
  return out;
}

std::string lora_text(const std::vector<LoraFile>& loras) {
  std::string out;
  for (const LoraFile& l : loras) {
    char scale[32];
    std::snprintf(scale, sizeof scale, ":%g", static_cast<double>(l.scale));
    out += (out.empty() ? "" : ",") + l.path + scale;
  }
  return out.empty() ? "none" : out;
}

uint64_t parse_bytes(const std::string& text) {
  if (text == "all") return SHARPI_ALL_FREE;
  uint64_t value = 0;
  std::string rest;
  const bool number = parse_whole(text, &value, &rest);
  const std::string units = "KMGT";
  const size_t unit = rest.size() == 1 ? units.find(rest[0]) : std::string::npos;
  if (!number || (!rest.empty() && unit == std::string::npos)) {
    throw SettingsError("all, or bytes such as 4096, 800M, 8G");
  }
  const unsigned shift = rest.empty() ? 0 : 10 * static_cast<unsigned>(unit + 1);
  if (value > (UINT64_MAX >> shift)) throw SettingsError("fewer bytes than that");
  return value << shift;
}

float parse_real(const std::string& text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= low && value <= high)) {
    throw SettingsError("a number from " + nlohmann::ordered_json(low).dump() + " to " +
                        nlohmann::ordered_json(high).dump());
  }
  return static_cast<float>(value);
}

sharpi_kv_dtype parse_kv_type(const std::string& text) {
  for (const NamedType& type : kTypes) {
    if (text == type.name) return type.dtype;
  }
  throw SettingsError("auto, f32, bf16, q8_0, q4");
}

void parse_kv_types(const std::string& text, sharpi_kv_dtype* k, sharpi_kv_dtype* v) {
  const size_t comma = text.find(',');
  const sharpi_kv_dtype first = parse_kv_type(text.substr(0, comma));
  *v = comma == std::string::npos ? first : parse_kv_type(text.substr(comma + 1));
  *k = first;
}

std::string parse_choice(const std::string& text, const std::vector<std::string>& choices) {
  std::string allowed;
  for (const std::string& choice : choices) {
    if (text == choice) return text;
    allowed += (allowed.empty() ? "" : ", ") + choice;
  }
  throw SettingsError(allowed);
}

std::vector<std::string> parse_list(const std::string& text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = trimmed(std::string_view(text).substr(begin, end - begin));
    if (!part.empty()) out.emplace_back(part);
    begin = end + 1;
  }
  return out;
}

bool is_loopback_name(const std::string& host) {
  const std::string name = small_letters(host);
  return name == "localhost" || name == "::1" || name == "[::1]" ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string::npos);
}

uint32_t parse_draft(const std::string& text) {
  for (const NamedDraft& draft : kDrafters) {
    if (text == draft.name) return draft.drafters;
  }
  throw SettingsError("none, auto, or of ngram,mtp,model one or several in this order");
}

const char* draft_name(uint32_t drafters) {
  for (const NamedDraft& draft : kDrafters) {
    if (drafters == draft.drafters) return draft.name;
  }
  return "?";
}

double rounded(float value) {
  return std::round(static_cast<double>(value) * 1e6) / 1e6;
}

const char* kv_dtype_name(sharpi_kv_dtype dtype) {
  for (const NamedType& type : kTypes) {
    if (dtype == type.dtype) return type.name;
  }
  return "?";
}

sharpi_policy policy_of(const std::string& name) {
  std::string allowed;
  for (const NamedPolicy& policy : kPolicies) {
    if (name == policy.name) return policy.policy;
    allowed += (allowed.empty() ? "" : ", ") + std::string(policy.name);
  }
  throw SettingsError(allowed);
}

const char* policy_name(sharpi_policy policy) {
  for (const NamedPolicy& named : kPolicies) {
    if (policy == named.policy) return named.name;
  }
  return policy == SHARPI_POLICY_KEEP ? "keep" : "?";
}

}  // namespace server
