// SPDX-License-Identifier: MIT
#include "constraint.h"

namespace server {
namespace {

constexpr size_t kMaxMasks = 256;

}  // namespace

Constraint::Constraint(const Engine& engine, Grammar grammar, Expr root, std::string prompt_end)
    : trie_(engine.trie()),
      matcher_(std::move(grammar), root),
      state_(matcher_.start()),
      prompt_end_(std::move(prompt_end)),
      active_(!thinks()) {}

bool Constraint::thinks() const {
  sharpi_parse_params params;
  sharpi_parse_params_init(&params, sizeof params);
  params.flags = SHARPI_PARSE_PARTIAL | SHARPI_PARSE_REASONING;
  params.prompt = prompt_end_.data();
  params.prompt_len = prompt_end_.size();
  sharpi_chat_parts parts{};
  parts.struct_size = sizeof parts;
  size_t needed = 0;
  sharpi_chat_parse(&params, thoughts_.data(), thoughts_.size(), &parts, nullptr, 0, &needed,
                    nullptr);
  return parts.open == SHARPI_PART_REASONING;
}

bool Constraint::is_prepared() const {
  return !active_ || masks_.contains(state_);
}

const std::vector<uint32_t>* Constraint::mask() {
  if (!active_) return nullptr;
  const auto known = masks_.find(state_);
  if (known != masks_.end()) return &known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  return &(masks_[state_] = trie_.mask(matcher_, state_));
}

void Constraint::accept(int32_t token, const std::string& text) {
  if (!active_) {
    thoughts_ += text;
    active_ = !thinks();
    return;
  }
  state_ = matcher_.walk(state_, trie_.path(token));
  const size_t known = matcher_.n_states();
  state_ = matcher_.tidy(state_);
  if (matcher_.n_states() < known) masks_.clear();  // states have new names
}

}  // namespace server
