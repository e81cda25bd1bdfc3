// SPDX-License-Identifier: MIT
// The other end of a request's connection. The HTTP library says nothing of it while a handler
// runs, so its socket is looked up by its two addresses. A connection that was reset has but one of
// them left, so what is not found is gone.
// Thread rule: made by the thread that serves the connection; gone() by any while that serves it.
#pragma once

#include <httplib.h>

namespace server {

class Peer {
 public:
  explicit Peer(const httplib::Request& request);
  /// It closed the connection, or its sending half: nobody waits for an answer.
  bool gone() const;

 private:
  int socket_ = -1;
};

}  // namespace server
