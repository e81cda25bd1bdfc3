// SPDX-License-Identifier: MIT
#include "gguf/gguf_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "support/paths.h"
#include "support/system.h"

namespace sharpi {
namespace {

using test::Bytes;
using test::GgufLayout;
using test::GgufWriter;

std::string temp_path(const std::string& name) {
  return ::testing::TempDir() + "sharpi-gguf-" + std::to_string(getpid()) + "-" + name;
}

/// An open file and the bytes it reads from.
struct Opened {
  Bytes bytes;
  std::shared_ptr<const GgufFile> file;
};

Opened open_bytes(const GgufWriter& writer) {
  Opened o{writer.bytes(), nullptr};
  auto file = GgufFile::open_memory(o.bytes.data(), o.bytes.size(), "memory");
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  if (file.is_ok()) o.file = file.take();
  return o;
}

template <class T>
T get(Result<std::optional<T>> r) {
  EXPECT_TRUE(r.is_ok()) << r.status().text();
  EXPECT_TRUE(r.is_ok() && r.value().has_value());
  return r.is_ok() && r.value().has_value() ? *r.value() : T();
}

GgufWriter every_scalar() {
  GgufWriter w;
  w.value("u8", uint8_t{200}).value("i8", int8_t{-100}).value("u16", uint16_t{60000});
  w.value("i16", int16_t{-30000}).value("u32", uint32_t{4000000000}).value("i32", int32_t{-7});
  w.value("u64", UINT64_MAX).value("i64", INT64_MIN).value("f32", 0.1f).value("f64", 1e-300);
  w.value("yes", true).value("no", false).value("text", "qwen3").value("empty", "");
  return w;
}

TEST(GgufFile, IntegersOfEveryWidthReadAsUnsigned) {
  GgufWriter w = every_scalar();
  w.value("p8", int8_t{1})
      .value("p16", int16_t{2})
      .value("p32", int32_t{3})
      .value("p64", int64_t{4});
  const Opened o = open_bytes(w);
  EXPECT_EQ(get(o.file->get_uint("u8")), 200u);
  EXPECT_EQ(get(o.file->get_uint("u16")), 60000u);
  EXPECT_EQ(get(o.file->get_uint("u32")), 4000000000u);
  EXPECT_EQ(get(o.file->get_uint("u64")), UINT64_MAX);
  EXPECT_EQ(get(o.file->get_uint("p8")), 1u);
  EXPECT_EQ(get(o.file->get_uint("p16")), 2u);
  EXPECT_EQ(get(o.file->get_uint("p32")), 3u);
  EXPECT_EQ(get(o.file->get_uint("p64")), 4u);
}

TEST(GgufFile, AnyNumberReadsAsFloat) {
  const Opened o = open_bytes(every_scalar());
  EXPECT_EQ(get(o.file->get_float("f32")), double{0.1f});
  EXPECT_EQ(get(o.file->get_float("f64")), 1e-300);
  EXPECT_EQ(get(o.file->get_float("i8")), -100.0);
  EXPECT_EQ(get(o.file->get_float("u64")), 18446744073709551616.0);
  EXPECT_EQ(get(o.file->get_float("i64")), -9223372036854775808.0);
}

TEST(GgufFile, BoolsReadFromBoolsAndFromZeroAndOne) {
  GgufWriter w = every_scalar();
  w.value("one", uint32_t{1}).value("zero", int64_t{0});
  const Opened o = open_bytes(w);
  EXPECT_TRUE(get(o.file->get_bool("yes")));
  EXPECT_FALSE(get(o.file->get_bool("no")));
  EXPECT_TRUE(get(o.file->get_bool("one")));
  EXPECT_FALSE(get(o.file->get_bool("zero")));
}

TEST(GgufFile, StringsAreViewsIntoACopyOfTheHeader) {
  const Opened o = open_bytes(every_scalar());
  const std::string_view text = get(o.file->get_string("text"));
  EXPECT_EQ(text, "qwen3");
  const auto* begin = reinterpret_cast<const char*>(o.bytes.data());
  EXPECT_TRUE(text.data() < begin || text.data() >= begin + o.bytes.size());
  EXPECT_EQ(get(o.file->get_string("empty")), "");
}

TEST(GgufFile, AbsentKeysAndTensorsAreNoErrors) {
  const Opened o = open_bytes(GgufWriter().value("a", 1u));
  EXPECT_FALSE(o.file->get_uint("x").value().has_value());
  EXPECT_FALSE(o.file->get_float("x").value().has_value());
  EXPECT_FALSE(o.file->get_bool("").value().has_value());
  EXPECT_FALSE(o.file->get_string("aa").value().has_value());
  EXPECT_FALSE(o.file->get_int_array("x").value().has_value());
  EXPECT_FALSE(o.file->get_float_array("x").value().has_value());
  EXPECT_FALSE(o.file->get_string_array("x").value().has_value());
  EXPECT_EQ(o.file->find_value("x"), nullptr);
  EXPECT_EQ(o.file->find_tensor("x"), nullptr);
}

TEST(GgufFile, IntegerArraysWidenAndScalarsGiveOneElement) {
  GgufWriter w;
  w.array("u8", std::vector<uint8_t>{0, 255}).array("i16", std::vector<int16_t>{-5, 5});
  w.array("bools", std::vector<bool>{true, false, true}).value("one", int32_t{-9});
  w.array("none", std::vector<uint32_t>{});
  const Opened o = open_bytes(w);
  EXPECT_EQ(get(o.file->get_int_array("u8")), (std::vector<int64_t>{0, 255}));
  EXPECT_EQ(get(o.file->get_int_array("i16")), (std::vector<int64_t>{-5, 5}));
  EXPECT_EQ(get(o.file->get_int_array("bools")), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(get(o.file->get_int_array("one")), (std::vector<int64_t>{-9}));
  EXPECT_TRUE(get(o.file->get_int_array("none")).empty());
}

TEST(GgufFile, FloatArraysReadFromFloatsAndIntegers) {
  GgufWriter w;
  w.array("f32", std::vector<float>{0.5f, -1.5f}).array("f64", std::vector<double>{2.5});
  w.array("i32", std::vector<int32_t>{-3, 4}).value("one", 6.25f);
  const Opened o = open_bytes(w);
  EXPECT_EQ(get(o.file->get_float_array("f32")), (std::vector<float>{0.5f, -1.5f}));
  EXPECT_EQ(get(o.file->get_float_array("f64")), (std::vector<float>{2.5f}));
  EXPECT_EQ(get(o.file->get_float_array("i32")), (std::vector<float>{-3.0f, 4.0f}));
  EXPECT_EQ(get(o.file->get_float_array("one")), (std::vector<float>{6.25f}));
}

TEST(GgufFile, StringArraysKeepEveryByte) {
  const std::vector<std::string> tokens{"", "a", std::string("\0\n\xFF", 3), "\xC4\xA0the"};
  const Opened o = open_bytes(GgufWriter().array("tokens", tokens));
  const auto got = get(o.file->get_string_array("tokens"));
  ASSERT_EQ(got.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(got[i], tokens[i]);
}

TEST(GgufFile, LargeVocabularyKeepsItsOrder) {
  std::vector<std::string> tokens(151936);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "token " + std::to_string(i * 7919);
  const Opened o =
      open_bytes(GgufWriter().array("tokenizer.ggml.tokens", tokens).value("after", uint32_t{5}));
  const auto got = get(o.file->get_string_array("tokenizer.ggml.tokens"));
  ASSERT_EQ(got.size(), tokens.size());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), tokens.begin()));
  EXPECT_EQ(get(o.file->get_uint("after")), 5u);
}

struct WrongType {
  const char* name;
  const char* key;
  const char* getter;
  const char* text;
};
void PrintTo(const WrongType& row, std::ostream* out) {
  *out << row.name;
}
class GgufWrongType : public ::testing::TestWithParam<WrongType> {};

Status call_getter(const GgufFile& f, const std::string& getter, const char* key) {
  if (getter == "uint") return f.get_uint(key).status();
  if (getter == "float") return f.get_float(key).status();
  if (getter == "bool") return f.get_bool(key).status();
  if (getter == "string") return f.get_string(key).status();
  if (getter == "ints") return f.get_int_array(key).status();
  if (getter == "floats") return f.get_float_array(key).status();
  return f.get_string_array(key).status();
}

TEST_P(GgufWrongType, NamesTheKeyWhatWasFoundAndWhatIsExpected) {
  GgufWriter w = every_scalar();
  w.array("big", std::vector<uint64_t>{1, UINT64_MAX}).array("strings", std::vector<std::string>{});
  w.array("ints", std::vector<int32_t>{1}).array("floats", std::vector<float>{1});
  const Opened o = open_bytes(w);
  const Status s = call_getter(*o.file, GetParam().getter, GetParam().key);
  EXPECT_EQ(s.code(), Code::kFormat);
  EXPECT_EQ(s.text(), GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(
    Getters, GgufWrongType,
    ::testing::Values(
        WrongType{"uint_string", "text", "uint",
                  "metadata \"text\" is string, expected an unsigned integer"},
        WrongType{"uint_float", "f32", "uint",
                  "metadata \"f32\" is f32, expected an unsigned integer"},
        WrongType{"uint_bool", "yes", "uint",
                  "metadata \"yes\" is bool, expected an unsigned integer"},
        WrongType{"uint_negative", "i32", "uint",
                  "metadata \"i32\" is -7 (i32), expected an unsigned integer"},
        WrongType{"uint_array", "ints", "uint",
                  "metadata \"ints\" is array of i32, expected an unsigned integer"},
        WrongType{"float_bool", "yes", "float", "metadata \"yes\" is bool, expected a number"},
        WrongType{"float_array", "floats", "float",
                  "metadata \"floats\" is array of f32, expected a number"},
        WrongType{"bool_seven", "u8", "bool",
                  "metadata \"u8\" is 200 (u8), expected a bool or 0 or 1"},
        WrongType{"bool_minus", "i32", "bool",
                  "metadata \"i32\" is -7 (i32), expected a bool or 0 or 1"},
        WrongType{"bool_float", "f32", "bool",
                  "metadata \"f32\" is f32, expected a bool or 0 or 1"},
        WrongType{"string_int", "u32", "string", "metadata \"u32\" is u32, expected a string"},
        WrongType{"string_array", "strings", "string",
                  "metadata \"strings\" is array of string, expected a string"},
        WrongType{"ints_floats", "floats", "ints",
                  "metadata \"floats\" is array of f32, expected an array of integers or bools"},
        WrongType{"ints_big", "big", "ints",
                  "element 1 of metadata \"big\" is 18446744073709551615 (u64), expected an "
                  "integer of 63 bits"},
        WrongType{"floats_strings", "strings", "floats",
                  "metadata \"strings\" is array of string, expected an array of numbers"},
        WrongType{"floats_bool", "yes", "floats",
                  "metadata \"yes\" is bool, expected an array of numbers"},
        WrongType{"strings_string", "text", "strings",
                  "metadata \"text\" is string, expected an array of strings"},
        WrongType{"strings_ints", "ints", "strings",
                  "metadata \"ints\" is array of i32, expected an array of strings"}),
    [](const auto& param) { return std::string(param.param.name); });

struct TextRow {
  const char* key;
  const char* text;
};

TEST(GgufFile, ValuesReadAsText) {
  GgufWriter w = every_scalar();
  w.array("ints", std::vector<int8_t>{-1, 0, 1}).array("floats", std::vector<float>{0.1f, 1e30f});
  w.array("strings", std::vector<std::string>{"a", "", "b c"})
      .array("bools", std::vector<bool>{true});
  w.array("none", std::vector<double>{}).value("inf", HUGE_VAL);
  const Opened o = open_bytes(w);
  constexpr TextRow kRows[] = {{"u8", "200"},
                               {"i8", "-100"},
                               {"u16", "60000"},
                               {"i16", "-30000"},
                               {"u32", "4000000000"},
                               {"i32", "-7"},
                               {"u64", "18446744073709551615"},
                               {"i64", "-9223372036854775808"},
                               {"f32", "0.1"},
                               {"f64", "1e-300"},
                               {"yes", "true"},
                               {"no", "false"},
                               {"text", "qwen3"},
                               {"empty", ""},
                               {"ints", "[-1, 0, 1]"},
                               {"floats", "[0.1, 1e+30]"},
                               {"strings", "[a, , b c]"},
                               {"bools", "[true]"},
                               {"none", "[]"},
                               {"inf", "inf"}};
  for (const TextRow& row : kRows) {
    const GgufValue* value = o.file->find_value(row.key);
    ASSERT_NE(value, nullptr) << row.key;
    EXPECT_EQ(o.file->value_text(*value), row.text) << row.key;
  }
}

GgufWriter two_tensors(uint32_t version = 3) {
  GgufWriter w(version);
  w.value("general.architecture", "test");
  w.tensor_f32("a", {3, 2}, {1, 2, 3, 4, 5, 6});
  w.tensor_random("b", GgmlType::kQ4_K, {256, 2, 3}, 1);
  return w;
}

TEST(GgufFile, TensorsHaveTheirShapeSizeAndData) {
  const GgufWriter w = two_tensors();
  GgufLayout layout;
  w.bytes(&layout);
  const Opened o = open_bytes(w);
  ASSERT_EQ(o.file->tensors().size(), 2u);
  const GgufTensor& a = *o.file->find_tensor("a");
  EXPECT_EQ(a.type, GgmlType::kF32);
  EXPECT_EQ(a.n_dims, 2u);
  EXPECT_EQ(a.ne, (std::array<uint64_t, 4>{3, 2, 1, 1}));
  EXPECT_EQ(a.bytes, 24u);
  EXPECT_EQ(a.file_offset, layout.data);
  EXPECT_EQ(a.data, o.bytes.data() + layout.data);
  float last;
  std::memcpy(&last, a.data + 20, 4);
  EXPECT_EQ(last, 6.0f);
  const GgufTensor& b = o.file->tensors()[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.elements(), 1536u);
  EXPECT_EQ(b.bytes, 6u * 144);
  EXPECT_EQ(b.file_offset, layout.data + 32);
  EXPECT_EQ(std::memcmp(b.data, test::random_rows(GgmlType::kQ4_K, 1536, 1).data(), b.bytes), 0);
}

TEST(GgufFile, VersionTwoReadsLikeVersionThree) {
  const Opened two = open_bytes(two_tensors(2)), three = open_bytes(two_tensors(3));
  EXPECT_EQ(get(two.file->get_string("general.architecture")), "test");
  ASSERT_EQ(two.file->tensors().size(), 2u);
  EXPECT_EQ(two.file->tensors()[1].file_offset, three.file->tensors()[1].file_offset);
}

class GgufAlignment : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GgufAlignment, IsHonoured) {
  GgufWriter w;
  w.value("x", "shifts the table").alignment(GetParam());
  w.tensor_f32("a", {1}, {1}).tensor_f32("b", {1}, {2});
  const Opened o = open_bytes(w);
  ASSERT_NE(o.file, nullptr);
  for (const GgufTensor& t : o.file->tensors()) EXPECT_EQ(t.file_offset % GetParam(), 0u);
  float b;
  std::memcpy(&b, o.file->find_tensor("b")->data, 4);
  EXPECT_EQ(b, 2.0f);
}

INSTANTIATE_TEST_SUITE_P(PowersOfTwo, GgufAlignment, ::testing::Values(8u, 16u, 32u, 64u, 4096u));

TEST(GgufFile, KnownTypesThatCannotBeComputedAreSized) {
  GgufWriter w;
  w.tensor("iq", GgmlType::kIQ2_XXS, {512, 3}, Bytes(2 * 3 * 66));
  w.tensor("i64", GgmlType::kI64, {5}, Bytes(40));
  const Opened o = open_bytes(w);
  ASSERT_NE(o.file, nullptr);
  EXPECT_EQ(o.file->find_tensor("iq")->bytes, 396u);
  EXPECT_EQ(o.file->find_tensor("i64")->bytes, 40u);
  EXPECT_FALSE(ggml_traits(GgmlType::kIQ2_XXS).computable);
}

TEST(GgufFile, TensorsMayLieInAnyOrderWithGaps) {
  GgufWriter w;
  w.tensor_f32("late", {1}, {1}).tensor_f32("early", {1}, {2}).tensor_f32("end", {1}, {3});
  w.tensors()[0].forced_offset = 64;
  w.tensors()[2].forced_offset = 32;
  w.tensors()[1].forced_offset = 0;
  const Opened o = open_bytes(w);
  ASSERT_NE(o.file, nullptr);
  EXPECT_LT(o.file->find_tensor("early")->file_offset, o.file->find_tensor("late")->file_offset);
}

TEST(GgufFile, LastTensorNeedsNoPadding) {
  GgufLayout layout;
  Bytes bytes = GgufWriter().tensor_f32("a", {1}, {1}).bytes(&layout);
  bytes.resize(layout.data + 4);
  bytes.shrink_to_fit();
  EXPECT_TRUE(GgufFile::open_memory(bytes.data(), bytes.size(), "memory").is_ok());
}

TEST(GgufFile, FileWithoutTensorsOrMetadataIsWellFormed) {
  const Opened empty = open_bytes(GgufWriter());
  EXPECT_EQ(empty.file->values().size(), 0u);
  EXPECT_EQ(empty.file->tensors().size(), 0u);
  EXPECT_EQ(open_bytes(GgufWriter().value("only", 1u)).file->values().size(), 1u);
}

TEST(GgufFile, AFileOnDiskIsMappedOnlyWhenThatIsAskedFor) {
  const GgufWriter w = two_tensors();
  const std::string path = temp_path("mapped.gguf");
  ASSERT_TRUE(w.write(path));
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const GgufFile& f = *file.value();
  const Bytes bytes = w.bytes();
  EXPECT_EQ(f.path(), path);
  EXPECT_EQ(f.n_shards(), 1u);
  EXPECT_EQ(f.file_bytes(), bytes.size());
  const auto mapped = f.map_tensors();
  ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
  ASSERT_EQ(f.tensors().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const GgufTensor &there = f.tensors()[i], &here = mapped.value()->tensors()[i];
    EXPECT_EQ(there.data, nullptr);
    ASSERT_NE(here.data, nullptr);
    EXPECT_EQ(std::memcmp(here.data, bytes.data() + here.file_offset, here.bytes), 0);
    EXPECT_TRUE(mapped.value()->page_in(here, 1, here.bytes - 1).is_ok());
    EXPECT_TRUE(f.page_in(there, 1, there.bytes - 1).is_ok());  // nothing to do
  }
}

TEST(GgufFile, MissingFileIsNotFound) {
  const auto file = GgufFile::open(temp_path("missing.gguf"));
  EXPECT_EQ(file.status().code(), Code::kNotFound);
}

struct Hashes {
  uint64_t fingerprint, content;
};

Hashes hashes_of(const GgufWriter& w, time_t mtime) {
  const std::string path = temp_path("hash.gguf");
  EXPECT_TRUE(w.write(path));
  EXPECT_TRUE(test::set_modified(path, mtime));
  const auto file = GgufFile::open(path);
  unlink(path.c_str());
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  return {file.value()->fingerprint(), file.value()->content_id()};
}

TEST(GgufFile, FingerprintIsEqualForAnUnchangedFile) {
  const Hashes a = hashes_of(two_tensors(), 1000), b = hashes_of(two_tensors(), 1000);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.content, b.content);
}

TEST(GgufFile, TouchedCopyKeepsItsContentIdButNotItsFingerprint) {
  const Hashes a = hashes_of(two_tensors(), 1000), b = hashes_of(two_tensors(), 1001);
  EXPECT_NE(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.content, b.content);
}

TEST(GgufFile, OtherMetadataOrShapesChangeBothHashes) {
  const Hashes a = hashes_of(two_tensors(), 1000);
  GgufWriter other = two_tensors();
  other.value("extra", uint8_t{1});
  const Hashes b = hashes_of(other, 1000);
  EXPECT_NE(a.fingerprint, b.fingerprint);
  EXPECT_NE(a.content, b.content);
}

/// Adapters that are merged into a model change some kinds of tensors in all layers, or the last.
TEST(GgufFile, WeightsOfAnyKindChangeTheContentId) {
  constexpr uint32_t kLayers = 32;
  const char* const kinds[] = {"attn_norm", "attn_q",   "attn_k",   "attn_v", "attn_output",
                               "ffn_norm",  "ffn_gate", "ffn_down", "ffn_up"};
  const auto model = [&](std::string_view changed, uint32_t first_layer, uint32_t end) {
    GgufWriter w;
    w.value("general.architecture", "test");
    const auto add = [&](const std::string& name, bool other) {
      w.tensor_random(name, GgmlType::kQ8_0, {64, 4}, other ? 2 : 1);
    };
    add("output.weight", changed == "output");
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (const char* kind : kinds)
        add("blk." + std::to_string(l) + "." + kind + ".weight",
            changed == kind && l >= first_layer && l < end);
    }
    return hashes_of(w, 1000).content;
  };
  const uint64_t base = model("", 0, 0);
  EXPECT_EQ(model("", 0, 0), base);
  EXPECT_NE(model("output", 0, 0), base);
  for (const char* kind : kinds) {
    EXPECT_NE(model(kind, 0, kLayers), base) << kind;
    EXPECT_NE(model(kind, kLayers - 1, kLayers), base) << kind << " of the last layer";
    EXPECT_NE(model(kind, 0, kLayers / 2), base) << kind << " of the first half";
  }
}

/// Its first bytes may be those of padding, as embeddings of ids that nothing uses often are.
TEST(GgufFile, TheMiddleOfAWeightChangesTheContentId) {
  const auto with_byte = [](size_t at, char value) {
    Bytes data(4096);
    data[at] = static_cast<Bytes::value_type>(value);
    GgufWriter w;
    w.value("general.architecture", "test").tensor("a", GgmlType::kF32, {1024}, std::move(data));
    return hashes_of(w, 1000).content;
  };
  EXPECT_EQ(with_byte(2048, 0), with_byte(0, 0));
  EXPECT_NE(with_byte(2048, 1), with_byte(2048, 0));
}

TEST(GgufFile, ShippedModelsOpen) {
  struct Row {
    const char* file;
    const char* architecture;
  };
  constexpr Row kRows[] = {{"tiny-qwen3-q8_0.gguf", "qwen3"},
                           {"tiny-gemma4kv-q8_0.gguf", "gemma4"},
                           {"tiny-qwen35-q8_0.gguf", "qwen35"}};
  for (const Row& row : kRows) {
    const auto file = GgufFile::open(test::source_path("tests/fixtures/") + row.file);
    ASSERT_TRUE(file.is_ok()) << file.status().text();
    const GgufFile& f = *file.value();
    EXPECT_EQ(get(f.get_string("general.architecture")), row.architecture);
    const GgufTensor* embedding = f.find_tensor("token_embd.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(get(f.get_string_array("tokenizer.ggml.tokens")).size(), embedding->ne[1]);
  }
}

}  // namespace
}  // namespace sharpi
