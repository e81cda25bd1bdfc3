// SPDX-License-Identifier: MIT
// The names of the kernels that a tier uses, for sharpi_model_json(): one entry for each kind of
// work, with the kernel for few rows (decode) and the one for many (prefill).
// Thread rule: a value.
#pragma once

#include <set>
#include <string>

namespace sharpi {

class KernelPaths {
 public:
  void add(const std::string& work, const std::string& few, const std::string& many) {
    entries_.insert(work + ": " + (few == many ? few : few + " / " + many));
  }
  /// "; " before each entry, sorted.
  std::string text() const {
    std::string out;
    for (const std::string& e : entries_) out += "; " + e;
    return out;
  }

 private:
  std::set<std::string> entries_;
};

}  // namespace sharpi
