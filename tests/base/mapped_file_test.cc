// SPDX-License-Identifier: MIT
#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace sharpi {
namespace {

std::string temp_path(const char* name) {
  return ::testing::TempDir() + "sharpi-mapped-" + std::to_string(getpid()) + "-" + name;
}

std::string write_file(const char* name, const std::string& text) {
  const std::string path = temp_path(name);
  std::FILE* f = std::fopen(path.c_str(), "wb");
  EXPECT_NE(f, nullptr);
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), f), text.size());
  std::fclose(f);
  return path;
}

TEST(MappedFile, ShowsTheBytesTheSizeAndTheModificationTime) {
  const std::string path = write_file("plain", "sixteen bytes ok");
  const timespec times[2] = {{1000, 0}, {1234567, 89}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  ASSERT_EQ(file.value().bytes(), 16u);
  EXPECT_EQ(std::memcmp(file.value().data(), "sixteen bytes ok", 16), 0);
  EXPECT_EQ(file.value().mtime_ns(), 1234567'000000089);
  unlink(path.c_str());
}

TEST(MappedFile, SurvivesTheDeletionOfTheFile) {
  const std::string path = write_file("deleted", std::string(10000, 'x'));
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.is_ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(file.value().data()[9999], std::byte{'x'});
}

TEST(MappedFile, ReadsWithoutTheMappingAndSaysWhenTheFileIsShorter) {
  const std::string path = write_file("read", "sixteen bytes ok");
  const auto file = MappedFile::open(path);
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

TEST(MappedFile, NoticesWritesOfTheSameSize) {
  const std::string path = write_file("written", "sixteen bytes ok");
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.is_ok());
  std::FILE* f = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  std::fputc('S', f);
  std::fclose(f);
  EXPECT_TRUE(file.value().has_changed());
  unlink(path.c_str());
}

TEST(MappedFile, MovesWithoutRemapping) {
  const std::string path = write_file("moved", "abc");
  auto file = MappedFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  const std::byte* before = file.value().data();
  MappedFile other = file.take();
  EXPECT_EQ(other.data(), before);
  other = MappedFile();
  EXPECT_EQ(other.data(), nullptr);
  EXPECT_EQ(other.bytes(), 0u);
}

TEST(MappedFile, EmptyFileHasNoData) {
  const std::string path = write_file("empty", "");
  const auto file = MappedFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  EXPECT_EQ(file.value().data(), nullptr);
  EXPECT_EQ(file.value().bytes(), 0u);
}

TEST(MappedFile, MissingFileIsNotFoundWithErrno) {
  const std::string path = temp_path("missing");
  const auto file = MappedFile::open(path);
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kNotFound);
  EXPECT_EQ(file.status().native(), ENOENT);
  EXPECT_NE(file.status().text().find("cannot open " + path), std::string::npos);
}

TEST(MappedFile, DirectoryIsAnIoError) {
  const auto file = MappedFile::open(::testing::TempDir());
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kIo);
  EXPECT_EQ(file.status().native(), EISDIR);
}

TEST(MappedFile, NamedPipeIsRefusedWithoutWaitingForAWriter) {
  const std::string path = temp_path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto file = MappedFile::open(path);
  unlink(path.c_str());
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), Code::kIo);
  EXPECT_NE(file.status().text().find("not a regular file"), std::string::npos);
}

TEST(MappedFile, AdviceIsClampedToTheFile) {
  const std::string path = write_file("advice", std::string(9000, 'y'));
  const auto file = MappedFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok());
  file.value().will_need(5000, UINT64_MAX);
  file.value().will_need(UINT64_MAX, 10);
  EXPECT_EQ(file.value().data()[8999], std::byte{'y'});
}

}  // namespace
}  // namespace sharpi
