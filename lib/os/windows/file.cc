// SPDX-License-Identifier: MIT
// Paths are UTF-8, whatever the code page of the process. While a file is open no process can
// remove it, and while it is mapped none can make it shorter.
#include "os/file.h"

#include <algorithm>
#include <string>

#include "os/random.h"
#include "os/windows/system.h"

namespace sharpi::os {

/// ERROR_DIRECTORY_NOT_SUPPORTED, which not all headers name.
const int kIsFolder = 336, kNoRegularFile = ERROR_BAD_FILE_TYPE,
          kNotSupported = ERROR_NOT_SUPPORTED;

namespace {

HANDLE handle_of(int64_t file) {
  return reinterpret_cast<HANDLE>(static_cast<intptr_t>(file));
}

/// A path of more than 260 characters is taken only in its long form, which must be absolute.
std::wstring long_path(const char* path) {
  std::wstring text = wide(path);
  if (text.starts_with(L"\\\\?\\") || text.starts_with(L"\\\\.\\")) return text;
  const DWORD n = GetFullPathNameW(text.c_str(), 0, nullptr, nullptr);
  if (n < MAX_PATH - 12) return text;
  std::wstring full(n, L'\0');
  full.resize(GetFullPathNameW(text.c_str(), n, full.data(), nullptr));
  return full.starts_with(L"\\\\") ? L"\\\\?\\UNC" + full.substr(1) : L"\\\\?\\" + full;
}

}  // namespace

const char* error_text(int error) {
  if (error == kIsFolder) return "it is a folder";
  if (error == kNoRegularFile) return "it is not a regular file";
  thread_local std::string text;
  wchar_t buffer[512];
  const DWORD n = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS,
                                 nullptr, static_cast<DWORD>(error), 0, buffer, 512, nullptr);
  text = utf8({buffer, n});
  while (!text.empty() && (text.back() == '.' || static_cast<unsigned char>(text.back()) <= ' '))
    text.pop_back();
  return text.empty() ? "unknown error" : text.c_str();
}

bool is_not_found(int error) {
  return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND ||
         error == ERROR_INVALID_NAME || error == ERROR_BAD_NETPATH || error == ERROR_BAD_NET_NAME;
}

int File::open(const char* path, Kind* kind) {
  // Folders open with backup semantics only.
  const HANDLE file = CreateFileW(long_path(path).c_str(), GENERIC_READ,
                                  FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_EXISTING,
                                  FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  if (file == INVALID_HANDLE_VALUE) return last_error();
  handle_ = static_cast<int64_t>(reinterpret_cast<intptr_t>(file));
  *kind = Kind::kOther;
  if (GetFileType(file) != FILE_TYPE_DISK) return 0;
  BY_HANDLE_FILE_INFORMATION info{};
  if (!GetFileInformationByHandle(file, &info)) return last_error();
  const bool folder = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  *kind = folder ? Kind::kFolder : Kind::kRegular;
  return 0;
}

void File::close() noexcept {
  if (handle_ != -1) CloseHandle(handle_of(handle_));
  handle_ = -1;
}

int File::facts(Facts* out) const {
  BY_HANDLE_FILE_INFORMATION info{};
  if (!GetFileInformationByHandle(handle_of(handle_), &info)) return last_error();
  out->bytes = uint64_t{info.nFileSizeHigh} << 32 | info.nFileSizeLow;
  // In steps of 100 ns since 1601.
  const auto ticks = static_cast<int64_t>(uint64_t{info.ftLastWriteTime.dwHighDateTime} << 32 |
                                          info.ftLastWriteTime.dwLowDateTime);
  constexpr int64_t kTicksTo1970 = 116'444'736'000'000'000;
  out->mtime_ns = (ticks - kTicksTo1970) * 100;
  return 0;
}

int File::read(uint64_t at, void* out, uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    OVERLAPPED where{};
    where.Offset = static_cast<DWORD>(at);
    where.OffsetHigh = static_cast<DWORD>(at >> 32);
    DWORD n = 0;
    const auto wanted = static_cast<DWORD>(std::min<uint64_t>(bytes, 1u << 30));
    if (!ReadFile(handle_of(handle_), to, wanted, &n, &where))
      return GetLastError() == ERROR_HANDLE_EOF ? kEndOfFile : last_error();
    if (n == 0) return kEndOfFile;
    to += n;
    at += n;
    bytes -= n;
  }
  return 0;
}

int File::map(uint64_t bytes, const std::byte** out) const {
  const HANDLE section =
      CreateFileMappingW(handle_of(handle_), nullptr, PAGE_READONLY,
                         static_cast<DWORD>(bytes >> 32), static_cast<DWORD>(bytes), nullptr);
  if (section == nullptr) return last_error();
  const void* p = MapViewOfFile(section, FILE_MAP_READ, 0, 0, bytes);
  const int error = p == nullptr ? last_error() : 0;
  CloseHandle(section);  // the view holds it
  *out = static_cast<const std::byte*>(p);
  return error;
}

// The system reads ahead by itself where a file is read in order.
void File::will_need(uint64_t, uint64_t) const {}
void File::dont_need(uint64_t, uint64_t) const {}

namespace {

int write_all(HANDLE file, const void* data, uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    DWORD n = 0;
    const auto wanted = static_cast<DWORD>(std::min<uint64_t>(bytes, 1u << 30));
    if (!WriteFile(file, from, wanted, &n, nullptr)) return last_error();
    from += n;
    bytes -= n;
  }
  return 0;
}

}  // namespace

int replace_file(const char* path, const void* data, uint64_t bytes) {
  uint64_t number = 0;
  if (!random_bytes(&number, sizeof number)) number = GetCurrentProcessId();
  const std::wstring to = long_path(path), beside = to + L"." + std::to_wstring(number);
  const HANDLE file = CreateFileW(beside.c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW,
                                  FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) return last_error();
  int error = write_all(file, data, bytes);
  CloseHandle(file);
  const bool moved =
      error == 0 && MoveFileExW(beside.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING) != 0;
  if (error == 0 && !moved) error = last_error();
  if (!moved) DeleteFileW(beside.c_str());
  return error;
}

int make_folder(const char* path) {
  const std::wstring text = long_path(path);
  if (CreateDirectoryW(text.c_str(), nullptr)) return 0;
  const int error = last_error();
  const DWORD is = GetFileAttributesW(text.c_str());
  const bool folder = is != INVALID_FILE_ATTRIBUTES && (is & FILE_ATTRIBUTE_DIRECTORY) != 0;
  return folder ? 0 : error;
}

void unmap_file(const std::byte* data, uint64_t) {
  UnmapViewOfFile(data);
}

int page_in_file(const std::byte* data, uint64_t bytes) {
  // Advice: a page that is not there yet is read at its first touch.
  WIN32_MEMORY_RANGE_ENTRY range{const_cast<std::byte*>(data), bytes};
  return PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0) ? 0 : ERROR_NOT_SUPPORTED;
}

}  // namespace sharpi::os
