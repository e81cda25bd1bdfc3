// SPDX-License-Identifier: MIT
// Saving a session (format: session_blob.h). Nothing is kept between calls; the session is only
// read, its rows through the tiers' stores. Thread rule: as Session's const calls.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/session_blob.h"

namespace sharpi {

struct SessionState;

/// Of the blob that save_session() would write now.
Result<uint64_t> saved_bytes(const SessionState& session);
/// Pre: `bytes` is what saved_bytes() gave and the session has not changed since. May throw
/// std::bad_alloc before anything is written.
Status save_session(const SessionState& session, BlobSink* to, uint64_t bytes);

}  // namespace sharpi
