// SPDX-License-Identifier: MIT
// Templates for files that carry none: the plain form of each format, without tools.
#include "text/chat.h"

namespace sharpi {
namespace {

#define SHARPI_CHATML                                                                 \
  "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') +" \
  " '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"                   \
  "{{- '<|im_start|>assistant\\n' }}{%- endif %}"
#define SHARPI_GEMMA4                                                                        \
  "{%- for m in messages %}{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) +" \
  " '\\n' + (m.content or '') | trim + '<turn|>\\n' }}{%- endfor %}"                         \
  "{%- if add_generation_prompt %}{{- '<|turn>model\\n' }}{%- endif %}"
// Gemma 2 and 3 take turns strictly, and a system message as the beginning of the first one.
#define SHARPI_GEMMA3                                                                             \
  "{%- set ns = namespace(prefix='', rest=messages) %}"                                           \
  "{%- if messages and messages[0].role == 'system' %}"                                           \
  "{%- set ns.prefix = messages[0].content + '\\n\\n' %}{%- set ns.rest = messages[1:] %}"        \
  "{%- endif %}{%- for m in ns.rest %}"                                                           \
  "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role not in ('user', 'assistant') %}" \
  "{{- raise_exception('user and assistant messages have to alternate') }}{%- endif %}"           \
  "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"             \
  "{{- (ns.prefix if loop.first else '') + (m.content or '') | trim + '<end_of_turn>\\n' }}"      \
  "{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"
#define SHARPI_OLMOE                                                                     \
  "{%- for m in messages %}{{- '<|' + m.role + '|>\\n' + (m.content or '') }}"           \
  "{%- if m.role == 'assistant' %}{{- eos_token }}{%- endif %}{{- '\\n' }}{%- endfor %}" \
  "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
#define SHARPI_BOS "{{- bos_token }}"

}  // namespace

std::string_view builtin_template(ChatFormat format, bool add_bos) {
  switch (format) {
    case ChatFormat::kChatMl:
      return add_bos ? SHARPI_BOS SHARPI_CHATML : SHARPI_CHATML;
    case ChatFormat::kGemma:
      return add_bos ? SHARPI_BOS SHARPI_GEMMA4 : SHARPI_GEMMA4;
    case ChatFormat::kGemma3:
      return add_bos ? SHARPI_BOS SHARPI_GEMMA3 : SHARPI_GEMMA3;
    case ChatFormat::kOlmoe:
      return SHARPI_BOS
          SHARPI_OLMOE;  // its BOS is its end of text, which begins every conversation
    case ChatFormat::kTemplate:
    case ChatFormat::kUnknown:
      break;
  }
  return {};
}

}  // namespace sharpi
