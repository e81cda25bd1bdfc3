// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sharpi::cpu {
namespace {

// What tests take the machine for (pretend_isa): sets of the list that it has at most.
constexpr size_t kAll = SIZE_MAX;
std::atomic<size_t> g_most{kAll};

/// The list without what the machine is taken not to have.
std::span<const InstructionSet> known_sets() {
  const std::span<const InstructionSet> sets = processor().sets;
  const size_t most = g_most.load();
  return most < sets.size() ? sets.first(most) : sets;
}

bool usable(const InstructionSet& set) {
  return set.present() && (set.granted == nullptr || set.granted());
}

Status lacks(const char* what) {
  return Status::error(Code::kUnsupported, "this machine lacks %s", what);
}

/// Why a set that was asked for by its number cannot run.
Status refusal(Isa wanted) {
  for (const InstructionSet& set : processor().sets) {
    if (set.isa != wanted) continue;
    for (const InstructionSet& known : known_sets()) {
      if (&known == &set && set.present()) return lacks(set.permission);
    }
    return lacks(set.needs);
  }
  if (isa_name(wanted) != nullptr) return lacks(isa_name(wanted));
  return Status::error(Code::kUnsupported, "instruction set %u is unknown",
                       static_cast<unsigned>(wanted));
}

}  // namespace

Result<const InstructionSet*> resolve_isa(Isa wanted) {
  const std::span<const InstructionSet> sets = known_sets();
  for (size_t i = sets.size(); i-- > 0;) {
    if ((wanted == Isa::kAuto || sets[i].isa == wanted) && usable(sets[i])) return &sets[i];
  }
  return refusal(wanted);
}

Status pretend_isa(const char* widest) {
  if (widest == nullptr) {
    g_most.store(kAll);
    return {};
  }
  const std::span<const InstructionSet> sets = processor().sets;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (std::string_view(sets[i].name) != widest) continue;
    if (!sets[i].present()) return lacks(sets[i].needs);
    if (!usable(sets[i])) return lacks(sets[i].permission);
    g_most.store(i + 1);
    return {};
  }
  return Status::error(Code::kUnsupported, "no kernels are written for %s on this processor",
                       widest);
}

}  // namespace sharpi::cpu
