// SPDX-License-Identifier: MIT
// How a call enters a session: changing calls alone, reading calls together, and nobody waits. A
// changing call also holds the engine's lock.
// Thread rule: the helpers are for one call's scope.
#pragma once

#include "api/api_guard.h"
#include "api/api_handles.h"

namespace sharpi::api {

class SessionCall {
 public:
  explicit SessionCall(sharpi_session& session) noexcept : gate_(session.gate) {
    if (gate_ && session.p->try_lock()) session_ = session.p.get();
  }
  ~SessionCall() {
    if (session_ != nullptr) session_->unlock();
  }
  SessionCall(const SessionCall&) = delete;
  SessionCall& operator=(const SessionCall&) = delete;
  explicit operator bool() const noexcept { return session_ != nullptr; }

 private:
  ExclusiveCall gate_;  // left after the engine's lock
  Session* session_ = nullptr;
};

inline Status busy_session() {
  return Status::error(Code::kBusy, "another call is using the session");
}

/// Runs body(Session&) -> Status as a changing call.
template <class Body>
sharpi_status change_session(sharpi_session* session, sharpi_error* err, Body&& body) noexcept {
  return guard(err, [&]() -> Status {
    SHARPI_TRY(require(session, "session"));
    SessionCall call(*session);
    return call ? body(*session->p) : busy_session();
  });
}

/// Runs body(const Session&) -> Status as a reading call.
template <class Body>
sharpi_status read_session(const sharpi_session* session, sharpi_error* err, Body&& body) noexcept {
  return guard(err, [&]() -> Status {
    SHARPI_TRY(require(session, "session"));
    SharedCall call(session->gate);
    return call ? body(static_cast<const Session&>(*session->p)) : busy_session();
  });
}

/// The same, also from a callback of a changing call, which runs between two of its steps.
template <class Body>
sharpi_status watch_session(const sharpi_session* session, sharpi_error* err,
                            Body&& body) noexcept {
  if (session == nullptr || !session->gate.is_own()) return read_session(session, err, body);
  return guard(err, [&]() -> Status { return body(static_cast<const Session&>(*session->p)); });
}

}  // namespace sharpi::api
