/* SPDX-License-Identifier: MIT */
/* Models: loading, metadata, memory; text to tokens and back. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

void test_model(const fixture* f) {
  sharpi_error err;
  sharpi_model* out = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_load(NULL, NULL, NULL, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_load(f->plan, NULL, NULL, NULL, &err));
  sharpi_plan* session_plan = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_session(NULL, NULL, &session_plan, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_session(f->model, NULL, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_plan_session(f->model, NULL, &session_plan, &err));
  sharpi_plan_summary sum = {.struct_size = sizeof sum};
  EXPECT(SHARPI_OK, sharpi_plan_info(session_plan, &sum, &err));
  CHECK(sum.n_ctx == kCtx && sum.host_held_bytes == sum.session_held_bytes);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_load(session_plan, NULL, NULL, &out, &err));
  sharpi_plan_destroy(session_plan);
  sharpi_model_destroy(NULL);

  sharpi_model_summary info = {.struct_size = sizeof info};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_info(NULL, &info, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_info(f->model, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_model_info(f->model, &info, &err));
  CHECK(info.n_layers == 4 && info.n_vocab == kVocab && info.chat == SHARPI_CHAT_TEMPLATE);
  CHECK(strcmp(info.architecture, "qwen3") == 0 && info.bos == -1 && info.eos == 2045);

  char text[64];
  size_t len = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_meta(NULL, "a", text, 64, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_meta(f->model, NULL, text, 64, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_meta(f->model, "a", text, 64, NULL, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_model_meta(f->model, "no.such.key", text, 64, &len, &err));
  NAMES("no.such.key");
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_model_meta(f->model, "general.architecture", text, 4, &len, &err));
  CHECK(len == 5);
  EXPECT(SHARPI_OK, sharpi_model_meta(f->model, "general.architecture", text, 5, &len, &err));
  CHECK(len == 5 && memcmp(text, "qwen3", 5) == 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_meta_key(NULL, 0, text, 64, &len, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_model_meta_key(f->model, 100000, text, 64, &len, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_model_meta_key(f->model, 0, NULL, 0, &len, &err));
  EXPECT(SHARPI_OK, sharpi_model_meta_key(f->model, 0, text, 64, &len, &err));
  CHECK(len == 20 && memcmp(text, "general.architecture", 20) == 0);

  uint32_t n = 0;
  const uint32_t row = (uint32_t)sizeof(sharpi_memory_row);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_memory(NULL, NULL, row, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_memory(f->model, NULL, 3, 0, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_model_memory(f->model, NULL, row, 0, &n, &err));
  CHECK(n > 0);
}

static void test_segments(const fixture* f) {
  sharpi_error err;
  sharpi_segment_info rows[8];
  uint32_t n = 0;
  const uint32_t row = (uint32_t)sizeof rows[0];
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_segments(NULL, rows, row, 8, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_segments(f->model, rows, row - 8, 8, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_segments(f->model, rows, row, 8, NULL, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_model_segments(f->model, NULL, row, 0, &n, &err));
  CHECK(n == 1);
  EXPECT(SHARPI_OK, sharpi_model_segments(f->model, rows, row, 8, &n, &err));
  CHECK(n == 1 && rows[0].tier == SHARPI_TIER_CPU && rows[0].list == 0);
  CHECK(rows[0].has_embedding == 1 && rows[0].has_head == 1 && rows[0].first_layer == 0);
  CHECK(rows[0].n_layers > 0 && rows[0].n_mixers == rows[0].n_layers);
  CHECK(rows[0].n_ffn == rows[0].n_layers && rows[0].n_streamed == 0);
  CHECK(rows[0].streamed_bytes == 0);

  char text[8192];
  size_t len = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_json(NULL, text, sizeof text, &len, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_model_json(f->model, NULL, 0, &len, &err));
  CHECK(len > 2 && len < sizeof text);
  EXPECT(SHARPI_OK, sharpi_model_json(f->model, text, sizeof text, &len, &err));
  CHECK(text[0] == '{' && text[len - 1] == '}');
}

static void test_tokenize(const fixture* f) {
  sharpi_error err;
  int32_t tokens[64];
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_tokenize(NULL, "a", 1, 0, tokens, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_tokenize(f->model, NULL, 1, 0, tokens, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_tokenize(f->model, "a", 1, 4, tokens, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_tokenize(f->model, "a", 1, 0, tokens, 64, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_tokenize(f->model, "a", 1, 0, NULL, 64, &n, &err));
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, NULL, 0, 0, NULL, 0, &n, &err));
  CHECK(n == 0);
  const char* text = "def f(x): return x";
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_tokenize(f->model, text, strlen(text), 0, NULL, 0, &n, &err));
  const uint32_t needed = n;
  tokens[0] = -7;
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_tokenize(f->model, text, strlen(text), 0, tokens, needed - 1, &n, &err));
  CHECK(n == needed && tokens[0] == -7);
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, text, strlen(text), 0, tokens, needed, &n, &err));
  char back[64];
  size_t len = 0;
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_detokenize(f->model, tokens, n, 0, back, 3, &len, &err));
  EXPECT(SHARPI_OK, sharpi_detokenize(f->model, tokens, n, 0, back, sizeof back, &len, &err));
  CHECK(len == strlen(text) && memcmp(back, text, len) == 0);

  /* Control tokens: text unless they are asked for. */
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, "<|im_end|>", 10, SHARPI_TOKENIZE_PARSE_SPECIAL,
                                    tokens, 64, &n, &err));
  CHECK(n == 1 && tokens[0] == 2045 && sharpi_token_is_end(f->model, tokens[0]) == 1);
  EXPECT(SHARPI_OK, sharpi_detokenize(f->model, tokens, 1, 0, NULL, 0, &len, &err));
  CHECK(len == 0);
  EXPECT(SHARPI_OK, sharpi_detokenize(f->model, tokens, 1, SHARPI_DETOKENIZE_SPECIAL, back,
                                      sizeof back, &len, &err));
  CHECK(len == 10 && memcmp(back, "<|im_end|>", 10) == 0);
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, "<|im_end|>", 10, 0, tokens, 64, &n, &err));
  CHECK(n > 1);

  const int32_t outside[2] = {1, kVocab};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_detokenize(NULL, tokens, 1, 0, back, 64, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_detokenize(f->model, NULL, 1, 0, back, 64, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize(f->model, tokens, 1, 2, back, 64, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize(f->model, outside, 2, 0, back, 64, &len, &err));
  EXPECT(SHARPI_OK, sharpi_detokenize(f->model, NULL, 0, 0, NULL, 0, &len, &err));
  CHECK(sharpi_token_is_end(NULL, 0) == 0 && sharpi_token_is_end(f->model, -1) == 0);
  CHECK(sharpi_token_is_end(f->model, kVocab) == 0 && sharpi_token_is_end(f->model, 5) == 0);
}

/* A euro sign and an emoji arrive byte by byte and leave as whole characters. */
static void test_stream(const fixture* f) {
  static const char kText[] = "\xE2\x82\xAC\xF0\x9F\x98\x80";
  sharpi_error err;
  int32_t tokens[16];
  uint32_t n = 0;
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, kText, 7, 0, tokens, 16, &n, &err));
  CHECK(n > 2);
  sharpi_text_stream stream = {0};
  char out[16], all[16];
  size_t len = 0, total = 0;
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(SHARPI_OK,
           sharpi_detokenize_stream(f->model, &stream, &tokens[i], 1, 0, out, 16, &len, &err));
    CHECK(len == 0 || len == 3 || len == 4 || len == 7);
    memcpy(all + total, out, len);
    total += len;
  }
  CHECK(total == 7 && memcmp(all, kText, 7) == 0 && stream.n_held == 0);

  /* A character that never ends is replaced when the stream is closed. */
  int32_t first[8];
  uint32_t n_first = 0;
  EXPECT(SHARPI_OK, sharpi_tokenize(f->model, kText, 2, 0, first, 8, &n_first, &err));
  EXPECT(SHARPI_OK,
         sharpi_detokenize_stream(f->model, &stream, first, n_first, 0, out, 16, &len, &err));
  CHECK(len == 0 && stream.n_held == 2);
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_text_stream_finish(&stream, NULL, 0, &len, &err));
  CHECK(len == 3 && stream.n_held == 2);
  EXPECT(SHARPI_OK, sharpi_detokenize_stream(f->model, &stream, NULL, 0, 0, out, 16, &len, &err));
  CHECK(len == 0 && stream.n_held == 2); /* no token is not the end */
  EXPECT(SHARPI_OK, sharpi_text_stream_finish(&stream, out, 16, &len, &err));
  CHECK(len == 3 && memcmp(out, "\xEF\xBF\xBD", 3) == 0 && stream.n_held == 0);

  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(f->model, NULL, tokens, 1, 0, out, 16, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(NULL, &stream, tokens, 1, 0, out, 16, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(f->model, &stream, NULL, 1, 0, out, 16, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(f->model, &stream, tokens, 1, 8, out, 16, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(f->model, &stream, tokens, 1, 0, out, 16, NULL, &err));
  memset(&stream, 0xEE, sizeof stream); /* not zero-initialised */
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_detokenize_stream(f->model, &stream, tokens, 1, 0, out, 16, &len, &err));
  NAMES("stream");
}

static sharpi_chat_params chat_of(const sharpi_message* messages, uint32_t n, uint32_t flags) {
  sharpi_chat_params p;
  sharpi_chat_params_init(&p, sizeof p);
  p.messages = messages;
  p.n_messages = n;
  p.flags = flags;
  return p;
}

static void test_chat(const fixture* f) {
  sharpi_error err;
  char out[256];
  int32_t ids[64];
  uint32_t n = 0;
  size_t len = 0;
  const sharpi_message hi = {.role = "user", .content = "Hi", .content_len = 2};
  const sharpi_message none = {.role = "user"};
  sharpi_chat_params p = chat_of(&hi, 1, 0);
  EXPECT(SHARPI_OK, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  static const char kWanted[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  CHECK(len == sizeof kWanted - 1 && memcmp(out, kWanted, len) == 0);
  EXPECT(SHARPI_OK, sharpi_chat_tokenize(f->model, &p, ids, 64, &n, &err));
  CHECK(n > 5 && n < 64);
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_chat_format(f->model, &p, out, 5, &len, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_chat_tokenize(f->model, &p, ids, 5, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(NULL, &p, out, 256, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, NULL, out, 256, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_tokenize(f->model, &p, ids, 64, NULL, &err));

  p = chat_of(&hi, 1, SHARPI_CHAT_NO_PROMPT);
  EXPECT(SHARPI_OK, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  CHECK(len == sizeof kWanted - 1 - strlen("<|im_start|>assistant\n"));
  p = chat_of(NULL, 1, 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  p = chat_of(&hi, 0, 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  p = chat_of(&hi, 1, 16);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  p = chat_of(&hi, 1, SHARPI_CHAT_THINKING | SHARPI_CHAT_NO_THINKING);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("SHARPI_CHAT_NO_THINKING");
  p = chat_of(&hi, 1, 0);
  p.message_size = 24; /* forgotten init, or the struct of no version */
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  p = chat_of(&hi, 1, 0);
  p.tools = "[1";
  p.tools_len = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("tools is not JSON at byte 2");
  p = chat_of(&hi, 1, 0);
  p.variables = "[]";
  p.variables_len = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("variables is not a JSON object");
  const sharpi_message no_role = {.content = "x", .content_len = 1};
  const sharpi_message no_text = {.role = "user", .content_len = 1};
  p = chat_of(&no_role, 1, 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("messages[0].role");
  p = chat_of(&no_text, 1, 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("messages[0].content");
  static const char kParts[] =
      "[{\"type\": \"text\", \"text\": \"H\"}, {\"type\": \"text\", \"text\": \"i\"}]";
  sharpi_message listed = {.role = "user", .parts = kParts, .parts_len = sizeof kParts - 1};
  p = chat_of(&listed, 1, 0);
  EXPECT(SHARPI_OK, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  CHECK(len == sizeof kWanted - 1 && memcmp(out, kWanted, len) == 0);
  listed.content = "x";
  listed.content_len = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("messages[0].content and parts are both given");
  /* Messages of a host that knows no parts: what lies behind each of them is not theirs. */
  uint64_t rows[2 * 9 + 2];
  memset(rows, 0xFF, sizeof rows);
  memcpy(rows, &hi, 72);
  memcpy(rows + 9, &hi, 72);
  p = chat_of((const sharpi_message*)(const void*)rows, 2, SHARPI_CHAT_NO_PROMPT);
  p.message_size = 72;
  EXPECT(SHARPI_OK, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  CHECK(len == 2 * (sizeof kWanted - 1 - strlen("<|im_start|>assistant\n")));
  p = chat_of(&none, 1, 0); /* JSON's null, which this template adds to a string */
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_format(f->model, &p, out, 256, &len, &err));
  NAMES("chat template, line ");
}

static void test_parse(void) {
  sharpi_error err;
  char out[256];
  size_t len = 0;
  static const char kText[] =
      "hm</think>Yes.<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const size_t n = sizeof kText - 1;
  sharpi_chat_parts parts = {.struct_size = sizeof parts};
  sharpi_parse_params p;
  sharpi_parse_params_init(&p, sizeof p);
  CHECK(p.flags == (SHARPI_PARSE_REASONING | SHARPI_PARSE_CALLS));
  p.prompt = "<think>";
  p.prompt_len = 7;
  EXPECT(SHARPI_OK, sharpi_chat_parse(&p, kText, n, &parts, out, 256, &len, &err));
  CHECK(parts.reasoning_len == 2 && parts.content_len == 4 && parts.n_tool_calls == 1);
  CHECK(len == 6 + parts.tool_calls_len && memcmp(out, "hmYes.[{\"type\"", 14) == 0);
  p.flags = SHARPI_PARSE_REASONING;
  EXPECT(SHARPI_OK, sharpi_chat_parse(&p, kText, n, &parts, out, 256, &len, &err));
  CHECK(parts.reasoning_len == 2 && parts.n_tool_calls == 0 && parts.content_len > 4);
  p.flags = 0;
  EXPECT(SHARPI_OK, sharpi_chat_parse(&p, kText, n, &parts, out, 256, &len, &err));
  CHECK(parts.reasoning_len == 0 && parts.n_tool_calls == 0);
  p.prompt = NULL;
  p.prompt_len = 0;
  p.flags = SHARPI_PARSE_PARTIAL | SHARPI_PARSE_REASONING;
  EXPECT(SHARPI_OK, sharpi_chat_parse(&p, "<thi", 4, &parts, out, 256, &len, &err));
  CHECK(parts.content_len == 0 && parts.open == SHARPI_PART_CONTENT);
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_chat_parse(NULL, "abc", 3, &parts, out, 2, &len, &err));
  CHECK(len == 3 && parts.content_len == 3);
  p.prompt_len = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_parse(&p, "abc", 3, &parts, out, 256, &len, &err));
  p.prompt_len = 0;
  p.flags = 16;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_parse(&p, "abc", 3, &parts, out, 256, &len, &err));
  sharpi_parse_params_init(&p, sizeof p);
  p.tools = "{}";
  p.tools_len = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_parse(&p, "abc", 3, &parts, out, 256, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_parse(NULL, NULL, 3, &parts, out, 256, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_chat_parse(NULL, "abc", 3, NULL, out, 256, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_chat_parse(NULL, "abc", 3, &parts, out, 256, NULL, &err));
}

static void test_text_alone(const fixture* f) {
  sharpi_error err;
  sharpi_model* text = NULL;
  char out[256];
  int32_t ids[16];
  uint32_t n = 0;
  size_t len = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_open_text(NULL, &text, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_model_open_text(f->path, NULL, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_model_open_text("no-such-file.gguf", &text, &err));
  CHECK(text == NULL);
  EXPECT(SHARPI_OK, sharpi_model_open_text(f->path, &text, &err));
  sharpi_model_summary info = {.struct_size = sizeof info};
  EXPECT(SHARPI_OK, sharpi_model_info(text, &info, &err));
  CHECK(info.n_vocab == kVocab && info.eos == 2045 && info.chat == SHARPI_CHAT_TEMPLATE);
  CHECK(strcmp(info.architecture, "qwen3") == 0 && info.n_layers == 0 && info.file_bytes > 0);
  EXPECT(SHARPI_OK, sharpi_tokenize(text, "Hi", 2, 0, ids, 16, &n, &err));
  EXPECT(SHARPI_OK, sharpi_detokenize(text, ids, n, 0, out, 256, &len, &err));
  CHECK(len == 2 && memcmp(out, "Hi", 2) == 0);
  EXPECT(SHARPI_OK, sharpi_model_meta(text, "general.architecture", out, 256, &len, &err));
  sharpi_session* session = NULL;
  sharpi_plan* plan = NULL;
  sharpi_expert_stats experts = {.struct_size = sizeof experts};
  EXPECT(SHARPI_E_STATE, sharpi_session_create(text, NULL, &session, &err));
  NAMES("text alone");
  EXPECT(SHARPI_E_STATE, sharpi_plan_session(text, NULL, &plan, &err));
  EXPECT(SHARPI_E_STATE, sharpi_model_memory(text, NULL, sizeof(sharpi_memory_row), 0, &n, &err));
  EXPECT(SHARPI_E_STATE, sharpi_model_json(text, out, 256, &len, &err));
  EXPECT(SHARPI_E_STATE, sharpi_model_experts(text, &experts, &err));
  sharpi_model_destroy(text);
}

void test_text(const fixture* f) {
  test_segments(f);
  test_tokenize(f);
  test_stream(f);
  test_chat(f);
  test_text_alone(f);
  test_parse();
}
