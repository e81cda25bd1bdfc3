/* SPDX-License-Identifier: MIT
 * NCCL and NVIDIA's driver for tests without a GPU: device memory is the host's, and a stream does
 * what it was given while somebody asks whether it has ended. A communicator must not be touched
 * after its end.
 */
#include "group/fake_nccl.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#pragma GCC visibility push(default)

enum { kSuccess = 0, kSystemError = 2, kInProgress = 7, kNotReady = 600 };

static FakeComm* last; /* of the process */

typedef struct Stream {
  FakeComm* comm;
  char* at;
  size_t left;
  int socket, sends;
} Stream;

static void check_alive(const FakeComm* comm) {
  if (comm->n_aborted != 0) abort();
}

int ncclGetVersion(int* version) {
  *version = 22803;
  return kSuccess;
}
int ncclCommCount(void* comm, int* n) {
  last = comm;
  check_alive(last);
  *n = last->n_ranks;
  return kSuccess;
}
int ncclCommUserRank(void* comm, int* rank) {
  *rank = ((FakeComm*)comm)->rank;
  return kSuccess;
}
int ncclCommCuDevice(void* comm, int* device) {
  *device = ((FakeComm*)comm)->device;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kSystemError ? "a pretended error" : "another error";
}

int ncclCommGetAsyncError(void* comm, int* result) {
  FakeComm* c = comm;
  check_alive(c);
  *result = c->starting > 0 ? kInProgress : c->error;
  if (c->starting > 0) --c->starting;
  return kSuccess;
}
int ncclCommAbort(void* comm) {
  FakeComm* c = comm;
  check_alive(c);
  ++c->n_aborted;
  for (int r = 0; r < c->n_ranks; ++r)
    if (c->sockets[r] >= 0) shutdown(c->sockets[r], SHUT_RDWR);
  return kSuccess;
}

static int begin(void* data, size_t bytes, int type, int peer, FakeComm* comm, Stream* stream,
                 int sends) {
  check_alive(comm);
  if (type != 1 || stream->left != 0 || peer < 0 || peer >= comm->n_ranks) abort();
  stream->comm = comm;
  stream->at = data;
  stream->left = bytes;
  stream->socket = comm->sockets[peer];
  stream->sends = sends;
  return comm->starting > 0 ? kInProgress : kSuccess;
}
int ncclSend(const void* data, size_t bytes, int type, int peer, void* comm, void* stream) {
  return begin((void*)data, bytes, type, peer, comm, stream, 1);
}
int ncclRecv(void* out, size_t bytes, int type, int peer, void* comm, void* stream) {
  return begin(out, bytes, type, peer, comm, stream, 0);
}

int cuInit(unsigned flags) {
  return (int)flags;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  ++last->n_held;
  *context = last;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  --last->n_held;
  return 0;
}
static int n_pushed;
int cuCtxPushCurrent_v2(void* context) {
  ++n_pushed;
  return context == last ? 0 : 201;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = last;
  return --n_pushed >= 0 ? 0 : 201;
}
int cuStreamCreate(void** stream, unsigned flags) {
  if (n_pushed == 0 || flags != 1) return 201;
  ++last->n_held;
  *stream = calloc(1, sizeof(Stream));
  return *stream == NULL ? 2 : 0;
}
int cuStreamDestroy_v2(void* stream) {
  --last->n_held;
  free(stream);
  return 0;
}
/* A little of what is under way. */
int cuStreamQuery(void* stream) {
  Stream* s = stream;
  if (n_pushed == 0) return 201;
  if (s->left == 0) return 0;
  check_alive(s->comm);
  if (s->comm->error != kSuccess) return kNotReady;
  const size_t most = s->left < 65536 ? s->left : 65536;
  const ssize_t n = s->sends ? send(s->socket, s->at, most, MSG_NOSIGNAL | MSG_DONTWAIT)
                             : recv(s->socket, s->at, most, MSG_DONTWAIT);
  if (n > 0) {
    s->at += n;
    s->left -= (size_t)n;
  } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
    s->comm->error = kSystemError;
  }
  return s->left == 0 ? 0 : kNotReady;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  ++last->n_held;
  *address = (uint64_t)(uintptr_t)malloc(bytes);
  return *address == 0 ? 2 : 0;
}
int cuMemFree_v2(uint64_t address) {
  --last->n_held;
  free((void*)(uintptr_t)address);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  if (((Stream*)stream)->left != 0) abort();
  memcpy((void*)(uintptr_t)to, from, bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  if (((Stream*)stream)->left != 0) abort();
  memcpy(to, (const void*)(uintptr_t)from, bytes);
  return 0;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OUT_OF_MEMORY";
  return 0;
}
