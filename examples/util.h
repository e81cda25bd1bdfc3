/* SPDX-License-Identifier: MIT */
/* What the example programs share: reading flags, reading files, and saying what the library said.
 */
#ifndef SHARPI_EXAMPLES_UTIL_H_
#define SHARPI_EXAMPLES_UTIL_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "sharpi.h"

/* Exit codes: 1 = the work failed, 2 = the command line is wrong. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Name of the program in messages; set once at the start of main(). */
extern const char* program_name;

/* Prints "program: what: STATUS: sentence" and returns EXIT_FAILED. */
int report_error(const char* what, const sharpi_error* err);

/* Flag values. On a wrong one: prints flag, value and what is allowed, and exits 2. */
const char* flag_value(int argc, char** argv, int* i);
uint32_t parse_count(const char* flag, const char* text, uint32_t low, uint32_t high);
int32_t parse_layers(const char* flag, const char* text); /* a count, or "auto" = -1 */
uint64_t parse_seed(const char* flag, const char* text);
float parse_real(const char* flag, const char* text, float low, float high);
/* "TYPE" for both or "K,V". */
void parse_kv_type(const char* flag, const char* text, sharpi_kv_dtype* k, sharpi_kv_dtype* v);
/* "auto" or a count from 1 on; auto gives SHARPI_UNSET. */
uint32_t parse_context(const char* flag, const char* text);
/* --temp, --top-k, --top-p, --min-p, --repeat-penalty, --seed: 0 for any other flag. */
int parse_sampling(const char* flag, int argc, char** argv, int* i, sharpi_sampler_params* s);
/* --draft N, --draft-model FILE and --draft-vocab N: 0 for any other flag. All begin as zeros. */
typedef struct {
  const char* model_path;
  uint32_t n, n_vocab;
  int is_set; /* by --draft, which a model leaves alone */
} draft_flags;
int parse_drafts(const char* flag, int argc, char** argv, int* i, draft_flags* d);
/* What they ask of a plan and its session: whoever there is drafts. */
void ask_for_drafts(const draft_flags* d, sharpi_plan_params* plan, sharpi_session_params* session);
/* --lora FILE or FILE:SCALE, once for each adapter: 0 for any other flag. All begin as zeros. */
enum { kMostLoras = 8 };
typedef struct {
  const char* paths[kMostLoras];
  float scales[kMostLoras];
  sharpi_adapter* loaded[kMostLoras];
  uint32_t n;
} lora_flags;
int parse_loras(const char* flag, int argc, char** argv, int* i, lora_flags* l);
void ask_for_loras(const lora_flags* l, sharpi_plan_params* plan);
/* Loads them and gives them to the session; not 0 after printing why not. */
int use_loras(lora_flags* l, const sharpi_model* model, sharpi_session* session);
void destroy_loras(lora_flags* l);
void unknown_flag(const char* flag);

const char* kv_name(sharpi_kv_dtype dtype);
const char* kind_name(sharpi_row_kind kind);

/* "12.3 MiB" in a buffer of the caller. */
typedef struct {
  char text[24];
} size_text;
size_text human_bytes(uint64_t bytes);

/* The whole file, malloc'ed, with a NUL behind it; null after printing why not. */
char* read_file(const char* path, size_t* len);
void* checked_malloc(size_t bytes);

/* All rows of a plan, malloc'ed; null after printing why not. */
sharpi_memory_row* fetch_rows(const sharpi_plan* plan, uint32_t* n);
/* The itemised table on stderr or stdout: 0 = stdout, 1 = stderr. */
void print_plan(const sharpi_plan_summary* summary, const sharpi_memory_row* rows, uint32_t n,
                int to_stderr);

/* What the plan could not do as asked, a line each. */
void print_fallbacks(const sharpi_plan* plan, uint32_t n, FILE* to);

/* A conversation as tokens. malloc'ed; null after an error, which is reported. */
int32_t* chat_tokens(const sharpi_model* model, const sharpi_chat_params* chat, uint32_t* n);

#endif
