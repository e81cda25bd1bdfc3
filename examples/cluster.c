/* SPDX-License-Identifier: MIT
 * One model over several processes: mpirun -n 2 cluster MODEL.gguf [PROMPT] [TOKENS]
 * Every rank makes the same calls in the same order. Rank 0 reads the command line and tells the
 * others; bytes go from rank to rank by MPI, which knows no deadlines, so each wait has its own.
 * With NCCL, a host gives the library its ncclComm_t (nccl_comm) in place of the three functions.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"

enum { kTag = 7, kMostTokens = 4096, kMostText = 65536 };

/* An MPI request until it ends or its time is over. */
static int32_t wait_for(MPI_Request* request, uint32_t timeout_ms) {
  const double end = MPI_Wtime() + timeout_ms / 1000.0;
  int done = 0;
  while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
    if (MPI_Wtime() < end) continue;
    MPI_Cancel(request);
    MPI_Request_free(request);
    return 1;
  }
  return done ? 0 : 2;
}

/* Issend: it ends when the other rank takes the bytes. A message has less than 2 GiB. */
static int32_t send_bytes(void* comm, uint32_t to, const void* data, uint64_t bytes,
                          uint32_t timeout_ms) {
  MPI_Request request;
  if (MPI_Issend(data, (int)bytes, MPI_BYTE, (int)to, kTag, *(MPI_Comm*)comm, &request) !=
      MPI_SUCCESS)
    return 2;
  return wait_for(&request, timeout_ms);
}

static int32_t receive_bytes(void* comm, uint32_t from, void* out, uint64_t bytes,
                             uint32_t timeout_ms) {
  MPI_Request request;
  if (MPI_Irecv(out, (int)bytes, MPI_BYTE, (int)from, kTag, *(MPI_Comm*)comm, &request) !=
      MPI_SUCCESS)
    return 2;
  return wait_for(&request, timeout_ms);
}

/* Others run into their own deadlines. */
static void abandon(void* comm) {
  (void)comm;
}

/* All ranks fail together, or one does and mpirun ends the rest. */
static void check(sharpi_status status, const sharpi_error* e) {
  if (status == SHARPI_OK) return;
  fprintf(stderr, "%s: %s\n", sharpi_status_name(status), e->text);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

typedef struct host {
  int rank, n_ranks;
  sharpi_group* group;
  sharpi_context* context;
  sharpi_model* model;
  sharpi_session* session;
} host;

static void open_model(host* h, MPI_Comm* comm, const char* path) {
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_group_params g;
  sharpi_group_params_init(&g, sizeof g);
  g.rank = (uint32_t)h->rank;
  g.n_ranks = (uint32_t)h->n_ranks;
  g.send = send_bytes;
  g.receive = receive_bytes;
  g.abandon = abandon;
  g.user_data = comm;
  check(sharpi_group_create(&g, &h->group, &e), &e);
  check(sharpi_context_create(NULL, &h->context, &e), &e);

  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = kMostTokens;
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  p.session = &s;
  p.group = h->group;
  sharpi_plan* plan = NULL;
  check(sharpi_plan_create(h->context, path, &p, &plan, &e), &e);
  sharpi_plan_summary info = {.struct_size = sizeof info};
  check(sharpi_plan_info(plan, &info, &e), &e);
  fprintf(stderr, "rank %d of %d: %u layers, %u of them on a GPU\n", h->rank, h->n_ranks,
          info.n_layers, info.n_gpu_layers);
  check(sharpi_model_load(plan, NULL, NULL, &h->model, &e), &e);
  check(sharpi_session_create(h->model, NULL, &h->session, &e), &e);
  sharpi_plan_destroy(plan);
}

/* Every rank has the vocabulary, so rank 0 alone tokenises, and prints. */
static void answer(host* h, const char* prompt, int n_wanted) {
  static int32_t tokens[kMostTokens];
  sharpi_error e = SHARPI_ERROR_INIT;
  uint32_t n = 0;
  if (h->rank == 0)
    check(sharpi_tokenize(h->model, prompt, strlen(prompt), SHARPI_TOKENIZE_ADD_SPECIAL, tokens,
                          kMostTokens / 2, &n, &e),
          &e);
  MPI_Bcast(&n, 1, MPI_UINT32_T, 0, MPI_COMM_WORLD);
  MPI_Bcast(tokens, (int)n, MPI_INT32_T, 0, MPI_COMM_WORLD);

  sharpi_sampler_params greedy; /* the last rank draws for all */
  sharpi_sampler_params_init(&greedy, sizeof greedy);
  greedy.temperature = 0;
  check(sharpi_session_set_sampler(h->session, &greedy, &e), &e);
  const double start = MPI_Wtime();
  check(sharpi_session_prefill(h->session, tokens, n, NULL, NULL, &e), &e);
  const double read = MPI_Wtime();
  int made = 0;
  for (; made < n_wanted; ++made) {
    int32_t token = 0;
    uint32_t one = 0;
    check(sharpi_session_step(h->session, NULL, &token, 1, &one, &e), &e);
    if (sharpi_token_is_end(h->model, token)) break;
    char text[256];
    size_t len = 0;
    if (h->rank != 0) continue;
    check(sharpi_detokenize(h->model, &token, 1, 0, text, sizeof text, &len, &e), &e);
    fwrite(text, 1, len, stdout);
    fflush(stdout);
  }
  const double end = MPI_Wtime();
  if (h->rank == 0) {
    fprintf(stderr, "\n%u tokens read in %.2f s, %d made in %.2f s\n", n, read - start, made,
            end - read);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  static char path[kMostText], prompt[kMostText];
  int n_wanted = 32;
  host h = {0};
  MPI_Comm_rank(MPI_COMM_WORLD, &h.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &h.n_ranks);
  if (argc < 2 || h.n_ranks < 2) {
    if (h.rank == 0)
      fprintf(stderr, "mpirun -n RANKS cluster MODEL.gguf [PROMPT] [TOKENS], 2 ranks or more\n");
    MPI_Finalize();
    return 2;
  }
  if (h.rank == 0) {
    snprintf(path, sizeof path, "%s", argv[1]);
    snprintf(prompt, sizeof prompt, "%s", argc > 2 ? argv[2] : "Once upon a time");
    n_wanted = argc > 3 ? atoi(argv[3]) : n_wanted;
  }
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  MPI_Bcast(prompt, sizeof prompt, MPI_CHAR, 0, MPI_COMM_WORLD);
  MPI_Bcast(&n_wanted, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Comm comm; /* the group's own */
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  open_model(&h, &comm, path);
  answer(&h, prompt, n_wanted);
  sharpi_session_destroy(h.session);
  sharpi_model_destroy(h.model);
  sharpi_context_destroy(h.context);
  sharpi_group_destroy(h.group);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return 0;
}
