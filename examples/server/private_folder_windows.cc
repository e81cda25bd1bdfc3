// SPDX-License-Identifier: MIT
#include "private_folder.h"

/* clang-format off: this header comes before those that need it */
#include <windows.h>
/* clang-format on */
#include <aclapi.h>
#include <fcntl.h>
#include <io.h>
#include <sddl.h>

#include <filesystem>
#include <system_error>

#include "settings.h"

namespace server {
namespace {

// What is no longer needed of the system's memory.
using Local = std::unique_ptr<void, decltype(&LocalFree)>;

std::filesystem::path path_of(const std::string& utf8) {
  return std::filesystem::path(std::u8string(utf8.begin(), utf8.end()));
}

std::string sentence(DWORD error) {
  return std::system_category().message(static_cast<int>(error));
}

// The user's own identifier, in a buffer that holds it.
struct User {
  alignas(TOKEN_USER) char buffer[256];
  PSID id = nullptr;
  User() {
    HANDLE token = nullptr;
    DWORD n = 0;
    if (!OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token)) return;
    if (GetTokenInformation(token, TokenUser, buffer, sizeof buffer, &n)) {
      id = reinterpret_cast<TOKEN_USER*>(buffer)->User.Sid;
    }
    CloseHandle(token);
  }
};

// Everything in a folder is that user's, and nobody else has rights there. Null: GetLastError().
Local access_for(PSID user) {
  wchar_t* id = nullptr;
  if (user == nullptr || !ConvertSidToStringSidW(user, &id)) return {nullptr, LocalFree};
  const Local kept(id, LocalFree);
  const std::wstring text = std::wstring(L"D:P(A;OICI;FA;;;") + id + L")";
  PSECURITY_DESCRIPTOR made = nullptr;
  ConvertStringSecurityDescriptorToSecurityDescriptorW(text.c_str(), SDDL_REVISION_1, &made,
                                                       nullptr);
  return {made, LocalFree};
}

// Who may do everything on a machine anyway, and who made a thing.
bool is_of_the_system(PSID id) {
  for (const WELL_KNOWN_SID_TYPE type : {WinLocalSystemSid, WinBuiltinAdministratorsSid,
                                         WinCreatorOwnerSid, WinCreatorOwnerRightsSid}) {
    if (IsWellKnownSid(id, type)) return true;
  }
  return false;
}

// Whether anybody but the user and the machine's administrators is let in.
bool lets_others_in(PACL list, PSID user) {
  if (list == nullptr) return true;  // no list lets everybody in
  for (DWORD i = 0; i < list->AceCount; ++i) {
    void* entry = nullptr;
    if (!GetAce(list, i, &entry)) return true;
    const auto* allowed = static_cast<ACCESS_ALLOWED_ACE*>(entry);
    if (allowed->Header.AceType != ACCESS_ALLOWED_ACE_TYPE) continue;
    auto* const id = const_cast<DWORD*>(&allowed->SidStart);
    if (allowed->Mask != 0 && !EqualSid(id, user) && !is_of_the_system(id)) return true;
  }
  return false;
}

}  // namespace

struct PrivateFolder::System {
  std::filesystem::path folder;
  HANDLE lock = INVALID_HANDLE_VALUE;
  ~System() {
    if (lock != INVALID_HANDLE_VALUE) CloseHandle(lock);  // which removes its file
  }
};

PrivateFolder::PrivateFolder(const std::string& path, const std::string& what)
    : system_(std::make_unique<System>()) {
  const auto refuse = [&](const std::string& fault) { throw SettingsError(what + " " + fault); };
  std::error_code ignored;
  system_->folder = std::filesystem::absolute(path_of(path), ignored);
  const std::filesystem::path& folder = system_->folder;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  const User user;
  const Local only_user = access_for(user.id);
  if (only_user == nullptr) refuse("cannot be made: " + sentence(GetLastError()));
  SECURITY_ATTRIBUTES attributes{sizeof attributes, only_user.get(), FALSE};
  if (!CreateDirectoryW(folder.c_str(), &attributes) && GetLastError() != ERROR_ALREADY_EXISTS) {
    refuse("cannot be made: " + sentence(GetLastError()));
  }
  if (!std::filesystem::is_directory(folder, ignored)) refuse("cannot be opened: it is no folder");
  PSID owner = nullptr;
  PACL list = nullptr;
  PSECURITY_DESCRIPTOR found = nullptr;
  const DWORD error = GetNamedSecurityInfoW(folder.c_str(), SE_FILE_OBJECT,
                                            OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION,
                                            &owner, nullptr, &list, nullptr, &found);
  if (error != ERROR_SUCCESS) refuse("cannot be opened: " + sentence(error));
  const Local kept_too(found, LocalFree);
  // What an administrator makes may belong to all administrators.
  if (user.id == nullptr || (!EqualSid(owner, user.id) && !is_of_the_system(owner))) {
    refuse("belongs to somebody else");
  }
  if (lets_others_in(list, user.id)) {
    refuse("can be entered by others: only its owner and administrators may have rights there");
  }
  system_->lock =
      CreateFileW((folder / L"in-use").c_str(), GENERIC_WRITE, 0, nullptr, CREATE_ALWAYS,
                  FILE_ATTRIBUTE_HIDDEN | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
  if (system_->lock == INVALID_HANDLE_VALUE) {
    refuse(GetLastError() == ERROR_SHARING_VIOLATION
               ? std::string("is in use by another server")
               : "cannot be written: " + sentence(GetLastError()));
  }
}
PrivateFolder::~PrivateFolder() = default;

OpenFile PrivateFolder::make(const std::string& name) const {
  const HANDLE handle = CreateFileW((system_->folder / path_of(name)).c_str(), GENERIC_WRITE, 0,
                                    nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return {nullptr, std::fclose};
  const int fd = _open_osfhandle(reinterpret_cast<intptr_t>(handle), _O_BINARY | _O_WRONLY);
  if (fd < 0) CloseHandle(handle);
  OpenFile file(fd < 0 ? nullptr : _fdopen(fd, "wb"), std::fclose);
  if (fd >= 0 && file == nullptr) _close(fd);
  return file;
}

OpenFile PrivateFolder::open(const std::string& name, uint64_t bytes) const {
  const HANDLE handle =
      CreateFileW((system_->folder / path_of(name)).c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr,
                  OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, nullptr);
  BY_HANDLE_FILE_INFORMATION info;
  const bool is_it =
      handle != INVALID_HANDLE_VALUE && GetFileType(handle) == FILE_TYPE_DISK &&
      GetFileInformationByHandle(handle, &info) &&
      (info.dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT)) == 0 &&
      ((uint64_t{info.nFileSizeHigh} << 32) | info.nFileSizeLow) == bytes;
  const int fd =
      is_it ? _open_osfhandle(reinterpret_cast<intptr_t>(handle), _O_BINARY | _O_RDONLY) : -1;
  if (handle != INVALID_HANDLE_VALUE && fd < 0) CloseHandle(handle);
  OpenFile file(fd < 0 ? nullptr : _fdopen(fd, "rb"), std::fclose);
  if (fd >= 0 && file == nullptr) _close(fd);
  return file;
}

void PrivateFolder::remove(const std::string& name) const noexcept {
  try {
    DeleteFileW((system_->folder / path_of(name)).c_str());
  } catch (const std::exception&) {  // left to the next server that starts
  }
}

void PrivateFolder::remove_all(const std::function<bool(std::string_view)>& is_such) const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(system_->folder, ignored)) {
    const std::u8string name = entry.path().filename().u8string();
    if (is_such({reinterpret_cast<const char*>(name.data()), name.size()})) {
      DeleteFileW(entry.path().c_str());
    }
  }
}

bool seek(std::FILE* file, uint64_t offset) {
  return _fseeki64(file, static_cast<int64_t>(offset), SEEK_SET) == 0;
}

uint64_t process_number() {
  return GetCurrentProcessId();
}

}  // namespace server
