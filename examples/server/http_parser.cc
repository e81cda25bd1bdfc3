// SPDX-License-Identifier: MIT
#include "http_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>
#include <iterator>
#include <optional>

#include "body_decoder.h"

namespace server {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

// Of these a request has at most one.
constexpr std::string_view kSingle[] = {"host",   "content-length",  "transfer-encoding",
                                        "origin", "authorization",   "content-type",
                                        "expect", "content-encoding"};

bool is_whole_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

// The names of the functions that Beast calls are Beast's. What they refuse they say in fault_, and
// stop Beast with an error of its own.
class HttpParser::Impl : public http::basic_parser<true> {
 public:
  Impl(uint64_t most_body, MemoryBudget& budget) : decoder_(most_body, budget), most_(most_body) {
    header_limit(static_cast<uint32_t>(kMostHead));
    body_limit(UINT64_MAX);  // what a body is unpacked is counted, not what arrives
  }

  size_t take(std::string_view data) {
    size_t taken = 0;
    while (taken < data.size() && fault_ == 0 && !is_done() && (!is_header_done() || reads_body_)) {
      const bool in_head = !is_header_done();
      const std::string_view part = data.substr(taken);
      error_code error;
      const size_t n = put(boost::asio::const_buffer(part.data(), part.size()), error);
      if (error == http::error::need_more) error = {};
      if (error && fault_ == 0) judge_error(error, part);
      if (in_head && fault_ == 0) judge_lines(part.substr(0, n));
      head_bytes_ += in_head ? n : 0;
      if (in_head && fault_ == 0 && is_header_done()) judge_head();
      taken += n;
      if (n == 0) break;
    }
    const size_t left = data.size() - taken;
    if (fault_ == 0 && (head_bytes_ > kMostHead || (!is_header_done() && left > kMostHead))) {
      set_fault(431, "the headers are too long");
    } else if (fault_ == 0 && reads_body_ && !is_done() && left > kMostHead) {
      set_fault(400, "a line between the parts of the body has no end");
    }
    return taken;
  }

  void end() {
    if (!is_done() && fault_ == 0) set_fault(400, "the request breaks off");
  }
  bool has_line() const { return !request_.method.empty(); }
  void read_body() {
    reads_body_ = true;
    eager(true);
  }
  bool has_body() const {
    return is_header_done() && (chunked() || length_.value_or(0) != 0 || is_unframed_);
  }

  int fault_ = 0;
  std::string sentence_;
  HttpRequest request_;
  BodyDecoder decoder_;
  bool wants_continue_ = false;

 private:
  using text = boost::beast::string_view;
  static std::string_view view(text t) { return {t.data(), t.size()}; }

  void set_fault(int status, std::string sentence) {
    fault_ = status;
    sentence_ = std::move(sentence);
  }
  void refuse(int status, std::string sentence, error_code& error) {
    set_fault(status, std::move(sentence));
    error = http::make_error_code(http::error::bad_value);
  }

  void on_request_impl(http::verb, text method, text target, int version, error_code& error) {
    request_.method = view(method);
    request_.is_http_1_0 = version == 10;
    std::string_view whole = view(target);
    if (version != 10 && version != 11) return refuse(400, "only HTTP/1.1 is spoken", error);
    if (whole == "*") {
      request_.path = "*";
      return;
    }
    const size_t mark = whole.find('?');
    if (mark != std::string_view::npos) request_.query = whole.substr(mark + 1);
    if (!whole.starts_with('/') || !decode_percent(whole.substr(0, mark), &request_.path)) {
      refuse(400, "the target of the request is no path", error);
    }
  }

  void on_field_impl(http::field, text name, text value, error_code& error) {
    if (is_header_done()) return;  // behind the chunks of a body nothing is of interest
    if (request_.headers.size() >= kMostHeaders) return refuse(431, "too many headers", error);
    std::string small = small_letters(view(name));
    const std::string_view what = view(value);
    const bool single =
        std::find(std::begin(kSingle), std::end(kSingle), small) != std::end(kSingle);
    if (single && request_.find(small) != nullptr) {
      return refuse(400, "there is more than one header " + small, error);
    }
    if (small == "content-length") {
      if (!is_whole_number(what)) return refuse(400, "Content-Length is not a whole number", error);
      uint64_t length = 0;  // Beast has seen that it is one
      std::from_chars(what.data(), what.data() + what.size(), length);
      length_ = length;
    } else if (small == "transfer-encoding" && !same_but_case(what, "chunked")) {
      return refuse(400, "a Transfer-Encoding other than chunked is not read", error);
    } else if (small == "content-encoding" && !decoder_.set_encoding(what)) {
      return refuse(400, "a Content-Encoding other than gzip and deflate is not read", error);
    } else if (small == "expect") {
      wants_continue_ = same_but_case(what, "100-continue");
    }
    request_.headers.emplace_back(std::move(small), what);
  }

  void on_header_impl(error_code&) {}
  void on_response_impl(int, text, int, error_code&) {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) {}
  void on_chunk_header_impl(uint64_t, text, error_code&) {}
  // Of newer versions; what stands behind the chunks of a body is of no interest.
  void on_trailer_field_impl(http::field, text, text, error_code&) {}
  size_t on_body_impl(text part, error_code& error) { return take_part(view(part), error); }
  size_t on_chunk_body_impl(uint64_t, text part, error_code& error) {
    return take_part(view(part), error);
  }
  void on_finish_impl(error_code& error) {
    if (has_body() && !decoder_.is_whole()) refuse(400, "the packed body breaks off", error);
  }

  size_t take_part(std::string_view part, error_code& error) {
    switch (decoder_.take(part, &request_.body)) {
      case BodyDecoder::Taken::kWell:
        break;
      case BodyDecoder::Taken::kTooLong:
        refuse(413, "the request is too long", error);
        break;
      case BodyDecoder::Taken::kTooMuch:
        refuse(503, "too many long requests are being read", error);
        break;
      case BodyDecoder::Taken::kBroken:
        refuse(400, "the body is not packed as its headers say", error);
        break;
    }
    return part.size();
  }

  // Whole lines of a head.
  void judge_lines(std::string_view bytes) {
    if (bytes.find("\r\n ") != std::string_view::npos ||
        bytes.find("\r\n\t") != std::string_view::npos) {
      set_fault(400, "a header goes on in another line");
    }
  }

  // What Beast reads from several headers, or lets pass, is judged here by the whole of them.
  void judge_head() {
    request_.keeps_alive = keep_alive();
    if (!request_.is_http_1_0 && request_.find("host") == nullptr) {
      return set_fault(400, "the header Host is missing");
    }
    if (chunked() && request_.is_http_1_0) {
      return set_fault(400, "HTTP/1.0 has no bodies in chunks");
    }
    if (length_.value_or(0) > most_) return set_fault(413, "the request is too long");
    const bool sends =
        request_.method != "GET" && request_.method != "HEAD" && request_.method != "OPTIONS";
    is_unframed_ = sends && !chunked() && !length_;
  }

  void judge_error(const error_code& error, std::string_view bytes) {
    if (error == http::error::header_limit) return set_fault(431, "the headers are too long");
    if (bytes.starts_with("PRI * HTTP/2")) return set_fault(405, "HTTP/2 is not spoken");
    if (error == http::error::bad_content_length && is_beyond_counting(bytes)) {
      return set_fault(413, "the request is too long");
    }
    set_fault(400, std::string(is_header_done() ? "the body is not as its headers say: "
                                                : "this is no request of HTTP/1.1: ") +
                       error.message());
  }

  // Its one length is of nothing but digits, more than 64 bits have.
  bool is_beyond_counting(std::string_view head) const {
    constexpr std::string_view kName = "\r\ncontent-length:";
    const std::string small = "\r\n" + small_letters(head);
    if (request_.find("content-length") != nullptr) return false;
    const size_t at = small.find(kName);
    if (at == std::string::npos || small.find(kName, at + 1) != std::string::npos) return false;
    std::string_view value = std::string_view(small).substr(at + kName.size());
    value = trimmed(value.substr(0, value.find("\r\n")));
    return value.size() > 19 && is_whole_number(value);
  }

  const uint64_t most_;
  size_t head_bytes_ = 0;
  std::optional<uint64_t> length_;
  bool is_unframed_ = false;  // by its method it may have a body, and it does not say which
  bool reads_body_ = false;
};

HttpParser::HttpParser(uint64_t most_body, MemoryBudget& budget)
    : impl_(std::make_unique<Impl>(most_body, budget)) {}
HttpParser::~HttpParser() = default;

size_t HttpParser::take(std::string_view data) {
  return impl_->take(data);
}
void HttpParser::end() {
  impl_->end();
}
void HttpParser::read_body() {
  impl_->read_body();
}
bool HttpParser::head_is_whole() const {
  return impl_->is_header_done();
}
bool HttpParser::has_line() const {
  return impl_->has_line();
}
bool HttpParser::is_whole() const {
  return impl_->is_done();
}
bool HttpParser::has_body() const {
  return impl_->has_body();
}
bool HttpParser::is_chunked() const {
  return impl_->is_header_done() && impl_->chunked();
}
bool HttpParser::wants_continue() const {
  return impl_->wants_continue_;
}
int HttpParser::fault() const {
  return impl_->fault_;
}
const std::string& HttpParser::fault_sentence() const {
  return impl_->sentence_;
}
HttpRequest& HttpParser::request() {
  return impl_->request_;
}
MemoryBudget::Share& HttpParser::share() {
  return impl_->decoder_.share();
}

}  // namespace server
