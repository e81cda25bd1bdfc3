// SPDX-License-Identifier: MIT
// Regular expressions, GBNF, and calls of functions in text.
#include "text/grammar/compiled.h"

namespace sharpi::grammar {
namespace {

constexpr std::string_view kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
         "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
        {"name": "stop", "strict": false, "parameters": {"properties": {"a": {"not": {}}}}}])";

std::unique_ptr<Matcher> calls(bool must_call, bool single, std::string_view tool = {}) {
  GrammarRequest request;
  request.tools = kTools;
  request.tool = tool;
  request.must_call = must_call;
  request.single_call = single;
  return matcher_of(Grammar::compile(test_vocabulary(), request));
}

std::string refusal(GrammarKind kind, std::string_view text) {
  const auto made = compile(kind, text);
  return made.is_ok() ? "compiled" : made.status().text();
}

TEST(GrammarRegex, HasToMatchWhole) {
  expect_texts(GrammarKind::kRegex, {{"a(b|c)*d", {"ad", "abcbd"}, {"abx", "xad", "a"}},
                                     {"^\\d{2,3}$", {"12", "123"}, {"1", "1234"}},
                                     {"[^a-c]+\\.?", {"xyz", "é."}, {"abc", ""}},
                                     {"(?=.*\\d)[a-z0-9]{3}", {"a1b"}, {"abc"}},
                                     {"\\x41\\u{1F600}|\\cA", {"A😀", "\x01"}, {"A"}}});
}

TEST(GrammarRegex, SaysWhatItDoesNotTake) {
  EXPECT_EQ(refusal(GrammarKind::kRegex, "(a)\\1"),
            "the expression refers back to a group, which is not supported, at byte 4");
  EXPECT_EQ(refusal(GrammarKind::kRegex, "(?<=a)b"),
            "the expression looks back, which is not supported, at byte 4");
  EXPECT_EQ(refusal(GrammarKind::kRegex, "\\bword"),
            "the expression has a word boundary, which is not supported, at byte 1");
  EXPECT_EQ(refusal(GrammarKind::kRegex, "*a"), "the expression has nothing to repeat at byte 0");
  EXPECT_EQ(refusal(GrammarKind::kRegex, "[b-a]"),
            "the expression has a range whose end is before its beginning at byte 4");
  EXPECT_EQ(refusal(GrammarKind::kRegex, "a[^\\s\\S]"), "no text matches the grammar");
}

TEST(GrammarGbnf, Rules) {
  expect_texts(GrammarKind::kGbnf,
               {{"root ::= \"(\" root? \")\" | item (\",\" item)*\nitem ::= [a-z]+ # a comment\n | "
                 "\"1\"{2,3}",
                 {"()", "(())", "a,b", "11", "111,z"},
                 {"(", "1", "1111", "a,"}},
                {"root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= num | \"(\" expr \")\"\nnum "
                 "::= [0-9]+",
                 {"1+2", "(1-(2+3))"},
                 {"1+", "()"}},
                {"root ::= maybe maybe \"x\"\nmaybe ::= \"a\"?", {"x", "ax", "aax"}, {"aaax"}},
                {"root ::= \"\\x41\\n\" .", {"A\né"}, {"A\n"}}});
}

TEST(GrammarGbnf, SaysWhatIsWrong) {
  EXPECT_EQ(refusal(GrammarKind::kGbnf, "root ::= root \"a\" | \"b\""),
            "the rule root of the grammar begins with itself, or through too many others");
  EXPECT_EQ(refusal(GrammarKind::kGbnf, "root ::= foo"),
            "the grammar does not define the rule foo");
  EXPECT_EQ(refusal(GrammarKind::kGbnf, "a ::= \"b\""), "the grammar has no rule named root");
  EXPECT_EQ(refusal(GrammarKind::kGbnf, "root ::= \"a\"\nx = 3"),
            "line 2 of the grammar has no ::= behind the name x");
  EXPECT_EQ(refusal(GrammarKind::kGbnf, "root ::= \"a\" \"b\nroot ::= \"c\""),
            "line 1 of the grammar has a text without an end");
  for (const char* text : {"root ::= \"a\\", "root ::= [\\", "root ::= [a-\\", "root ::= \\"}) {
    EXPECT_EQ(compile(GrammarKind::kGbnf, text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(GrammarTools, ACallThatHasToCome) {
  const auto matcher = calls(true, false);
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
  EXPECT_TRUE(allows(*matcher, call));
  EXPECT_TRUE(allows(*matcher, call + "\n" + call));
  EXPECT_FALSE(allows(*calls(true, true), call + "\n" + call));
  EXPECT_FALSE(allows(*calls(true, true, "stop"), call));
  EXPECT_FALSE(allows(*matcher, "Rome."));
  EXPECT_FALSE(allows(*matcher,
                      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_TRUE(allows(*matcher,
                     "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
}

TEST(GrammarTools, ACallThatBeginsKeepsToItsSchema) {
  const auto matcher = calls(false, false);
  EXPECT_TRUE(allows(*matcher, "It is {\"warm\"} < 30 and <tool is no mark."));
  EXPECT_TRUE(allows(*matcher, ""));
  const std::string good = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
  const std::string bad = "{\"name\": \"get_weather\", \"arguments\": {\"town\": \"Rome\"}}";
  const std::string other = "{\"name\": \"shoot\", \"arguments\": {}}";
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"I look. <tool_call>\n", "\n</tool_call> Done."},
           {"[TOOL_CALLS][", "]"},
           {"<|python_tag|>", ""},
           {"", ""}}) {
    EXPECT_TRUE(allows(*matcher, open + good + close)) << open;
    EXPECT_FALSE(allows(*matcher, open + bad + close)) << open;
    EXPECT_FALSE(allows(*matcher, open + other + close)) << open;
  }
  EXPECT_TRUE(allows(*matcher,
                     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                     "{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>"));
  EXPECT_TRUE(allows(*matcher,
                     " to=functions.get_weather<|channel|>commentary json<|message|>"
                     "{\"city\": \"Rome\"}"));
  EXPECT_FALSE(
      allows(*matcher, " to=functions.get_weather<|channel|>commentary json<|message|>{}"));
  EXPECT_FALSE(allows(*matcher, "<|tool_call>call:stop{}<tool_call|>")) << "not this model's";
  const auto once = calls(false, true);
  const std::string call = "<tool_call>" + good + "</tool_call>";
  EXPECT_TRUE(allows(*once, call + "text"));
  EXPECT_FALSE(allows(*once, call + call));
}

// Calls in the model's own spelling: its marks, then what stands between them.
struct OwnCase {
  const char *chat_template, *open, *close;
  std::vector<const char*> good, bad;
};

const std::vector<OwnCase>& own_cases() {
  static const std::vector<OwnCase> cases = {
      {"{{ '<|tool_call>call:' }}",
       "<|tool_call>call:",
       "<tool_call|>",
       {"find{city:<|\"|>Rome, \"Lazio\"\n<|\"|>}",
        "find{city:<|\"|><b>}<tool_call|><|\"|>,days:3}",
        "find{city:<|\"|>R<|\"|>,days:null,tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>],when:{from-day:1}}",
        "find{city:<|\"|>R<|\"|>,code:<|\"|>AB<|\"|>}", "other{x:{y:[true,<|\"|>z<|\"|>]}}",
        "other{}"},
       {"find{}", "find{city:Rome}", "find{city:\"Rome\"}", "find{city:<|\"|>R<|\"|>,days:0}",
        "find{city:<|\"|>R<|\"|>,days:<|\"|>3<|\"|>}", "find{city:<|\"|>R<|\"|>,extra:1}",
        "find{\"city\":<|\"|>R<|\"|>}", "find{city:<|\"|>R<|\"|>,code:<|\"|>A<|\"|>}",
        "find{city:<|\"|>R<|\"|>,code:<|\"|>ABCD<|\"|>}", "shoot{}", "find(city=\"R\")"}},
      {"<start_function_call>call:",
       "<start_function_call>call:",
       "<end_function_call>",
       {"find{city:<escape>R<|\"|>o<escape>,days:2}", "other{a:<escape><escape>}"},
       {"find{city:<|\"|>R<|\"|>}", "find{city:<escape>R<escape>,days:true}"}},
      {"<|tool_call_start|>[",
       "<|tool_call_start|>[",
       "]<|tool_call_end|>",
       {"find(city=\"Rome\\n\")", "find(city=\")]\", days=None, when={\"from-day\": 2})",
        "find(city=\"R\", tags=[\"a\"])", "other()", "other(x={\"y\": [True, None]}, z=\"1\")"},
       {"find()", "find(city='R')", "find(\"R\")", "find(city=\"R\", days=null)",
        "find(city=\"R\", days=\"3\")", "find(city=\"R\", extra=1)", "find{city:\"R\"}"}},
      {"<tool_call>\n<function=x>\n<parameter=y>",
       "<tool_call>\n<function=",
       "</function>\n</tool_call>",
       {"find>\n<parameter=city>\nRome, \"Lazio\"\n\n</parameter>\n",
        "find>\n<parameter=city>\n\n</parameter>\n<parameter=code>\nAB\n</parameter>\n",
        "find>\n<parameter=city>\n<b></function>\n</tool_call>\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n",
        "find>\n<parameter=city>\n{\"a\": 1}\n</parameter>\n<parameter=days>\nnull\n</parameter>\n"
        "<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n"
        "<parameter=when>\n{\"from-day\": 1}\n</parameter>\n",
        "other>\n<parameter=x>\n1\n</parameter>\n", "other>\n"},
       {"find>\n", "find>\n<parameter=city>\nRome</parameter>\n",
        "find>\n<parameter=city>\na</parameter>b\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=days>\n0\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=days>\n\"3\"\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=extra>\n1\n</parameter>\n",
        "find>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nR\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=code>\nA\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=code>\n\"AB\"\n</parameter>\n",
        "find>\n<parameter=city>\nR\n</parameter>\n<parameter=code>\nABCD\n</parameter>\n",
        "shoot>\n"}},
      {"<tool_call>x\n<arg_key>",
       "<tool_call>",
       "</tool_call>",
       {"find\n<arg_key>city</arg_key>\n<arg_value>Rome\n</parameter></arg_value>\n",
        "find<arg_key>city</arg_key><arg_value></arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value>",
        "find\n<arg_key>city</arg_key>\n<arg_value>R</tool_call></arg_value>\n"
        "<arg_key>when</arg_key>\n<arg_value>{\"from-day\": 1}</arg_value>\n",
        "other\n<arg_key>x</arg_key>\n<arg_value>[</arg_value>\n", "other\n", "other"},
       {"find\n", "find\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>b</arg_value>\n",
        "find\n<arg_key>city</arg_key>\n<arg_value>R</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>10</arg_value>\n",
        "find\n<arg_key>city</arg_key>\n<arg_value>R</arg_value>\n<arg_key>code</arg_key>\n"
        "<arg_value>A1</arg_value>\n",
        "shoot\n"}}};
  return cases;
}

GrammarRequest own_request(const char* chat_template) {
  GrammarRequest request;
  request.tools =
      R"([{"type": "function", "function": {"name": "find", "strict": true, "parameters":
        {"type": "object", "properties": {"city": {"type": "string"},
          "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
          "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
          "code": {"type": "string", "pattern": "^[A-Z]+$", "minLength": 2, "maxLength": 3},
          "when": {"type": "object", "properties": {"from-day": {"type": "integer"}}}},
        "required": ["city"], "additionalProperties": false}}}, {"name": "other"}])";
  request.chat_template = chat_template;
  return request;
}

TEST(GrammarTools, CallsInTheModelsOwnSpellingKeepToTheirSchemas) {
  for (const OwnCase& c : own_cases()) {
    GrammarRequest request = own_request(c.chat_template);
    const auto in_text = matcher_of(Grammar::compile(test_vocabulary(), request));
    request.must_call = true;
    const auto alone = matcher_of(Grammar::compile(test_vocabulary(), request));
    for (const char* call : c.good) {
      const std::string text = std::string(c.open) + call + c.close;
      EXPECT_TRUE(allows(*alone, text)) << text;
      EXPECT_TRUE(allows(*in_text, "I look. " + text + " Done.")) << text;
    }
    for (const char* call : c.bad) {
      const std::string text = std::string(c.open) + call + c.close;
      EXPECT_FALSE(allows(*alone, text)) << text;
      EXPECT_FALSE(allows(*in_text, "I look. " + text)) << text;
    }
    EXPECT_FALSE(allows(*alone, "I look."));
    EXPECT_TRUE(allows(*in_text, "I look."));
    const std::string hermes =
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>";
    EXPECT_FALSE(allows(*alone, hermes));
    EXPECT_TRUE(allows(*in_text, hermes));
  }
}

TEST(GrammarTools, HowManyCallsOfTheModelsOwnSpelling) {
  const std::string gemma = "<|tool_call>call:other{}<tool_call|>";
  const std::string list = "<|tool_call_start|>[other(), other()]<|tool_call_end|>";
  for (const bool single : {false, true}) {
    for (const bool must_call : {false, true}) {
      GrammarRequest request = own_request("<|tool_call>");
      request.single_call = single;
      request.must_call = must_call;
      const auto calls = matcher_of(Grammar::compile(test_vocabulary(), request));
      EXPECT_TRUE(allows(*calls, gemma));
      EXPECT_EQ(allows(*calls, gemma + gemma), !single);
      request.chat_template = "<tool_call> <parameter=";
      const std::string tags = "<tool_call>\n<function=other>\n</function>\n</tool_call>";
      const auto tagged = matcher_of(Grammar::compile(test_vocabulary(), request));
      EXPECT_TRUE(allows(*tagged, tags));
      EXPECT_EQ(allows(*tagged, tags + "\n" + tags), !single);
      request.chat_template = "<|tool_call_start|>";
      EXPECT_EQ(allows(*matcher_of(Grammar::compile(test_vocabulary(), request)), list), !single);
    }
  }
}

TEST(GrammarTools, NamesThatTheOwnSpellingCannotWrite) {
  GrammarRequest request;
  request.tools = R"([{"name": "f", "parameters": {"properties": {"a=b": {}}}}])";
  request.chat_template = "<|tool_call_start|>";
  auto made = Grammar::compile(test_vocabulary(), request);
  ASSERT_FALSE(made.is_ok());
  EXPECT_EQ(made.status().text(),
            "tools[0].parameters.properties.a=b has a name that this model's calls cannot spell");
  request.chat_template = "<|tool_call>";  // which has quotes for it
  request.must_call = true;
  const auto calls = matcher_of(Grammar::compile(test_vocabulary(), request));
  EXPECT_TRUE(allows(*calls, "<|tool_call>call:f{<|\"|>a=b<|\"|>:1}<tool_call|>"));
  request.tools = R"([{"name": "f{"}])";
  made = Grammar::compile(test_vocabulary(), request);
  ASSERT_FALSE(made.is_ok());
  EXPECT_EQ(made.status().text(), "tools[0] has a name that this model's calls cannot spell");
}

// What is written between tags is read by the argument's schema: as a text where that may be one.
TEST(GrammarTools, ArgumentsBetweenTagsAreWrittenAsTheyAreRead) {
  GrammarRequest request;
  request.must_call = true;
  request.chat_template = "<tool_call> <parameter=";
  std::string tools;
  const auto made_for = [&](const std::string& argument) {
    tools = R"([{"name": "f", "parameters": {"properties": {"a": )" + argument + "}}}]";
    request.tools = tools;
    return Grammar::compile(test_vocabulary(), request);
  };
  struct Case {
    const char* argument;
    std::vector<const char*> good, bad;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"({"type": ["string", "null"]})",
            {"null", "nullx", "\"null\"", ""},
            {" null", "null\n"}},
           {R"({"enum": ["a", "1", 1, 2, true, null, [3]]})",
            {"a", "1", "2", "true", "null", "[3]"},
            {"\"a\"", "b", "3", "false"}},
           {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]})",
            {"12", "ab"},
            {"123", "abc"}},
           {R"({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]})",
            {"12", "[\"</parameter>\"]"},
            {"ab", "\"12\"", "[1]"}},
           {R"({"minimum": 3})", {"3", "4.5"}, {"2", "x"}},
           {R"({"format": "date"})", {"2026-11-28"}, {"\"2026-11-28\"", "2026"}},
           {R"({"const": "x\ny"})", {"x\ny"}, {"x\\ny"}}}) {
    const auto calls = matcher_of(made_for(c.argument));
    const auto text = [](const char* value) {
      return std::string("<tool_call>\n<function=f>\n<parameter=a>\n") + value +
             "\n</parameter>\n</function>\n</tool_call>";
    };
    for (const char* value : c.good) {
      EXPECT_TRUE(allows(*calls, text(value))) << c.argument << value;
    }
    for (const char* value : c.bad) {
      EXPECT_FALSE(allows(*calls, text(value))) << c.argument << value;
    }
  }
  const std::string a = "tools[0].parameters.properties.a ";
  for (const char* argument :
       {R"({"const": "</parameter>"})",
        R"({"type": ["string", "integer"], "allOf": [{"type": "integer"}]})"}) {
    const auto made = made_for(argument);
    ASSERT_FALSE(made.is_ok()) << argument;
    EXPECT_EQ(made.status().text(), a + "has no value that this model's calls can spell");
  }
}

TEST(GrammarTools, WhatTagsCannotSpellIsRefusedByName) {
  GrammarRequest request;
  request.chat_template = "<tool_call> <arg_key>";
  const auto refusal = [&](const char* tools) {
    request.tools = tools;
    const auto made = Grammar::compile(test_vocabulary(), request);
    return made.is_ok() ? std::string("compiled") : made.status().text();
  };
  EXPECT_EQ(refusal(R"([{"name": "f", "parameters": {"properties": {"a<b": {}}}}])"),
            "tools[0].parameters.properties.a<b has a name that this model's calls cannot spell");
  EXPECT_EQ(refusal(R"([{"name": "f", "parameters": {"patternProperties": {"^a": {}}}}])"),
            "tools[0].parameters has patterns of names, which this model's calls cannot keep to");
  EXPECT_EQ(refusal(R"([{"name": "f", "parameters": {"enum": [{"a": 1}]}}])"),
            "tools[0].parameters lists whole arguments, which this model's calls cannot keep to");
  EXPECT_EQ(refusal(R"([{"name": "f g"}])"),
            "tools[0] has a name that this model's calls cannot spell");
  EXPECT_EQ(refusal(R"([{"name": "f:g/h", "parameters": {"properties": {"a[b]:c": {}}}}])"),
            "compiled");
}

TEST(GrammarTools, ArgumentsAreAnObjectWhateverTheSchemaSays) {
  GrammarRequest request;
  request.tools = R"([{"name": "f", "parameters": {"title": "Anything"}}])";
  request.must_call = true;
  const auto calls = matcher_of(Grammar::compile(test_vocabulary(), request));
  EXPECT_TRUE(
      allows(*calls, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
  EXPECT_FALSE(
      allows(*calls, "<tool_call>\n{\"name\": \"f\", \"arguments\": \"a\"}\n</tool_call>"));
}

TEST(GrammarTools, TextOfASchemaOrCalls) {
  GrammarRequest request;
  request.kind = GrammarKind::kJsonSchema;
  request.text = R"({"type": "integer"})";
  request.tools = kTools;
  const auto matcher = matcher_of(Grammar::compile(test_vocabulary(), request));
  EXPECT_TRUE(allows(*matcher, "12"));
  EXPECT_TRUE(
      allows(*matcher, "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(allows(*matcher, "text"));
}

}  // namespace
}  // namespace sharpi::grammar
