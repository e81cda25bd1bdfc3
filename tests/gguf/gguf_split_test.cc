// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"
#include "support/gguf_writer.h"

namespace sharpi {
namespace {

using test::GgufWriter;

/// Three parts with one tensor each, written to files that live as long as the fixture.
class SplitFile : public ::testing::Test {
 protected:
  void SetUp() override {
    prefix_ = ::testing::TempDir() + "sharpi-split-" + std::to_string(getpid());
    parts_[0].value("general.architecture", "test").split(0, 3, 3);
    parts_[0].tensor_f32("first", {1}, {1});
    parts_[1].value("long key that moves the data of this part", 1u).split(1, 3, 3);
    parts_[1].tensor_f32("second", {2}, {2, 20});
    parts_[2].split(2, 3, 3).tensor_f32("third", {1}, {3});
  }
  void TearDown() override {
    for (const std::string& path : written_) unlink(path.c_str());
  }

  std::string path(uint32_t part, uint32_t count = 3) {
    return test::split_path(prefix_, part, count);
  }
  void write_part(const GgufWriter& w, uint32_t part, uint32_t count = 3) {
    ASSERT_TRUE(w.write(path(part, count)));
    written_.push_back(path(part, count));
  }
  void write_all() {
    for (uint32_t i = 0; i < 3; ++i) write_part(parts_[i], i);
  }
  void expect_refused(const std::string& which, Code code, const std::string& text) {
    const auto file = GgufFile::open(which);
    ASSERT_FALSE(file.is_ok());
    EXPECT_EQ(file.status().code(), code);
    EXPECT_NE(file.status().text().find(text), std::string::npos) << file.status().text();
  }

  std::string prefix_;
  GgufWriter parts_[3];
  std::vector<std::string> written_;
};

TEST_F(SplitFile, FirstPartOpensAllParts) {
  write_all();
  const auto file = GgufFile::open(path(0));
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const auto mapped = file.value()->map_tensors();
  ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
  const GgufFile& f = *mapped.value();
  EXPECT_EQ(f.n_shards(), 3u);
  ASSERT_EQ(f.tensors().size(), 3u);
  uint64_t bytes = 0;
  for (const GgufWriter& w : parts_) bytes += w.bytes().size();
  EXPECT_EQ(f.file_bytes(), bytes);
  EXPECT_NE(f.find_value("general.architecture"), nullptr);
  for (uint32_t i = 0; i < 3; ++i) {
    const GgufTensor& t = f.tensors()[i];
    EXPECT_EQ(t.shard, i);
    float value, read;
    std::memcpy(&value, t.data, 4);
    EXPECT_EQ(value, static_cast<float>(i + 1));
    ASSERT_TRUE(file.value()->read_tensor(t, 0, &read, 4).is_ok());
    EXPECT_EQ(read, value);
  }
  EXPECT_EQ(f.find_tensor("third"), &f.tensors()[2]);
}

TEST_F(SplitFile, EveryPartCountsInTheContentId) {
  write_all();
  const auto before = GgufFile::open(path(0));
  parts_[2].value("more", 1u);
  write_all();
  const auto after = GgufFile::open(path(0));
  ASSERT_TRUE(before.is_ok() && after.is_ok());
  EXPECT_NE(before.value()->content_id(), after.value()->content_id());
}

TEST_F(SplitFile, LaterPartPointsToTheFirst) {
  write_all();
  expect_refused(path(1), Code::kFormat, "part 2 of 3 of a split file; open the first part");
}

TEST_F(SplitFile, MissingPartIsNotFoundByName) {
  write_part(parts_[0], 0);
  write_part(parts_[1], 1);
  expect_refused(path(0), Code::kNotFound, path(2));
}

TEST_F(SplitFile, RenamedFirstPartIsRefused) {
  const std::string renamed = prefix_ + ".gguf";
  ASSERT_TRUE(parts_[0].write(renamed));
  written_.push_back(renamed);
  expect_refused(renamed, Code::kFormat, "must be named *-00001-of-00003.gguf");
}

TEST_F(SplitFile, PartsInTheWrongPlaceAreRefused) {
  write_part(parts_[0], 0);
  write_part(parts_[2], 1);
  write_part(parts_[1], 2);
  expect_refused(path(0), Code::kFormat, "do not say part 2 of 3");
}

TEST_F(SplitFile, PartOfAnotherCountIsRefused) {
  write_all();
  write_part(GgufWriter().split(1, 4, 3).tensor_f32("second", {1}, {2}), 1);
  expect_refused(path(0), Code::kFormat, "do not say part 2 of 3");
}

TEST_F(SplitFile, PartWithoutSplitKeysIsRefused) {
  write_all();
  write_part(GgufWriter().tensor_f32("second", {1}, {2}), 1);
  expect_refused(path(0), Code::kFormat, "do not say part 2 of 3");
}

TEST_F(SplitFile, WrongTensorTotalIsRefused) {
  write_all();
  parts_[1].tensor_f32("extra", {1}, {9});
  write_part(parts_[1], 1);
  expect_refused(path(0), Code::kFormat, "split.tensors.count is 3, but the parts have 4 tensors");
}

TEST_F(SplitFile, NameUsedByTwoPartsIsRefused) {
  write_all();
  write_part(GgufWriter().split(2, 3, 3).tensor_f32("first", {1}, {3}), 2);
  expect_refused(path(0), Code::kFormat, "tensor 2 repeats the name \"first\" of tensor 0");
}

TEST_F(SplitFile, MalformedPartIsNamed) {
  write_all();
  parts_[2].tensors()[0].type_id = 99;
  write_part(parts_[2], 2);
  expect_refused(path(0), Code::kFormat, path(2) + ": tensor 0 of 1 (\"third\"): its tensor type");
}

TEST_F(SplitFile, SplitKeysOfTheWrongTypeAreRefused) {
  GgufWriter w;
  w.value("split.count", "three").tensor_f32("first", {1}, {1});
  write_part(w, 0);
  expect_refused(path(0), Code::kFormat, "metadata \"split.count\" is string");
}

TEST_F(SplitFile, AbsurdPartCountIsRefused) {
  GgufWriter w;
  w.value("split.count", uint32_t{4000000000}).tensor_f32("first", {1}, {1});
  write_part(w, 0);
  expect_refused(path(0), Code::kFormat, "split.count 4000000000 is absurd");
}

TEST_F(SplitFile, SingleFileWithSplitCountOneNeedsNoSpecialName) {
  GgufWriter w;
  w.split(0, 1, 1).tensor_f32("first", {1}, {1});
  const std::string plain = prefix_ + "-plain.gguf";
  ASSERT_TRUE(w.write(plain));
  written_.push_back(plain);
  EXPECT_TRUE(GgufFile::open(plain).is_ok());
}

TEST_F(SplitFile, CannotBeOpenedFromMemory) {
  const test::Bytes bytes = parts_[0].bytes();
  const auto file = GgufFile::open_memory(bytes.data(), bytes.size(), "memory");
  EXPECT_EQ(file.status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace sharpi
