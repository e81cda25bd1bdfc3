// SPDX-License-Identifier: MIT
// Rows of a tensor as tensors of their own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "gguf/ggml_type.h"
#include "gguf/gguf_file.h"
#include "support/gguf_writer.h"

namespace sharpi {
namespace {

using test::GgufWriter;

std::string parts_path() {
  return ::testing::TempDir() + "sharpi-parts-" + std::to_string(getpid()) + ".gguf";
}

/// Rows 0 and 1 to 2 of three, with the values of the tensors around them.
GgufWriter with_rows() {
  GgufWriter w;
  w.value("general.architecture", "test");
  w.tensor_f32("before", {1}, {7});
  w.tensor_f32("whole", {2, 3}, {1, 2, 3, 4, 5, 6});
  w.tensor_f32("after", {1}, {8});
  return w;
}

TEST(GgufParts, PartsTakeTheirTensorsPlace) {
  const std::string path = parts_path();
  ASSERT_TRUE(with_rows().write(path));
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const GgufTensor* whole = file.value()->find_tensor("whole");
  const auto parted =
      file.value()->with_parts({{"one", whole, {{0, 1}}}, {"whole", whole, {{1, 2}}}});
  ASSERT_TRUE(parted.is_ok()) << parted.status().text();
  const GgufFile& f = *parted.value();
  ASSERT_EQ(f.tensors().size(), 4u);
  EXPECT_EQ(f.content_id(), file.value()->content_id());
  const GgufTensor &one = f.tensors()[1], &rest = f.tensors()[2];
  EXPECT_EQ(f.find_tensor("one"), &one);
  EXPECT_EQ(f.find_tensor("whole"), &rest);
  EXPECT_EQ(rest.ne, (std::array<uint64_t, 4>{2, 2, 1, 1}));
  float values[4] = {};
  EXPECT_EQ(rest.bytes, sizeof values);
  ASSERT_TRUE(f.read_tensor(rest, 0, values, sizeof values).is_ok());
  EXPECT_EQ(std::vector<float>(values, values + 4), (std::vector<float>{3, 4, 5, 6}));
  const auto mapped = f.map_tensors();
  ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
  EXPECT_EQ(std::memcmp(mapped.value()->tensors()[2].data, values, sizeof values), 0);
  // Parts of a file that is mapped, and of one in memory, have their data at once.
  const GgufTensor* data = mapped.value()->find_tensor("after");
  EXPECT_EQ(mapped.value()->with_parts({{"x", data, {{0, 1}}}}).value()->find_tensor("x")->data,
            data->data);
}

/// Rows 2, 0 and 4, and 1 and 3 of five: read in any pieces, gathered where the file is mapped or
/// in memory.
TEST(GgufParts, RowsThatDoNotFollowEachOtherAreGathered) {
  GgufWriter w;
  w.value("general.architecture", "test");
  w.tensor_f32("whole", {2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const std::string path = parts_path();
  ASSERT_TRUE(w.write(path));
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const auto parts_of = [](const GgufFile& f) {
    const GgufTensor* whole = f.find_tensor("whole");
    return f.with_parts({{"x", whole, {{2, 1}, {0, 1, 2, 4}}}, {"y", whole, {{1, 1, 2, 2}}}})
        .take();
  };
  const std::vector<float> want[] = {{5, 6, 1, 2, 9, 10}, {3, 4, 7, 8}};
  const auto parted = parts_of(*file.value());
  EXPECT_EQ(parted->gathered_bytes(), 10 * sizeof(float));
  const auto mapped = parted->map_tensors();
  ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
  const auto later = parts_of(*file.value()->map_tensors().value());
  const test::Bytes bytes = w.bytes();
  const auto memory =
      parts_of(*GgufFile::open_memory(bytes.data(), bytes.size(), "memory").value());
  for (size_t i = 0; i < 2; ++i) {
    const GgufTensor& t = parted->tensors()[i];
    EXPECT_EQ(t.data, nullptr);
    ASSERT_EQ(t.bytes, want[i].size() * sizeof(float));
    for (const GgufFile* f : {mapped.value().get(), later.get(), memory.get()}) {
      ASSERT_NE(f->tensors()[i].data, nullptr);
      EXPECT_EQ(std::memcmp(f->tensors()[i].data, want[i].data(), t.bytes), 0);
      EXPECT_TRUE(f->page_in(f->tensors()[i], 0, t.bytes).is_ok());
    }
    for (uint64_t at = 0; at < t.bytes; ++at) {
      for (uint64_t n = 1; n <= t.bytes - at; ++n) {
        test::Bytes read(n);
        ASSERT_TRUE(parted->read_tensor(t, at, read.data(), n).is_ok());
        const auto* from = reinterpret_cast<const std::byte*>(want[i].data()) + at;
        ASSERT_EQ(std::memcmp(read.data(), from, n), 0) << at << " " << n;
      }
    }
  }
}

/// Two runs of two rows and one: the columns of the former are rows of a part, in f32, whatever the
/// tensor's type; the latter are slabs of one row.
TEST(GgufParts, ColumnsOfRunsAreRowsOfSlabs) {
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kBF16}) {
    const float values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    test::Bytes data;
    for (const float v : values) {
      const auto bits = std::bit_cast<std::array<std::byte, 4>>(v);  // bf16: the upper half
      data.insert(data.end(), bits.begin() + (type == GgmlType::kF32 ? 0 : 2), bits.end());
    }
    GgufWriter w;
    w.value("general.architecture", "test");
    w.tensor("whole", type, {2, 6}, data);
    const test::Bytes bytes = w.bytes();
    const auto file = GgufFile::open_memory(bytes.data(), bytes.size(), "memory");
    ASSERT_TRUE(file.is_ok()) << file.status().text();
    const GgufTensor* whole = file.value()->find_tensor("whole");
    GgufPart turned{"turned", whole, {{0, 2, 2, 3}}, 2, true},
        rest{"rest", whole, {{2, 1, 2, 3}}, 2};
    const auto parted = file.value()->with_parts({turned, rest});
    ASSERT_TRUE(parted.is_ok()) << parted.status().text();
    const GgufTensor &t = parted.value()->tensors()[0], &r = parted.value()->tensors()[1];
    EXPECT_EQ(t.type, GgmlType::kF32);
    EXPECT_EQ(t.ne, (std::array<uint64_t, 4>{2, 2, 2, 1}));
    EXPECT_EQ(r.type, type);
    EXPECT_EQ(r.ne, (std::array<uint64_t, 4>{2, 1, 2, 1}));
    const std::vector<float> want = {1, 3, 2, 4, 7, 9, 8, 10};
    ASSERT_EQ(t.bytes, want.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(t.data, want.data(), t.bytes), 0);
    for (uint64_t at = 0; at < t.bytes; ++at) {
      for (uint64_t n = 1; n <= t.bytes - at; ++n) {
        test::Bytes read(n);
        ASSERT_TRUE(parted.value()->read_tensor(t, at, read.data(), n).is_ok());
        const auto* from = reinterpret_cast<const std::byte*>(want.data()) + at;
        ASSERT_EQ(std::memcmp(read.data(), from, n), 0) << at << " " << n;
      }
    }
  }
}

TEST(GgufParts, APartWithTheNameOfATensorIsRefused) {
  const std::string path = parts_path();
  ASSERT_TRUE(with_rows().write(path));
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const GgufTensor* whole = file.value()->find_tensor("whole");
  const auto parted =
      file.value()->with_parts({{"after", whole, {{0, 1}}}, {"b", whole, {{1, 2}}}});
  EXPECT_EQ(parted.status().code(), Code::kFormat);
  EXPECT_NE(parted.status().text().find("repeats the name \"after\""), std::string::npos)
      << parted.status().text();
}

}  // namespace
}  // namespace sharpi
