// SPDX-License-Identifier: MIT
// Files as every system has them: paths in UTF-8, long ones too, and what others do to a file while
// it is open.
#include "os/file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#ifdef _WIN32
#include "os/windows/system.h"
#endif

namespace sharpi::os {
namespace {

std::filesystem::path of_utf8(const std::string& text) {
#ifdef _WIN32
  std::wstring path = wide(text);
  for (wchar_t& c : path)
    if (c == L'/') c = L'\\';
  return L"\\\\?\\" + path;  // the form that has no limit
#else
  return text;
#endif
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absolute(std::filesystem::path(::testing::TempDir())).string();
    while (folder_.ends_with('/') || folder_.ends_with('\\')) folder_.pop_back();
    folder_ += "/sharpi-files-" + std::string(test_info());
    std::error_code none;
    std::filesystem::create_directories(of_utf8(folder_), none);
    ASSERT_TRUE(std::filesystem::is_directory(of_utf8(folder_)));
  }
  // What is too long for the run-time library of Windows stays.
  void TearDown() override {
    std::error_code none;
    std::filesystem::remove_all(of_utf8(folder_), none);
  }
  static const char* test_info() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  /// Writes a file of the folder; its path.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(of_utf8(path).parent_path());
    std::ofstream(of_utf8(path), std::ios::binary) << text;
    return path;
  }
  static void expect_text(const File& file, const std::string& text) {
    File::Facts facts;
    ASSERT_EQ(file.facts(&facts), 0);
    EXPECT_EQ(facts.bytes, text.size());
    EXPECT_GT(facts.mtime_ns, int64_t{1'600'000'000} * 1'000'000'000);
    std::string read(text.size(), '\0');
    EXPECT_EQ(file.read(0, read.data(), read.size()), 0);
    EXPECT_EQ(read, text);
    const std::byte* mapped = nullptr;
    ASSERT_EQ(file.map(text.size(), &mapped), 0);
    EXPECT_EQ(std::memcmp(mapped, text.data(), text.size()), 0);
    unmap_file(mapped, text.size());
  }
  std::string folder_;
};

TEST_F(Files, OfPathsInOtherScriptsAreOpened) {
  const std::string path = write("модель 模型/ключ é.gguf", "sixteen bytes ok");
  File file;
  File::Kind kind = File::Kind::kOther;
  ASSERT_EQ(file.open(path.c_str(), &kind), 0);
  EXPECT_EQ(kind, File::Kind::kRegular);
  expect_text(file, "sixteen bytes ok");
}

TEST_F(Files, OfLongPathsAreOpened) {
  const std::string a(120, 'a'), b(120, 'b');
  const std::string path = write(a + "/" + b + "/long.gguf", "text");
  ASSERT_GT(path.size(), 260u);
  File file;
  File::Kind kind = File::Kind::kOther;
  ASSERT_EQ(file.open(path.c_str(), &kind), 0);
  expect_text(file, "text");
}

TEST_F(Files, ThatAreNotThereOrAreFoldersAreSaidToBe) {
  File file;
  File::Kind kind = File::Kind::kOther;
  const int error = file.open((folder_ + "/none").c_str(), &kind);
  EXPECT_TRUE(is_not_found(error)) << error;
  EXPECT_FALSE(std::string(error_text(error)).empty());
  File folder;
  ASSERT_EQ(folder.open(folder_.c_str(), &kind), 0);
  EXPECT_EQ(kind, File::Kind::kFolder);
}

TEST_F(Files, ReadingBehindTheEndIsSaid) {
  const std::string path = write("short", "abc");
  File file;
  File::Kind kind = File::Kind::kOther;
  ASSERT_EQ(file.open(path.c_str(), &kind), 0);
  char text[4];
  EXPECT_EQ(file.read(1, text, 2), 0);
  EXPECT_EQ(file.read(1, text, 3), kEndOfFile);
  EXPECT_EQ(file.read(1000, text, 1), kEndOfFile);
}

/// Windows refuses to remove a file that is open, the others keep what is open.
TEST_F(Files, ThatOthersRemoveStayReadable) {
  const std::string path = write("removed", "text");
  File file;
  File::Kind kind = File::Kind::kOther;
  ASSERT_EQ(file.open(path.c_str(), &kind), 0);
  std::error_code refused;
  std::filesystem::remove(of_utf8(path), refused);
#ifdef _WIN32
  EXPECT_TRUE(refused);
  EXPECT_TRUE(std::filesystem::exists(of_utf8(path)));
#else
  EXPECT_FALSE(refused);
#endif
  expect_text(file, "text");
}

TEST_F(Files, AreReplacedAsAWhole) {
  const std::string path = folder_ + "/new";
  for (const std::string text : {"first", "a second one that is longer", "third"}) {
    ASSERT_EQ(replace_file(path.c_str(), text.data(), text.size()), 0);
    File file;
    File::Kind kind{};
    ASSERT_EQ(file.open(path.c_str(), &kind), 0);
    expect_text(file, text);
  }
  EXPECT_TRUE(is_not_found(replace_file((folder_ + "/none/new").c_str(), "x", 1)));
  std::filesystem::create_directory(of_utf8(folder_ + "/folder"));
  EXPECT_NE(replace_file((folder_ + "/folder").c_str(), "x", 1), 0);
  const std::filesystem::directory_iterator all(of_utf8(folder_));
  EXPECT_EQ(std::distance(begin(all), end(all)), 2) << "what was written on the way is left behind";
}

TEST_F(Files, FoldersAreMadeOrThereAlready) {
  const std::string path = folder_ + "/made";
  EXPECT_EQ(make_folder(path.c_str()), 0);
  EXPECT_EQ(make_folder(path.c_str()), 0);
  EXPECT_TRUE(std::filesystem::is_directory(of_utf8(path)));
  EXPECT_NE(make_folder(write("file", "a file").c_str()), 0);
  EXPECT_TRUE(is_not_found(make_folder((folder_ + "/none/made").c_str())));
}

}  // namespace
}  // namespace sharpi::os
