// SPDX-License-Identifier: MIT
// Whether a client is still there, by what its connection says; and answers whose time was up.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"
#include "generation.h"

namespace server {
namespace {

// A connection over the loopback interface: the client's end and the server's.
class Ends {
 public:
  explicit Ends(int family) {
    const int listener = socket(family, SOCK_STREAM, 0);
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET6) {
      reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    } else {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0) {
      listen(listener, 1);
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
      theirs_ = socket(family, SOCK_STREAM, 0);
      EXPECT_EQ(connect(theirs_, reinterpret_cast<sockaddr*>(&address), size), 0);
      ours = accept(listener, nullptr, nullptr);
    }
    close(listener);
  }
  ~Ends() {
    if (theirs_ >= 0) close(theirs_);
    if (ours >= 0) close(ours);
  }
  bool possible() const { return ours >= 0; }
  void close_half() { shutdown(theirs_, SHUT_WR); }
  // As a client does that is ended while an answer is on its way to it.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(theirs_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(theirs_);
    theirs_ = -1;
  }
  void wait_for_end() const {
    pollfd p{ours, POLLRDHUP, 0};
    ASSERT_EQ(poll(&p, 1, 10000), 1);
  }
  int ours = -1;

 private:
  int theirs_ = -1;
};

TEST(ServerPeer, IsGoneOnceItsConnectionOrItsSendingHalfEnded) {
  for (const int family : {AF_INET, AF_INET6}) {
    for (const bool half : {true, false}) {
      Ends connection(family);
      if (!connection.possible()) continue;  // a machine without IPv6
      EXPECT_FALSE(is_gone(connection.ours));
      half ? connection.close_half() : connection.reset();
      connection.wait_for_end();
      EXPECT_TRUE(is_gone(connection.ours));
    }
  }
}

TEST(ServerJob, ExpiresOnlyWhereNothingHasBegun) {
  Job waiting{Generation{}};
  EXPECT_TRUE(waiting.expire());
  EXPECT_TRUE(waiting.abandoned());
  Job begun{Generation{}};
  begun.begin("s1", 0);
  EXPECT_FALSE(begun.expire());
  EXPECT_FALSE(begun.abandoned());
  Job refused{Generation{}};
  refused.fail(400, "no");
  EXPECT_FALSE(refused.expire());
}

TEST(ServerJob, WhoWaitsIsLookedUpUntilItIsCancelled) {
  int looks = 0;
  bool gone = false;
  const auto look = [&] {
    ++looks;
    return gone;
  };
  Job left({}, look);
  EXPECT_FALSE(left.abandoned());
  gone = true;
  EXPECT_TRUE(left.abandoned());
  gone = false;
  EXPECT_TRUE(left.abandoned());
  EXPECT_EQ(looks, 2);  // not once more when that is known
  Job cancelled({}, look);
  cancelled.cancel();
  EXPECT_TRUE(cancelled.abandoned());
  EXPECT_EQ(looks, 2);  // whom to look up may be no more
}

}  // namespace
}  // namespace server
