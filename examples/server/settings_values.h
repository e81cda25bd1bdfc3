// SPDX-License-Identifier: MIT
// Values of options from their text. Each throws SettingsError with what is allowed.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "settings.h"

namespace server {

bool parse_switch(const std::string& text);
uint32_t parse_count(const std::string& text, uint32_t low, uint32_t high);
int32_t parse_layers(const std::string& text);  // auto = -1
uint64_t parse_bytes(const std::string& text);  // 4096, 512K, 800M, 8G, all
float parse_real(const std::string& text, double low, double high);
sharpi_kv_dtype parse_kv_type(const std::string& text);
void parse_kv_types(const std::string& text, sharpi_kv_dtype* k, sharpi_kv_dtype* v);
uint32_t parse_draft(const std::string& text);               // SHARPI_DRAFT_*, none = 0
std::vector<LoraFile> parse_loras(const std::string& text);  // FILE[:SCALE] with commas between
std::string lora_text(const std::vector<LoraFile>& loras);
std::string parse_choice(const std::string& text, const std::vector<std::string>& choices);
/// What stands between commas, without blanks around it; nothing for an empty text.
std::vector<std::string> parse_list(const std::string& text);
/// Whether a host, as it is listened on or asked for, is this machine for itself alone.
bool is_loopback_name(const std::string& host);
/// 0.7f as 0.7.
double rounded(float value);

}  // namespace server
