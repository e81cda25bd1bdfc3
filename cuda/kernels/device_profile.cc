// SPDX-License-Identifier: MIT
#include "cuda/kernels/device_profile.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace sharpi::cuda {
namespace {

constexpr int kKiB = 1024;
constexpr int kRegisters = 64 * kKiB;

constexpr DeviceProfile make(int capability, int n_sm, int shared_per_sm, int threads_per_sm) {
  DeviceProfile p;
  p.capability = capability;
  p.n_sm = n_sm;
  p.shared_per_sm = shared_per_sm;
  p.shared_per_block = shared_per_sm - static_cast<int>(kReservedShared);
  p.registers_per_sm = kRegisters;
  p.threads_per_sm = threads_per_sm;
  p.bulk_copies = p.pdl = capability >= 90;
  p.wgmma = capability == 90;
  return p;
}

constexpr NamedCard kCards[kNamedCards] = {
    {"8.0", "A100", make(80, 108, 164 * kKiB, 2048)},
    {"8.6", "RTX 3060", make(86, 28, 100 * kKiB, 1536)},
    {"8.9", "RTX 4070 Ti", make(89, 60, 100 * kKiB, 1536)},
    {"9.0", "H200", make(90, 132, 228 * kKiB, 2048)},
    {"10.0", "B200", make(100, 148, 228 * kKiB, 2048)},
    {"12.0", "RTX 5070 Ti", make(120, 70, 100 * kKiB, 1536)},
};

/// An element of the list: "90", "90a-real", "120-virtual", "native", "all".
struct Image {
  int architecture = 0;  // 0: of every device, as the compiler found it
  bool real = true, ptx = true, specific = false;
};

std::vector<Image> images_of(std::string_view list) {
  std::vector<Image> out;
  while (!list.empty()) {
    const size_t end = std::min(list.find_first_of(",;"), list.size());
    const std::string_view text = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    if (text.empty()) continue;
    Image image;
    size_t i = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
      image.architecture = image.architecture * 10 + (text[i] - '0');
    image.specific = i != 0 && i < text.size() && text[i] == 'a';
    image.ptx = text.find("-real") == std::string_view::npos;
    image.real = text.find("-virtual") == std::string_view::npos;
    out.push_back(image);
  }
  return out;
}

bool runs_as_built(const Image& i, int capability) {
  if (!i.real) return false;
  if (i.specific) return i.architecture == capability;
  return i.architecture / 10 == capability / 10 && i.architecture <= capability;
}
bool compiles_there(const Image& i, int capability) {
  if (!i.ptx) return false;
  return i.specific ? i.architecture == capability : i.architecture <= capability;
}

std::string version(int architecture) {
  return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
}

std::atomic<const DeviceProfile*> g_pretended{nullptr};

}  // namespace

int code_for(std::string_view architectures, int capability) {
  int best = 0;
  const std::vector<Image> images = images_of(architectures);
  for (const Image& i : images) {
    if (i.architecture == 0) return capability;
    if (runs_as_built(i, capability)) best = std::max(best, i.architecture);
  }
  if (best != 0) return best;
  for (const Image& i : images) {
    if (compiles_there(i, capability)) best = std::max(best, i.architecture);
  }
  return best;
}

Result<int> code_of_device(const std::string& name, std::string_view architectures,
                           int capability) {
  if (capability < kLeastCapability) {
    return Status::error(Code::kUnsupported, "%s has compute capability %s; at least 8.0 is needed",
                         name.c_str(), version(capability).c_str());
  }
  if (architectures.empty()) return capability;
  const int code = code_for(architectures, capability);
  if (code != 0) return code;
  return Status::error(
      Code::kUnsupported, "%s has compute capability %s, but this build has machine code of %s",
      name.c_str(), version(capability).c_str(), architectures_text(architectures).c_str());
}

std::string_view built_architectures() {
#ifdef SHARPI_CUDA_CODE
  return SHARPI_CUDA_CODE;
#else
  return {};
#endif
}

std::string architectures_text(std::string_view architectures) {
  std::string machine, ptx;
  for (const Image& i : images_of(architectures)) {
    const std::string name = i.architecture == 0 ? "all" : version(i.architecture);
    if (i.real) machine += (machine.empty() ? "" : ", ") + name;
    if (i.ptx) ptx += (ptx.empty() ? "PTX of " : ", ") + name;
  }
  return machine + (machine.empty() || ptx.empty() ? "" : " and ") + ptx;
}

void set_features(int code, bool warpgroups, DeviceProfile* profile) {
  profile->bulk_copies = profile->pdl = std::min(code, profile->capability) >= 90;
  profile->wgmma = warpgroups && profile->capability == 90;
}

const NamedCard& named_card(int i) {
  return kCards[i];
}

const NamedCard* find_card(std::string_view name) {
  const auto* at = std::find_if(std::begin(kCards), std::end(kCards),
                                [&](const NamedCard& c) { return name == c.name; });
  return at == std::end(kCards) ? nullptr : at;
}

DeviceProfile pretended_as(const DeviceProfile& pretended, const DeviceProfile& real, int code) {
  DeviceProfile p = pretended;
  p.n_sm = p.n_sm == 0 ? real.n_sm : std::min(p.n_sm, real.n_sm);
  p.shared_per_block = std::min(p.shared_per_block, real.shared_per_block);
  p.shared_per_sm = std::min(p.shared_per_sm, real.shared_per_sm);
  p.registers_per_sm = std::min(p.registers_per_sm, real.registers_per_sm);
  p.threads_per_sm = std::min(p.threads_per_sm, real.threads_per_sm);
  set_features(code, real.wgmma, &p);
  return p;
}

void pretend_card(const DeviceProfile* card) {
  g_pretended.store(card);
}
const DeviceProfile* pretended_card() {
  return g_pretended.load();
}

}  // namespace sharpi::cuda
