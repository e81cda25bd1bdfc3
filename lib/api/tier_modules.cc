// SPDX-License-Identifier: MIT
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "api/gpu_tier_list.h"
#include "api/gpu_tiers.h"
#include "os/dynamic_library.h"
#include "os/file.h"
#include "tier/tier_interface.h"
#include "tier/tier_module.h"

namespace sharpi::api {
namespace {

/// The modules that are looked for, in the order of their devices.
struct Kind {
  const char* tier;     // as the module names it
  const char* library;  // os::library_file() makes its file's name of this
  bool is_missed;       // where it is not there, that is why there is no GPU
};
#define SHARPI_KIND(name, title, is_missed) {title, "sharpi-" #name, is_missed},
constexpr Kind kKinds[] = {SHARPI_GPU_TIERS(SHARPI_KIND)};
#undef SHARPI_KIND
constexpr size_t kCount = std::size(kKinds);

bool exists(const std::string& path) {
  os::File file;
  os::File::Kind kind;
  return !os::is_not_found(file.open(path.c_str(), &kind));
}

/// The table of a module, or null and why there is none.
const TierModule* find(const Kind& kind, os::DynamicLibrary* library, std::string* why) {
  const std::string name = os::library_file(kind.library, "");
  const std::string folder = os::code_folder();
  if (folder.empty() || !exists(folder + name)) {
    if (kind.is_missed) *why = name + " is not beside the library";
    return nullptr;
  }
  if (!library->open({folder + name})) {
    *why = name + " cannot be loaded: " + library->why();
    return nullptr;
  }
  let_exceptions_through();
  const auto table = reinterpret_cast<TierModuleFunction*>(library->symbol(kTierModuleFunction));
  const TierModule* module = table == nullptr ? nullptr : table();
  if (module == nullptr || std::strcmp(module->name, kind.tier) != 0) {
    *why = name + " is no module with the " + kind.tier + " tier";
    return nullptr;
  }
  if (std::strcmp(module->interface, SHARPI_TIER_INTERFACE) != 0) {
    *why = name + " is of build " + module->interface + ", this library of build " +
           SHARPI_TIER_INTERFACE;
    return nullptr;
  }
  return module;
}

/// What was loaded stays until the process ends: its threads and objects may be anybody's. What was
/// not there is looked for again by the next context.
struct Loaded {
  std::mutex mutex;
  os::DynamicLibrary library[kCount];
  const TierModule* module[kCount] = {};
};
Loaded& loaded() {
  static auto* const all = new Loaded();
  return *all;
}

const TierModule* load(size_t i, std::string* why) {
  Loaded& all = loaded();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.module[i] == nullptr) all.module[i] = find(kKinds[i], &all.library[i], why);
  return all.module[i];
}

}  // namespace

const char* build_text() {
  return SHARPI_BUILD_TEXT("cpu; modules: " SHARPI_GPU_TIERS_TEXT);
}

Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> all;
  TierModuleOptions module_options;
  module_options.cache_folder = options.cache_folder;
  module_options.log = [&](const std::string& text) {
    options.log(SHARPI_LOG_INFO, text);
    std::string& why_none = *options.why_no_device;
    why_none += (why_none.empty() ? "" : "; ") + text;
  };
  for (size_t i = 0; i < kCount; ++i) {
    std::string why;
    const TierModule* module = load(i, &why);
    if (module == nullptr) {
      if (!why.empty()) module_options.log(std::string(kKinds[i].tier) + ": " + why);
      continue;
    }
    module_options.first_index = static_cast<uint32_t>(all.size()) + 1;
    SHARPI_TRY_ASSIGN(auto backends, module->make_backends(module_options));
    for (auto& backend : backends) all.push_back(std::move(backend));
  }
  return all;
}

}  // namespace sharpi::api
