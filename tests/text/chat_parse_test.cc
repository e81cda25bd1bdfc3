// SPDX-License-Identifier: MIT
#include "text/chat_parse.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace sharpi {
namespace {

struct ParseCase {
  const char* prompt;
  const char* text;
  const char* reasoning;
  const char* content;
  const char* tool_calls;
};

#define SHARPI_CALL(arguments) \
  "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]"

constexpr ParseCase kCases[] = {
    {"", "Hello.\n", "", "Hello.", ""},
    {"", "", "", "", ""},
    {"", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes.", ""},
    {"<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nYes.", "hm", "Yes.", ""},
    {"<think>\n\n</think>\n\n", "Yes.", "", "Yes.", ""},
    {"", "<think>never ends", "never ends", "", ""},
    {"", "<|channel>thought\nhm<channel|>Yes.", "hm", "Yes.", ""},
    {"", "[THINK]hm[/THINK]Yes.", "hm", "Yes.", ""},
    {"", "1 < 2 <b>x</b> <thin", "", "1 < 2 <b>x</b> <thin", ""},
    {"", "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1]}}\n</tool_call>", "",
     "I look.", SHARPI_CALL("{\"x\": [1]}")},
    {"", "<tool_call>{\"name\": \"f\", \"parameters\": {}}</tool_call>", "", "", SHARPI_CALL("{}")},
    {"", "<tool_call>{\"name\": \"f\"}", "", "", SHARPI_CALL("{}")},
    {"",
     "<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\n7\n</"
     "parameter>\n"
     "</function>\n</tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"x\\ny\", \"b\": \"7\"}")},
    {"",
     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>[1, true]</arg_value>\n</tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"x\", \"b\": \"[1, true]\"}")},
    {"", "<tool_call>{broken</tool_call> then", "", "<tool_call>{broken</tool_call> then", ""},
    {"", "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>b", "a", "b", SHARPI_CALL("{}")},
    // Mistral: an array, or names with arguments behind them.
    {"", "Ok.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": \"]\"}}]", "", "Ok.",
     SHARPI_CALL("{\"x\": \"]\"}")},
    {"", "[TOOL_CALLS]f[ARGS]{\"x\": {\"y\": 1}}", "", "", SHARPI_CALL("{\"x\": {\"y\": 1}}")},
    {"", "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}", "", "",
     "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}, \"id\": "
     "\"a1b2c3d4e\"}]"},
    {"", "[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{}", "hm", "", SHARPI_CALL("{}")},
    {"", "[TOOL_CALLS] none here", "", "[TOOL_CALLS] none here", ""},
    {"", "[TOOL_CALLS][{\"name\": \"f\", \"argum", "", "[TOOL_CALLS][{\"name\": \"f\", \"argum",
     ""},
    // DeepSeek, before V3.1 and since.
    {"<think>\n",
     "hm\n</think>\n\nI "
     "look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
     "{\"x\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "hm", "I look.", SHARPI_CALL("{\"x\": 1}")},
    {"",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": "
     "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "", "", SHARPI_CALL("{\"x\": 1}")},
    {"", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>", "",
     "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>", ""},
    // What 64 bits do not hold stays as it is written, half of a character becomes a character.
    {"", "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1e400,\"y\":-1e999}}</tool_call>", "", "",
     SHARPI_CALL("{\"x\": 1e400, \"y\": -1e999}")},
    {"", "<tool_call>{\"name\":\"f\",\"arguments\":{\"id\":12345678901234567890}}</tool_call>", "",
     "", SHARPI_CALL("{\"id\": 12345678901234567890}")},
    {"", "[TOOL_CALLS]f[ARGS]{\"x\": [-99999999999999999999, 1e400]}", "", "",
     SHARPI_CALL("{\"x\": [-99999999999999999999, 1e400]}")},
    {"", "<tool_call><function=f><parameter=x>\n12345678901234567890\n</parameter></function>", "",
     "", SHARPI_CALL("{\"x\": \"12345678901234567890\"}")},
    {"", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"\\ud83d\"}}</tool_call>", "", "",
     SHARPI_CALL("{\"s\": \"\xEF\xBF\xBD\"}")},
    {"", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"\\ud83dx\\ud83d\\ud83d\\ude42\"}}", "",
     "", SHARPI_CALL("{\"s\": \"\xEF\xBF\xBDx\xEF\xBF\xBD\U0001F642\"}")},
    // Gemma 4 and FunctionGemma: texts between marks, other values without.
    {"", "<|tool_call>call:f{city:<|\"|>Paris<|\"|>,n:3,ok:true}<tool_call|>", "", "",
     SHARPI_CALL("{\"city\": \"Paris\", \"n\": 3, \"ok\": true}")},
    {"", "Ok.<|tool_call>call:f{a:[<|\"|>x}<tool_call|><|\"|>,{b:null}],c:{d:1.5}}<tool_call|>", "",
     "Ok.", SHARPI_CALL("{\"a\": [\"x}<tool_call|>\", {\"b\": null}], \"c\": {\"d\": 1.5}}")},
    {"", "<|tool_call>call:f{}<tool_call|>", "", "", SHARPI_CALL("{}")},
    {"", "<|tool_call>call:f{a:b c, d:\"e\"}<tool_call|>", "", "",
     SHARPI_CALL("{\"a\": \"b c\", \"d\": \"e\"}")},
    {"", "<|tool_call>call:f{a", "", "<|tool_call>call:f{a", ""},
    {"", "<start_function_call>call:f{a:<escape>x, y<escape>}<end_function_call>", "", "",
     SHARPI_CALL("{\"a\": \"x, y\"}")},
    // LFM2: calls as Python writes them, or JSON.
    {"",
     "<|tool_call_start|>[f(a=\"x\", n=[1, -2.5], o={'k': None, \"t\": True})]<|tool_call_end|>On.",
     "", "On.", SHARPI_CALL("{\"a\": \"x\", \"n\": [1, -2.5], \"o\": {\"k\": null, \"t\": true}}")},
    {"", "I look.<|tool_call_start|>[f()]<|tool_call_end|>", "", "I look.", SHARPI_CALL("{}")},
    {"",
     "<|tool_call_start|>[f(a='it\\'s\\n\\x41\\u00e9\\ud83d\\ude00\\q', b=(1,), "
     ")]<|tool_call_end|>",
     "", "", SHARPI_CALL("{\"a\": \"it's\\nA\u00e9\U0001F600\\\\q\", \"b\": [1]}")},
    {"", "<|tool_call_start|>[f(a=\")]<|tool_call_end|>\")]<|tool_call_end|>", "", "",
     SHARPI_CALL("{\"a\": \")]<|tool_call_end|>\"}")},
    {"", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|tool_call_end|>", "",
     "", SHARPI_CALL("{\"a\": 1}")},
    {"", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "",
     "<|tool_call_start|>[f(1)]<|tool_call_end|>", ""},
    {"", "<|tool_call_start|>[f(a=\"x)]<|tool_call_end|>", "",
     "<|tool_call_start|>[f(a=\"x)]<|tool_call_end|>", ""},
    // What ends a call ends nothing inside a string.
    {"",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call><think>\"}}</tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"</tool_call><think>\"}")},
    {"",
     "<tool_call><function=f><parameter=a>\nx </parameter> y</tool_call>\n\n</parameter>\n"
     "</parameter></function></tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"x </parameter> y</tool_call>\\n\"}")},
    {"", "<tool_call><function=f><parameter=a>x</function></tool_call>", "",
     "<tool_call><function=f><parameter=a>x</function></tool_call>", ""},
    {"", "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value>y</arg_value></tool_call>", "",
     "", SHARPI_CALL("{\"a\": \"x</arg_value>y\"}")},
    // A mark of thoughts in the middle of an answer is text.
    {"", "Write <think> first, </think> last.", "", "Write <think> first, </think> last.", ""},
    {"", "<think>a</think>\n<think>b</think>c<think>d</think>", "a\nb", "c<think>d</think>", ""},
    // A thought without an end ends where a call begins; one that ends may speak of calls.
    {"<think>\n", "hm\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\nthen", "hm", "then",
     SHARPI_CALL("{}")},
    {"<think>\n", "hm <tool_call>{\"name\": \"f\"}</tool_call> no.</think>Yes.",
     "hm <tool_call>{\"name\": \"f\"}</tool_call> no.", "Yes.", ""},
    {"<think>\n", "say <tool_call> and stop", "say <tool_call> and stop", "", ""},
    {"<think>\n", "hm[TOOL_CALLS]f[ARGS]{}", "hm", "", SHARPI_CALL("{}")},
    // gpt-oss.
    {"<|start|>assistant",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|"
     "return|>",
     "hm", "Yes.", ""},
    {"<|start|>assistant", "<|channel|>analysis<|message|>never ends", "never ends", "", ""},
    {"<|start|>assistant<|channel|>analysis<|message|>", "hm<|end|>", "hm", "", ""},
    {"<|end|><|start|>assistant",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f "
     "<|constrain|>json<|message|>{\"x\": 1}<|call|>",
     "hm", "", SHARPI_CALL("{\"x\": 1}")},
    {"<|start|>assistant", " to=functions.f<|channel|>commentary<|message|>{}", "", "",
     SHARPI_CALL("{}")},
    {"<|start|>assistant", "<|channel|>commentary<|message|>I look.<|end|>", "", "I look.", ""},
    {"<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>{\"x\"<|call|>", "",
     "<|channel|>commentary to=functions.f<|message|>{\"x\"<|call|>", ""},
    {"<|start|>assistant", "Plain words.", "", "Plain words.", ""},
    {"", "The mark <|start|> is\nan old one.", "", "The mark <|start|> is\nan old one.", ""},
    {"I ask about <|start|>assistant!\n<think>\n", "hm</think>Yes.", "hm", "Yes.", ""},
    // Llama 3: no mark at all, or one in front.
    {"", "{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}", "", "",
     SHARPI_CALL("{\"x\": \"}\"}")},
    {"", "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "", "",
     SHARPI_CALL("{}")},
    {"", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", "", SHARPI_CALL("{}")},
    {"", "<|python_tag|>print(1)", "", "<|python_tag|>print(1)", ""},
    {"", "{\"name\": \"Ann\", \"age\": 7}", "", "{\"name\": \"Ann\", \"age\": 7}", ""},
    {"", "{\"name\": \"f\", \"param", "", "{\"name\": \"f\", \"param", ""},
    {"", "{\"sum\": 3}", "", "{\"sum\": 3}", ""},
    {"", "See {\"name\": \"f\", \"parameters\": {}}", "",
     "See {\"name\": \"f\", \"parameters\": {}}", ""},
};

TEST(ChatParse, SeveralCallsOfAKindAreToldApart) {
  for (const char* text :
       {"<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
        "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n<"
        "｜tool▁call▁begin｜>g"
        "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>"
        "commentary to=functions.g<|message|>{}<|call|>",
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}"}) {
    ParsedChat p;
    ASSERT_TRUE(parse_chat({}, text, &p).is_ok());
    EXPECT_EQ(p.n_tool_calls, 2u) << text;
    EXPECT_EQ(p.content, "") << text;
    EXPECT_EQ(p.tool_calls,
              "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}, "
              "{\"type\": \"function\", \"function\": {\"name\": \"g\", \"arguments\": {}}}]")
        << text;
  }
}

TEST(ChatParse, TextComesApartIntoItsParts) {
  for (const ParseCase& c : kCases) {
    ParsedChat p;
    ASSERT_TRUE(parse_chat({.prompt = c.prompt}, c.text, &p).is_ok());
    EXPECT_EQ(p.reasoning, c.reasoning) << c.text;
    EXPECT_EQ(p.content, c.content) << c.text;
    EXPECT_EQ(p.tool_calls, c.tool_calls) << c.text;
    EXPECT_EQ(p.n_tool_calls, p.tool_calls.empty() ? 0u : 1u) << c.text;
  }
}

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "$defs": {"n": {"type": ["integer", "null"]}},
    "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "l": {"type": "array"}, "r": {"$ref": "#/$defs/n"},
      "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["a", "b"]},
      "w": {"enum": ["1", 1, 2, null, true]}, "q": {"minimum": 1}, "any": {}},
      "allOf": [{"properties": {"p": {"type": "integer"}}}]}}},
  {"name": "flat", "parameters": {"properties": {"i": {"type": "number"}}}}])";

TEST(ChatParse, ArgumentsThatAreWrittenAsTextHaveTheTypesOfTheSchema) {
  const std::pair<const char*, const char*> cases[] = {
      {"s=3", "\"3\""},
      {"s=true", "\"true\""},
      {"s=null", "\"null\""},
      {"s={\"a\": 1}", "\"{\\\"a\\\": 1}\""},
      {"i=3", "3"},
      {"i=1e5", "100000.0"},
      {"i=three", "\"three\""},
      {"b=true", "true"},
      {"b=True", "true"},
      {"b=1", "\"1\""},
      {"o={\"a\": [1]}", "{\"a\": [1]}"},
      {"o={a", "\"{a\""},
      {"l=[1, null]", "[1, null]"},
      {"r=null", "null"},
      {"r=7", "7"},
      {"r=None", "null"},
      {"m=null", "null"},
      {"m=3", "\"3\""},
      {"e=b", "\"b\""},
      {"w=1", "\"1\""},
      {"w=2", "2"},
      {"w=null", "null"},
      {"w=true", "true"},
      {"w=3", "\"3\""},
      {"q=2", "2"},
      {"p=2", "2"},
      {"l=[\"</parameter><parameter=s>\", \"</arg_value></tool_call>\"]",
       "[\"</parameter><parameter=s>\", \"</arg_value></tool_call>\"]"},
      {"l=[1", "\"[1\""},
      {"any=3", "\"3\""},
      {"unknown=3", "\"3\""},
  };
  for (const auto& [given, want] : cases) {
    const std::string_view g = given;
    const std::string key(g.substr(0, g.find('='))), value(g.substr(g.find('=') + 1));
    const std::string texts[] = {"<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value +
                                     "\n</parameter>\n</function>\n</tool_call>",
                                 "<tool_call>f\n<arg_key>" + key + "</arg_key>\n<arg_value>" +
                                     value + "</arg_value>\n</tool_call>"};
    for (const std::string& text : texts) {
      ParsedChat p;
      ASSERT_TRUE(parse_chat({.tools = kTools}, text, &p).is_ok());
      EXPECT_EQ(p.tool_calls,
                "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                "\"arguments\": {\"" +
                    key + "\": " + want + "}}}]")
          << text;
    }
  }
  ParsedChat p;
  const char* gemma = "<|tool_call>call:f{s:3,i:4,any:5,m:null}<tool_call|>";
  ASSERT_TRUE(parse_chat({.tools = kTools}, gemma, &p).is_ok());
  EXPECT_EQ(p.tool_calls, SHARPI_CALL("{\"s\": \"3\", \"i\": 4, \"any\": 5, \"m\": null}"));
}

TEST(ChatParse, OnlyWhatMayOccurIsLookedFor) {
  const char* call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const char* bare = "{\"name\": \"Bob\", \"parameters\": {\"age\": 3}}";
  const char* both = "<think>a</think>b<tool_call>{\"name\": \"f\"}</tool_call>";
  struct Case {
    ParseRequest request;
    const char* text;
    const char* reasoning;
    const char* content;
    uint32_t n_calls;
  };
  const Case cases[] = {
      {{.calls = false}, call, "", call, 0},
      {{.calls = false}, bare, "", bare, 0},
      {{}, bare, "", "", 1},
      {{.tools = kTools}, bare, "", bare, 0},  // there is no such tool
      {{.reasoning = false}, "<think>a</think>b", "", "<think>a</think>b", 0},
      {{.prompt = "<think>", .reasoning = false}, "a</think>b", "", "a</think>b", 0},
      {{.calls = false}, both, "a", "b<tool_call>{\"name\": \"f\"}</tool_call>", 0},
      {{.reasoning = false, .calls = false}, both, "", both, 0},
      {{.prompt = "<|start|>assistant", .reasoning = false, .calls = false},
       "<|channel|>final<|message|>x",
       "",
       "<|channel|>final<|message|>x",
       0},
      {{.constrained = true}, bare, "", bare, 0},
      {{.constrained = true},
       "{\"a\": \"<think><tool_call>{}[TOOL_CALLS]\"}",
       "",
       "{\"a\": \"<think><tool_call>{}[TOOL_CALLS]\"}",
       0},
      {{.prompt = "<think>\n", .constrained = true},
       "hm</think>{\"a\": \"</think>\"}",
       "hm",
       "{\"a\": \"</think>\"}",
       0},
      {{.constrained = true}, call, "", "", 1},
      {{.prompt = "<|start|>assistant", .constrained = true},
       "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
       "{\"a\": \"<|end|><|start|>\"}",
       "hm",
       "{\"a\": \"<|end|><|start|>\"}",
       0},
  };
  for (const Case& c : cases) {
    for (size_t n = 0; n <= std::string_view(c.text).size() + 1; ++n) {
      ParseRequest request = c.request;
      request.partial = n <= std::string_view(c.text).size();
      ParsedChat p;
      ASSERT_TRUE(parse_chat(request, std::string_view(c.text).substr(0, n), &p).is_ok());
      EXPECT_TRUE(std::string_view(c.reasoning).starts_with(p.reasoning)) << c.text;
      EXPECT_TRUE(std::string_view(c.content).starts_with(p.content)) << c.text << n << p.content;
      if (request.partial) continue;
      EXPECT_EQ(p.reasoning, c.reasoning) << c.text;
      EXPECT_EQ(p.content, c.content) << c.text;
      EXPECT_EQ(p.n_tool_calls, c.n_calls) << c.text;
    }
  }
  ParsedChat p;
  EXPECT_EQ(parse_chat({.tools = "{}"}, "x", &p).text(), "tools is not a JSON array");
  EXPECT_EQ(parse_chat({.tools = "[{}]"}, "x", &p).text(), "a tool has no name");
  EXPECT_EQ(parse_chat({.tools = "["}, "x", &p).code(), Code::kInvalidArgument);
}

TEST(ChatParse, AMessageThatHasNotBegunIsAHeader) {
  const std::string_view text =
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes";
  const std::pair<std::string_view, ChatPart> ends[] = {{"<|message|>", ChatPart::kHeader},
                                                        {"<|end|>", ChatPart::kReasoning},
                                                        {"<|message|>", ChatPart::kHeader},
                                                        {"", ChatPart::kContent}};
  size_t from = 0;
  for (const auto& [mark, part] : ends) {
    const size_t end = mark.empty() ? text.size() : text.find(mark, from) + mark.size() - 1;
    for (size_t n = from; n <= end; ++n) {
      ParsedChat p;
      ParseRequest request{.prompt = "<|start|>assistant", .partial = true};
      ASSERT_TRUE(parse_chat(request, text.substr(0, n), &p).is_ok());
      EXPECT_EQ(p.open, part) << text.substr(0, n);
    }
    from = end + 1;
  }
  ParsedChat p;
  ASSERT_TRUE(parse_chat({.partial = true}, "Plain <", &p).is_ok());
  EXPECT_EQ(p.open, ChatPart::kContent);
}

TEST(ChatParse, WhileTextComesPartsOnlyGrow) {
  for (const ParseCase& c : kCases) {
    const std::string text = c.text;
    ParsedChat before, whole;
    ASSERT_TRUE(parse_chat({.prompt = c.prompt}, text, &whole).is_ok());
    for (size_t n = 0; n <= text.size(); ++n) {
      ParsedChat p;
      ASSERT_TRUE(parse_chat({.prompt = c.prompt, .partial = true}, text.substr(0, n), &p).is_ok());
      EXPECT_TRUE(p.reasoning.starts_with(before.reasoning)) << text.substr(0, n);
      EXPECT_TRUE(p.content.starts_with(before.content)) << text.substr(0, n);
      EXPECT_GE(p.n_tool_calls, before.n_tool_calls) << text.substr(0, n);
      before = p;
    }
    EXPECT_TRUE(whole.reasoning.starts_with(before.reasoning)) << text;
    EXPECT_TRUE(whole.content.starts_with(before.content)) << text;
  }
}

TEST(ChatParse, TextOfNothingButMarksIsReadInLinearTime) {
  // A megabyte of each would take minutes if every mark had the rest of the text looked through.
  const std::pair<const char*, const char*> units[] = {
      {"<think></think>", ""},
      {"<tool_call>{</tool_call>", ""},
      {"[TOOL_CALLS]x ", ""},
      {"[TOOL_CALLS][1 ", ""},
      {"[TOOL_CALLS][\"", ""},
      {"[TOOL_CALLS][[", ""},
      {"[TOOL_CALLS]f[ARGS]{\"", ""},
      {"<|python_tag|>{\"name\" ", ""},
      {"<|python_tag|>{\"name\": \"", ""},
      {"<|start|> a ", ""},
      {"<|start|>x<|message|>", ""},
      {"<|channel|>a<|message|>b", ""},
      {"<|start|>\n", "<|start|>assistant"},
      {"<｜tool▁calls▁begin｜>", ""},
      {"{\"name\":1} ", ""},
      {"<tool_call><function=a><parameter=b>", ""},
      {"<tool_call><function=a><parameter=b></parameter>", ""},
      {"<tool_call>f<arg_key>a</arg_key><arg_value></arg_value>", ""},
      {"<|tool_call>call:f{a:<|\"|>", ""},
      {"<|tool_call>call:f{a:[", ""},
      {"<|tool_call_start|>[f(a=\"", ""},
      {"<|tool_call_start|>[f(a='\\", ""},
      {"<|tool_call_start|>[f(a=[", ""},
      {"<|tool_call_start|>[f(", ""},
      {"<|tool_call_start|>[f(a=1),", ""},
      {"<tool_call><function=a>", "<think>"},
      {"x<think>", ""},
  };
  for (const auto& [unit, prompt] : units) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += unit;
    for (const bool partial : {false, true}) {
      ParsedChat p;
      EXPECT_TRUE(parse_chat({.prompt = prompt, .partial = partial}, text, &p).is_ok()) << unit;
      EXPECT_EQ(p.n_tool_calls, 0u) << unit;
    }
  }
}

TEST(ChatParse, AHeaderOfTheGreatestLengthIsOneHoweverItComes) {
  for (const size_t n : {245u, 246u, 247u, 248u, 249u}) {
    const std::string text = "<|start|>" + std::string(n, 'x') + "<|message|>said";
    ParsedChat whole, before, p;
    ASSERT_TRUE(parse_chat({}, text, &whole).is_ok());
    EXPECT_EQ(whole.content, n <= 247 ? "said" : text);
    for (size_t at = 0; at <= text.size(); ++at) {
      ASSERT_TRUE(parse_chat({.partial = true}, text.substr(0, at), &p).is_ok());
      EXPECT_TRUE(p.content.starts_with(before.content)) << at << p.content;
      before = p;
    }
    EXPECT_EQ(before.content, whole.content);
  }
}

TEST(ChatParse, ThePartInWhichTextEndsIsTold) {
  const std::pair<const char*, ChatPart> cases[] = {
      {"a", ChatPart::kContent},
      {"<think>a", ChatPart::kReasoning},
      {"<think>a</think>", ChatPart::kContent},
      {"a<tool_call>{", ChatPart::kToolCall},
      {"[TOOL_CALLS]f", ChatPart::kToolCall},
      {"<|channel|>analysis<|message|>a", ChatPart::kReasoning},
      {"<|channel|>final<|message|>a", ChatPart::kContent},
      {"<|channel|>commentary to=functions.f<|message|>{", ChatPart::kToolCall},
      {"{\"name\": ", ChatPart::kToolCall},
  };
  for (const auto& [text, part] : cases) {
    ParsedChat p;
    ASSERT_TRUE(parse_chat({.partial = true}, text, &p).is_ok());
    EXPECT_EQ(p.open, part) << text;
  }
}

}  // namespace
}  // namespace sharpi
