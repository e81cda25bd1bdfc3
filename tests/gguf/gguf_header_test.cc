// SPDX-License-Identifier: MIT
// Headers are copies, read in steps, and bounded before they are read.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"
#include "support/gguf_writer.h"

namespace sharpi {
namespace {

using test::append;
using test::append_string;
using test::Bytes;
using test::GgufWriter;

std::string temp_path(const char* name) {
  return ::testing::TempDir() + "sharpi-header-" + std::to_string(getpid()) + "-" + name;
}

TEST(GgufHeader, ALargeHeaderIsReadInStepsAndKeptAsACopy) {
  GgufWriter w;
  w.tensor_f32("a", {3, 2}, {1, 2, 3, 4, 5, 6});
  std::vector<std::string> names(200000, std::string(40, 'n'));  // 9.6 MB: more than one step
  names.back() = "the last";
  w.array("names", names).value("after", 5u);
  const std::string path = temp_path("large.gguf");
  ASSERT_TRUE(w.write(path));
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  EXPECT_FALSE(file.value()->has_changed());
  std::filesystem::resize_file(path, 0);
  unlink(path.c_str());
  const auto read = file.value()->get_string_array("names");
  ASSERT_TRUE(read.is_ok() && read.value().has_value());
  EXPECT_EQ(read.value()->size(), names.size());
  EXPECT_EQ(read.value()->back(), "the last");
  EXPECT_EQ(*file.value()->get_uint("after").value(), 5u);
  EXPECT_NE(file.value()->find_tensor("a"), nullptr);
  EXPECT_TRUE(file.value()->has_changed());
  std::byte sample[4];
  EXPECT_EQ(file.value()->read_tensor(file.value()->tensors()[0], 0, sample, 4).code(),
            Code::kMismatch);
}

/// A header of some bytes, then a hole: what a file claims costs nothing until it is believed.
Status open_sparse(int32_t element, uint64_t count, uint64_t file_bytes) {
  const std::string path = temp_path("sparse.gguf");
  Bytes head;
  append(head, uint32_t{0x46554747});
  append(head, uint32_t{3});
  append(head, uint64_t{0});
  append(head, uint64_t{1});
  append_string(head, "abcd");
  append(head, int32_t{9});
  append(head, element);
  append(head, count);
  std::FILE* f = std::fopen(path.c_str(), "wb");
  EXPECT_NE(f, nullptr);
  EXPECT_EQ(std::fwrite(head.data(), 1, head.size(), f), head.size());
  std::fclose(f);
  std::filesystem::resize_file(path, file_bytes);
  Status s = GgufFile::open(path).take_status();
  unlink(path.c_str());
  return s;
}

TEST(GgufHeader, HolesThatClaimToBeAHeaderAreRefusedBeforeTheyAreRead) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  for (const int32_t element : {0, 7, 4, 8}) {  // u8, bool, u32, string
    const uint64_t bytes = element == 8 ? 8 : element == 4 ? 4 : 1;
    const Status many = open_sparse(element, (8 * kGiB - 4096) / bytes, 8 * kGiB);
    EXPECT_EQ(many.code(), Code::kFormat);
    EXPECT_NE(many.text().find("array elements exceed the limit of 4194304"), std::string::npos)
        << many.text();
  }
  GgufWriter w;  // few elements, long ones
  const std::string path = temp_path("long.gguf");
  Bytes payload;
  append(payload, uint64_t{4 * kGiB});
  w.raw_value("long", 8, payload);
  ASSERT_TRUE(w.write(path));
  std::filesystem::resize_file(path, 8 * kGiB);
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  EXPECT_EQ(file.status().code(), Code::kFormat);
  EXPECT_NE(file.status().text().find("all headers of a model may have 268435456"),
            std::string::npos)
      << file.status().text();
}

}  // namespace
}  // namespace sharpi
