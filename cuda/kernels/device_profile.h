// SPDX-License-Identifier: MIT
// What a device is to the kernels: every decision of the CUDA tier that depends on the device reads
// this, and nothing else. Plain C++, so that tests decide for any card where there is none.
// Limits: CUDA C++ Programming Guide, "Compute Capabilities"; multiprocessors: the vendors' data.
// Thread rule: pure functions but for pretend_card().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sharpi::cuda {

/// Lowest compute capability that the kernels are built for.
inline constexpr int kLeastCapability = 80;
/// Registers that one thread can have, threads of a block, and shared memory that the device takes
/// of a multiprocessor for each block; the same from 8.0 to 12.1.
inline constexpr uint32_t kMostRegisters = 255, kMostThreads = 1024, kReservedShared = 1024;

struct DeviceProfile {
  int capability = 0;        // 10 * major + minor
  int n_sm = 0;              // multiprocessors
  int shared_per_block = 0;  // bytes of shared memory of a block, opted in
  int shared_per_sm = 0;     // of a multiprocessor
  int registers_per_sm = 0;  // of 32 bits
  int threads_per_sm = 0;
  // What the code that runs there has: that of an older architecture lacks what came later.
  bool bulk_copies = false;  // copies of the memory unit with barriers (9.0)
  bool pdl = false;          // programmatic dependent launch (9.0)
  bool wgmma = false;        // Hopper's warpgroup products (9.0 alone)
};

/// Which of a build's images the driver runs on a device: the number of its architecture (89), or 0
/// if there is none. `architectures`: as CMake's CUDA_ARCHITECTURES with commas, "80-real,120".
/// Machine code runs on its major version from its minor one on, PTX on everything later.
int code_for(std::string_view architectures, int capability);
/// The same of a device by its name; kUnsupported: it is too old, or the build has nothing for it.
/// A build that does not say what it contains counts as having code of the device's own
/// architecture.
Result<int> code_of_device(const std::string& name, std::string_view architectures, int capability);
/// The architectures of this build; empty where it does not say (programs built by hand).
std::string_view built_architectures();
/// "8.0, 8.6, 9.0 and PTX of 12.0".
std::string architectures_text(std::string_view architectures);

/// Fills in what code of architecture `code` has on that capability. `warpgroups`: the kernels with
/// Hopper's own instructions are in the build.
void set_features(int code, bool warpgroups, DeviceProfile* profile);

/// A card that people own, of each kind that the kernels know.
struct NamedCard {
  const char* name;  // its compute capability, as the vendor writes it
  const char* card;
  DeviceProfile profile;  // with the features of code for its own architecture
};
inline constexpr int kNamedCards = 6;
const NamedCard& named_card(int i);
/// nullptr: there is no such name.
const NamedCard* find_card(std::string_view name);

/// What a device of profile `real` is taken for: `pretended` with no more than is really there.
/// pretended.n_sm = 0 keeps the device's own number. `code` runs there.
DeviceProfile pretended_as(const DeviceProfile& pretended, const DeviceProfile& real, int code);
/// Tests and measurements only, nothing in the library calls it: devices that are found from now on
/// are taken for this card by every decision. nullptr: for themselves. Not owned, must stay.
void pretend_card(const DeviceProfile* card);
const DeviceProfile* pretended_card();

}  // namespace sharpi::cuda
