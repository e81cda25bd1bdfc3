// SPDX-License-Identifier: MIT
#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace sharpi {
namespace {

TEST(Json, StringsAreUtf8WhateverTheirBytesAre) {
  EXPECT_EQ(json_string("a\"b\\c\n\x1f"), "\"a\\\"b\\\\c\\u000a\\u001f\"");
  EXPECT_EQ(json_string("\xc3\xa9 \xf0\x9f\x98\x80"), "\"\xc3\xa9 \xf0\x9f\x98\x80\"");
  // A stray byte, a character that is cut off, a surrogate, an overlong form.
  EXPECT_EQ(json_string("x\xffy"), "\"x\xef\xbf\xbdy\"");
  EXPECT_EQ(json_string("\xf0\x9f\x98"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(json_string("\xed\xa0\x80z"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
  EXPECT_EQ(json_string("\xc0\xaf"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Json, NumbersThatJsonHasNotAreNull) {
  std::string text;
  JsonObject o(&text);
  o.real("a", 0.5);
  o.real("b", std::numeric_limits<double>::infinity());
  o.real("c", std::numeric_limits<double>::quiet_NaN());
  o.close();
  EXPECT_EQ(text, "{\"a\": 0.5, \"b\": null, \"c\": null}");
}

}  // namespace
}  // namespace sharpi
