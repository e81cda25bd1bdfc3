// SPDX-License-Identifier: MIT
// What tiers say about the kernels that they use: one entry per kind of work, with the kernel for
// few rows and the one for many. Thread rule: a value.
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
