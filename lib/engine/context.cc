// SPDX-License-Identifier: MIT
#include "engine/context.h"

#include <algorithm>
#include <cstring>

#include "base/cache_folder.h"
#include "engine/log_lines.h"

namespace sharpi {

Result<std::shared_ptr<Context>> Context::create(const sharpi_context_params& params,
                                                 BackendFactory factory) {
  std::shared_ptr<Context> c(new Context());
  c->params_ = params;
  BackendOptions options;
  options.params = params;
  const Context* raw = c.get();  // backends live inside the context and never outlive it
  options.log = [raw](sharpi_log_level level, const std::string& text) { raw->log(level, text); };
  options.why_no_device = &c->why_no_device_;
  if ((params.flags & SHARPI_CONTEXT_READ_ENV) != 0)
    options.cache_folder = cache_folder(CacheEnvironment::read());
  SHARPI_TRY_ASSIGN(c->backends_, factory(options));
  if (c->backends_.size() > kMaxDevices) {
    c->log(SHARPI_LOG_WARN, "this machine has " + std::to_string(c->backends_.size()) +
                                " devices; those behind the first " + std::to_string(kMaxDevices) +
                                " are left out");
    c->backends_.resize(kMaxDevices);
  }
  c->rates_.resize(c->backends_.size());
  log_devices(*c);
  return c;
}

std::vector<const TierSizer*> Context::sizers() const {
  std::vector<const TierSizer*> out;
  for (const auto& b : backends_) out.push_back(&b->sizer());
  return out;
}

PlanEnvironment Context::environment() const {
  if ((params_.flags & SHARPI_CONTEXT_READ_ENV) == 0) return {};
  return PlanEnvironment::read();
}

std::string Context::why_no_device() const {
  return PlanMachine::why_no_device() + (why_no_device_.empty() ? "" : " (" + why_no_device_ + ")");
}

Result<Rates> Context::measured_rates(uint32_t device) const {
  if (device == 0 || device >= backends_.size()) {
    return Status::error(
        Code::kInternal,
        "the rates of device %u cannot be measured: it is no device of this context", device);
  }
  const std::lock_guard<std::mutex> lock(rates_mutex_);
  Rates& known = rates_[device];
  if (known.device != 0) return known;
  sharpi_device host{}, gpu{};
  SHARPI_TRY(backends_[0]->describe(SHARPI_DEVICE_MEASURE, &host));
  SHARPI_TRY(backends_[device]->describe(SHARPI_DEVICE_MEASURE, &gpu));
  known = Rates{gpu.bandwidth, gpu.link_bandwidth, host.bandwidth};
  return known;
}

Status Context::device_info(uint32_t index, uint32_t flags, sharpi_device* out) const {
  if (index >= backends_.size()) {
    const std::string why = backends_.size() > 1 ? "" : "; there is " + why_no_device();
    return Status::error(Code::kNotFound,
                         "device %u does not exist; this context has %zu devices%s", index,
                         backends_.size(), why.c_str());
  }
  out->n_devices = static_cast<uint32_t>(backends_.size());
  out->tier = static_cast<uint32_t>(backends_[index]->sizer().tier());
  return backends_[index]->describe(flags, out);
}

void Context::log(sharpi_log_level level, const std::string& text) const {
  if (!logs(level)) return;
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  const std::lock_guard<std::mutex> lock(log_mutex_);
  params_.log(params_.log_user_data, level, line.c_str(), line.size());
}

}  // namespace sharpi
