// SPDX-License-Identifier: MIT
// The patterns of tokenizer families, as their published tokenizers have them. To add one: a row
// below, and the same from its tokenizer.json in tools/compare_tokenizers.py.
#pragma once

#include <cstddef>
#include <string_view>

namespace sharpi {

// White_Space of Unicode, as class members. Spelled out because PCRE2's \s takes in U+180E, which
// the regex engine of the reference tokenizers does not.
#define SHARPI_SPACE                                                         \
  "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}" \
  "\\x{202F}\\x{205F}\\x{3000}"
#define SHARPI_RUN "[" SHARPI_SPACE "]+"
// A whitespace run leaves its last character to the word that follows it.
#define SHARPI_RUN_BEFORE_WORD SHARPI_RUN "(?![^" SHARPI_SPACE "])"
#define SHARPI_CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

// Words whose capitals come first, as o200k and what follows it split them; `after`: what may
// follow.
#define SHARPI_CAPITALS "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SHARPI_SMALL "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define SHARPI_WORDS_BY_CASE(after)                                       \
  "[^\\r\\n\\p{L}\\p{N}]?[" SHARPI_CAPITALS "]*[" SHARPI_SMALL "]+" after \
  "|[^\\r\\n\\p{L}\\p{N}]?[" SHARPI_CAPITALS "]+[" SHARPI_SMALL "]*" after
#define SHARPI_AFTER_NUMBERS                                         \
  "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|[" SHARPI_SPACE \
  "]*[\\r\\n]+"                                                      \
  "|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN
// Words with one character in front of them, contractions of any case; `numbers`: what one is.
#define SHARPI_QWEN2_WORDS(numbers)                                                              \
  "(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "|\\x20?[^" SHARPI_SPACE \
  "\\p{L}\\p{N}]+[\\r\\n]*"                                                                      \
  "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN
// GPT-2's words, without the runs of blanks that end a text.
#define SHARPI_GPT2_WORDS                                                  \
  SHARPI_CONTRACTIONS "|\\x20?\\p{L}+|\\x20?\\p{N}+|\\x20?[^" SHARPI_SPACE \
                      "\\p{L}\\p{N}]+|" SHARPI_RUN_BEFORE_WORD
// Letters of alphabets that have cases, as DeepSeek's first tokenizers list them, and their scripts
// without blanks.
#define SHARPI_DEEPSEEK_LETTERS                                                                   \
  "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                  \
  "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"          \
  "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                   \
  "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                        \
  "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                  \
  "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                  \
  "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}"                  \
  "\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"          \
  "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"         \
  "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                   \
  "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}" \
  "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}"          \
  "\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"          \
  "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"                  \
  "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                  \
  "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"              \
  "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"          \
  "\\x{1E900}-\\x{1E943}"
#define SHARPI_DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
// DeepSeek V3 takes numbers, then runs of these, out of the text first, and splits what they are
// and what lies between them for itself.
#define SHARPI_CJK "\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}"
#define SHARPI_IN_CJK "(?=[" SHARPI_CJK "])"
#define SHARPI_NO_CJK "(?![" SHARPI_CJK "])"

/// What files that name one of `names` (of tokenizer.ggml.pre, separated by spaces) split texts by.
/// A family of one pattern matches at every position of every text, so that its pieces have no
/// gaps. One of several cuts the text at the matches of the first; what they are and what lies
/// between them is each cut by the second as if it were a text, and so on.
struct PreTokenizerFamily {
  static constexpr size_t kMostPatterns = 6;
  std::string_view names;
  const char* patterns[kMostPatterns];
  bool nfc = false, whole_pieces = false, default_bos = false;
};

inline constexpr PreTokenizerFamily kPreTokenizerFamilies[] = {
    {.names = "qwen2 deepseek-r1-qwen megrez kormo f2llmv2",
     .patterns = {SHARPI_QWEN2_WORDS("\\p{N}")},
     .nfc = true},
    {.names = "qwen35",
     .patterns = {"(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                  "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                  "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN},
     .nfc = true},
    {.names = "olmo", .patterns = {SHARPI_GPT2_WORDS "|" SHARPI_RUN}, .nfc = true},
    // Llama 3: up to three digits together.
    {.names = "llama-bpe llama3 llama-v3",
     .patterns = {SHARPI_QWEN2_WORDS("\\p{N}{1,3}")},
     .whole_pieces = true,
     .default_bos = true},
    // The same without what Llama 3's files say beside it.
    {.names = "dbrx smaug-bpe glm4 chatglm-bpe", .patterns = {SHARPI_QWEN2_WORDS("\\p{N}{1,3}")}},
    // Every digit alone, and the pattern of GPT-2 on what lies between them: for it, a digit is the
    // end of the text.
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b",
     .patterns = {"\\p{N}|" SHARPI_CONTRACTIONS "|\\x20?\\p{L}+|\\x20?[^" SHARPI_SPACE
                  "\\p{L}\\p{N}]+|" SHARPI_RUN "(?![^" SHARPI_SPACE "\\p{N}])|" SHARPI_RUN}},
    {.names = "gpt-2 phi-2 gigachat mellum mpt jais trillion granite-docling",
     .patterns = {SHARPI_GPT2_WORDS "|" SHARPI_RUN}},
    // Mistral.
    {.names = "tekken",
     .patterns = {SHARPI_WORDS_BY_CASE("") "|\\p{N}" SHARPI_AFTER_NUMBERS},
     .whole_pieces = true,
     .default_bos = true},
    {.names = "gpt-4o llama4 kanana2",
     .patterns = {SHARPI_WORDS_BY_CASE("(?i:" SHARPI_CONTRACTIONS
                                       ")?") "|\\p{N}{1,3}" SHARPI_AFTER_NUMBERS}},
    // The last two alternatives are what lies between matches of the published pattern.
    {.names = "deepseek-v3 hunyuan-dense",
     .patterns = {"\\p{N}{1,3}|(?:" SHARPI_IN_CJK "[^\\p{L}\\p{P}\\p{S}])?(?:" SHARPI_IN_CJK
                  "[\\p{L}\\p{M}])+|(?:" SHARPI_IN_CJK "[\\p{P}\\p{S}])+|[!-/:-@\\[-`{-~][A-Za-z]+"
                  "|(?:" SHARPI_NO_CJK "[^\\r\\n\\p{L}\\p{N}\\p{P}\\p{S}])?(?:" SHARPI_NO_CJK
                  "[\\p{L}\\p{M}])+|\\x20?(?:" SHARPI_NO_CJK "[\\p{P}\\p{S}])+[\\r\\n]*"
                  "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN "(?![^" SHARPI_SPACE
                  "\\p{N}" SHARPI_CJK "])|" SHARPI_RUN "|(?:" SHARPI_IN_CJK
                  "[^\\p{L}\\p{M}\\p{P}\\p{S}](?!" SHARPI_IN_CJK
                  "[\\p{L}\\p{M}]))+|(?:" SHARPI_NO_CJK "[^" SHARPI_SPACE
                  "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}](?!" SHARPI_NO_CJK "[\\p{L}\\p{M}]))+"},
     .default_bos = true},
    // Files whose tokenizer is not said to be of a family, and those of converters that did not
    // know it.
    {.names = "default",
     .patterns = {"[\\p{P}$+<=>\\^~|]+", SHARPI_GPT2_WORDS, "\\p{N}+", "[0-9]{3}"}},
    {.names = "falcon", .patterns = {"[\\p{P}$+<=>\\^~|`]+", SHARPI_GPT2_WORDS, "[0-9]{3}"}},
    {.names = "deepseek-llm",
     .patterns = {"[\\r\\n]", "[" SHARPI_SPACE "]?[" SHARPI_DEEPSEEK_LETTERS "]+",
                  "[" SHARPI_SPACE
                  "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}"
                  "\\x{3000}-\\x{3002}]+",
                  SHARPI_RUN "$", SHARPI_DEEPSEEK_CJK, "\\p{N}+"},
     .default_bos = true},
    {.names = "deepseek-coder",
     .patterns = {"[\\r\\n]", "[" SHARPI_SPACE "]?\\p{L}+", "[" SHARPI_SPACE "]?\\p{P}+",
                  SHARPI_DEEPSEEK_CJK, "\\p{N}"},
     .default_bos = true},
    {.names = "seed-coder",
     .patterns = {"(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                  "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}\\r\\n]+"
                  "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN}},
};

#undef SHARPI_SPACE
#undef SHARPI_RUN
#undef SHARPI_RUN_BEFORE_WORD
#undef SHARPI_CONTRACTIONS
#undef SHARPI_CAPITALS
#undef SHARPI_SMALL
#undef SHARPI_WORDS_BY_CASE
#undef SHARPI_AFTER_NUMBERS
#undef SHARPI_QWEN2_WORDS
#undef SHARPI_GPT2_WORDS
#undef SHARPI_DEEPSEEK_LETTERS
#undef SHARPI_DEEPSEEK_CJK
#undef SHARPI_CJK
#undef SHARPI_IN_CJK
#undef SHARPI_NO_CJK

}  // namespace sharpi
