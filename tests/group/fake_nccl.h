/* SPDX-License-Identifier: MIT */
/* What the pretended NCCL calls a communicator: sockets to all other ranks.
 * Thread rule: one call at a time. */
#pragma once

enum { kFakeRanks = 4 };

typedef struct FakeComm {
  int n_ranks, rank, device;
  int sockets[kFakeRanks];
  int error;     /* what ncclCommGetAsyncError() says, and what ends whatever is under way */
  int starting;  /* calls that answer ncclInProgress, so many times */
  int n_aborted; /* ncclCommAbort() */
  int n_held;    /* blocks of device memory and streams that are there */
} FakeComm;
