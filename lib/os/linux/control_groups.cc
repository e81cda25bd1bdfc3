// SPDX-License-Identifier: MIT
#include "os/linux/control_groups.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "os/linux/text_lines.h"

namespace sharpi::os {
namespace {

/// The number that a text begins with, behind blanks; kNoLimit where there is none, as for "max"
/// and for -1.
uint64_t number_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t number = kNoLimit;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string first_line(const std::string& path) {
  TextLines in(path);
  std::string line;
  in.next(&line);
  return line;
}

/// The number of a line that begins with `field` and a blank.
uint64_t field_in(const std::string& path, std::string_view field) {
  TextLines in(path);
  std::string line;
  while (in.next(&line)) {
    if (!line.starts_with(field)) continue;
    const std::string_view rest = std::string_view(line).substr(field.size());
    if (rest.starts_with(' ') || rest.starts_with('\t')) return number_of(rest);
  }
  return kNoLimit;
}

/// Calls apply(folder) for the group and all groups above it. The path may mean nothing below this
/// mount, where a container sees its own group as the root: folders that are not there have no
/// limit, and the root is.
template <class Apply>
void each_group(const std::string& mount, std::string path, const Apply& apply) {
  // A process outside of its namespace's root has a path that leads out of the mount.
  if (path.find("/..") != path.npos) path.clear();
  while (path.ends_with('/')) path.pop_back();
  for (;;) {
    apply(mount + path);
    if (path.empty()) return;
    const size_t slash = path.rfind('/');
    path.resize(slash == path.npos ? 0 : slash);
  }
}

/// Whether "cpu,memory" has a controller.
bool names(std::string_view controllers, std::string_view controller) {
  for (;;) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == controller) return true;
    if (comma == controllers.npos) return false;
    controllers.remove_prefix(comma + 1);
  }
}

/// Where this process is, in lines of "number:controllers:path"; version 2 names no controllers.
struct Place {
  std::string version1, version2;
};

Place place_of(const std::string& root, std::string_view controller) {
  Place place;
  TextLines in(root + "/proc/self/cgroup");
  std::string line;
  while (in.next(&line)) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (controllers.empty()) place.version2 = line.substr(second + 1);
    if (names(controllers, controller)) place.version1 = line.substr(second + 1);
  }
  return place;
}

/// Calls one of two functions with the folder of each group that has a controller, by its version.
template <class Apply1, class Apply2>
void each_group_of(const std::string& root, const std::string& controller, const Apply1& version1,
                   const Apply2& version2) {
  const Place place = place_of(root, controller);
  const std::string mount = root + "/sys/fs/cgroup";
  each_group(mount, place.version2, version2);
  each_group(mount + "/unified", place.version2, version2);  // beside version 1
  each_group(mount + "/" + controller, place.version1, version1);
}

/// What one version of control groups calls things.
struct MemoryFiles {
  const char *limit, *used, *inactive_file, *active_file;
};
constexpr MemoryFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                   "total_inactive_file", "total_active_file"};
constexpr MemoryFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file",
                                   "active_file"};

// Version 1 writes the largest number of pages for a group without a limit.
constexpr uint64_t kLargestLimit = uint64_t{1} << 62;

/// Makes `memory` as small as one group has it.
void apply_memory_limit(const std::string& folder, const MemoryFiles& files, HostMemory* memory) {
  const uint64_t limit = number_of(first_line(folder + files.limit));
  if (limit >= kLargestLimit) return;
  uint64_t used = number_of(first_line(folder + files.used));
  if (used == kNoLimit) used = 0;  // then the limit itself is all that is known
  // The group's page cache counts as used, but the kernel drops it before it refuses memory.
  for (const char* field : {files.inactive_file, files.active_file}) {
    const uint64_t cache = field_in(folder + "/memory.stat", field);
    if (cache != kNoLimit) used -= std::min(used, cache);
  }
  memory->total = std::min(memory->total, limit);
  memory->free = std::min(memory->free, limit - std::min(limit, used));
}

/// Microseconds of processor time for every so many; no bound where a number is missing.
double share(uint64_t quota, uint64_t period) {
  if (quota == kNoLimit || period == kNoLimit || period == 0)
    return std::numeric_limits<double>::infinity();
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace

void apply_memory_limits(const std::string& root, HostMemory* memory) {
  each_group_of(
      root, "memory",
      [&](const std::string& folder) { apply_memory_limit(folder, kVersion1, memory); },
      [&](const std::string& folder) { apply_memory_limit(folder, kVersion2, memory); });
}

double cpu_quota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  const auto version1 = [&](const std::string& folder) {
    least = std::min(least, share(number_of(first_line(folder + "/cpu.cfs_quota_us")),
                                  number_of(first_line(folder + "/cpu.cfs_period_us"))));
  };
  const auto version2 = [&](const std::string& folder) {
    const std::string line = first_line(folder + "/cpu.max");  // "quota period", or "max period"
    const size_t blank = std::min(line.find(' '), line.size());
    least = std::min(least, share(number_of(line), number_of(line.substr(blank))));
  };
  each_group_of(root, "cpu", version1, version2);
  return least;
}

}  // namespace sharpi::os
