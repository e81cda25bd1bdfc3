// SPDX-License-Identifier: MIT
// Messages over an NCCL communicator that the host application made. The library is looked for at
// run time, and its types are our own, so nothing of NCCL is needed to build. Bytes go through a
// buffer on the communicator's device, a piece at a time. Owns the buffer and a stream; the
// communicator is the host's until abandon(), which aborts it.
// Thread rule: as Transport.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "group/transport.h"

namespace sharpi {

struct NcclOptions {
  void* comm = nullptr;            // an ncclComm_t
  const char* library = nullptr;   // null = libnccl.so.2
  const char* driver = nullptr;    // null = NVIDIA's
  uint32_t rank = 0, n_ranks = 0;  // as the group says
};

/// kUnsupported: NCCL or the driver cannot be opened, or lacks a function; kInvalidArgument: the
/// communicator is of another size, or this process another rank of it, than the group says;
/// kDevice, kOutOfMemory.
Result<std::unique_ptr<Transport>> make_nccl_transport(const NcclOptions& options);

}  // namespace sharpi
