// SPDX-License-Identifier: MIT
#include "model/arch_registry.h"

namespace sharpi {
namespace {

constexpr Architecture kArchitectures[] = {
    {"bert", load_bert},
    {"deepseek2", load_deepseek2, parts_of_deepseek2},
    {"gemma-embedding", load_gemma_embedding},
    {"gemma3", load_gemma3},
    {"gemma4", load_gemma4},
    {"gpt-oss", load_gpt_oss},
    {"granitehybrid", load_granite_hybrid, parts_of_granite_hybrid},
    {"llama", load_llama},
    {"mistral3", load_mistral3},
    {"nemotron_h", load_nemotron_h, parts_of_nemotron_h},
    {"nemotron_h_moe", load_nemotron_h, parts_of_nemotron_h},
    {"nomic-bert", load_nomic_bert},
    {"olmoe", load_olmoe},
    {"phi3", load_phi3, parts_of_phi3},
    {"qwen2", load_qwen2},
    {"qwen3", load_qwen3},
    {"qwen35", load_qwen35},
    {"qwen35moe", load_qwen35moe},
    {"qwen3moe", load_qwen3moe},
    {"qwen3next", load_qwen3next, parts_of_qwen3next},
    {"smollm3", load_smollm3},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& a : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += a.name;
  }
  return names;
}

}  // namespace sharpi
