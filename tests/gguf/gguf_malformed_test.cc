// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"
#include "support/gguf_walk.h"
#include "support/gguf_writer.h"

namespace sharpi {
namespace {

using test::append;
using test::append_string;
using test::Bytes;
using test::GgufLayout;
using test::GgufWriter;
using test::patch;

constexpr uint64_t kKeyBytes = 8;  // the length field in front of a key or name

/// Five values and two tensors; each malformed file differs from it in one thing.
GgufWriter good() {
  GgufWriter w;
  w.value("general.architecture", "test").value("n", uint32_t{7}).value("flag", true);
  w.array("list", std::vector<uint32_t>{1, 2, 3});
  w.array("names", std::vector<std::string>{"a", "bb"});
  w.tensor_f32("norm", {4, 2}, std::vector<float>(8, 1.0f));
  w.tensor_random("weight", GgmlType::kQ8_0, {64}, 1);
  return w;
}

Result<std::shared_ptr<const GgufFile>> open_bytes(const Bytes& bytes) {
  // An exact copy on the heap, so that a sanitizer sees a read past its end.
  static std::vector<std::unique_ptr<std::byte[]>> kept;
  kept.emplace_back(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), kept.back().get());
  return GgufFile::open_memory(kept.back().get(), bytes.size(), "file");
}

/// The well-formed file with one number written over the byte that `where` finds.
template <class T>
Bytes patched(uint64_t (*where)(const GgufLayout&), T value) {
  GgufLayout layout;
  Bytes bytes = good().bytes(&layout);
  patch(bytes, where(layout), value);
  return bytes;
}

Bytes cut(uint64_t n_bytes) {
  Bytes bytes = good().bytes();
  bytes.resize(n_bytes);
  return bytes;
}

uint64_t at_magic(const GgufLayout&) {
  return 0;
}
uint64_t at_version(const GgufLayout&) {
  return 4;
}
uint64_t at_n_tensors(const GgufLayout&) {
  return 8;
}
uint64_t at_n_values(const GgufLayout&) {
  return 16;
}
uint64_t at_first_key(const GgufLayout& l) {
  return l.values[0];
}
uint64_t at_n_type(const GgufLayout& l) {
  return l.values[1] + kKeyBytes + 1;
}
uint64_t at_architecture(const GgufLayout& l) {
  return l.values[0] + kKeyBytes + 20 + 4;
}
uint64_t at_flag(const GgufLayout& l) {
  return l.values[2] + kKeyBytes + 4 + 4;
}
uint64_t at_list_type(const GgufLayout& l) {
  return l.values[3] + kKeyBytes + 4 + 4;
}
uint64_t at_list_count(const GgufLayout& l) {
  return at_list_type(l) + 4;
}
uint64_t at_names_count(const GgufLayout& l) {
  return l.values[4] + kKeyBytes + 5 + 4 + 4;
}
uint64_t at_second_name(const GgufLayout& l) {
  return at_names_count(l) + 8 + 8 + 1;
}
uint64_t at_norm_name(const GgufLayout& l) {
  return l.tensors[0];
}
uint64_t at_norm_dims(const GgufLayout& l) {
  return l.tensors[0] + kKeyBytes + 4;
}
uint64_t at_norm_ne0(const GgufLayout& l) {
  return at_norm_dims(l) + 4;
}
uint64_t at_norm_ne1(const GgufLayout& l) {
  return at_norm_ne0(l) + 8;
}
uint64_t at_norm_type(const GgufLayout& l) {
  return at_norm_ne1(l) + 8;
}
uint64_t at_weight_ne0(const GgufLayout& l) {
  return l.tensors[1] + kKeyBytes + 6 + 4;
}
uint64_t at_weight_type(const GgufLayout& l) {
  return at_weight_ne0(l) + 8;
}
uint64_t at_weight_offset(const GgufLayout& l) {
  return at_weight_type(l) + 4;
}

Bytes with_value(int32_t type_id, const Bytes& payload) {
  return GgufWriter().raw_value("bad", type_id, payload).bytes();
}
template <class T>
Bytes payload(std::initializer_list<T> numbers) {
  Bytes out;
  for (const T n : numbers) append(out, n);
  return out;
}
Bytes with_alignment(uint32_t alignment) {
  return good().value("general.alignment", alignment).bytes();
}
Bytes with_shape(std::vector<uint64_t> ne) {
  return GgufWriter().tensor("huge", GgmlType::kF32, std::move(ne), Bytes(64)).bytes();
}
Bytes with_forced(uint64_t n_tensors, uint64_t n_values) {
  GgufWriter w = good();
  w.forced_n_tensors = n_tensors;
  w.forced_n_values = n_values;
  return w.bytes();
}

struct Malformed {
  const char* name;
  std::function<Bytes()> make;
  Code code;
  const char* text;
};
void PrintTo(const Malformed& row, std::ostream* out) {
  *out << row.name;
}

class GgufMalformed : public ::testing::TestWithParam<Malformed> {};

TEST_P(GgufMalformed, IsRefusedWithItsOwnCodeAndText) {
  const auto file = open_bytes(GetParam().make());
  ASSERT_FALSE(file.is_ok());
  EXPECT_EQ(file.status().code(), GetParam().code) << file.status().text();
  EXPECT_NE(file.status().text().find(GetParam().text), std::string::npos) << file.status().text();
  EXPECT_EQ(file.status().text().rfind("file: ", 0), 0u) << "the text begins with the path";
}

const std::vector<Malformed>& header_rows() {
  static const auto* rows = new std::vector<Malformed>{
      {"empty_file", [] { return Bytes(); }, Code::kFormat, "a file of 0 bytes is shorter"},
      {"three_bytes", [] { return cut(3); }, Code::kFormat, "a file of 3 bytes is shorter"},
      {"magic_only", [] { return cut(4); }, Code::kFormat, "a file of 4 bytes is shorter"},
      {"header_cut", [] { return cut(23); }, Code::kFormat, "a file of 23 bytes is shorter"},
      {"older_container", [] { return patched(at_magic, uint32_t{0x6C6D6767}); }, Code::kFormat,
       "not a GGUF file: it starts with \"ggml\""},
      {"binary_magic", [] { return patched(at_magic, uint32_t{0x0422FF00}); }, Code::kFormat,
       "it starts with \"\\x00\\xff\"\\x04\""},
      {"version_zero", [] { return patched(at_version, uint32_t{0}); }, Code::kUnsupported,
       "GGUF version 0 is not supported (versions 2 and 3 are)"},
      {"version_one", [] { return patched(at_version, uint32_t{1}); }, Code::kUnsupported,
       "GGUF version 1 is not supported"},
      {"version_four", [] { return patched(at_version, uint32_t{4}); }, Code::kUnsupported,
       "GGUF version 4 is not supported"},
      {"big_endian", [] { return patched(at_version, uint32_t{0x03000000}); }, Code::kUnsupported,
       "the file is big-endian"},
      {"negative_tensor_count", [] { return patched(at_n_tensors, int64_t{-1}); }, Code::kFormat,
       "18446744073709551615 tensors exceed the limit of 1048576"},
      {"negative_value_count", [] { return patched(at_n_values, INT64_MIN); }, Code::kFormat,
       "9223372036854775808 metadata values exceed the limit of 65536"},
      {"tensor_count_that_overflows_bytes",
       [] { return patched(at_n_tensors, uint64_t{0x0555555555555556}); }, Code::kFormat,
       "384307168202282326 tensors exceed"},
      {"more_values_than_bytes", [] { return patched(at_n_values, uint64_t{60000}); },
       Code::kFormat, "60000 metadata values do not fit in the"},
      {"more_tensors_than_bytes", [] { return patched(at_n_tensors, uint64_t{100000}); },
       Code::kFormat, "100000 tensors do not fit in the"},
      {"tensors_crowded_out_by_values",
       [] {
         GgufWriter w;
         w.forced_n_tensors = 3;
         return w.value("long enough to make room for three tensors", std::string(100, 'x'))
             .bytes();
       },
       Code::kFormat, "3 tensors do not fit in the 0 bytes"},
      {"one_value_too_many", [] { return with_forced(2, 6); }, Code::kFormat,
       "tensor 0 of 2: the length 562949953421312 of its name exceeds"},
      {"one_value_too_few", [] { return with_forced(2, 4); }, Code::kFormat,
       "tensor 0 of 2 (\"names\"): it has 9 dimensions, expected 1 to 4"},
      {"one_tensor_too_many", [] { return with_forced(3, 5); }, Code::kFormat,
       "tensor 2 of 3: the name is empty"},
  };
  return *rows;
}

const std::vector<Malformed>& value_rows() {
  static const auto* rows = new std::vector<Malformed>{
      {"key_length_negative", [] { return patched(at_first_key, INT64_MIN); }, Code::kFormat,
       "metadata 0 of 5: the length 9223372036854775808 of its key exceeds"},
      {"key_length_wraps", [] { return patched(at_first_key, UINT64_MAX); }, Code::kFormat,
       "length 18446744073709551615 of its key exceeds"},
      {"key_empty", [] { return good().value("", 1u).bytes(); }, Code::kFormat,
       "metadata 5 of 6: the key is empty"},
      {"key_too_long", [] { return good().value(std::string(65537, 'k'), 1u).bytes(); },
       Code::kFormat, "metadata 5 of 6: the key has 65537 bytes, the limit is 65536"},
      {"value_type_thirteen", [] { return patched(at_n_type, int32_t{13}); }, Code::kFormat,
       "metadata 1 of 5 (\"n\"): its value type 13 is unknown"},
      {"value_type_negative", [] { return patched(at_n_type, int32_t{-1}); }, Code::kFormat,
       "metadata 1 of 5 (\"n\"): its value type -1 is unknown"},
      {"value_type_cut",
       [] {
         Bytes bytes = GgufWriter().value("some key", 1u).bytes();
         bytes.resize(bytes.size() - 6);
         return bytes;
       },
       Code::kFormat, "metadata 0 of 1 (\"some key\"): the file ends inside its type"},
      {"value_cut", [] { return with_value(10, payload<uint32_t>({1})); }, Code::kFormat,
       "metadata 0 of 1 (\"bad\"): the file ends inside its value"},
      {"string_length_wraps", [] { return patched(at_architecture, UINT64_MAX - 7); },
       Code::kFormat, "length 18446744073709551608 of its string exceeds"},
      {"string_one_byte_too_long",
       [] {
         Bytes p;
         append(p, uint64_t{5});
         p.resize(p.size() + 4);
         return with_value(8, p);
       },
       Code::kFormat, "length 5 of its string exceeds the 4 bytes"},
      {"string_length_cut", [] { return with_value(8, payload<uint32_t>({0})); }, Code::kFormat,
       "(\"bad\"): the file ends inside its string"},
      {"bool_two", [] { return patched(at_flag, uint8_t{2}); }, Code::kFormat,
       "metadata 2 of 5 (\"flag\"): bool 0 is stored as 2, not 0 or 1"},
      {"bool_in_array",
       [] {
         Bytes p = payload<int32_t>({7});
         append(p, uint64_t{3});
         for (const int b : {1, 0, 255}) append(p, static_cast<uint8_t>(b));
         return with_value(9, p);
       },
       Code::kFormat, "(\"bad\"): bool 2 is stored as 255"},
      {"nested_array", [] { return patched(at_list_type, int32_t{9}); }, Code::kFormat,
       "metadata 3 of 5 (\"list\"): nested arrays are not part of the format"},
      {"array_type_unknown", [] { return patched(at_list_type, int32_t{77}); }, Code::kFormat,
       "(\"list\"): its array element type 77 is unknown"},
      {"array_header_cut",
       [] {
         return with_value(9, payload<uint32_t>({4, 1}));
       },
       Code::kFormat, "(\"bad\"): the file ends inside its array header"},
      {"array_count_negative", [] { return patched(at_list_count, UINT64_MAX); }, Code::kFormat,
       "18446744073709551615 array elements of type u32 do not fit"},
      {"array_bytes_wrap",
       [] {
         Bytes p = payload<int32_t>({10});
         append(p, uint64_t{1} << 61);
         append(p, uint64_t{0});
         return with_value(9, p);
       },
       Code::kFormat, "2305843009213693952 array elements of type u64 do not fit"},
      {"array_one_element_too_many",
       [] {
         Bytes p = payload<int32_t>({2});
         append(p, uint64_t{3});
         p.resize(p.size() + 5);
         return with_value(9, p);
       },
       Code::kFormat, "3 array elements of type u16 do not fit in the 5 bytes"},
      {"string_array_count_absurd", [] { return patched(at_names_count, uint64_t{1} << 60); },
       Code::kFormat, "1152921504606846976 array elements of type string do not fit"},
      {"string_in_array_too_long", [] { return patched(at_second_name, uint64_t{4096}); },
       Code::kFormat, "(\"names\"): the length 4096 of string 1 of 2 exceeds"},
      {"string_in_array_wraps", [] { return patched(at_second_name, UINT64_MAX); }, Code::kFormat,
       "length 18446744073709551615 of string 1 of 2 exceeds"},
      {"string_array_cut",
       [] {
         Bytes p = payload<int32_t>({8});
         append(p, uint64_t{2});
         append_string(p, "0123456789");
         return with_value(9, p);
       },
       Code::kFormat, "the file ends inside the length of a string of its array"},
      {"key_repeated", [] { return good().value("n", 1u).bytes(); }, Code::kFormat,
       "metadata 5 repeats the key \"n\" of metadata 1"},
      {"alignment_type", [] { return good().value("general.alignment", uint64_t{32}).bytes(); },
       Code::kFormat, "(\"general.alignment\"): it is u64, but u32 is expected"},
      {"alignment_zero", [] { return with_alignment(0); }, Code::kFormat,
       "alignment 0 is not a power of two of at least 8"},
      {"alignment_odd", [] { return with_alignment(48); }, Code::kFormat,
       "alignment 48 is not a power of two"},
      {"alignment_small", [] { return with_alignment(4); }, Code::kFormat,
       "alignment 4 is not a power of two of at least 8"},
      {"alignment_absurd", [] { return with_alignment(1u << 31); }, Code::kFormat,
       "32 bytes at data offset 0 lie outside the file"},
      {"split_count_type", [] { return good().value("split.count", -2).bytes(); }, Code::kFormat,
       "metadata \"split.count\" is -2 (i32), expected an unsigned integer"},
  };
  return *rows;
}

const std::vector<Malformed>& tensor_rows() {
  static const auto* rows = new std::vector<Malformed>{
      {"name_length_wraps", [] { return patched(at_norm_name, UINT64_MAX); }, Code::kFormat,
       "tensor 0 of 2: the length 18446744073709551615 of its name exceeds"},
      {"name_empty", [] { return good().tensor_f32("", {1}, {1}).bytes(); }, Code::kFormat,
       "tensor 2 of 3: the name is empty"},
      {"name_too_long", [] { return good().tensor_f32(std::string(64, 'x'), {1}, {1}).bytes(); },
       Code::kFormat, "the name has 64 bytes, the limit is 63"},
      {"no_dimensions", [] { return patched(at_norm_dims, uint32_t{0}); }, Code::kFormat,
       "tensor 0 of 2 (\"norm\"): it has 0 dimensions, expected 1 to 4"},
      {"five_dimensions", [] { return patched(at_norm_dims, uint32_t{5}); }, Code::kFormat,
       "(\"norm\"): it has 5 dimensions, expected 1 to 4"},
      {"absurd_dimensions", [] { return patched(at_norm_dims, UINT32_MAX); }, Code::kFormat,
       "4294967295 dimensions"},
      {"zero_extent", [] { return patched(at_norm_ne1, uint64_t{0}); }, Code::kFormat,
       "(\"norm\"): dimension 1 is 0, expected at least 1"},
      {"negative_extent", [] { return patched(at_norm_ne0, int64_t{-1}); }, Code::kFormat,
       "(\"norm\"): dimension 0 is -1, expected at least 1"},
      {"product_wraps",
       [] {
         return with_shape({uint64_t{1} << 32, uint64_t{1} << 32});
       },
       Code::kFormat, "(\"huge\"): the product of its dimensions overflows"},
      {"product_wraps_in_the_fourth",
       [] {
         return with_shape({1u << 31, 1u << 31, 2, 1});
       },
       Code::kFormat, "(\"huge\"): the product of its dimensions overflows"},
      {"bytes_wrap",
       [] {
         return with_shape({uint64_t{1} << 62, 1});
       },
       Code::kFormat, "(\"huge\"): its size in bytes overflows"},
      {"bytes_wrap_to_a_small_number", [] { return with_shape({(uint64_t{1} << 62) + 4}); },
       Code::kFormat, "(\"huge\"): its size in bytes overflows"},
      {"removed_type", [] { return patched(at_norm_type, uint32_t{4}); }, Code::kFormat,
       "(\"norm\"): its tensor type 4 is unknown"},
      {"absurd_type", [] { return patched(at_norm_type, UINT32_MAX); }, Code::kFormat,
       "(\"norm\"): its tensor type 4294967295 is unknown"},
      {"row_no_multiple_of_the_block", [] { return patched(at_weight_ne0, uint64_t{33}); },
       Code::kFormat,
       "(\"weight\"): a row of 33 elements is no multiple of the 32 of a q8_0 block"},
      {"super_block_too_long", [] { return patched(at_weight_type, uint32_t{12}); }, Code::kFormat,
       "a row of 64 elements is no multiple of the 256 of a q4_k block"},
      {"offset_misaligned", [] { return patched(at_weight_offset, uint64_t{33}); }, Code::kFormat,
       "(\"weight\"): offset 33 is no multiple of the alignment 32"},
      {"offset_outside", [] { return patched(at_weight_offset, uint64_t{1} << 40); }, Code::kFormat,
       "68 bytes at data offset 1099511627776 lie outside the file"},
      {"offset_wraps", [] { return patched(at_weight_offset, uint64_t{0} - 32); }, Code::kFormat,
       "at data offset 18446744073709551584 lie outside the file"},
      {"offset_plus_size_wraps",
       [] {
         GgufWriter w = good();
         w.tensor("huge", GgmlType::kI8, {uint64_t{1} << 62}, Bytes(1));
         w.tensors()[2].forced_offset = uint64_t{3} << 62;
         return w.bytes();
       },
       Code::kFormat, "4611686018427387904 bytes at data offset 13835058055282163712 lie outside"},
      {"larger_than_the_file", [] { return patched(at_weight_ne0, uint64_t{1} << 20); },
       Code::kFormat, "1114112 bytes at data offset 32 lie outside the file"},
      {"one_byte_of_data_missing",
       [] {
         GgufLayout layout;
         good().bytes(&layout);
         return cut(layout.data + 32 + 68 - 1);
       },
       Code::kFormat, "(\"weight\"): 68 bytes at data offset 32 lie outside the file"},
      {"same_offset_twice", [] { return patched(at_weight_offset, uint64_t{0}); }, Code::kFormat,
       "tensor 1 of 2 (\"weight\"): its data overlaps that of tensor 0 (\"norm\")"},
      {"partial_overlap",
       [] {
         GgufWriter w = good();
         w.tensor_f32("late", {1}, {1});
         w.tensors()[2].forced_offset = 64;
         return w.bytes();
       },
       Code::kFormat, "tensor 2 of 3 (\"late\"): its data overlaps that of tensor 1 (\"weight\")"},
      {"name_repeated", [] { return good().tensor_f32("norm", {1}, {1}).bytes(); }, Code::kFormat,
       "tensor 2 repeats the name \"norm\" of tensor 0"},
      {"unprintable_name", [] { return GgufWriter().tensor_f32("a\n\x80", {0}, {}).bytes(); },
       Code::kFormat, "tensor 0 of 1 (\"a\\x0a\\x80\"): dimension 0 is 0"},
  };
  return *rows;
}

const auto kRowName = [](const auto& param) { return std::string(param.param.name); };
INSTANTIATE_TEST_SUITE_P(Header, GgufMalformed, ::testing::ValuesIn(header_rows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Metadata, GgufMalformed, ::testing::ValuesIn(value_rows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Tensors, GgufMalformed, ::testing::ValuesIn(tensor_rows()), kRowName);

TEST(GgufMalformedBase, IsWellFormedItself) {
  const auto file = open_bytes(good().bytes());
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  EXPECT_NE(test::walk(*file.value()), 0u);
}

TEST(GgufTruncation, EveryPrefixThatLacksDataIsRefusedAsMalformed) {
  GgufLayout layout;
  const Bytes bytes = good().bytes(&layout);
  const uint64_t last_byte = layout.data + 32 + 68;  // the padding behind it may be missing
  for (uint64_t n = 0; n < last_byte; ++n) {
    const auto file = open_bytes(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(n)));
    ASSERT_FALSE(file.is_ok()) << n << " bytes";
    EXPECT_EQ(file.status().code(), Code::kFormat) << n << " bytes";
    EXPECT_FALSE(file.status().text().empty());
  }
  for (uint64_t n = last_byte; n <= bytes.size(); ++n) {
    EXPECT_TRUE(open_bytes(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(n))).is_ok());
  }
}

TEST(GgufTruncation, CutAtASectionBoundaryNamesTheSectionThatIsMissing) {
  GgufLayout layout;
  const Bytes bytes = good().bytes(&layout);
  const auto text_at = [&](uint64_t n) {
    return open_bytes(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(n)))
        .status()
        .text();
  };
  EXPECT_NE(text_at(24).find("5 metadata values do not fit in the 0 bytes"), std::string::npos);
  EXPECT_NE(text_at(layout.values[4]).find("metadata 4 of 5: the file ends inside its key"),
            std::string::npos)
      << text_at(layout.values[4]);
  EXPECT_NE(text_at(layout.tensors[0]).find("2 tensors do not fit in the 0 bytes"),
            std::string::npos);
  EXPECT_NE(text_at(layout.tensors[1]).find("2 tensors do not fit"), std::string::npos);
  EXPECT_NE(text_at(layout.table_end).find("tensor 0 of 2 (\"norm\"): 32 bytes at data offset 0"),
            std::string::npos);
  EXPECT_NE(text_at(layout.data).find("tensor 0 of 2 (\"norm\"): 32 bytes at data offset 0"),
            std::string::npos);
  EXPECT_NE(text_at(layout.data + 32).find("tensor 1 of 2 (\"weight\"): 68 bytes"),
            std::string::npos);
}

TEST(GgufTruncation, CutInsideTheTensorTableNamesTheField) {
  GgufLayout layout;
  // Two names of 60 bytes make the table longer than the smallest one its count allows.
  GgufWriter wide;
  wide.tensor_f32(std::string(60, 'a'), {1}, {1}).tensor_f32(std::string(60, 'b'), {1}, {1});
  const Bytes bytes = wide.bytes(&layout);
  const uint64_t second = layout.tensors[1];
  const auto text_at = [&](uint64_t n) {
    return open_bytes(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(n)))
        .status()
        .text();
  };
  EXPECT_NE(text_at(second + 4).find("ends inside its name"), std::string::npos);
  EXPECT_NE(text_at(second + 68 + 2).find("inside its number of dimensions"), std::string::npos);
  EXPECT_NE(text_at(second + 68 + 4).find("inside its dimensions"), std::string::npos);
  EXPECT_NE(text_at(second + 68 + 12).find("inside its type"), std::string::npos);
  EXPECT_NE(text_at(second + 68 + 16).find("inside its offset"), std::string::npos);
}

TEST(GgufBitFlips, EveryFlippedBitOfTheHeaderOpensOrFailsCleanly) {
  GgufLayout layout;
  const Bytes bytes = good().bytes(&layout);
  uint64_t n_opened = 0, n_refused = 0;
  for (uint64_t bit = 0; bit < layout.table_end * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto file = open_bytes(flipped);
    if (file.is_ok()) {
      test::walk(*file.value());
      ++n_opened;
    } else {
      EXPECT_TRUE(file.status().code() == Code::kFormat ||
                  file.status().code() == Code::kUnsupported);
      ++n_refused;
    }
  }
  EXPECT_GT(n_opened, 0u);   // letters of keys and numbers of values
  EXPECT_GT(n_refused, 0u);  // counts, lengths, types
}

}  // namespace
}  // namespace sharpi
