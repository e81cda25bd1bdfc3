// SPDX-License-Identifier: MIT
#include "body_decoder.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>

#include "http_message.h"

namespace server {

struct BodyDecoder::Inflate {
  Inflate() {
    constexpr int kWindow = 15, kGzipOrZlib = 32;
    if (inflateInit2(&z, kWindow + kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  }
  ~Inflate() { inflateEnd(&z); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  z_stream z{};
  bool ended = false;
};

BodyDecoder::BodyDecoder(uint64_t most, MemoryBudget& budget) : most_(most), share_(budget) {}

BodyDecoder::~BodyDecoder() = default;

bool BodyDecoder::set_encoding(std::string_view name) {
  if (name.empty() || same_but_case(name, "identity")) return true;
  if (!same_but_case(name, "gzip") && !same_but_case(name, "x-gzip") &&
      !same_but_case(name, "deflate")) {
    return false;
  }
  inflate_ = std::make_unique<Inflate>();
  return true;
}

// The share is as large as the text's memory, which grows by half.
BodyDecoder::Taken BodyDecoder::append(std::string_view part, std::string* body) {
  if (part.size() > most_ - body->size()) return Taken::kTooLong;
  const size_t size = body->size() + part.size();
  if (size > body->capacity()) {
    const size_t capacity = std::min<uint64_t>(std::max(size, size + size / 2), most_);
    if (!share_.grow_to(capacity)) return Taken::kTooMuch;
    body->reserve(capacity);
  }
  body->append(part);
  return Taken::kWell;
}

BodyDecoder::Taken BodyDecoder::take(std::string_view part, std::string* body) {
  if (inflate_ == nullptr) return append(part, body);
  std::array<char, 16384> out;
  z_stream& z = inflate_->z;
  z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(part.data()));
  z.avail_in = static_cast<uInt>(part.size());
  do {
    if (inflate_->ended) return z.avail_in == 0 ? Taken::kWell : Taken::kBroken;
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    const int status = inflate(&z, Z_NO_FLUSH);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) return Taken::kBroken;
    inflate_->ended = status == Z_STREAM_END;
    const Taken taken = append({out.data(), out.size() - z.avail_out}, body);
    if (taken != Taken::kWell) return taken;
  } while (z.avail_in != 0 || z.avail_out == 0);
  return Taken::kWell;
}

bool BodyDecoder::is_whole() const {
  return inflate_ == nullptr || inflate_->ended;
}

}  // namespace server
