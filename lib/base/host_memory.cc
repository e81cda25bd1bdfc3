// SPDX-License-Identifier: MIT
#include "base/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

#include "base/checked.h"

namespace sharpi {
namespace {

/// The number that a text begins with, behind blanks; kNoLimit where there is none, as for "max".
uint64_t number_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t number = kNoLimit;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The number in the file's first line.
uint64_t number_in(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  return std::getline(in, line) ? number_of(line) : kNoLimit;
}

/// The number of a line that begins with `field` and a blank.
uint64_t field_in(const std::string& path, std::string_view field) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(field)) continue;
    const std::string_view rest = std::string_view(line).substr(field.size());
    if (rest.starts_with(' ') || rest.starts_with('\t')) return number_of(rest);
  }
  return kNoLimit;
}

/// What one version of control groups calls things.
struct GroupFiles {
  const char *limit, *used, *inactive_file, *active_file;
};
constexpr GroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file", "active_file"};

// Version 1 writes the largest number of pages for a group without a limit.
constexpr uint64_t kLargestLimit = uint64_t{1} << 62;

/// Makes `memory` as small as one group has it.
void apply_group(const std::string& folder, const GroupFiles& files, HostMemory* memory) {
  const uint64_t limit = number_in(folder + files.limit);
  if (limit >= kLargestLimit) return;
  uint64_t used = number_in(folder + files.used);
  if (used == kNoLimit) used = 0;  // then the limit itself is all that is known
  // The group's page cache counts as used, but the kernel drops it before it refuses memory.
  for (const char* field : {files.inactive_file, files.active_file}) {
    const uint64_t cache = field_in(folder + "/memory.stat", field);
    if (cache != kNoLimit) used -= std::min(used, cache);
  }
  memory->total = std::min(memory->total, limit);
  memory->free = std::min(memory->free, limit - std::min(limit, used));
}

/// The group and all groups above it. The path may mean nothing below this mount, where a container
/// sees its own group as the root: folders that are not there have no limit, and the root is.
void apply_groups(const std::string& mount, std::string path, const GroupFiles& files,
                  HostMemory* memory) {
  // A process outside of its namespace's root has a path that leads out of the mount.
  if (path.find("/..") != path.npos) path.clear();
  while (path.ends_with('/')) path.pop_back();
  for (;;) {
    apply_group(mount + path, files, memory);
    if (path.empty()) return;
    const size_t slash = path.rfind('/');
    path.resize(slash == path.npos ? 0 : slash);
  }
}

/// Whether "cpu,memory" has memory.
bool names_memory(std::string_view controllers) {
  for (;;) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "memory") return true;
    if (comma == controllers.npos) return false;
    controllers.remove_prefix(comma + 1);
  }
}

/// Where this process is, in lines of "number:controllers:path"; version 2 names no controllers.
void find_groups(const std::string& root, std::string* version1, std::string* version2) {
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (controllers.empty()) *version2 = line.substr(second + 1);
    if (names_memory(controllers)) *version1 = line.substr(second + 1);
  }
}

}  // namespace

HostMemory system_memory() {
  struct sysinfo info {};
  HostMemory memory;
  if (sysinfo(&info) != 0 || info.totalram == 0) return memory;
  const uint64_t unit = info.mem_unit == 0 ? 1 : info.mem_unit;
  memory.total = saturating_mul(info.totalram, unit);
  memory.free = saturating_mul(uint64_t{info.freeram} + info.bufferram, unit);
  return memory;
}

HostMemory host_memory(const std::string& root, const HostMemory& system) {
  HostMemory memory = system;
  // Missing are they in a chroot, under systemd's ProcSubset=pid, without file descriptors, and
  // MemAvailable in old kernels and some sandboxes.
  const uint64_t total = field_in(root + "/proc/meminfo", "MemTotal:");
  const uint64_t available = field_in(root + "/proc/meminfo", "MemAvailable:");
  if (total != kNoLimit) memory.total = saturating_mul(total, 1024);
  if (available != kNoLimit) memory.free = saturating_mul(available, 1024);
  std::string version1, version2;
  find_groups(root, &version1, &version2);
  const std::string mount = root + "/sys/fs/cgroup";
  apply_groups(mount, version2, kVersion2, &memory);
  apply_groups(mount + "/unified", version2, kVersion2, &memory);  // beside version 1
  apply_groups(mount + "/memory", version1, kVersion1, &memory);
  return memory;
}

}  // namespace sharpi
