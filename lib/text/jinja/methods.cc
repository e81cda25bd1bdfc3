// SPDX-License-Identifier: MIT
#include "text/jinja/methods.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/text_search.h"

namespace sharpi::jinja {
namespace {

Status wrong_type(const char* function, const char* wants, const Value& got) {
  return Status::error(Code::kInvalidArgument, "%s wants %s, not %s", function, wants,
                       type_name(got));
}

/// Whoever makes many parts of a text charges each.
constexpr uint64_t kPartBytes = 2 * sizeof(Value);

Value part_of(const Value& text, size_t from, size_t to, Heap* heap) {
  MarkedText part;
  part.append(*text.text, from, to);
  return heap->text(std::move(part), text.safe);
}

/// str.split() without a separator: words between runs of blanks.
Status split_words(const Value& text, int64_t most, Heap* heap, List* out) {
  const std::string& s = text.text->bytes();
  size_t word = std::string::npos;
  size_t at = 0;
  for (; at < s.size();) {
    const uint32_t n = std::max(utf8_character(s, at), 1u);
    const uint32_t cp = n == 1 ? static_cast<unsigned char>(s[at]) : utf8_code_point(s, at, n);
    if (!is_blank(cp) && word == std::string::npos) {
      word = at;
      if (most >= 0 && static_cast<int64_t>(out->items.size()) >= most) break;
    } else if (is_blank(cp) && word != std::string::npos) {
      SHARPI_TRY(heap->charge(kPartBytes));
      out->items.push_back(part_of(text, word, at, heap));
      word = std::string::npos;
    }
    at += n;
  }
  if (word != std::string::npos) out->items.push_back(part_of(text, word, s.size(), heap));
  return Status::ok();
}

/// The parts between separators, at most `most` of which are cut (below 0: all).
Status split_at(const Value& text, std::string_view separator, int64_t most, Heap* heap,
                List* out) {
  TextSearch search(text.bytes(), separator);
  SHARPI_TRY(search.prepare(heap));
  size_t from = 0;
  for (; most != 0; --most) {
    const size_t cut = search.next(from);
    if (cut == std::string::npos) break;
    SHARPI_TRY(heap->charge(kPartBytes));
    out->items.push_back(part_of(text, from, cut, heap));
    from = cut + separator.size();
  }
  out->items.push_back(part_of(text, from, text.text->size(), heap));
  return Status::ok();
}

/// The same from the other end, where matches that overlap are other ones.
Status split_from_right(const Value& text, std::string_view separator, int64_t most, Heap* heap,
                        List* out) {
  TextSearch search(text.bytes(), separator, TextSearch::From::kBack);
  SHARPI_TRY(search.prepare(heap));
  size_t to = text.text->size();
  for (; most != 0; --most) {
    const size_t cut = search.next(to);
    if (cut == std::string::npos) break;
    SHARPI_TRY(heap->charge(kPartBytes));
    out->items.push_back(part_of(text, cut + separator.size(), to, heap));
    to = cut;
  }
  out->items.push_back(part_of(text, 0, to, heap));
  std::reverse(out->items.begin(), out->items.end());
  return Status::ok();
}

Status split(const Value& self, Method method, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {Value::none(), Value::of(int64_t{-1})};
  SHARPI_TRY(bind(arguments, "split", {"sep", "maxsplit"}, p));
  if (!p[1].is(Kind::kInt)) return wrong_type("split", "a number of parts", p[1]);
  const int64_t most = p[1].integer;
  List* list = heap->list();
  *out = Value::of(Kind::kList, list);
  if (p[0].is(Kind::kNone)) {
    if (method == Method::kRsplit && most >= 0) {
      return Status::error(Code::kUnsupported, "rsplit at blanks is not supported");
    }
    return split_words(self, most, heap, list);
  }
  if (!p[0].is_string()) return wrong_type("split", "a string", p[0]);
  const std::string_view separator = p[0].bytes();
  if (separator.empty()) return Status::error(Code::kInvalidArgument, "empty separator");
  return method == Method::kSplit ? split_at(self, separator, most, heap, list)
                                  : split_from_right(self, separator, most, heap, list);
}

bool ends_line(uint32_t cp) {
  return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
         cp == 0x2029;
}

Status split_lines(const Value& self, const Arguments& arguments, Heap* heap, Value* out) {
  Value keep_ends = Value::of(false);
  SHARPI_TRY(bind(arguments, "splitlines", {"keepends"}, &keep_ends));
  const std::string& s = self.text->bytes();
  SHARPI_TRY(heap->charge(s.size()));
  List* list = heap->list();
  size_t from = 0;
  for (size_t at = 0; at < s.size();) {
    const uint32_t n = std::max(utf8_character(s, at), 1u);
    const uint32_t cp = n == 1 ? static_cast<unsigned char>(s[at]) : utf8_code_point(s, at, n);
    const size_t end = at;
    at += n;
    if (!ends_line(cp)) continue;
    if (cp == '\r' && at < s.size() && s[at] == '\n') ++at;
    SHARPI_TRY(heap->charge(kPartBytes));
    list->items.push_back(part_of(self, from, truthy(keep_ends) ? at : end, heap));
    from = at;
  }
  if (from < s.size()) list->items.push_back(part_of(self, from, s.size(), heap));
  *out = Value::of(Kind::kList, list);
  return Status::ok();
}

Status starts_or_ends(const Value& self, bool at_end, const Arguments& arguments, Heap* heap,
                      Value* out) {
  const char* name = at_end ? "endswith" : "startswith";
  if (arguments.size() != 1) {
    return Status::error(Code::kUnsupported, "%s with other than one argument is not supported",
                         name);
  }
  Value p;
  SHARPI_TRY(bind(arguments, name, {"prefix"}, &p));
  const auto matches = [&](const Value& v) {
    return at_end ? self.bytes().ends_with(v.bytes()) : self.bytes().starts_with(v.bytes());
  };
  if (p.is_string()) {
    SHARPI_TRY(heap->work(p.text->size()));
    *out = Value::of(matches(p));
    return Status::ok();
  }
  if (!p.is(Kind::kTuple)) return wrong_type(name, "a string or a tuple of strings", p);
  bool any = false;
  for (const Value& v : p.list->items) {
    if (!v.is_string()) return wrong_type(name, "a tuple of strings", v);
    SHARPI_TRY(heap->work(4 + v.text->size()));
    any = any || matches(v);
  }
  *out = Value::of(any);
  return Status::ok();
}

Status replace(const Value& self, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[3] = {{}, {}, Value::of(int64_t{-1})};
  SHARPI_TRY(bind(arguments, "replace", {"old", "new", "count"}, p));
  for (int i = 0; i < 2; ++i) {
    if (!p[i].is_string()) return wrong_type("replace", "strings", p[i]);
  }
  if (!p[2].is(Kind::kInt)) return wrong_type("replace", "a number", p[2]);
  return replace_text(self, p[0], p[1], p[2].integer, heap, out);
}

Status join(const Value& self, const Arguments& arguments, Heap* heap, Value* out) {
  Value p;
  SHARPI_TRY(bind(arguments, "join", {"iterable"}, &p));
  std::vector<Value> items;
  SHARPI_TRY(walk(p, heap, &items));
  MarkedText text;
  SHARPI_TRY(join_texts(*self.text, items, false, heap, &text));
  *out = heap->text(std::move(text), self.safe);
  return Status::ok();
}

/// str.format() with {}, {0} and {name}; conversions and format specifications are refused.
Status format(const Value& self, const Arguments& arguments, Heap* heap, Value* out) {
  const std::string& s = self.text->bytes();
  MarkedText text;
  size_t automatic = 0;
  bool numbered = false, unnumbered = false;
  SHARPI_TRY(heap->charge(s.size()));
  for (size_t at = 0; at < s.size(); ++at) {
    const char c = s[at];
    if (c != '{' && c != '}') {
      text.append(*self.text, at, at + 1);
      continue;
    }
    if (at + 1 < s.size() && s[at + 1] == c) {
      text.append(*self.text, at, at + 1);
      ++at;
      continue;
    }
    const size_t end = s.find('}', at);
    if (c == '}' || end == s.npos) {
      return Status::error(Code::kInvalidArgument, "a format string contains a single brace");
    }
    const std::string field = s.substr(at + 1, end - at - 1);
    const Value* value = nullptr;
    if (field.find_first_not_of("0123456789") == field.npos && field.size() < 8) {
      numbered = numbered || !field.empty();
      unnumbered = unnumbered || field.empty();
      if (numbered && unnumbered) {
        return Status::error(Code::kInvalidArgument,
                             "cannot switch between automatic and manual field numbering");
      }
      const size_t i = field.empty() ? automatic++ : std::stoul(field);
      if (i < arguments.positional.size()) value = &arguments.positional[i];
    } else if (field.find_first_of(".[!:{") != field.npos) {
      return Status::error(Code::kUnsupported, "the format field {%.32s} is not supported",
                           field.c_str());
    }
    SHARPI_TRY(heap->work(2 * arguments.keywords.size()));
    for (const auto& [name, v, key] : arguments.keywords) {
      if (name == field) value = &v;
    }
    if (value == nullptr) {
      return Status::error(Code::kInvalidArgument, "no argument for the format field {%.32s}",
                           field.c_str());
    }
    SHARPI_TRY(print(*value, heap, &text));
    at = end;
  }
  *out = heap->text(std::move(text), self.safe);
  return Status::ok();
}

Status find_text(const Value& self, Method method, const Arguments& arguments, Heap* heap,
                 Value* out) {
  Value p[3] = {{}, Value::none(), Value::none()};
  SHARPI_TRY(bind(arguments, "find", {"sub"}, p));
  if (!p[0].is_string()) return wrong_type("find", "a string", p[0]);
  const std::string_view s = self.bytes(), sub = p[0].bytes();
  const bool back = method == Method::kRfind;
  TextSearch search(s, sub, back ? TextSearch::From::kBack : TextSearch::From::kFront);
  SHARPI_TRY(search.prepare(heap));
  if (method == Method::kCount) {
    int64_t n = 0;
    if (sub.empty()) {
      n = static_cast<int64_t>(count_characters(s)) + 1;
    } else {
      for (size_t at = search.next(0); at != s.npos; at = search.next(at + sub.size())) ++n;
    }
    *out = Value::of(n);
    return Status::ok();
  }
  const size_t at = search.next(back ? s.size() : 0);
  if (at == s.npos && method == Method::kIndex) {
    return Status::error(Code::kInvalidArgument, "substring not found");
  }
  *out = Value::of(at == s.npos ? int64_t{-1}
                                : static_cast<int64_t>(count_characters(s.substr(0, at))));
  return Status::ok();
}

/// Digits of other categories than decimal ones: superscripts, and what is in circles, in brackets
/// or with a full stop.
bool is_other_digit(uint32_t cp) {
  static constexpr struct {
    uint32_t first, last;
  } kRanges[] = {{0x00B2, 0x00B3},   {0x00B9, 0x00B9},   {0x1369, 0x1371},   {0x19DA, 0x19DA},
                 {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                 {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                 {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                 {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [cp](const auto& r) { return cp >= r.first && cp <= r.last; });
}

/// isdigit() and its like: every character is of the kind, and there is one.
bool all_characters(std::string_view s, Method method) {
  bool cased = false;
  for (size_t at = 0; at < s.size();) {
    const uint32_t n = std::max(utf8_character(s, at), 1u);
    const uint32_t cp = n == 1 ? static_cast<unsigned char>(s[at]) : utf8_code_point(s, at, n);
    at += n;
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(cp));
    const bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool digit = category == UTF8PROC_CATEGORY_ND;
    const bool numeric =
        digit || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
    const bool lower = category == UTF8PROC_CATEGORY_LL;
    const bool upper = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
    if (method == Method::kIsdigit && !digit && !is_other_digit(cp)) return false;
    if (method == Method::kIsspace && !is_blank(cp)) return false;
    if (method == Method::kIsalpha && !letter) return false;
    if (method == Method::kIsalnum && !letter && !numeric) return false;
    if (method == Method::kIsupper && lower) return false;
    if (method == Method::kIslower && upper) return false;
    cased = cased || (method == Method::kIsupper ? upper : lower);
  }
  return method == Method::kIsupper || method == Method::kIslower ? cased : !s.empty();
}

Status strip(const Value& self, Method method, const Arguments& arguments, Heap* heap, Value* out) {
  Value p = Value::none();
  SHARPI_TRY(bind(arguments, "strip", {"chars"}, &p));
  if (!p.is(Kind::kNone) && !p.is_string()) return wrong_type("strip", "a string", p);
  const Side side = method == Method::kStrip    ? Side::kBoth
                    : method == Method::kLstrip ? Side::kLeft
                                                : Side::kRight;
  return strip_text(self, p.is_string() ? &p : nullptr, side, heap, out);
}

Status remove_end(const Value& self, Method method, const Arguments& arguments, Heap* heap,
                  Value* out) {
  Value p;
  SHARPI_TRY(bind(arguments, "removeprefix", {"prefix"}, &p));
  if (!p.is_string()) return wrong_type("removeprefix", "a string", p);
  const size_t n = self.text->size(), cut = p.text->size();
  const bool front = method == Method::kRemoveprefix;
  const bool has = front ? self.bytes().starts_with(p.bytes()) : self.bytes().ends_with(p.bytes());
  *out = part_of(self, has && front ? cut : 0, has && !front ? n - cut : n, heap);
  return Status::ok();
}

Status fill_zeros(const Value& self, const Arguments& arguments, Heap* heap, Value* out) {
  Value p;
  SHARPI_TRY(bind(arguments, "zfill", {"width"}, &p));
  if (!p.is(Kind::kInt)) return wrong_type("zfill", "a number", p);
  const auto n = static_cast<int64_t>(count_characters(self.bytes()));
  const int64_t zeros = p.integer > n ? p.integer - n : 0;
  SHARPI_TRY(heap->charge(static_cast<uint64_t>(zeros)));
  const bool sign = !self.text->empty() && (self.bytes()[0] == '-' || self.bytes()[0] == '+');
  MarkedText text;
  text.append(*self.text, 0, sign ? 1 : 0);
  text.append(std::string(static_cast<size_t>(zeros), '0'), p.foreign);
  text.append(*self.text, sign ? 1 : 0, self.text->size());
  *out = heap->text(std::move(text));
  return Status::ok();
}

Status string_method(const Value& self, Method method, const Arguments& arguments, Heap* heap,
                     Value* out) {
  // What only looks makes no text.
  if (method == Method::kStartswith || method == Method::kEndswith) {
    return starts_or_ends(self, method == Method::kEndswith, arguments, heap, out);
  }
  SHARPI_TRY(heap->work(self.text->size()));
  if (method == Method::kFind || method == Method::kRfind || method == Method::kIndex ||
      method == Method::kCount) {
    return find_text(self, method, arguments, heap, out);
  }
  if (method >= Method::kIsdigit && method <= Method::kIslower) {
    *out = Value::of(all_characters(self.bytes(), method));
    return Status::ok();
  }
  SHARPI_TRY(heap->charge(self.text->size()));
  switch (method) {
    case Method::kStrip:
    case Method::kLstrip:
    case Method::kRstrip:
      return strip(self, method, arguments, heap, out);
    case Method::kSplit:
    case Method::kRsplit:
      return split(self, method, arguments, heap, out);
    case Method::kSplitlines:
      return split_lines(self, arguments, heap, out);
    case Method::kReplace:
      return replace(self, arguments, heap, out);
    case Method::kLower:
      return change_case(self, Case::kLower, heap, out);
    case Method::kUpper:
      return change_case(self, Case::kUpper, heap, out);
    case Method::kTitle:
      return change_case(self, Case::kTitle, heap, out);
    case Method::kCapitalize:
      return change_case(self, Case::kCapitalize, heap, out);
    case Method::kJoin:
      return join(self, arguments, heap, out);
    case Method::kFormat:
      return format(self, arguments, heap, out);
    case Method::kRemoveprefix:
    case Method::kRemovesuffix:
      return remove_end(self, method, arguments, heap, out);
    default:
      return fill_zeros(self, arguments, heap, out);
  }
}

Status list_method(const Value& self, Method method, const Arguments& arguments, Heap* heap,
                   Value* out) {
  const std::vector<Value>& items = self.list->items;
  if (method == Method::kCopy) {
    List* list = heap->list();
    SHARPI_TRY(walk(self, heap, &list->items));
    *out = Value::of(Kind::kList, list);
    return Status::ok();
  }
  Value p;
  SHARPI_TRY(bind(arguments, "index", {"value"}, &p));
  int64_t n = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    bool same = false;
    SHARPI_TRY(equal(items[i], p, heap, &same));
    if (same && method == Method::kIndex) {
      *out = Value::of(static_cast<int64_t>(i));
      return Status::ok();
    }
    n += same ? 1 : 0;
  }
  if (method == Method::kIndex) {
    return Status::error(Code::kInvalidArgument, "value is not in list");
  }
  *out = Value::of(n);
  return Status::ok();
}

Status dict_method(const Value& self, Method method, const Arguments& arguments, Heap* heap,
                   Value* out) {
  Dict& dict = *self.dict;
  if (method == Method::kGet) {
    Value p[2] = {{}, Value::none()};
    SHARPI_TRY(bind(arguments, "get", {"key", "default"}, p));
    const Value* found = nullptr;
    SHARPI_TRY(find_key(dict, p[0], heap, &found));
    *out = found != nullptr ? *found : p[1];
    return Status::ok();
  }
  SHARPI_TRY(heap->charge(dict.items.size() * (2 * sizeof(Value) + sizeof(List))));
  if (method == Method::kCopy) {
    Dict* copy = heap->dict();
    copy->items = dict.items;
    *out = Value::of(Kind::kDict, copy);
    return Status::ok();
  }
  List* list = heap->list();
  for (const auto& [key, value] : dict.items) {
    if (method != Method::kItems) {
      list->items.push_back(method == Method::kKeys ? key : value);
      continue;
    }
    List* pair = heap->list();
    pair->items = {key, value};
    list->items.push_back(Value::of(Kind::kTuple, pair));
  }
  *out = Value::of(Kind::kView, list);
  return Status::ok();
}

}  // namespace

Status call_method(const Value& self, Method method, std::string_view name,
                   const Arguments& arguments, Heap* heap, Value* out) {
  if (method == Method::kRefused) {
    return Status::error(Code::kUnsupported, "%s.%.*s() is not supported in templates",
                         type_name(self), static_cast<int>(name.size()), name.data());
  }
  if (self.is_string()) return string_method(self, method, arguments, heap, out);
  if (self.is(Kind::kDict)) return dict_method(self, method, arguments, heap, out);
  return list_method(self, method, arguments, heap, out);
}

}  // namespace sharpi::jinja
