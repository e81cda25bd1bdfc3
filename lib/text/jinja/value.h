// SPDX-License-Identifier: MIT
// The values a template computes with, as Python has them: what prints, compares and counts like
// Python's, without its unbounded integers. They live in the Heap of one rendering and go with it,
// so values may refer to each other in circles.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/marked_text.h"
#include "text/jinja/stack_bound.h"

namespace sharpi::jinja {

struct List;
struct Dict;
struct Macro;
struct BoundMethod;
struct Loop;
struct Undefined;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kNumeral,  // a number that 64 bits do not hold, as it was written; there is no arithmetic with it
  kString,
  kList,
  kTuple,
  kView,       // dict.items(), .keys(), .values(): counted and walked, not indexed
  kRange,      // walked, counted and indexed
  kGenerator,  // what select, map, items, ... give: walked once
  kDict,
  kNamespace,
  kMacro,
  kFunction,
  kMethod,
  kLoop,
};

/// Functions that every template can call by name.
enum class Function : uint8_t {
  kRange,
  kDict,
  kNamespace,
  kRaiseException,
  kStrftimeNow,
  kUnsupported,  // cycler, joiner, lipsum
};

struct Value {
  Kind kind = Kind::kUndefined;
  bool safe = false;  // a string that was marked so: adding another one escapes that
  /// Of numbers, truth values and none: read from the conversation. What they print is as foreign
  /// as a text from there; texts know it byte by byte.
  bool foreign = false;
  union {
    bool boolean;
    int64_t integer;
    double real;
    const MarkedText* text;
    List* list;
    Dict* dict;
    const Macro* macro;
    Function function;
    const BoundMethod* method;
    Loop* loop;
    const Undefined* undefined = nullptr;
  };

  static Value none() {
    Value v;
    v.kind = Kind::kNone;
    return v;
  }
  static Value of(bool b) {
    Value v;
    v.kind = Kind::kBool;
    v.boolean = b;
    return v;
  }
  static Value of(int64_t i) {
    Value v;
    v.kind = Kind::kInt;
    v.integer = i;
    return v;
  }
  static Value of(double d) {
    Value v;
    v.kind = Kind::kFloat;
    v.real = d;
    return v;
  }
  static Value of(const MarkedText* text, bool safe = false) {
    Value v;
    v.kind = Kind::kString;
    v.safe = safe;
    v.text = text;
    return v;
  }
  static Value numeral(const Value& text) {
    Value v = text;
    v.kind = Kind::kNumeral;
    return v;
  }
  static Value of(Kind kind, List* list) {
    Value v;
    v.kind = kind;
    v.list = list;
    return v;
  }
  static Value of(Kind kind, Dict* dict) {
    Value v;
    v.kind = kind;
    v.dict = dict;
    return v;
  }
  static Value of(Function function) {
    Value v;
    v.kind = Kind::kFunction;
    v.function = function;
    return v;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_number() const {
    return kind == Kind::kInt || kind == Kind::kFloat || kind == Kind::kBool;
  }
  /// Whether `list` is what it holds.
  bool is_listed() const { return kind >= Kind::kList && kind <= Kind::kGenerator; }
  std::string_view bytes() const { return text->bytes(); }  // pre: is_string() or kNumeral
};

struct List {
  std::vector<Value> items;
  size_t next = 0;  // kGenerator: the first item that nobody took yet
};

/// In order of insertion, as Python's. Looked through from the front: the dicts of conversations
/// have a handful of keys, and find_key() charges a look through a large one as work.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  const Value* find(std::string_view key) const;
  /// For dicts of few keys. pre: key.is_string().
  void set(const Value& key, const Value& value);
};

/// Why a value is undefined, for the sentence when something needs it.
struct Undefined {
  std::string what;  // "'x' is undefined"
};

struct BoundMethod {
  Value self;
  uint32_t method;  // Method of methods.h
  std::string_view name;
};

/// Owns every value of one rendering, and bounds the bytes that all of them take together. What the
/// functions below make is priced by them, but for the bytes of texts and the items of lists and
/// dicts: those are charged by whoever makes them large, before they become large. It also bounds
/// the work that a single step may do in any amount. A unit is about a byte that is looked at, so
/// that all of them take about a second.
class Heap {
 public:
  static constexpr uint64_t kMaxWork = uint64_t{1} << 30;
  explicit Heap(uint64_t max_bytes, uint64_t max_work = kMaxWork)
      : left_(max_bytes), work_left_(max_work) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// kDoesNotFit once more than the bound was asked for.
  Status charge(uint64_t bytes);
  /// Prices small things where nothing can fail: the charge after them does.
  void owe(uint64_t bytes) { left_ -= bytes < left_ ? bytes : left_; }
  /// kDoesNotFit once more work than the bound was asked for.
  Status work(uint64_t units);
  /// The same without a sentence.
  bool takes_work(uint64_t units);
  /// The same where nothing can fail: the work after it does.
  void owe_work(uint64_t units) { work_left_ -= units < work_left_ ? units : work_left_; }

  /// What walks into values, and what renders, asks it before it goes deeper.
  StackBound& stack() { return stack_; }

  Value text(std::string_view bytes, bool foreign) { return text(MarkedText(bytes, foreign)); }
  Value text(MarkedText text, bool safe = false) {
    owe(sizeof(MarkedText) + kAllocation + text.mark_bytes());
    return Value::of(&texts_.emplace_back(std::move(text)), safe);
  }
  List* list() {
    owe(sizeof(List) + kAllocation);
    return &lists_.emplace_back();
  }
  Dict* dict() {
    owe(sizeof(Dict) + kAllocation);
    return &dicts_.emplace_back();
  }
  Value undefined(std::string what);
  Value method(const Value& self, uint32_t method, std::string_view name);

 private:
  static constexpr uint64_t kAllocation = 32;  // what a block of memory takes besides its bytes

  uint64_t left_, work_left_;
  StackBound stack_;
  std::deque<MarkedText> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Undefined> undefined_;
  std::deque<BoundMethod> methods_;
};

/// What Python calls the type, for sentences.
const char* type_name(const Value& value);
bool truthy(const Value& value);
/// Python's ==. Cut at a depth no conversation has, as unequal; kDoesNotFit: too much stack.
Status equal(const Value& a, const Value& b, Heap* heap, bool* out, int depth = 0);
/// Python's <. kInvalidArgument for types that have no order.
Status less(const Value& a, const Value& b, Heap* heap, bool* out, int depth = 0);
/// The value of a key; null: there is none.
Status find_key(const Dict& dict, const Value& key, Heap* heap, const Value** out);
/// dict[key] = value; charges what that adds.
Status set_key(Dict* dict, const Value& key, const Value& value, Heap* heap);
/// Items of a list-like value, keys of a dict, characters of a string, nothing of undefined; a
/// generator is used up by it. kInvalidArgument for what cannot be walked.
Status walk(const Value& value, Heap* heap, std::vector<Value>* out);
/// len(). kInvalidArgument for what has none.
Status length(const Value& value, Heap* heap, int64_t* out);
/// Whether any of it was read from the conversation, as far as it is no list.
bool is_foreign(const Value& value);
/// The text that str() gives.
Status print(const Value& value, Heap* heap, MarkedText* out);
/// The text that repr() gives.
Status represent(const Value& value, Heap* heap, MarkedText* out, int depth = 0);

}  // namespace sharpi::jinja
