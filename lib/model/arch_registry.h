// SPDX-License-Identifier: MIT
// The architectures that load_model_spec() knows, by the name in general.architecture. Adding one
// is an arch_*.cc file that fills a ModelSpec, and a row in the table of arch_registry.cc. Thread
// rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/spec_builder.h"

namespace sharpi {

/// Fills everything of `spec` but the fields load_model_spec() sets itself (file, architecture,
/// name, default_kv_dtype).
using ArchLoader = Status (*)(SpecBuilder& builder, ModelSpec& spec);
/// Parts of tensors that take these tensors' place before the loader looks
/// (GgufFile::with_parts()); none of a file that has them already.
using ArchParts = Result<std::vector<GgufPart>> (*)(SpecBuilder& builder);

struct Architecture {
  std::string_view name;
  ArchLoader load = nullptr;
  ArchParts parts = nullptr;  // null: tensors are as they are
};

Status load_bert(SpecBuilder& builder, ModelSpec& spec);
Status load_deepseek2(SpecBuilder& builder, ModelSpec& spec);
Result<std::vector<GgufPart>> parts_of_deepseek2(SpecBuilder& builder);
Status load_gemma_embedding(SpecBuilder& builder, ModelSpec& spec);
Status load_gemma3(SpecBuilder& builder, ModelSpec& spec);
Status load_gemma4(SpecBuilder& builder, ModelSpec& spec);
Status load_gpt_oss(SpecBuilder& builder, ModelSpec& spec);
Status load_granite_hybrid(SpecBuilder& builder, ModelSpec& spec);
Result<std::vector<GgufPart>> parts_of_granite_hybrid(SpecBuilder& builder);
Status load_llama(SpecBuilder& builder, ModelSpec& spec);
Status load_mistral3(SpecBuilder& builder, ModelSpec& spec);
Status load_nemotron_h(SpecBuilder& builder, ModelSpec& spec);
Result<std::vector<GgufPart>> parts_of_nemotron_h(SpecBuilder& builder);
Status load_nomic_bert(SpecBuilder& builder, ModelSpec& spec);
Status load_olmoe(SpecBuilder& builder, ModelSpec& spec);
Status load_phi3(SpecBuilder& builder, ModelSpec& spec);
Result<std::vector<GgufPart>> parts_of_phi3(SpecBuilder& builder);
Status load_qwen2(SpecBuilder& builder, ModelSpec& spec);
Status load_qwen3(SpecBuilder& builder, ModelSpec& spec);
Status load_qwen35(SpecBuilder& builder, ModelSpec& spec);
Status load_qwen35moe(SpecBuilder& builder, ModelSpec& spec);
Status load_qwen3next(SpecBuilder& builder, ModelSpec& spec);
Result<std::vector<GgufPart>> parts_of_qwen3next(SpecBuilder& builder);
Status load_qwen3moe(SpecBuilder& builder, ModelSpec& spec);
Status load_smollm3(SpecBuilder& builder, ModelSpec& spec);

/// nullptr when the architecture is unknown.
const Architecture* find_architecture(std::string_view name);
/// Names of all known architectures, comma-separated, for messages.
std::string architecture_names();

}  // namespace sharpi
