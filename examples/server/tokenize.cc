// SPDX-License-Identifier: MIT
#include "tokenize.h"

#include <ctime>

#include "chat_messages.h"
#include "sampling_request.h"
#include "tool_list.h"

namespace server {
namespace {

Tokens of_conversation(Fields& f, const Engine& engine) {
  Conversational chat;
  chat.messages = read_messages(f.need("messages"));
  chat.now = static_cast<uint64_t>(std::time(nullptr));
  read_thinking(f, "reasoning_effort", f.text("reasoning_effort"), &chat);
  chat.tools = ToolList::of_chat(f).read().for_template;
  if (!f.boolean("add_generation_prompt").value_or(true)) chat.flags |= SHARPI_CHAT_NO_PROMPT;
  return chat_prompt(engine, chat);
}

// Two servers have two names for the text, and differ in whether BOS comes before it.
Tokens of_text(Fields& f, const Engine& engine) {
  const std::optional<std::string> content = f.text("content"), prompt = f.text("prompt");
  if (content.has_value() == prompt.has_value()) {
    throw RequestError(400, "one of content, prompt and messages is needed", "content");
  }
  const auto special = f.boolean("add_special"), tokens = f.boolean("add_special_tokens");
  uint32_t flags = 0;
  if (special.value_or(tokens.value_or(prompt.has_value()))) flags |= SHARPI_TOKENIZE_ADD_SPECIAL;
  if (f.boolean("parse_special").value_or(true)) flags |= SHARPI_TOKENIZE_PARSE_SPECIAL;
  return engine.tokenize(content ? *content : *prompt, flags);
}

// Text where the bytes of a token are some, a list of them where they are a part of a character.
json piece_of(const std::string& bytes) {
  try {
    (void)json(bytes).dump();
    return bytes;
  } catch (const json::type_error&) {
    json out = json::array();
    for (const char byte : bytes) out.push_back(static_cast<unsigned char>(byte));
    return out;
  }
}

}  // namespace

json tokenized(const json& body, const Engine& engine) {
  Fields f(body, "");
  check_model(f, engine);
  const bool is_chat = f.find("messages") != nullptr;
  const bool pieces = f.boolean("with_pieces").value_or(false);
  const bool strings = f.boolean("return_token_strs").value_or(false);
  const Tokens tokens = is_chat ? of_conversation(f, engine) : of_text(f, engine);
  f.finish();
  json list = tokens, texts = json::array();
  if (pieces) {
    for (json& entry : list) {
      entry = {{"id", entry}, {"piece", piece_of(engine.token_bytes(entry.get<int32_t>()))}};
    }
  }
  for (size_t i = 0; strings && i < tokens.size(); ++i) {
    texts.push_back(engine.token_bytes(tokens[i]));
  }
  json out = {{"tokens", list}, {"count", tokens.size()}, {"max_model_len", engine.n_ctx()}};
  if (strings) out["token_strs"] = texts;
  return out;
}

json detokenized(const json& body, const Engine& engine) {
  Fields f(body, "");
  check_model(f, engine);
  const json& list = f.need("tokens");
  if (!list.is_array()) f.refuse("tokens", "is not a list of token ids");
  const Tokens tokens = read_token_ids(f, "tokens", list, engine);
  f.finish();
  const std::string text = engine.text_of(tokens.data(), tokens.size(), SHARPI_DETOKENIZE_SPECIAL);
  return {{"content", text}, {"prompt", text}};
}

}  // namespace server
