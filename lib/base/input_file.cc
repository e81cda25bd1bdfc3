// SPDX-License-Identifier: MIT
#include "base/input_file.h"

#include <algorithm>
#include <vector>

namespace sharpi {
namespace {

constexpr uint64_t kPassing = uint64_t{1} << 20;

Status io_error(const std::string& path, const char* verb, int error) {
  const Code code = os::is_not_found(error) ? Code::kNotFound : Code::kIo;
  return Status::native_error(code, error, "cannot %s %s: %s", verb, path.c_str(),
                              os::error_text(error));
}

Status io_error(const char* verb, int error) {
  return Status::native_error(Code::kIo, error, "cannot %s the file: %s", verb,
                              os::error_text(error));
}

Status shorter() {
  return Status::error(Code::kMismatch, "the file became shorter while it was used");
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile input;
  os::File::Kind kind = os::File::Kind::kOther;
  int error = input.file_.open(path.c_str(), &kind);
  if (error != 0) return io_error(path, "open", error);
  if (kind == os::File::Kind::kFolder) return io_error(path, "read", os::kIsFolder);
  if (kind != os::File::Kind::kRegular) {
    return Status::native_error(Code::kIo, os::kNoRegularFile,
                                "cannot read %s: it is not a regular file", path.c_str());
  }
  error = input.file_.facts(&input.facts_);
  if (error != 0) return io_error(path, "examine", error);
  return input;
}

Status InputFile::read(uint64_t at, void* out, uint64_t bytes) const {
  const int error = file_.read(at, out, bytes);
  if (error == os::kEndOfFile) return shorter();
  return error == 0 ? Status::ok() : io_error("read", error);
}

bool InputFile::has_changed() const {
  if (!file_.is_open()) return false;
  os::File::Facts now;
  return file_.facts(&now) != 0 || now.bytes != facts_.bytes || now.mtime_ns != facts_.mtime_ns;
}

void InputFile::will_need(uint64_t at, uint64_t bytes) const {
  if (at < facts_.bytes) file_.will_need(at, std::min(bytes, facts_.bytes - at));
}

void InputFile::dont_need(uint64_t at, uint64_t bytes) const {
  if (at < facts_.bytes) file_.dont_need(at, std::min(bytes, facts_.bytes - at));
}

Result<FileMapping> InputFile::map() const {
  FileMapping mapping;
  if (facts_.bytes == 0) return mapping;
  const int error = file_.map(facts_.bytes, &mapping.data_);
  if (error != 0) return io_error("map", error);
  mapping.bytes_ = facts_.bytes;
  return mapping;
}

Status InputFile::page_in(const FileMapping& mapping, uint64_t at, uint64_t bytes) const {
  if (bytes == 0) return Status::ok();
  const int error = os::page_in_file(mapping.data() + at, bytes);
  if (error == os::kEndOfFile) return shorter();
  if (error == 0) return Status::ok();
  // The system lacks the function. Reading brings the pages into its cache, from where a touch maps
  // them without waiting, and finds an end that moved.
  std::vector<std::byte> passing(std::min(bytes, kPassing));
  for (uint64_t done = 0; done < bytes; done += kPassing)
    SHARPI_TRY(read(at + done, passing.data(), std::min(kPassing, bytes - done)));
  return Status::ok();
}

void FileMapping::reset() noexcept {
  if (data_ != nullptr) os::unmap_file(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace sharpi
