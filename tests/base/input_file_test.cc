// SPDX-License-Identifier: MIT
#include "base/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "os/file.h"
#include "os/pages.h"

namespace sharpi {
namespace {

std::string temp_path(const char* name) {
  return ::testing::TempDir() + "sharpi-input-" + std::to_string(getpid()) + "-" + name;
}

std::string write_file(const char* name, const std::string& text) {
  const std::string path = temp_path(name);
  std::FILE* f = std::fopen(path.c_str(), "wb");
  EXPECT_NE(f, nullptr);
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), f), text.size());
  std::fclose(f);
  return path;
}

TEST(InputFile, ShowsTheBytesTheSizeAndTheModificationTime) {
  const std::string path = write_file("plain", "sixteen bytes ok");
  const timespec times[2] = {{1000, 0}, {1234567, 89}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  ASSERT_EQ(file.value().bytes(), 16u);
  const auto mapping = file.value().map();
  ASSERT_TRUE(mapping.is_ok()) << mapping.status().text();
  ASSERT_EQ(mapping.value().bytes(), 16u);
  EXPECT_EQ(std::memcmp(mapping.value().data(), "sixteen bytes ok", 16), 0);
  EXPECT_EQ(file.value().mtime_ns(), 1234567'000000089);
  unlink(path.c_str());
}

TEST(InputFile, SurvivesTheDeletionOfTheFile) {
  const std::string path = write_file("deleted", std::string(10000, 'x'));
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.is_ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  char last = 0;
  EXPECT_TRUE(file.value().read(9999, &last, 1).is_ok());
  EXPECT_EQ(last, 'x');
  const auto mapping = file.value().map();
  ASSERT_TRUE(mapping.is_ok());
  EXPECT_EQ(mapping.value().data()[9999], std::byte{'x'});
}

TEST(InputFile, ReadsWithoutTheMappingAndSaysWhenTheFileIsShorter) {
  const std::string path = write_file("read", "sixteen bytes ok");
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.is_ok());
  char text[6] = {};
  ASSERT_TRUE(file.value().read(8, text, 5).is_ok());
  EXPECT_STREQ(text, "bytes");
  EXPECT_FALSE(file.value().has_changed());
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  EXPECT_TRUE(file.value().has_changed());
  const Status s = file.value().read(8, text, 5);
  EXPECT_EQ(s.code(), Code::kMismatch);
  EXPECT_NE(s.text().find("shorter"), std::string::npos) << s.text();
  unlink(path.c_str());
}

TEST(InputFile, NoticesWritesOfTheSameSize) {
  const std::string path = write_file("written", "sixteen bytes ok");
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.is_ok());
  std::FILE* f = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  std::fputc('S', f);
  std::fclose(f);
  EXPECT_TRUE(file.value().has_changed());
  unlink(path.c_str());
}

TEST(InputFile, MovesWithItsMapping) {
  const std::string path = write_file("moved", "abc");
  auto file = InputFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  auto mapped = file.value().map();
  ASSERT_TRUE(mapped.is_ok());
  const std::byte* before = mapped.value().data();
  InputFile other = file.take();
  EXPECT_EQ(other.bytes(), 3u);
  other = InputFile();
  EXPECT_FALSE(other.is_open());
  EXPECT_EQ(other.bytes(), 0u);
  FileMapping mapping = mapped.take();  // needs the file no longer
  EXPECT_EQ(mapping.data(), before);
  EXPECT_EQ(mapping.data()[2], std::byte{'c'});
  mapping = FileMapping();
  EXPECT_EQ(mapping.data(), nullptr);
}

TEST(InputFile, EmptyFileHasNoData) {
  const std::string path = write_file("empty", "");
  const auto file = InputFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  EXPECT_EQ(file.value().bytes(), 0u);
  const auto mapping = file.value().map();
  ASSERT_TRUE(mapping.is_ok());
  EXPECT_EQ(mapping.value().data(), nullptr);
}

/// Emulators say yes to advice about memory that they do not know, even where nothing may be read.
bool advice_is_ignored() {
  int error = 0;
  std::byte* p = os::map_pages(os::page_size(), os::Access::kNone, &error);
  const bool ignored = p != nullptr && os::page_in_file(p, os::page_size()) == 0;
  if (p != nullptr) os::unmap_pages(p, os::page_size());
  return ignored;
}

TEST(InputFile, PagingInAMappingOfAShorterFileIsAStatus) {
  if (advice_is_ignored()) GTEST_SKIP() << "this emulator ignores advice about memory";
  const std::string path = write_file("paged", std::string(100000, 'p'));
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.is_ok());
  const auto mapping = file.value().map();
  ASSERT_TRUE(mapping.is_ok());
  EXPECT_TRUE(file.value().page_in(mapping.value(), 5000, 95000).is_ok());
  EXPECT_TRUE(file.value().page_in(mapping.value(), 7, 0).is_ok());
  EXPECT_EQ(mapping.value().data()[99999], std::byte{'p'});
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  EXPECT_EQ(file.value().page_in(mapping.value(), 5000, 95000).code(), Code::kMismatch);
  unlink(path.c_str());
}

TEST(InputFile, MissingFileIsNotFoundWithErrno) {
  const std::string path = temp_path("missing");
  const auto file = InputFile::open(path);
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kNotFound);
  EXPECT_EQ(file.status().native(), ENOENT);
  EXPECT_NE(file.status().text().find("cannot open " + path), std::string::npos);
}

TEST(InputFile, DirectoryIsAnIoError) {
  const auto file = InputFile::open(::testing::TempDir());
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kIo);
  EXPECT_EQ(file.status().native(), EISDIR);
}

TEST(InputFile, NamedPipeIsRefusedWithoutWaitingForAWriter) {
  const std::string path = temp_path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto file = InputFile::open(path);
  unlink(path.c_str());
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kIo);
  EXPECT_NE(file.status().text().find("not a regular file"), std::string::npos);
}

TEST(InputFile, AdviceIsClampedToTheFile) {
  const std::string path = write_file("advice", std::string(9000, 'y'));
  const auto file = InputFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  file.value().will_need(5000, UINT64_MAX);
  file.value().will_need(UINT64_MAX, 10);
  file.value().dont_need(5000, UINT64_MAX);
  file.value().dont_need(UINT64_MAX, 10);
  char last = 0;
  EXPECT_TRUE(file.value().read(8999, &last, 1).is_ok());
  EXPECT_EQ(last, 'y');
}

}  // namespace
}  // namespace sharpi
