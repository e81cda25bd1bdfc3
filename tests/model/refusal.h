// SPDX-License-Identifier: MIT
// A model file that is bent in one way and must be refused, and the check that it is.
// Thread rule: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "support/tiny_model.h"

namespace sharpi {

struct Refusal {
  const char* name;
  test::ModelRecipe (*recipe)();
  void (*bend)(test::ModelFile&);
  Code code;
  std::vector<const char*> texts;  // all of them must be in the message
};

inline void PrintTo(const Refusal& r, std::ostream* os) {
  *os << r.name;
}

inline std::string refusal_name(const testing::TestParamInfo<Refusal>& info) {
  return info.param.name;
}

inline void expect_refused(const Refusal& r) {
  test::ModelFile file(r.recipe());
  ASSERT_TRUE(test::load_model(file, /*sparse=*/true).is_ok())
      << "the file is good before it is bent";
  r.bend(file);
  const auto opened = test::open_model(file, /*sparse=*/true);  // no weight matters here
  ASSERT_TRUE(opened.is_ok()) << opened.status().text();
  const auto spec = load_model_spec(opened.value());
  ASSERT_FALSE(spec.is_ok());
  const std::string& text = spec.status().text();
  EXPECT_EQ(spec.status().code(), r.code) << text;
  for (const char* part : r.texts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no " << part << " in: " << text;
  }
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace sharpi
