// SPDX-License-Identifier: MIT
// What the parser makes of a template. One kind of node for everything: `kind` says which fields
// mean something. Nodes are owned by the Program and point to each other.
// Thread rule: immutable once parsed; any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace sharpi::jinja {

enum class NodeKind : uint8_t {
  // Statements.
  kData,         // text
  kOutput,       // a
  kIf,           // branches: (condition, body); orelse
  kFor,          // target, a = what is walked, b = filter or null, body, orelse, recursive
  kSet,          // target, a
  kSetBlock,     // target, a = filter chain over null, or null; body
  kMacro,        // name, arguments, body
  kCallBlock,    // a = call, arguments, body
  kFilterBlock,  // a = filter chain over null; body
  kWith,         // arguments as assignments; body
  kScope,        // body in a scope of its own
  kBreak,
  kContinue,
  // Expressions.
  kConstant,     // constant
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value
  kConditional,  // a if b else c (c may be null)
  kOr,           // a, b
  kAnd,
  kNot,              // a
  kCompare,          // a, then children by `ops`
  kBinary,           // a op b
  kConcat,           // children
  kNegate,           // a
  kPlus,             // a
  kAttribute,        // a . text
  kItem,             // a [ b ]
  kSlice,            // a : b : c, any may be null; only as b of kItem
  kCall,             // a ( children, keywords, c = *list, b = **dict )
  kFilter,           // a | filter ( children, keywords ); a is null at the start of a block's chain
  kTest,             // a is text ( children )
  kNamespaceTarget,  // name . text, only as a target
};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

struct Node;

struct Argument {
  uint32_t name;
  const Node* value;  // default or assigned value; null: none
};

struct Node {
  NodeKind kind{};
  Op op{};
  bool recursive = false;
  bool is_plain = false;  // a constant, or signs and dicts of nothing else
  bool wants_varargs = false, wants_kwargs = false;  // a macro that names them
  uint8_t id = 0;      // kFilter: Filter; kTest: Test; kAttribute: Method of that name
  uint16_t depth = 1;  // longest way down
  uint32_t at = 0;     // byte in the source
  uint32_t name = 0;   // of Program::names
  Value constant;
  const MarkedText* text = nullptr;
  const Node *a = nullptr, *b = nullptr, *c = nullptr, *target = nullptr;
  std::vector<const Node*> children, body, orelse;
  std::vector<std::pair<const Node*, std::vector<const Node*>>> branches;
  std::vector<std::pair<std::string, const Node*>> keywords;
  std::vector<Argument> arguments;
  std::vector<Op> ops;
};

struct Program {
  std::string source;  // normalised
  std::vector<std::string> names;
  std::deque<Node> nodes;
  std::deque<MarkedText> texts;
  std::vector<const Node*> body;
};

}  // namespace sharpi::jinja
