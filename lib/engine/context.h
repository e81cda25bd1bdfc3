// SPDX-License-Identifier: MIT
// Context: what all models of a host program share: the backends, which own threads and devices,
// the allocator, the logger, and whether environment variables are read. Thread rule: immutable
// after creation but for the logger and the measured rates, which serialise themselves.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"
#include "sharpi.h"
#include "tier/tier.h"

namespace sharpi {

/// What a backend factory gets to know.
struct BackendOptions {
  sharpi_context_params params;  // complete, current size
  std::function<void(sharpi_log_level, const std::string&)> log;
  std::string* why_no_device = nullptr;  // set by a factory that finds no GPU
  std::string cache_folder;              // for compiled kernels; empty: none are kept
};
/// Makes the backends of this build, host first. Set by lib/api: the engine names no backend.
using BackendFactory = Result<std::vector<std::unique_ptr<Backend>>> (*)(const BackendOptions&);

class Context final : public PlanMachine {
 public:
  static Result<std::shared_ptr<Context>> create(const sharpi_context_params& params,
                                                 BackendFactory factory);
  const std::vector<std::unique_ptr<Backend>>& backends() const { return backends_; }
  std::vector<const TierSizer*> sizers() const;
  PlanEnvironment environment() const;  // empty when the context ignores it
  std::string why_no_device() const override;
  Result<Rates> measured_rates(uint32_t device) const override;
  Status device_info(uint32_t index, uint32_t flags, sharpi_device* out) const;
  void log(sharpi_log_level level, const std::string& text) const;
  /// Whether anybody would get a line of this level.
  bool logs(sharpi_log_level level) const {
    return params_.log != nullptr && level <= params_.log_level;
  }

 private:
  Context() = default;
  sharpi_context_params params_{};
  std::string why_no_device_;
  mutable std::mutex log_mutex_;
  mutable std::mutex rates_mutex_;
  mutable std::vector<Rates> rates_;  // per device index, once measured
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace sharpi
