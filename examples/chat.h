/* SPDX-License-Identifier: MIT */
/* What the two files of the chat program share: its flags, the conversation, and answering. */
#ifndef SHARPI_EXAMPLES_CHAT_H_
#define SHARPI_EXAMPLES_CHAT_H_

#include "sharpi.h"
#include "util.h"

typedef struct {
  const char *model_path, *system;
  uint32_t n_ctx, n_predict, n_threads, chat_flags;
  int32_t n_gpu_layers;
  sharpi_kv_dtype k_dtype, v_dtype;
  sharpi_sampler_params sampler;
  draft_flags draft;
  int exact, speeds, ignore_env, show_progress;
} options;

typedef struct {
  char* role;
  char* text;
  size_t len;
} turn;

typedef struct {
  options o;
  sharpi_context* context;
  sharpi_plan* plan;
  sharpi_model* model;
  sharpi_session* session;
  turn* turns;
  uint32_t n_turns, turns_room;
  int32_t* held; /* tokens that the session has read, from its first one on */
  uint32_t n_held, held_room;
} chat;

/* A callback for loading, reading and compacting; user_data is the options. */
int32_t show_progress(void* user_data, uint32_t phase, uint64_t done, uint64_t total);

/* The session whose work Ctrl-C stops; null while nothing runs. */
extern sharpi_session* volatile running;

int new_session(chat* c); /* in place of the one that there is */
void add_turn(chat* c, const char* role, const char* text, size_t len);
void drop_turn(chat* c);
/* Answers the last message. What failed, or was stopped before its first token, leaves neither. */
int respond(chat* c);

#endif
