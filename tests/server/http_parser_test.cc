// SPDX-License-Identifier: MIT
// Requests as they arrive: whole, in pieces, one behind the other, and such as nobody should send.
#include "http_parser.h"

#include <gtest/gtest.h>
#include <zlib.h>

namespace server {
namespace {

constexpr uint64_t kMostBody = 1000;

// What became of the bytes, given in pieces of that size: the parser goes on to the body by itself.
struct Read {
  explicit Read(const std::string& bytes, size_t piece = SIZE_MAX, uint64_t most_bodies = 1 << 20)
      : budget(most_bodies), parser(kMostBody, budget) {
    std::string held;
    for (size_t at = 0; at < bytes.size() && parser.fault() == 0 && !parser.is_whole();) {
      const size_t n = std::min(piece, bytes.size() - at);
      held.append(bytes, at, n);
      at += n;
      taken = at - held.size();
      for (size_t now = 1; now != 0 && parser.fault() == 0 && !parser.is_whole();) {
        now = parser.take(held);
        held.erase(0, now);
        if (parser.head_is_whole()) parser.read_body();
      }
      taken = at - held.size();
    }
  }
  MemoryBudget budget;
  HttpParser parser;
  size_t taken = 0;
};

std::string head(const std::string& first, const std::string& rest) {
  return first + " HTTP/1.1\r\nHost: x\r\n" + rest + "\r\n";
}

TEST(HttpParser, ReadsRequestsInPiecesAsItReadsThemWhole) {
  const std::string plain = head("GET /a%20b/c?d=e%3d&f", "X-Y:  z \r\n");
  const std::string sized = head("POST /p", "Content-Length: 5\r\n") + "hello";
  const std::string chunks = head("POST /p", "Transfer-Encoding: Chunked\r\n") +
                             "2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nAuthorization: Bearer t\r\n\r\n";
  const std::string next = "GET /next HTTP/1.1\r\n";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, SIZE_MAX}) {
    Read read(plain + next, piece);
    ASSERT_TRUE(read.parser.is_whole()) << read.parser.fault_sentence();
    EXPECT_EQ(read.taken, plain.size());
    EXPECT_EQ(read.parser.request().method, "GET");
    EXPECT_EQ(read.parser.request().path, "/a b/c");
    EXPECT_EQ(read.parser.request().parameter("d"), "e=");
    EXPECT_EQ(read.parser.request().parameter("f"), "");
    EXPECT_EQ(read.parser.request().header("x-y"), "z");
    EXPECT_FALSE(read.parser.has_body());
    for (const std::string& text : {sized, chunks}) {
      Read with_body(text + next, piece);
      ASSERT_TRUE(with_body.parser.is_whole()) << with_body.parser.fault_sentence();
      EXPECT_EQ(with_body.taken, text.size());
      EXPECT_EQ(with_body.parser.request().body, "hello");
      EXPECT_EQ(with_body.parser.request().find("authorization"), nullptr);
    }
  }
}

TEST(HttpParser, RefusesWhatLeavesDoubtOverItsEnd) {
  const struct {
    std::string text;
    int status;
  } cases[] = {
      {head("GET /", "Content-Length : 5\r\n"), 400},
      {head("POST /", "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n"), 400},
      {head("POST /", std::string("Content-Length: 5\0\r\n", 20)), 400},
      {head("POST /", "Content-Length: 5\r\nContent-Length: 5\r\n"), 400},
      {head("POST /", "Content-Length: 5, 5\r\n"), 400},
      {head("POST /", "Content-Length: +5\r\n"), 400},
      {head("POST /", "Content-Length: \r\n"), 400},
      {head("POST /", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400},
      {head("POST /", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400},
      {head("POST /", "Transfer-Encoding: gzip, chunked\r\n"), 400},
      {head("POST /", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
      {head("POST /", "Transfer-Encoding: identity\r\n"), 400},
      {head("POST /", "Content-Encoding: zstd\r\nContent-Length: 5\r\n"), 400},
      {head("POST /", "Content-Length: 1001\r\n"), 413},
      {head("POST /", "Content-Length: 99999999999999999999\r\n"), 413},
      {head("GET /", "Host: y\r\n"), 400},
      {head("GET /", "X: a\r\n b\r\n"), 400},
      {head("GET /", "X: a\r\n\tb\r\n"), 400},
      {head("GET /", "X y: a\r\n"), 400},
      {head("GET /", "no colon\r\n"), 400},
      {head("GET /", ": no name\r\n"), 400},
      {head("GET /%zz", ""), 400},
      {head("GET http://x/", ""), 400},
      {head("GET x", ""), 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: x\n\n", 400},
      {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/3.1\r\nHost: x\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405},
  };
  for (const auto& [text, status] : cases) {
    for (const size_t piece : {size_t{1}, SIZE_MAX}) {
      Read read(text + "\r\n\r\n", piece);
      EXPECT_EQ(read.parser.fault(), status) << text << read.parser.fault_sentence();
    }
  }
}

TEST(HttpParser, RefusesBodiesThatAreNotAsTheirHeadsSay) {
  const std::string chunked = head("POST /", "Transfer-Encoding: chunked\r\n");
  const std::string packed = head("POST /", "Content-Encoding: gzip\r\nContent-Length: 5\r\n");
  EXPECT_EQ(Read(chunked + "zz\r\nhello\r\n").parser.fault(), 400);
  EXPECT_EQ(Read(chunked + "2\r\nhello\r\n").parser.fault(), 400);
  EXPECT_EQ(Read(chunked + "ffffffffffffffffff\r\n").parser.fault(), 400);
  EXPECT_EQ(Read(chunked + std::string(1 << 17, '1'), 4096).parser.fault(), 400);
  EXPECT_EQ(Read(chunked + "400\r\n" + std::string(1024, 'x') + "\r\n").parser.fault(), 413);
  EXPECT_EQ(Read(packed + "hello").parser.fault(), 400);
  Read broken(head("POST /", "Content-Length: 5\r\n") + "hel");
  broken.parser.end();
  EXPECT_EQ(broken.parser.fault(), 400);
}

TEST(HttpParser, HeadsHaveLimits) {
  EXPECT_EQ(Read(head("GET /", "X: " + std::string(1 << 17, 'y') + "\r\n")).parser.fault(), 431);
  EXPECT_EQ(Read("GET /" + std::string(1 << 17, 'y'), 4096).parser.fault(), 431);
  std::string many;
  for (int i = 0; i < 200; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  EXPECT_EQ(Read(head("GET /", many)).parser.fault(), 431);
  EXPECT_TRUE(Read(head("GET /" + std::string(60000, 'y'), "")).parser.is_whole());
}

std::string packed(const std::string& text, int window) {
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 100, '\0');
  std::string in = text;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

TEST(HttpParser, UnpacksBodiesUpToTheirLimit) {
  const auto request = [](const std::string& encoding, const std::string& body) {
    return head("POST /", "Content-Encoding: " + encoding +
                              "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n") +
           body;
  };
  const std::string text(kMostBody, 'x');
  for (const size_t piece : {size_t{1}, SIZE_MAX}) {
    EXPECT_EQ(Read(request("gzip", packed(text, 31)), piece).parser.request().body, text);
    EXPECT_EQ(Read(request("deflate", packed(text, 15)), piece).parser.request().body, text);
    EXPECT_EQ(Read(request("gzip", packed(text + "x", 31)), piece).parser.fault(), 413);
    const std::string whole = packed(text, 31);
    EXPECT_EQ(Read(request("gzip", whole.substr(0, 15)), piece).parser.fault(), 400);
    EXPECT_EQ(Read(request("gzip", whole + "more"), piece).parser.fault(), 400);
  }
}

TEST(HttpParser, AllBodiesTogetherHaveALimit) {
  const std::string request = head("POST /", "Content-Length: 1000\r\n") + std::string(1000, 'x');
  EXPECT_EQ(Read(request, 100, 999).parser.fault(), 503);
  Read first(request, 100, 1000);
  EXPECT_TRUE(first.parser.is_whole());
  EXPECT_EQ(first.budget.taken(), 1000u);
  first.parser.share().release();
  EXPECT_EQ(first.budget.taken(), 0u);
}

}  // namespace
}  // namespace server
