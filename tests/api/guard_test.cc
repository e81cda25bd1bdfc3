// SPDX-License-Identifier: MIT
// The boundary's own machinery: what is thrown becomes a code, texts end, structs may grow.
#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_params.h"

namespace sharpi::api {
namespace {

sharpi_error fresh() {
  return SHARPI_ERROR_INIT;
}

TEST(Guard, PassesOkAndLeavesTheErrorAlone) {
  sharpi_error err = fresh();
  err.native_code = 7;
  EXPECT_EQ(guard(&err, [] { return Status::ok(); }), SHARPI_OK);
  EXPECT_EQ(err.native_code, 7);
}

TEST(Guard, CopiesCodeNativeCodeAndText) {
  sharpi_error err = fresh();
  const auto body = [] { return Status::native_error(Code::kIo, 5, "disk %d", 3); };
  EXPECT_EQ(guard(&err, body), SHARPI_E_IO);
  EXPECT_EQ(err.status, SHARPI_E_IO);
  EXPECT_EQ(err.native_code, 5);
  EXPECT_STREQ(err.text, "disk 3");
  EXPECT_EQ(guard(nullptr, body), SHARPI_E_IO);
}

TEST(Guard, TurnsBadAllocIntoOutOfMemory) {
  sharpi_error err = fresh();
  EXPECT_EQ(guard(&err, []() -> Status { throw std::bad_alloc(); }), SHARPI_E_OUT_OF_MEMORY);
  EXPECT_EQ(err.status, SHARPI_E_OUT_OF_MEMORY);
  EXPECT_GT(std::strlen(err.text), 0u);
}

TEST(Guard, TurnsEveryOtherExceptionIntoInternal) {
  sharpi_error err = fresh();
  EXPECT_EQ(guard(&err, []() -> Status { throw std::runtime_error("a\nb"); }), SHARPI_E_INTERNAL);
  EXPECT_STREQ(err.text, "a b");
  EXPECT_EQ(guard(&err, []() -> Status { throw 42; }), SHARPI_E_INTERNAL);
  EXPECT_GT(std::strlen(err.text), 0u);
}

TEST(CopyLine, BytesThatAreNoCharacterBecomeQuestionMarks) {
  char out[16];
  copy_line(
      "a\xFF"
      "b\xE2\x82"
      "c\xC3\xA9",
      out, sizeof out);
  EXPECT_STREQ(out, "a?b??c\xC3\xA9");
}

TEST(CopyLine, CutsInFrontOfACharacterThatDoesNotFit) {
  const std::string text = "ab\xE2\x82\xAC";  // a, b, euro sign
  for (size_t cap = 1; cap <= 6; ++cap) {
    char out[8];
    std::memset(out, 'x', sizeof out);
    copy_line(text, out, cap);
    EXPECT_EQ(std::string(out), cap <= 3 ? text.substr(0, cap - 1) : cap < 6 ? "ab" : text);
    EXPECT_EQ(out[cap], 'x') << cap;
  }
}

struct Grown {
  uint32_t struct_size;
  uint32_t first;
  uint64_t second;  // since version 2
  uint32_t third[2];
};
constexpr StructInfo kGrown{"grown", 8, sizeof(Grown)};
constexpr Grown kDefaults{sizeof(Grown), 1, 2, {3, 4}};

TEST(AdoptStruct, AnOlderCallerGetsDefaultsForWhatItDoesNotKnow) {
  for (const uint32_t size : {8u, 16u}) {
    Grown in{size, 11, 12, {13, 14}};
    Grown out = kDefaults;
    ASSERT_TRUE(adopt_struct(kGrown, &in, &out).is_ok());
    EXPECT_EQ(out.struct_size, sizeof(Grown));
    EXPECT_EQ(out.first, 11u);
    EXPECT_EQ(out.second, size == 8 ? 2u : 12u);
    EXPECT_EQ(out.third[1], 4u);
  }
}

TEST(AdoptStruct, ReadsNoByteBehindTheCallersStruct) {
  auto* in = static_cast<uint32_t*>(std::malloc(8));  // the sanitizer watches the ninth byte
  in[0] = 8;
  in[1] = 11;
  Grown out = kDefaults;
  EXPECT_TRUE(adopt_struct(kGrown, in, &out).is_ok());
  std::free(in);
  EXPECT_EQ(out.first, 11u);
}

TEST(AdoptStruct, ANewerCallerMayHaveAZeroTail) {
  struct {
    Grown known;
    uint64_t tail[2];
  } in{{sizeof in, 11, 12, {13, 14}}, {0, 0}};
  Grown out = kDefaults;
  ASSERT_TRUE(adopt_struct(kGrown, &in, &out).is_ok());
  EXPECT_EQ(out.third[1], 14u);
  EXPECT_EQ(out.struct_size, sizeof(Grown));
}

TEST(AdoptStruct, ANonZeroTailIsUnsupportedNamingStructAndOffset) {
  struct {
    Grown known;
    uint8_t tail[8];
  } in{{sizeof in, 11, 12, {13, 14}}, {0, 0, 0, 9, 9}};
  Grown out = kDefaults;
  const Status s = adopt_struct(kGrown, &in, &out);
  EXPECT_EQ(s.code(), Code::kUnsupported);
  EXPECT_NE(s.text().find("grown"), std::string::npos);
  EXPECT_NE(s.text().find("byte " + std::to_string(sizeof(Grown) + 3)), std::string::npos)
      << s.text();
  EXPECT_EQ(out.first, 1u);
}

TEST(AdoptStruct, BelowTheFirstVersionIsAForgottenInit) {
  for (const uint32_t size : {0u, 1u, 7u, 4097u, 0xFFFFFFFFu}) {
    Grown in{size, 11, 12, {13, 14}};
    Grown out = kDefaults;
    EXPECT_EQ(adopt_struct(kGrown, &in, &out).code(), Code::kInvalidArgument) << size;
  }
}

TEST(InitStruct, WritesWhatFitsAndZeroesTheRest) {
  struct {
    Grown known;
    uint8_t tail[8];
  } newer;
  std::memset(&newer, 0xAB, sizeof newer);
  init_struct(kGrown, &kDefaults, &newer, sizeof newer);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  EXPECT_EQ(newer.known.third[1], 4u);
  EXPECT_EQ(newer.tail[0], 0);
  EXPECT_EQ(newer.tail[7], 0);
  Grown older;
  std::memset(&older, 0xAB, sizeof older);
  init_struct(kGrown, &kDefaults, &older, 8);
  EXPECT_EQ(older.struct_size, 8u);
  EXPECT_EQ(older.first, 1u);
  EXPECT_EQ(older.second, 0xABABABABABABABABull);
}

TEST(CallGate, AdmitsReadersTogetherAndAWriterAlone) {
  CallGate gate;
  {
    SharedCall a(gate), b(gate);
    EXPECT_TRUE(a && b);
    ExclusiveCall w(gate);
    EXPECT_FALSE(w);
  }
  ExclusiveCall w(gate);
  EXPECT_TRUE(w);
  SharedCall r(gate);
  ExclusiveCall second(gate);
  EXPECT_FALSE(r || second);
}

}  // namespace
}  // namespace sharpi::api
