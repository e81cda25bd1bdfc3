// SPDX-License-Identifier: MIT
// What draft_bench is asked for, and how it ends where that cannot be done. Thread rule: pure
// functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kv_names.h"
#include "must.h"
#include "sharpi.h"

namespace sharpi::bench {

inline std::vector<double> numbers(const std::string& text) {
  std::vector<double> out;
  for (size_t at = 0; at < text.size(); ++at) {
    char* end = nullptr;
    out.push_back(std::strtod(text.c_str() + at, &end));
    if (end == text.c_str() + at || (*end != ',' && *end != '\0'))
      die("a list of numbers: " + text);
    at = static_cast<size_t>(end - text.c_str());
  }
  return out;
}

struct Settings {
  std::string model, kv = "auto", csv, name = "model", drafter;
  bool taking_back = false;
  uint32_t n_threads = 0, depth = 64, rounds = 24, draft_vocab = 0;
  int32_t gpu_layers = -1;
  std::vector<double> accept = {.76, .62, .46, .40}, drafts = {1, 2, 3, 4, 8, 16, 32}, batches;
};

/// No place has more accepted drafts than the one before, where all drafts at a place are counted;
/// and nothing tells such a list from one of the other meaning, so both keep to it.
inline void check_accept(const Settings& s) {
  for (size_t i = 0; i < s.accept.size(); ++i) {
    if (!(s.accept[i] >= 0 && s.accept[i] <= 1)) die("--accept: probabilities are 0 to 1");
    if (i > 0 && s.accept[i] > s.accept[i - 1]) {
      die("--accept: place " + std::to_string(i + 1) +
          " is larger than the one before: no such share of all drafts can be right, and lists of "
          "shares that are given the ones before are not told apart");
    }
  }
}

inline Settings read_settings(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--", 0) != 0) {
      s.model = flag;
      continue;
    }
    if (flag == "--taking-back") {
      s.taking_back = true;
      continue;
    }
    if (i + 1 == argc) die(flag + " needs a value");
    const std::string value = argv[++i];
    const auto count = [&] {
      return static_cast<uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
    };
    if (flag == "--threads") {
      s.n_threads = count();
    } else if (flag == "--gpu-layers") {
      s.gpu_layers = std::atoi(value.c_str());
    } else if (flag == "--kv") {
      s.kv = value;
    } else if (flag == "--depth") {
      s.depth = std::max(1u, count());
    } else if (flag == "--rounds") {
      s.rounds = std::max(3u, count());
    } else if (flag == "--accept") {
      s.accept = numbers(value);
    } else if (flag == "--drafts") {
      s.drafts = numbers(value);
    } else if (flag == "--drafter") {
      s.drafter = value;
    } else if (flag == "--draft-vocab") {
      s.draft_vocab = count();
    } else if (flag == "--csv") {
      s.csv = value;
    } else if (flag == "--name") {
      s.name = value;
    } else if (flag == "--batch") {
      s.batches = numbers(value);
    } else {
      die("unknown flag " + flag);
    }
  }
  if (s.model.empty() || s.accept.empty()) die("a model and acceptances are needed");
  if (s.draft_vocab != 0 && s.drafter != "mtp") die("--draft-vocab needs --drafter mtp");
  check_accept(s);
  for (const double n : s.drafts) {
    if (n < 1 || n > 32) die("--drafts: 1 to 32");
  }
  for (const double n : s.batches) {
    if (n < 1 || n > 64) die("--batch: 1 to 64");
  }
  return s;
}

inline sharpi_kv_dtype kv_dtype(const std::string& name) {
  const KvName* known = kv_of_name(name);
  if (known == nullptr) die("--kv: auto, f32, bf16, q8_0 or q4");
  return known->dtype;
}

}  // namespace sharpi::bench
