// SPDX-License-Identifier: MIT
// Restoring a session (format: session_blob.h). No field of a blob is trusted: a checksum tells
// damage, not intent. The blob is read once for its checksum, then its head is taken over and every
// field checked against every other and against this session, then everything is taken that the
// rest needs. Only then the session changes, and from there on nothing fails but a device, or a
// source that gives other bytes than before; that leaves an empty session. A session that is empty
// has nothing to lose: there the checksum is made while everything else is done, and tells last.
// Thread rule: as Session.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/session_blob.h"

namespace sharpi {

struct SessionState;

/// A blob of `len` bytes, or of as many as it says. May throw std::bad_alloc; then, and when what
/// it needs cannot be had or it is not good, nothing changed.
Status restore_session(SessionState* session, BlobSource* from, std::optional<uint64_t> len);

}  // namespace sharpi
