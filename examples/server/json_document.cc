// SPDX-License-Identifier: MIT
#include "json_document.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace server {
namespace {

// Deeper documents are refused before they are parsed.
constexpr size_t kMaxDepth = 100;
// Names of an object are compared with each other.
constexpr uint32_t kMaxMembers = 1024;
// Longer lists are of numbers alone: of token ids.
constexpr uint32_t kMaxElements = 1 << 16;

// What a tree takes, with the allocator's own: an object or a list, a member of an object, an
// element of a list, a text beside its bytes.
constexpr uint64_t kContainer = 80, kMember = 64, kElement = 16, kText = 64;
// A tree may take so many times its text, and this in any case.
constexpr uint64_t kTreeTimes = 8, kTreeAnyway = 16u << 20;
constexpr uint64_t kWorkTimes = 4;

// A text as it is once its escapes are taken for what they stand for, as far as that is
// punctuation.
std::string unescaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    unsigned code = 'x';
    if (c == 'u' && i + 4 < text.size()) {
      std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16);
      i += 4;
    }
    const bool is_itself = c == '"' || c == '\\' || c == '/';
    out += is_itself ? c : c == 'u' && code < 128 ? static_cast<char>(code) : ' ';
  }
  return out;
}

class Scanner {
 public:
  Scanner(const std::string& text, uint64_t most) : text_(text), most_(most) {}

  JsonShape scan() {
    for (size_t i = 0; i < text_.size() && out_.fault.empty(); ++i) {
      const char c = text_[i];
      if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
      if (c == '"') {
        i = take_text(i);
      } else if (c == '{' || c == '[') {
        open(c == '{', i);
        continue;
      } else if (c == '}' || c == ']') {
        close(i);
      } else if (!open_.empty() && c == (open_.back().is_object ? ':' : ',')) {
        count(i);
      }
      if (!open_.empty() && c != ',') open_.back().is_empty = false;
      if (out_.bytes > most_) {
        out_.fault = "has more values than its " + std::to_string(text_.size()) + " bytes may have";
      }
    }
    return std::move(out_);
  }

 private:
  struct Open {
    bool is_object;
    size_t index;  // in the list of sizes
    bool is_empty = true, has_others = false;
  };

  size_t take_text(size_t begin) {
    size_t end = begin + 1;
    bool escapes = false;
    while (end < text_.size() && text_[end] != '"') {
      escapes |= text_[end] == '\\';
      end += text_[end] == '\\' ? 2 : 1;
    }
    const std::string_view inside =
        std::string_view(text_).substr(begin + 1, std::min(end, text_.size()) - begin - 1);
    out_.bytes += kText + 2 * inside.size();
    if (after_arguments_ && out_.bytes <= most_) {
      out_.bytes += shape_of(unescaped(inside), most_ - out_.bytes).bytes;
    }
    const size_t behind = std::min(text_.find_first_not_of(" \t\r\n", end + 1), text_.size());
    const bool is_name = behind < text_.size() && text_[behind] == ':';
    after_arguments_ = is_name && (escapes || inside == "arguments");
    if (!open_.empty()) open_.back().has_others = true;
    return end;
  }

  void open(bool is_object, size_t at) {
    if (!open_.empty()) {
      open_.back().is_empty = false;
      open_.back().has_others = true;
    }
    open_.push_back({is_object, out_.sizes.size()});
    out_.sizes.push_back(0);
    out_.bytes += kContainer;
    if (open_.size() > kMaxDepth) {
      refuse("is nested more than " + std::to_string(kMaxDepth) + " levels deep", at);
    } else if (out_.bytes > most_) {
      refuse("has more values than its " + std::to_string(text_.size()) + " bytes may have", at);
    }
  }

  void close(size_t at) {
    if (open_.empty()) return;
    if (!open_.back().is_object && !open_.back().is_empty) count(at);
    open_.pop_back();
  }

  // A member, or an element that has ended.
  void count(size_t at) {
    const Open& last = open_.back();
    const uint32_t n = ++out_.sizes[last.index];
    out_.bytes += last.is_object ? kMember : kElement;
    if (last.is_object && n > kMaxMembers) {
      refuse("has an object with more than " + std::to_string(kMaxMembers) + " members", at);
    } else if (!last.is_object && n > kMaxElements && last.has_others) {
      refuse("has a list of more than " + std::to_string(kMaxElements) +
                 " elements that are not all numbers",
             at);
    }
  }

  void refuse(const std::string& what, size_t at) {
    if (out_.fault.empty()) out_.fault = what + " at byte " + std::to_string(at + 1);
  }

  const std::string& text_;
  const uint64_t most_;
  std::vector<Open> open_;
  bool after_arguments_ = false;
  JsonShape out_;
};

// Makes the tree: lists and objects have their whole size from the beginning, so nothing is moved.
class Builder : public json::json_sax_t {
 public:
  Builder(json* root, const JsonShape& shape) : root_(root), shape_(shape) {}
  size_t fault_at = 0;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override {
    json* made = place();
    *made = json::object();
    made->get_ref<json::object_t&>().reserve(next_size());
    open_.push_back(made);
    return true;
  }
  bool start_array(size_t) override {
    json* made = place();
    *made = json::array();
    made->get_ref<json::array_t&>().reserve(next_size());
    open_.push_back(made);
    return true;
  }
  bool key(string_t& name) override {
    member_ = &(*open_.back())[name];
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    fault_at = std::max<size_t>(position, 1);
    return false;
  }

 private:
  template <class T>
  bool put(const T& value) {
    *place() = json(value);
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }
  json* place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return member_;
    open_.back()->push_back(nullptr);
    return &open_.back()->back();
  }
  size_t next_size() { return next_ < shape_.sizes.size() ? shape_.sizes[next_++] : 0; }

  json* const root_;
  const JsonShape& shape_;
  std::vector<json*> open_;
  json* member_ = nullptr;
  size_t next_ = 0;
};

// The JSON library makes a list of what it gives back, for which memory may be short; of what is
// empty it makes none.
void empty_out(json& value) {
  if (value.is_array()) {
    for (json& element : value) empty_out(element);
    value.get_ref<json::array_t&>().clear();
  } else if (value.is_object()) {
    auto& members = value.get_ref<json::object_t&>();
    for (auto& member : members) empty_out(member.second);
    members.clear();
  }
}

}  // namespace

JsonShape shape_of(const std::string& text, uint64_t most) {
  return Scanner(text, most).scan();
}

uint64_t most_tree_bytes(uint64_t text_bytes) {
  return kTreeTimes * text_bytes + kTreeAnyway;
}

json parse_nested(const std::string& text, std::string* fault) {
  const JsonShape shape = shape_of(text, UINT64_MAX);
  *fault = shape.fault;
  JsonDocument out;
  if (!shape.fault.empty() || out.parse(text, shape) != 0) return nullptr;
  return out.take();
}

uint64_t working_bytes(uint64_t text_bytes) {
  return kWorkTimes * text_bytes;
}

uint64_t most_request_bytes(uint64_t body_bytes) {
  const uint64_t most = UINT64_MAX >> 5;  // --max-body all
  const uint64_t bytes = std::min(body_bytes, most);
  return 2 * bytes + most_tree_bytes(bytes) + working_bytes(bytes);
}

void JsonDocument::clear() {
  empty_out(root_);
  root_ = nullptr;
}

size_t JsonDocument::parse(const std::string& text, const JsonShape& shape) {
  clear();
  Builder builder(&root_, shape);
  json::sax_parse(text, &builder);
  return builder.fault_at;
}

JsonDocument parse_body(const std::string& body, MemoryBudget::Share& share) {
  const JsonShape shape = shape_of(body, most_tree_bytes(body.size()));
  if (!shape.fault.empty()) throw RequestError(400, "the body " + shape.fault);
  if (!share.grow_to(share.bytes() + shape.bytes + working_bytes(body.size()))) {
    throw RequestError(503, "too many long requests are being read");
  }
  JsonDocument out;
  const size_t fault_at = out.parse(body, shape);
  if (fault_at != 0) {
    const size_t byte = std::min(fault_at, body.size());
    size_t line = 1, column = 1;
    for (size_t i = 0; i + 1 < byte; ++i) {
      column = body[i] == '\n' ? 1 : column + 1;
      line += body[i] == '\n' ? 1 : 0;
    }
    throw RequestError(400,
                       "the body is not JSON: at byte " + std::to_string(fault_at) + ", line " +
                           std::to_string(line) + ", column " + std::to_string(column),
                       "", "invalid_json");
  }
  if (!out.root().is_object()) throw RequestError(400, "the body is not a JSON object");
  return out;
}

}  // namespace server
