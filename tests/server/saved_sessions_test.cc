// SPDX-License-Identifier: MIT
// The folder of saved sessions: for one server alone, and without what an earlier one left.
#include "saved_sessions.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace server {
namespace {

class SavedSessionsFolder : public ::testing::Test {
 protected:
  SavedSessionsFolder() : folder_(::testing::TempDir() + "saved_" + std::to_string(getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~SavedSessionsFolder() override { std::filesystem::remove_all(folder_); }
  std::string refusal() const {
    try {
      const SavedSessions saved(folder_, 1 << 20);
      return "";
    } catch (const SettingsError& e) {
      return e.what();
    }
  }
  const std::string folder_;
};

TEST_F(SavedSessionsFolder, IsForTheServerAlone) {
  const mode_t before = umask(0);
  EXPECT_EQ(refusal(), "");
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  {
    const SavedSessions one(folder_, 1 << 20);
    EXPECT_NE(refusal().find("is in use by another server"), std::string::npos);
  }
  EXPECT_EQ(refusal(), "");
  ASSERT_EQ(chmod(folder_.c_str(), 0750), 0);
  EXPECT_NE(refusal().find("its mode has to be 0700"), std::string::npos);
  std::filesystem::remove_all(folder_);
  std::ofstream(folder_) << "a file";
  EXPECT_NE(refusal().find("cannot be opened"), std::string::npos);
}

TEST_F(SavedSessionsFolder, LosesWhatAnEarlierServerLeftAndNothingElse) {
  ASSERT_EQ(refusal(), "");
  const std::string outside = folder_ + ".outside";
  std::ofstream(outside) << "kept";
  for (const char* name :
       {"12-1.session", "notes.txt", "a-1.session", "-1.session", "1-.session"}) {
    std::ofstream(folder_ + "/" + name) << "x";
  }
  std::filesystem::create_symlink(outside, folder_ + "/12-2.session");
  ASSERT_EQ(mkfifo((folder_ + "/12-3.session").c_str(), 0600), 0);
  EXPECT_EQ(refusal(), "");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"-1.session", "1-.session", "a-1.session", "notes.txt"}));
  EXPECT_TRUE(std::filesystem::exists(outside));
  std::filesystem::remove(outside);
}

}  // namespace
}  // namespace server
