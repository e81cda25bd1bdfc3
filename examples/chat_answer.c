/* SPDX-License-Identifier: MIT */
/* The conversation of the chat program: its messages, what the session has read of them, answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"

/* Rows that are taken at a time where an answer outgrows what a compaction left. */
enum { kRoomForAnswer = 1024 };

sharpi_session* volatile running;

/* One line that is written over itself, and taken away when it is done. */
int32_t show_progress(void* user_data, uint32_t phase, uint64_t done, uint64_t total) {
  const options* o = user_data;
  if (!o->show_progress || total == 0) return 0;
  const char* what = phase == SHARPI_PHASE_LOAD      ? "loading"
                     : phase == SHARPI_PHASE_PREFILL ? "reading"
                                                     : "compacting";
  fprintf(stderr, "\r%s %3llu%%", what, (unsigned long long)(done * 100 / total));
  if (done == total) fprintf(stderr, "\r                \r");
  fflush(stderr);
  return 0;
}

int new_session(chat* c) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_destroy(c->session);
  c->session = NULL;
  c->n_held = 0;
  if (sharpi_session_create(c->model, NULL, &c->session, &err) ||
      sharpi_session_set_sampler(c->session, &c->o.sampler, &err)) {
    return report_error("session", &err);
  }
  return 0;
}

void add_turn(chat* c, const char* role, const char* text, size_t len) {
  if (c->n_turns == c->turns_room) {
    c->turns_room = c->turns_room * 2 + 16;
    c->turns = realloc(c->turns, c->turns_room * sizeof *c->turns);
    if (c->turns == NULL) abort();
  }
  turn* t = &c->turns[c->n_turns++];
  t->role = checked_malloc(strlen(role) + 1);
  strcpy(t->role, role);
  t->text = checked_malloc(len + 1);
  memcpy(t->text, text, len);
  t->text[len] = '\0';
  t->len = len;
}

void drop_turn(chat* c) {
  turn* t = &c->turns[--c->n_turns];
  free(t->role);
  free(t->text);
}

static void hold(chat* c, const int32_t* tokens, uint32_t n) {
  if (c->n_held + n > c->held_room) {
    c->held_room = (c->n_held + n) * 2;
    c->held = realloc(c->held, c->held_room * sizeof *c->held);
    if (c->held == NULL) abort();
  }
  memcpy(c->held + c->n_held, tokens, n * sizeof *tokens);
  c->n_held += n;
}

/* The conversation as tokens, the answer's turn open. */
static int32_t* conversation(const chat* c, uint32_t* n) {
  sharpi_message* messages = checked_malloc(c->n_turns * sizeof *messages);
  memset(messages, 0, c->n_turns * sizeof *messages);
  for (uint32_t i = 0; i < c->n_turns; ++i) {
    messages[i].role = c->turns[i].role;
    messages[i].content = c->turns[i].text;
    messages[i].content_len = c->turns[i].len;
  }
  sharpi_chat_params params;
  sharpi_chat_params_init(&params, sizeof params);
  params.messages = messages;
  params.n_messages = c->n_turns;
  params.flags = c->o.chat_flags;
  int32_t* tokens = chat_tokens(c->model, &params, n);
  free(messages);
  return tokens;
}

/* A compaction gives memory back that the context may need again: takes enough of it for n rows
 * more. 0 = the context is full, or the memory is not to be had. */
static int take_room(chat* c, uint32_t n, const sharpi_error* full) {
  sharpi_session_summary s = {.struct_size = sizeof s};
  if (full->native_code != SHARPI_KV_FULL_SLOTS) return 0;
  if (sharpi_session_info(c->session, &s, NULL) != SHARPI_OK) return 0;
  const uint64_t rows = (uint64_t)s.n_slots_max + n;
  return sharpi_session_reserve(c->session, rows < s.n_ctx ? (uint32_t)rows : s.n_ctx, NULL) ==
         SHARPI_OK;
}

/* Reads what the session does not hold yet. Templates may change what was said before (thoughts of
 * earlier answers go); what no longer fits is forgotten, or all of it where the model cannot. */
static sharpi_status read_conversation(chat* c, sharpi_error* err) {
  uint32_t n = 0, same = 0;
  int32_t* tokens = conversation(c, &n);
  if (tokens == NULL) return SHARPI_E_INVALID_ARGUMENT;
  while (same < n && same < c->n_held && tokens[same] == c->held[same]) ++same;
  if (same == n && same > 0) --same; /* its logits are needed again */
  sharpi_status status = SHARPI_OK;
  if (same < c->n_held) {
    if (sharpi_session_truncate(c->session, same, NULL) == SHARPI_OK) {
      c->n_held = same;
    } else {
      same = 0;
      if (new_session(c) != 0) status = SHARPI_E_INTERNAL;
      running = c->session;
    }
  }
  if (status == SHARPI_OK) {
    uint32_t read = 0;
    sharpi_prefill_params params;
    sharpi_prefill_params_init(&params, sizeof params);
    params.progress = show_progress;
    params.user_data = &c->o;
    status = sharpi_session_prefill(c->session, tokens + same, n - same, &params, &read, err);
    if (status == SHARPI_E_KV_FULL && take_room(c, n - same + kRoomForAnswer, err))
      status = sharpi_session_prefill(c->session, tokens + same, n - same, &params, &read, err);
    hold(c, tokens + same, read);
    if (status != SHARPI_OK && status != SHARPI_E_CANCELLED) report_error("reading", err);
  }
  free(tokens);
  return status;
}

/* The text of an answer as it comes, in whole characters. */
typedef struct {
  sharpi_text_stream stream;
  char* text;
  size_t len, room;
} answer;

static int print_tokens(const chat* c, answer* a, const int32_t* tokens, uint32_t n) {
  sharpi_error err = SHARPI_ERROR_INIT;
  for (;;) {
    size_t len = 0;
    const sharpi_status status = sharpi_detokenize_stream(c->model, &a->stream, tokens, n, 0,
                                                          a->text == NULL ? NULL : a->text + a->len,
                                                          a->room - a->len, &len, &err);
    if (status == SHARPI_OK) {
      if (len > 0) fwrite(a->text + a->len, 1, len, stdout);
      fflush(stdout);
      a->len += len;
      return 0;
    }
    if (status != SHARPI_E_BUFFER_TOO_SMALL) return report_error("text", &err);
    a->room = a->room * 2 + len + 64;
    a->text = realloc(a->text, a->room);
    if (a->text == NULL) abort();
  }
}

/* What is left of a character that did not end. */
static int print_rest(answer* a) {
  sharpi_error err = SHARPI_ERROR_INIT;
  char rest[16];
  size_t len = 0;
  if (sharpi_text_stream_finish(&a->stream, rest, sizeof rest, &len, &err) != SHARPI_OK) {
    return report_error("text", &err);
  }
  if (len == 0) return 0;
  fwrite(rest, 1, len, stdout);
  a->text = realloc(a->text, a->len + len);
  if (a->text == NULL) abort();
  memcpy(a->text + a->len, rest, len);
  a->len += len;
  a->room = a->len;
  return 0;
}

static int write_answer(chat* c, answer* a) {
  sharpi_error err = SHARPI_ERROR_INIT;
  int32_t tokens[32];
  uint32_t room_taken_at = UINT32_MAX;
  for (uint32_t made = 0; made < c->o.n_predict;) {
    uint32_t n = 0;
    const uint32_t left = c->o.n_predict - made;
    const uint32_t cap = left < 32 ? left : 32;
    const sharpi_status status = sharpi_session_step(c->session, NULL, tokens, cap, &n, &err);
    if (status == SHARPI_E_CANCELLED) {
      fprintf(stderr, "\n(stopped)");
      break;
    }
    if (status == SHARPI_E_KV_FULL && room_taken_at != made && take_room(c, kRoomForAnswer, &err)) {
      room_taken_at = made; /* once for a token: what is full then stays so */
      continue;
    }
    if (status == SHARPI_E_KV_FULL) {
      fprintf(stderr, "\n(the context is full; /compact or /reset)");
      break;
    }
    if (status != SHARPI_OK) return report_error("answer", &err);
    const int ended = sharpi_token_is_end(c->model, tokens[n - 1]);
    hold(c, tokens, ended ? n - 1 : n); /* a token that ends is not read */
    if (print_tokens(c, a, tokens, ended ? n - 1 : n) != 0) return EXIT_FAILED;
    if (ended) break;
    made += n;
  }
  return print_rest(a);
}

static void print_speeds(const sharpi_session_summary* was, const sharpi_session* session) {
  sharpi_session_summary is = {.struct_size = sizeof is};
  if (sharpi_session_info(session, &is, NULL) != SHARPI_OK) return;
  const double read = is.prefill_seconds - was->prefill_seconds;
  const double wrote = is.decode_seconds - was->decode_seconds;
  const double n_read = (double)(is.n_prefill_tokens - was->n_prefill_tokens);
  const double n_wrote = (double)(is.n_decode_tokens - was->n_decode_tokens);
  if (read < 0 || wrote < 0) return; /* the session was begun anew in between */
  fprintf(stderr, "read %.0f tokens, %.1f tokens/s; wrote %.0f, %.1f tokens/s\n", n_read,
          read > 0 ? n_read / read : 0.0, n_wrote, wrote > 0 ? n_wrote / wrote : 0.0);
  sharpi_draft_stats d = {.struct_size = sizeof d};
  if (sharpi_session_drafts(session, &d, NULL) != SHARPI_OK || d.n_passes == 0) return;
  fprintf(stderr, "drafts so far: %llu of %llu accepted in %llu passes\n",
          (unsigned long long)d.n_accepted, (unsigned long long)d.n_drafted,
          (unsigned long long)d.n_passes);
}

/* Answers the last message. What failed or was stopped before its first token leaves no answer. */
int respond(chat* c) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_summary before = {.struct_size = sizeof before};
  answer a = {0};
  sharpi_session_info(c->session, &before, NULL);
  sharpi_session_resume(c->session); /* a Ctrl-C that came too late for the last answer */
  running = c->session;
  const sharpi_status status = read_conversation(c, &err);
  int result = 0;
  if (status == SHARPI_OK) {
    result = write_answer(c, &a);
  } else if (status == SHARPI_E_CANCELLED) {
    fprintf(stderr, "(stopped)");
  }
  running = NULL;
  if (status == SHARPI_OK) fputc('\n', stdout);
  if (status == SHARPI_OK || status == SHARPI_E_CANCELLED) fflush(stdout);
  if (a.len > 0) {
    add_turn(c, "assistant", a.text, a.len);
  } else {
    drop_turn(c);
  }
  if (c->o.speeds) print_speeds(&before, c->session);
  free(a.text);
  return result;
}
