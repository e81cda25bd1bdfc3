/* SPDX-License-Identifier: MIT */
/**
 * @file sharpi.h
 * @brief libsharpi: GGUF language models on a GPU trunk and a CPU tail, with the KV cache as storage.
 *
 * This header is the whole public ABI and its manual.
 *
 * **Objects.** A *context* owns threads, devices, allocator and logger. A *plan* says, from a file's
 * header alone, which blocks run where and every byte that will be taken. A *model* is the loaded
 * weights, immutable and shared. A *session* is one conversation: its KV rows, its recurrent state,
 * its sampler. Parents are reference-counted: handles may be destroyed in any order.
 *
 * **Errors.** Every fallible call returns a ::sharpi_status (0 = ok, negative = error) and takes, as
 * its last argument, a nullable caller-owned ::sharpi_error that receives the status, a native code
 * and one sentence. Besides what its entry lists, any call may return ::SHARPI_E_INVALID_ARGUMENT for
 * a null that is not allowed or an unknown flag, ::SHARPI_E_OUT_OF_MEMORY, ::SHARPI_E_DEVICE_LOST and
 * ::SHARPI_E_INTERNAL. The library never aborts, exits, prints, installs a signal handler or lets an
 * exception cross this boundary. A failed call leaves its object as it was, with two exceptions. Prefill
 * keeps the whole chunks it committed, and says how many tokens that is; the logits are then gone. A
 * pass over the model that a tier could not finish (::SHARPI_E_DEVICE, ::SHARPI_E_INTERNAL and
 * ::SHARPI_E_OUT_OF_MEMORY of prefill, decode, verify, step and the calls of batches) commits nothing, but
 * it costs the logits and the captured queries that it may have written over, and a bounded session may have been
 * compacted to make room for it. Of a model with sliding windows a pass over more tokens than `rewind` may have
 * overwritten rows that the windows still need: then calls that compute, and saving, are refused with
 * ::SHARPI_E_STATE until the session is truncated to 0 or a saved one is restored.
 *
 * **Parameter structs** begin with `uint32_t struct_size` and are filled by their `_init` function,
 * which writes every default as a value. Zero is therefore an ordinary value. A library newer than
 * its caller gives the fields the caller does not know their defaults; a library older than its
 * caller refuses a non-zero tail it does not know with ::SHARPI_E_UNSUPPORTED, so that no request is
 * silently ignored. A struct_size below the first version's is ::SHARPI_E_INVALID_ARGUMENT (forgotten
 * init). Out-structs begin with struct_size too: the library writes no more than that, and 0 where it knows
 * no field (of sharpi_error, what it knows alone). A field that nothing would read is refused by name.
 * Fields that only some models or machines have a use for are accepted and have no effect elsewhere:
 * `n_checkpoints` and `rewind` (models without recurrent, without windowed layers), `lookahead` (sessions
 * that are not bounded), `stream_rows` and rates (plans without a GPU). What is effective can be read back.
 *
 * **Threads.** An argument that points to `const` may be used by several calls at once. A non-const
 * object argument means one call at a time for that object (a second one gets ::SHARPI_E_BUSY).
 * sharpi_session_cancel() and sharpi_session_resume() are the exception: any thread, any time, also
 * from a signal handler. A child of fork() may destroy the objects that it inherited, and can do nothing else
 * with them. During a call its thread has the default floating-point environment, in callbacks too, and
 * pthread_cancel() waits for its end. Callbacks return: they neither end the thread nor jump out of the call.
 *
 * **Sizes.** Counts are uint32_t, bytes uint64_t, token ids int32_t. Text is UTF-8 with an explicit
 * length. When a buffer is too small the call returns ::SHARPI_E_BUFFER_TOO_SMALL, writes nothing to
 * the buffer, and its out-length says how much is needed; cap 0 with a null buffer asks for the size.
 * That is a failed call like any other: a ::sharpi_error that was passed then holds its sentence, so test
 * the returned status, not the struct, when a size was asked for.
 *
 * **Order of calls.** sharpi_context_create(), once a process; sharpi_plan_create() for a file, again with other
 * parameters until the plan is what the host wants; sharpi_model_load(); sharpi_session_create() for every conversation; destroy
 * them in any order. No function has to be called at start or end of the process.
 *
 * **A typical chat.** sharpi_chat_tokenize() turns the messages into ids with the opening of the answer, by
 * the file's own template, BOS included where the template has it; sharpi_session_prefill() reads them; then
 * sharpi_session_step() until sharpi_token_is_end(), each token through sharpi_detokenize_stream(), which
 * holds back incomplete characters, and sharpi_stop_stream_push() where the host has stop strings of its
 * own (at the end sharpi_text_stream_finish() and sharpi_stop_stream_finish()); sharpi_chat_parse() takes the answer apart into reasoning, content and tool calls. For the next turn,
 * tokenise the whole conversation again, keep the longest common beginning of its ids and of the session's
 * (sharpi_session_tokens(), sharpi_session_truncate()) and read the rest.
 *
 * **The environment** is read only by contexts with ::SHARPI_CONTEXT_READ_ENV.
 */
#ifndef SHARPI_H_
#define SHARPI_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(SHARPI_BUILD)
#define SHARPI_API __declspec(dllexport)
#elif defined(SHARPI_STATIC) /* who links the archive on Windows defines this */
#define SHARPI_API
#else
#define SHARPI_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) || defined(__clang__)
#define SHARPI_API __attribute__((visibility("default")))
#else
#define SHARPI_API
#endif

#ifdef __cplusplus
#define SHARPI_NOEXCEPT noexcept
extern "C" {
#else
#define SHARPI_NOEXCEPT
#endif

/** @defgroup version Version
 *  @{ */
#define SHARPI_VERSION_MAJOR 1
#define SHARPI_VERSION_MINOR 0
#define SHARPI_VERSION_PATCH 0
/** Version of this header: major * 10000 + minor * 100 + patch. */
#define SHARPI_VERSION (SHARPI_VERSION_MAJOR * 10000 + SHARPI_VERSION_MINOR * 100 + SHARPI_VERSION_PATCH)

/** Version of the loaded library, comparable with ::SHARPI_VERSION.
 *  @return the version number. @thread any. @since 1.0 */
SHARPI_API uint32_t sharpi_version(void) SHARPI_NOEXCEPT;
/** One line: version, compiler, backends inside ("cpu, cuda"), and the modules that the shared library
 *  looks for beside it when a context is created ("modules: cuda, vulkan"). Static storage.
 *  @return a NUL-terminated string, never null. @thread any. @since 1.0 */
SHARPI_API const char *sharpi_build_info(void) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup status Status and errors
 *  @{ */
typedef int32_t sharpi_status;                 /**< 0 or one of SHARPI_E_*; numbers never change. */
#define SHARPI_OK                    0
#define SHARPI_E_INVALID_ARGUMENT  (-1)        /**< An argument is null, out of range or contradictory. */
#define SHARPI_E_OUT_OF_MEMORY     (-2)        /**< Host or device memory could not be had. */
#define SHARPI_E_UNSUPPORTED       (-3)        /**< Valid, but this build, model or device cannot do it. */
#define SHARPI_E_NOT_FOUND         (-4)        /**< No such file, device, key or checkpoint. */
#define SHARPI_E_IO                (-5)        /**< The operating system refused to read or map. */
#define SHARPI_E_FORMAT            (-6)        /**< The file or blob is malformed. */
#define SHARPI_E_MISMATCH          (-7)        /**< Well formed, but of another model, plan or version. */
#define SHARPI_E_CANCELLED         (-8)        /**< sharpi_session_cancel() or a progress callback. */
#define SHARPI_E_KV_FULL           (-9)        /**< The session is full; nothing changed. native_code is one
                                                    of SHARPI_KV_FULL_*. */
#define SHARPI_E_DOES_NOT_FIT     (-10)        /**< A budget is too small; the text has the bytes. */
#define SHARPI_E_BUFFER_TOO_SMALL (-11)        /**< The out-length says how much is needed. */
#define SHARPI_E_STATE            (-12)        /**< Not possible in the object's present state. */
#define SHARPI_E_BUSY             (-13)        /**< Another call is using the object. */
#define SHARPI_E_DEVICE           (-14)        /**< A device call failed; native_code says which. */
#define SHARPI_E_DEVICE_LOST      (-15)        /**< A sticky device fault, or a rank of a group is
                                                    gone; only destroy is legal. */
#define SHARPI_E_INTERNAL         (-16)        /**< A bug of the library, caught. */

#define SHARPI_KV_FULL_CONTEXT 1               /**< n_ctx is used up: truncate, or take a larger one, or a
                                                    bounded session (kv_budget), which goes on. */
#define SHARPI_KV_FULL_SLOTS   2               /**< Committed slots are used up: compact to fewer rows, or
                                                    sharpi_session_reserve(). */

#define SHARPI_ERROR_TEXT 480
/** What went wrong. Caller-owned; written only when a call fails, then always NUL-terminated. */
typedef struct sharpi_error {
  uint32_t struct_size;                        /**< sizeof(sharpi_error); see ::SHARPI_ERROR_INIT. */
  sharpi_status status;
  int32_t native_code;                         /**< errno or CUDA code, or what the status' entry says; 0 if
                                                    none. */
  uint32_t reserved;
  char text[SHARPI_ERROR_TEXT];                /**< One sentence, no newline. */
} sharpi_error;
/** Initialiser: `sharpi_error err = SHARPI_ERROR_INIT;` */
#define SHARPI_ERROR_INIT { sizeof(sharpi_error), 0, 0, 0, { 0 } }

/** Name of a status, such as "SHARPI_E_KV_FULL".
 *  @return a static string, "SHARPI_E_?" for a number that is no status. @thread any. @since 1.0 */
SHARPI_API const char *sharpi_status_name(sharpi_status status) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup common Common types
 *  @{ */
typedef struct sharpi_context sharpi_context;
typedef struct sharpi_plan sharpi_plan;
typedef struct sharpi_model sharpi_model;
typedef struct sharpi_session sharpi_session;
typedef struct sharpi_embedder sharpi_embedder;
typedef struct sharpi_adapter sharpi_adapter;
typedef struct sharpi_group sharpi_group;

/** A count that the caller leaves to the environment, then to the library. */
#define SHARPI_UNSET 0xFFFFFFFFu
/** A byte budget that means "all that is free". */
#define SHARPI_ALL_FREE 0xFFFFFFFFFFFFFFFFull
/** A reserve that the library chooses: 256 MiB of a GPU, for what its driver takes, and none of the host's. */
#define SHARPI_RESERVE_AUTO 0xFFFFFFFFFFFFFFFFull

/** How KV rows are stored. Spellings in text and environment: f32|fp32, bf16, q8_0|q8, q4|tq4, auto. */
typedef uint32_t sharpi_kv_dtype;
#define SHARPI_KV_AUTO 0u                      /**< The architecture's default, narrowed only if needed. */
#define SHARPI_KV_F32  1u                      /**< 4 bytes an element. */
#define SHARPI_KV_BF16 2u                      /**< 2 bytes, round to nearest even. */
#define SHARPI_KV_Q8_0 3u                      /**< 34 bytes for 32 elements (ggml block_q8_0). */
#define SHARPI_KV_Q4   4u                      /**< 18 bytes for 32 elements: rotated, sixteen levels; AUTO
                                                    never takes it. Keys lose most by it: K in Q8_0 and V
                                                    in Q4 is recommended, both in Q4 is a choice to be
                                                    measured with the model. Heads whose size is no
                                                    multiple of 16 are UNSUPPORTED when planned. */

/** What kind of device it is. Every kind but CPU is a GPU, with memory of its own where it has any. */
typedef uint32_t sharpi_tier;
#define SHARPI_TIER_CPU    1u
#define SHARPI_TIER_CUDA   2u
#define SHARPI_TIER_VULKAN 3u
/** Name of a tier in one word, as plans and reports write it, so that a host need not know those of later
 *  versions.
 *  @return a static string: "cpu", "cuda", "vulkan"; "none" for 0, "unknown" for a number that is no tier.
 *  @thread any. @since 1.0 */
SHARPI_API const char *sharpi_tier_name(sharpi_tier tier) SHARPI_NOEXCEPT;

/** Progress of a long call, on the caller's thread, never after the call returned. While a model
 *  computes it must not compute itself: calls that do get ::SHARPI_E_BUSY.
 *  @return 0 to go on, non-zero to cancel. */
typedef int32_t (*sharpi_progress_fn)(void *user_data, uint32_t phase, uint64_t done, uint64_t total);
#define SHARPI_PHASE_LOAD    1u                /**< Bytes of weights made ready. Copies, each device's share
                                                    and a draft model are loaded one after the other,
                                                    and each is counted from 0. */
#define SHARPI_PHASE_PREFILL 2u                /**< Tokens read. */
#define SHARPI_PHASE_COMPACT 3u                /**< Layers scored. */
#define SHARPI_PHASE_EMBED   4u                /**< Tokens of texts read. */
/** @} */

/** @defgroup context Context
 *  @{ */
typedef uint32_t sharpi_log_level;
#define SHARPI_LOG_ERROR 1u
#define SHARPI_LOG_WARN  2u
#define SHARPI_LOG_INFO  3u
#define SHARPI_LOG_DEBUG 4u
/** A whole line without newline: at INFO what was found, planned and loaded, at DEBUG every row of a plan;
 *  calls that read tokens write none. Serialised by the library, maybe on one of its threads; must not
 *  call back into the library. */
typedef void (*sharpi_log_fn)(void *user_data, sharpi_log_level level, const char *text, size_t len);
/** Large host blocks. Thread-safe; `alignment` is a power of two. Null on failure. */
typedef void *(*sharpi_alloc_fn)(void *user_data, uint64_t bytes, uint64_t alignment);
typedef void (*sharpi_free_fn)(void *user_data, void *pointer, uint64_t bytes);

#define SHARPI_CONTEXT_READ_ENV 1u             /**< Session settings left at their defaults are read from the
                                                    environment, where it has them: SHARPI_KV_DTYPE,
                                                    SHARPI_SNAPKV_BUDGET, _WINDOW and _RECENCY. So is
                                                    the device of plans that name none: SHARPI_DEVICE,
                                                    as sharpi_device_find() reads it. What a driver of
                                                    Vulkan compiles is then kept in a folder, that of
                                                    SHARPI_CACHE or of the user's caches; "off": in none.
                                                    Without this the library reads no environment
                                                    variable and writes no file of its own. */

/** Instruction set of the CPU tier's kernels. */
typedef uint32_t sharpi_cpu_isa;
#define SHARPI_ISA_AUTO   0u                   /**< The best the machine has. */
#define SHARPI_ISA_SCALAR 1u
#define SHARPI_ISA_AVX2   2u
#define SHARPI_ISA_AVX512 3u                   /**< With VNNI, and for attention over prompts with
                                                    BF16 where the machine has it. */
#define SHARPI_ISA_AMX    4u                   /**< AVX-512 and bf16 tiles; asks Linux once for the
                                                    process's permission to use tile registers. */
#define SHARPI_ISA_NEON   5u                   /**< aarch64, with dot products where the machine has
                                                    them: the same bits either way. */
#define SHARPI_ISA_I8MM   6u                   /**< NEON with products of matrices in int8 and bf16. */

typedef struct sharpi_context_params {
  uint32_t struct_size;
  uint32_t flags;                              /**< SHARPI_CONTEXT_*; default 0. */
  uint32_t n_threads;                          /**< CPU tier, caller included; default 0 = one per
                                                    processor that the process may use: its affinity
                                                    and the CPU quotas of its control groups. */
  sharpi_cpu_isa cpu_isa;                      /**< Default ::SHARPI_ISA_AUTO. */
  sharpi_log_fn log;                           /**< Default null: silent. */
  void *log_user_data;
  sharpi_log_level log_level;                  /**< Most verbose level delivered; default WARN. */
  uint32_t reserved;
  sharpi_alloc_fn alloc;                       /**< With `free`: both or neither. Default null. */
  sharpi_free_fn free;
  void *alloc_user_data;
} sharpi_context_params;

/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_context_params_init(sharpi_context_params *p, size_t size) SHARPI_NOEXCEPT;

/** Creates a context: starts its threads, looks for devices. @param params null = defaults.
 *  @return SHARPI_OK; INVALID_ARGUMENT, UNSUPPORTED (ISA), OUT_OF_MEMORY. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_context_create(const sharpi_context_params *params, sharpi_context **out,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the caller's reference; null is allowed. @thread any. @since 1.0 */
SHARPI_API void sharpi_context_destroy(sharpi_context *context) SHARPI_NOEXCEPT;

/** One compute device. Index 0 is always the host. */
typedef struct sharpi_device {
  uint32_t struct_size;
  sharpi_tier tier;
  uint32_t n_devices;                          /**< In this context, host included. */
  uint32_t n_cores;                            /**< Threads of the context, or multiprocessors. */
  uint64_t total_bytes;
  uint64_t free_bytes;                         /**< At the time of the call. */
  double bandwidth;                            /**< Measured read bytes/s; 0 unless asked for. */
  char name[128];
  char isa[32];                                /**< "avx512", "sm_90", ... */
  double link_bandwidth;                       /**< Measured bytes/s from pinned host memory to a GPU; 0
                                                    unless asked for. */
  uint64_t held_bytes;                         /**< GPU memory that this context has taken, all of it listed
                                                    in plans. */
  uint64_t other_bytes;                        /**< GPU memory in use besides: what the driver took for
                                                    itself (not planned), and other processes. */
  char id[64];                                 /**< The same device in every process and after a restart:
                                                    "cpu", or a GPU's UUID as its driver writes it,
                                                    "GPU-1b0c4a5e-...". */
} sharpi_device;
#define SHARPI_DEVICE_MEASURE 1u               /**< Measure bandwidth now (under a second when quiet). */

/** Describes a device. @param flags SHARPI_DEVICE_*.
 *  @return SHARPI_OK; NOT_FOUND (index; the text says why there is no GPU if there is none).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_device_info(const sharpi_context *context, uint32_t index, uint32_t flags,
                                            sharpi_device *out, sharpi_error *err) SHARPI_NOEXCEPT;
/** The device that a text means: an index ("1"), an id, or a name or a part of one ("h200"), letters of any
 *  case. @param out_index as in sharpi_device_info().
 *  @return SHARPI_OK; NOT_FOUND, INVALID_ARGUMENT (the names of several devices have it; the text lists them).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_device_find(const sharpi_context *context, const char *device,
                                            uint32_t *out_index, sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup session_params Session template
 *  What one session may hold. The plan prices it; a session may ask for at most what was priced.
 *  Precedence of a field left unset (AUTO or ::SHARPI_UNSET): environment, then `auto`.
 *  @{ */
typedef uint32_t sharpi_policy;
#define SHARPI_POLICY_AUTO      0u             /**< The best one by our measurements: RETRIEVAL. In a session
                                                    that captures replay scores: MIXED where a question is
                                                    known, which is where sharpi_compact_params has a probe
                                                    or a window, and in compactions by kv_budget and
                                                    prompt_budget; else REPLAY. */
#define SHARPI_POLICY_GLOBAL    1u             /**< One keep set for the model: softmax mass summed over
                                                    layers, heads and queries; no pooling. */
#define SHARPI_POLICY_SNAPKV    2u             /**< Per KV head, mean over window and group, average
                                                    pooling (arXiv 2404.14469). */
#define SHARPI_POLICY_DEFENSIVE 3u             /**< Max over window and group with a mean floor
                                                    (arXiv 2510.13334). */
#define SHARPI_POLICY_VALUE     4u             /**< SnapKV scores times the L1 norm of the value through
                                                    the output projection, of which the first 128
                                                    outputs count (arXiv 2502.03805). */
#define SHARPI_POLICY_SPAN      5u             /**< A hit also marks the rows that follow it. */
#define SHARPI_POLICY_RETRIEVAL 6u             /**< Span over the largest term instead of the mean; a hit of
                                                    any layer or head counts in all of them, and a
                                                    query counts half as much as one 32 later. */
#define SHARPI_POLICY_KEEP      7u             /**< The host passes the rows. */
#define SHARPI_POLICY_REPLAY    8u             /**< For questions that nobody knows yet: how much a position
                                                    would be looked at if the text were read a second time,
                                                    by the scores that sharpi_session_params.replay
                                                    captures, added up over layers and heads. Asks no
                                                    captured query and no probe. UNSUPPORTED in a session
                                                    without the scores. */
#define SHARPI_POLICY_MIXED     9u             /**< RETRIEVAL's rows first: 64, and half of what the budget
                                                    leaves to scores beyond; REPLAY's for the rest. */

#define SHARPI_DRAFT_NGRAM 1u                  /**< Prompt lookup: the draft is what followed the last
                                                    tokens where they occurred before in this session. As
                                                    many drafts as pay, by how often they are accepted and
                                                    how long passes take; none in steps with a mask. */
#define SHARPI_DRAFT_MTP   2u                  /**< The file's block for multi-token prediction, which is
                                                    run over all tokens that the session reads; asked
                                                    after NGRAM. It is on the tier of the head, which
                                                    serves both. Its weights, its KV rows (in the dtypes
                                                    of that tier's last attention layer, or of the model's
                                                    last one) and its scratch are rows of the plan. As
                                                    many drafts as pay. sharpi_session_compact() leaves
                                                    its rows alone, a bounded session keeps the last
                                                    kv_budget of them; saved sessions do not have them, so
                                                    after a restore it starts with none. They belong to no
                                                    layer index. UNSUPPORTED when planned: a file without
                                                    the block. */
#define SHARPI_DRAFT_AUTO  4u                  /**< NGRAM, and MTP where the file has it and the budgets hold
                                                    it, and MODEL where the plan has a draft_path and the
                                                    budgets hold it; otherwise a fallback says why not. */
#define SHARPI_DRAFT_MODEL 8u                  /**< A smaller model of the same vocabulary, the plan's
                                                    draft_path, which has a session of its own inside and
                                                    continues the text greedily; asked last. All of it is
                                                    on the tier of the head, or, with a fallback that says
                                                    so, on the CPU where it does not fit beside the head
                                                    on a GPU. Its weights, KV rows (its architecture's own
                                                    dtype; as many as the session stores of full
                                                    attention, at most its own context) and scratch are
                                                    rows of the plan. Before it drafts, it reads the
                                                    tokens that it has not read yet. While drafts do not
                                                    pay it reads nothing; it reads all tokens again after
                                                    a restore, in a fork, and where its recurrent layers
                                                    cannot go back to the place where the texts differ.
                                                    When its rows are full it continues from the last half
                                                    of them. Compaction leaves it alone; saved sessions do
                                                    not have its rows. */

#define SHARPI_BUDGET_AUTO 0xFFFFFFFEu         /**< clamp(n_ctx/4, 1024, 4096); off below 256 MiB of KV. */

typedef struct sharpi_session_params {
  uint32_t struct_size;
  uint32_t n_ctx;                              /**< Tokens; default UNSET = the largest context that fits the
                                                    budgets: at least 512 tokens, or all that the model has,
                                                    else DOES_NOT_FIT. Without a host_budget the host's memory
                                                    has two limits more: sessions take no more of it than the
                                                    weights do (or than 4096 tokens, if that is more), and
                                                    everything but copies of weights takes at most half of what
                                                    those copies leave free. Of a plan it also says which of
                                                    two rotary embeddings a model with LongRoPE has: that for
                                                    long contexts where it is more than the length that the
                                                    file names, for all sessions of the plan. */
  sharpi_kv_dtype k_dtype;                     /**< Default AUTO (env SHARPI_KV_DTYPE): the architecture's own
                                                    (bf16 with gated delta nets, else f32). A narrower one is
                                                    taken only where n_ctx is given, and then if all blocks fit
                                                    on the GPU with it and not without it, or if that context
                                                    fits nowhere without it. */
  sharpi_kv_dtype v_dtype;                     /**< Default AUTO; the same environment variable. */
  sharpi_kv_dtype tail_k_dtype;                /**< Of layers on the CPU; default AUTO = f32 beside
                                                    attention layers on a GPU, else as k_dtype. */
  sharpi_kv_dtype tail_v_dtype;                /**< The same of v_dtype. */
  uint32_t rewind;                             /**< Tokens by which sessions with sliding-window layers
                                                    can be truncated (their windows keep so many older
                                                    rows); default 64. */
  uint32_t n_checkpoints;                      /**< Recurrent checkpoints; default 0. Models without
                                                    recurrent layers have none (read it back). */
  uint32_t kv_budget;                          /**< Bounded session: the most rows that a layer keeps, whatever
                                                    compacts it; default 0 = off. The memory of its KV rows
                                                    stays the same however long it gets. It goes on past n_ctx
                                                    by a context shift if n_ctx is at least kv_budget and a
                                                    chunk together and, in models with sliding windows, at
                                                    least window, rewind, n_draft and a chunk together. */
  uint32_t prompt_budget;                      /**< Rows that a layer keeps at the end of every prompt
                                                    (SnapKV); default UNSET (env SHARPI_SNAPKV_BUDGET,
                                                    else off); 0 = off; or ::SHARPI_BUDGET_AUTO. */
  uint32_t capture_window;                     /**< The last queries of the session, which score its rows
                                                    in a compaction (the observation window of SnapKV);
                                                    default UNSET (with a budget env SHARPI_SNAPKV_WINDOW,
                                                    else 64; without one 0). A probe of no more tokens
                                                    needs no memory besides. */
  uint32_t recency;                            /**< Rows at the end that every compaction keeps; default
                                                    UNSET (env SHARPI_SNAPKV_RECENCY, else 64, but at most
                                                    half of the budget). This field, sinks and policy are
                                                    refused without kv_budget or prompt_budget:
                                                    sharpi_session_compact() has parameters of its own. */
  uint32_t sinks;                              /**< Rows at the beginning that every compaction keeps
                                                    (attention sinks); default UNSET = 4, but at most half
                                                    of what recency leaves of the budget. */
  sharpi_policy policy;                        /**< Which rows the compactions by kv_budget and
                                                    prompt_budget keep; default AUTO. */
  uint32_t lookahead;                          /**< Bounded sessions without a probe: 1 (default) = before
                                                    a prompt is read, its last tokens (capture_window of
                                                    them, at most a chunk) are run, and their queries
                                                    score the rows whenever room has to be made. */
  uint32_t per_layer_budgets;                  /**< 1 = every layer has memory of its own, so a layer
                                                    budget smaller than another's gives memory back; 0 =
                                                    layers share address ranges, and memory stays for as
                                                    many rows as the fullest layer has. */
  uint32_t n_probe;                            /**< Tokens of `probe`, a question whose queries score the
                                                    rows of a bounded session, at most a chunk; default 0
                                                    = none. */
  uint32_t n_draft;                            /**< Speculative decoding: draft tokens that one pass
                                                    verifies at most, 0 to 32; default 0. The plan prices
                                                    what taking back rejected drafts needs. */
  const int32_t *probe;                        /**< n_probe token ids, copied. */
  uint32_t drafters;                           /**< SHARPI_DRAFT_*, added up: who drafts in
                                                    sharpi_session_step() and sharpi_step_batch(); default
                                                    0 = nobody: only the host's own drafts are verified,
                                                    by sharpi_session_verify(). Needs n_draft. NGRAM, MTP
                                                    and MODEL are asked in this order until one has drafts
                                                    to offer; AUTO takes what there is. A session has MTP
                                                    and MODEL only if its plan priced them. */
  uint32_t n_draft_vocab;                      /**< With MTP or AUTO: the block drafts only tokens with ids
                                                    below this, a multiple of 16; default 0 = all tokens.
                                                    Values above the vocabulary's size mean all, too.
                                                    A draft then reads that share of the head, which
                                                    is most of what a draft reads of a large vocabulary.
                                                    Vocabularies mostly begin with their frequent tokens,
                                                    so few drafts get worse; what is drawn stays with the
                                                    whole head. It saves no memory of the head. The
                                                    block is the model's: in a session's own parameters
                                                    0 = what the plan has, and another value than that
                                                    is refused. */
  uint32_t replay;                             /**< 1 = capture replay scores, which policies REPLAY and MIXED
                                                    choose by: default 0. Every row of full attention gets
                                                    a number for each KV head when the pass that reads it
                                                    is done: the most attention that a query of the same
                                                    256 tokens would pay to it if it came 1024 positions
                                                    later. The numbers follow their rows: forks, saved and
                                                    restored sessions have them, truncation drops them,
                                                    compaction moves them, and a call that fails leaves
                                                    none. Rows of passes of no more tokens than the
                                                    capture_window, decoded tokens above all, get theirs
                                                    together, before the window is full or the session is
                                                    compacted. Needs a capture_window (default then 64) of
                                                    at least 64; UNSUPPORTED where a CUDA device has too
                                                    little shared memory a block for heads of 512 (the
                                                    layer is named). A session with replay restores only
                                                    blobs of such sessions (MISMATCH). */
  uint32_t replay_every;                       /**< With replay: only every so many-th query is asked, 1 to 16;
                                                    default 1. 4 costs a quarter and finds less. */
  uint32_t archive_rows;                       /**< Rows of each KV head of full attention that compactions
                                                    put into an archive in host memory, in place of
                                                    nothing, for sharpi_session_recall(); in blocks of 16,
                                                    default 0 = no archive. Where a head has no room its
                                                    rows of the lowest positions go. Forks copy the
                                                    archive; saved sessions have none of it, and restoring
                                                    or truncating to 0 empties it. A GPU has bounds of its
                                                    layers' archived keys and a stage for rows on their
                                                    way, which the plan prices. UNSUPPORTED where a head's
                                                    elements are no whole blocks of the codec. */
  uint32_t reserved;                           /**< 0. */
} sharpi_session_params;

/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_session_params_init(sharpi_session_params *p, size_t size) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup group Groups of processes
 *  One model over several processes, on one host or on several, one behind the other: rank 0 has the embedding and the
 *  first layers, the last rank the last layers and the head. What the host application starts them with (mpirun,
 *  torchrun, Slurm) is its own affair, and so is how ranks hear what users say: every rank makes the same calls with the
 *  same arguments in the same order, one at a time. These calls are made together, and all ranks return the same status
 *  from them: sharpi_group_create(), sharpi_model_load(), sharpi_session_create(), sharpi_session_prefill(),
 *  sharpi_session_decode(), sharpi_session_sample(), sharpi_session_step(), sharpi_session_truncate(),
 *  sharpi_decode_batch() and sharpi_step_batch(). Ranks agree before anything changes; one that makes another call, on
 *  another session or with other arguments, is MISMATCH for all. What only looks, sharpi_session_set_sampler() (the
 *  last rank's counts, which draws for all) and sharpi_session_reserve() are each rank's own. An argument that a call
 *  refuses without a look at the session (a null, a struct_size) and BUSY are that rank's own, too: the others wait
 *  for it.
 *
 *  Chunks of a prompt go from rank to rank, so that each computes one while the next has that before. A cancel, or a
 *  callback that asks to stop, ends a prefill where it comes to rank 0; elsewhere it is answered by the next call. Where a
 *  rank fails in the middle, all go back to the chunks that every rank has committed; what cannot go back (recurrent
 *  layers, sliding windows) is STATE until the session is truncated to 0.
 *
 *  A batch goes from rank to rank in parts, too: while the last rank works on some sessions, rank 0 works on others. Each
 *  part reads the weights, so by default there are more than one only where sessions are so long that ranks which all
 *  read equally fast would be done a tenth sooner. All parts read their tokens, or none. Sessions of a batch have equal
 *  KV dtypes.
 *
 *  A rank that dies or does not answer within timeout_ms ends the call with DEVICE_LOST on all others, each within
 *  timeout_ms of its own waiting; the group is then lost for good, and so are its models and sessions for all that
 *  computes. They can be looked at and destroyed, and whatever is not of the group goes on.
 *
 *  UNSUPPORTED with a group, by name: encoders, embedders and models with per-layer embeddings; bounded sessions,
 *  compaction, recall, archives, probes, replay scores, drafts, checkpoints, forks, saving and restoring;
 *  max_concurrent above 1; adapters; n_logprobs and `meanwhile`. sharpi_session_logits() is there on the last rank.
 *  n_chunk 512 where it is UNSET, and n_ctx has to be named.
 *  Layers are counted from 0 on every rank, and plans, models and reports are of its own: sharpi_plan_json() has
 *  first_layer and n_layers_of_all_ranks.
 *  @{ */
/** Gives `bytes` to rank `to`. Returns when that rank has taken them by its sharpi_receive_fn for this rank and as many
 *  bytes, or when timeout_ms have passed. On the thread of the call. A failure is for good.
 *  @return 0; anything else = it failed. */
typedef int32_t (*sharpi_send_fn)(void *user_data, uint32_t to, const void *data, uint64_t bytes, uint32_t timeout_ms);
/** Takes `bytes` from rank `from`, in the same way. @return 0; anything else = it failed. */
typedef int32_t (*sharpi_receive_fn)(void *user_data, uint32_t from, void *out, uint64_t bytes, uint32_t timeout_ms);
/** After a failure: nothing follows, and ranks that wait for this one should hear it. Called once at most. */
typedef void (*sharpi_abandon_fn)(void *user_data);

typedef struct sharpi_group_params {
  uint32_t struct_size;
  uint32_t n_ranks;                            /**< 2 to 256; default 0, which has to be changed. */
  uint32_t rank;                               /**< Of this process, 0 to n_ranks - 1. */
  uint32_t timeout_ms;                         /**< The longest that a call waits for another rank at once, 1 or
                                                    more; default 60000. A rank waits while others compute, so it
                                                    must be longer than n_ranks chunks take. */
  uint32_t load_timeout_ms;                    /**< The same in sharpi_group_create() and sharpi_model_load(), where
                                                    others may still be reading files; default 600000. */
  uint32_t batch_parts;                        /**< Parts, 1 to 64, in which a batch goes down the ranks, at most one
                                                    a session; default 0 = by what they read. Rank 0's counts. */
  void *nccl_comm;                             /**< An ncclComm_t of n_ranks ranks, this process being `rank` of it;
                                                    default null. It stays the host's, who destroys it after the
                                                    group, but only the group uses it. A group that is lost, or
                                                    that could not be made after the ranks had spoken, has aborted
                                                    it (ncclCommAbort()): then it must not be touched any more.
                                                    One that does not block (blocking 0) keeps the time given
                                                    in its first messages, too. */
  const char *nccl_library;                    /**< The library that made it; default null = libnccl.so.2. Opened
                                                    when the group is created, as is NVIDIA's driver. */
  sharpi_send_fn send;                         /**< In place of nccl_comm: the host's own functions, all three
                                                    or none; default null. Called by one thread at a time. */
  sharpi_receive_fn receive;
  sharpi_abandon_fn abandon;
  void *user_data;                             /**< Of the functions; lives as long as the group, its plans, models
                                                    and sessions. */
} sharpi_group_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_group_params_init(sharpi_group_params *p, size_t size) SHARPI_NOEXCEPT;

/** Makes a group, together with all other ranks. Plans name it (`group`), and each model of a group has its layers over
 *  all ranks.
 *  @return SHARPI_OK; INVALID_ARGUMENT (n_ranks, rank; neither a communicator nor functions, or both; a communicator of
 *  another size or rank), UNSUPPORTED (NCCL or the driver cannot be opened, or lacks a function), MISMATCH (ranks say
 *  different sizes, or are of different builds), DEVICE_LOST (a rank did not come in load_timeout_ms), DEVICE,
 *  OUT_OF_MEMORY. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_group_create(const sharpi_group_params *params, sharpi_group **out,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. Plans, models and sessions of the group keep it alive. Says nothing to other
 *  ranks. @thread any. @since 1.0 */
SHARPI_API void sharpi_group_destroy(sharpi_group *group) SHARPI_NOEXCEPT;

typedef struct sharpi_group_summary {
  uint32_t struct_size;
  uint32_t n_ranks, rank;
  uint32_t is_lost;                            /**< 1 = for good. */
  uint32_t timeout_ms, load_timeout_ms;
  uint64_t device_bytes;                       /**< Of the communicator's device, held for messages. */
  char transport[64];                          /**< "NCCL 2.28.3", or "functions of the host". */
} sharpi_group_summary;
/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_group_info(const sharpi_group *group, sharpi_group_summary *out,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup plan Plan
 *  Placement and every byte, from the file's header alone.
 *  @{ */
typedef uint32_t sharpi_arithmetic;
#define SHARPI_ARITHMETIC_FAST  0u             /**< Activations of 8 or 16 bits where they pay. */
#define SHARPI_ARITHMETIC_EXACT 1u             /**< f32 activations. */

/** How weights that host memory serves come from the file. Metadata and what the tokenizer reads are
 *  copied by the plan, and what a GPU holds is read by the load, either way. */
typedef uint32_t sharpi_load_mode;
#define SHARPI_LOAD_COPY 0u                    /**< Read when the model is loaded, into memory that the plan
                                                    lists and budgets count. The file is never mapped:
                                                    whoever shortens or changes it meanwhile causes a
                                                    status (MISMATCH, IO or FORMAT), and once the model is
                                                    loaded nothing touches the file. */
#define SHARPI_LOAD_MAP  1u                    /**< Used in place in the mapped file: such models share
                                                    its pages among processes, load at once when the
                                                    system has the file in its cache, and may be larger
                                                    than the memory. The host must keep the file as it is
                                                    from load on, while a model or session lives: a file
                                                    that is shortened ends the process (SIGBUS), one that
                                                    is written to gives other results. Renaming or deleting
                                                    it does no harm. */

/** Which of the devices that a plan may use it uses. */
typedef uint32_t sharpi_split;
#define SHARPI_SPLIT_FEWEST 0u                 /**< One device, if one holds everything that is to be on a GPU,
                                                    with the context that is asked for: the first such one of
                                                    the list. Otherwise layers go to several, each filled
                                                    before the next one is used. */
#define SHARPI_SPLIT_ALL    1u                 /**< Layers over all of them, to equal shares of what each may
                                                    take. */
#define SHARPI_SPLIT_TENSOR 2u                 /**< Every layer over all of them: UNSUPPORTED so far. */

/** One device that a plan may use, and what it may do there. Make one for each: layers go to them in the
 *  order of the list. The host may be among them, for its limits; it always is a device of a plan. */
typedef struct sharpi_device_request {
  uint32_t struct_size;
  uint32_t device;                             /**< Index as in sharpi_device_info(); default UNSET, which has
                                                    to be changed. */
  int32_t n_layers;                            /**< Layers that this device has to hold, together with
                                                    whatever else of those layers is on a GPU; -1 = as many
                                                    as fit (default). Refused for the host, which has what no
                                                    other device has. */
  uint32_t reserved;                           /**< 0. */
  uint64_t budget;                             /**< Bytes of its memory that the model and all of its sessions
                                                    may hold together; default SHARPI_ALL_FREE. */
  uint64_t reserve;                            /**< Where the budget is all that is free: bytes of that which
                                                    stay free; default SHARPI_RESERVE_AUTO. */
  double rate, link_rate;                      /**< Bytes/s of its memory and of the link between it and the
                                                    host's; 0 = measured where they are needed (default).
                                                    The host has no link. */
} sharpi_device_request;

/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_device_request_init(sharpi_device_request *p, size_t size) SHARPI_NOEXCEPT;

typedef struct sharpi_plan_params {
  uint32_t struct_size;
  int32_t n_gpu_layers;                        /**< -1 = as many as fit (default), 0 = CPU only. */
  int32_t n_gpu_ffn;                           /**< FFN blocks on the GPU, of the first layers (MoE: router
                                                    and shared expert); -1 = as many as fit. */
  int32_t n_expert_slots;                      /**< Slots on the GPU for single routed experts of layers whose
                                                    experts are on the CPU; -1 = as many as fit. Any other
                                                    number puts the experts of all layers on the CPU, except
                                                    those that n_gpu_experts pins to the GPU. */
  sharpi_arithmetic arithmetic;                /**< Default FAST. */
  uint32_t deterministic;                      /**< 1 = results independent of chunking, threads and
                                                    batch mates, at a cost in speed. Default 0. */
  uint32_t n_chunk;                            /**< Tokens of one prefill chunk; default UNSET. Where blocks
                                                    are on a GPU that is 2048, or 1024, if the longer chunk
                                                    moves no block off the GPU, narrows no KV dtype, and costs
                                                    at most an eighth of the context or of the expert slots.
                                                    Otherwise, and for bounded sessions, it is 512, or fewer
                                                    where n_ctx or memory is short. Where weights stream to the
                                                    GPU each chunk sends them once: 2048 reads prompts about
                                                    three times as fast there. */
  uint32_t max_batch;                          /**< Sessions of one decode_batch, verify_batch or
                                                    step_batch; default 8. */
  uint32_t max_logit_rows;                     /**< Logit rows one call can leave readable, at most n_chunk; default
                                                    UNSET = 8, or n_chunk where that is less. */
  uint32_t max_concurrent;                     /**< Calls that compute at once on the model; default 1. */
  uint32_t n_sessions;                         /**< Sessions of the template to price; default 1. */
  uint32_t device;                             /**< The one device besides the host that the plan may use; 0 =
                                                    none, UNSET (env SHARPI_DEVICE, else all of them). */
  uint64_t device_budget;                      /**< Bytes of memory that may be taken on each of them; default
                                                    SHARPI_ALL_FREE; more than a device has is refused. It
                                                    holds for the model and all of its sessions together:
                                                    sessions beyond n_sessions get what is left. */
  uint64_t host_budget;                        /**< The same for anonymous and pinned host memory. */
  double device_rate, pcie_rate, host_rate;    /**< Bytes/s of device memory, of the link to it, and of
                                                    host memory; 0 = measured once per context, by the
                                                    first plan that does not fit the GPU whole. They
                                                    decide which blocks leave it first: those that cost
                                                    a token the least time for every byte they free.
                                                    That is routed experts, then FFN blocks, then whole
                                                    layers, unless the link is very slow or the host
                                                    hardly slower than the GPU. token_seconds follows
                                                    from them, too. Equal rates, equal plans. From how many
                                                    rows on weights stream is timed on the model
                                                    (stream_rows). */
  const sharpi_session_params *session;        /**< Template; null = defaults. */
  int32_t n_gpu_experts;                       /**< Layers whose routed experts are all on the GPU; -1 =
                                                    all, or none where they do not fit. */
  int32_t gpu_ends;                            /**< Where the two ends of the model are, the token
                                                    embedding and the head (output matrix): 1 = both on
                                                    the GPU, 0 = both on the CPU, 2 = only the head on the
                                                    GPU, which needs a model whose head is not its
                                                    embedding table, -1 (default) = both on the GPU if
                                                    everything fits there; otherwise the choice with the
                                                    fastest token. An embedding table that is not the
                                                    head's too leaves the GPU before any block does, since
                                                    a token reads only one row of it. */
  uint32_t stream_rows;                        /**< Calls of at least so many rows run the FFN blocks and
                                                    routed experts of the CPU on the GPU: their weights
                                                    are copied there for the call (they stream). 0
                                                    (default) = measured when the model is loaded, UNSET =
                                                    never. With `deterministic` nothing streams. */
  sharpi_load_mode load_mode;                  /**< Default COPY. */
  const char *draft_path;                      /**< GGUF file of the model that drafts, for drafters with
                                                    MODEL, or AUTO; default null. Its tokens must be the
                                                    model's, one by one, else MISMATCH. Opened by
                                                    sharpi_plan_create() and, by the same name, by
                                                    sharpi_model_load(); not used in between. */
  const sharpi_device_request *devices;        /**< n_devices of one struct_size: the devices that the plan
                                                    may use, in place of device, device_budget, device_rate
                                                    and pcie_rate (which then keep their defaults) and, where
                                                    device 0 is among them, host_budget and host_rate.
                                                    UNSUPPORTED: a tier that cannot compute a model together
                                                    with the others of the list. Default null. */
  uint32_t n_devices;
  sharpi_split split;                          /**< Default FEWEST. */
  const char *const *adapters;                 /**< n_adapters paths of adapters (LoRA) that will be loaded beside
                                                    the model: each is opened, checked against the model and
                                                    priced, and sharpi_adapter_load() has its memory then.
                                                    Each device has what it changes of its blocks. Default
                                                    null. */
  uint32_t n_adapters;
  uint32_t adapter_rank;                       /**< The largest rank of adapters that calls have scratch for, 0
                                                    to 4096; default UNSET = the largest of `adapters`, 0
                                                    (no adapters) without any. */
  const sharpi_group *group;                   /**< The processes that have the model together: this one plans its
                                                    own layers, on its own devices. All name the same file, n_ctx,
                                                    n_chunk, deterministic and arithmetic. Kept alive. Default
                                                    null. */
  const uint32_t *rank_layers;                 /**< With a group: layers of each rank, n_ranks counts of 1 or more,
                                                    the same on all ranks. Default null = equal shares of what a
                                                    token reads. */
} sharpi_plan_params;

/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_plan_params_init(sharpi_plan_params *p, size_t size) SHARPI_NOEXCEPT;

/** Plans a model: reads and checks the header, decides placement, context and dtypes, prices every
 *  allocation. Loads no weights. @param params null = defaults.
 *  @return SHARPI_OK; NOT_FOUND, IO, FORMAT (file), UNSUPPORTED (model or request), INVALID_ARGUMENT,
 *  DOES_NOT_FIT (the text names the row that is short, by how many bytes, and what would fit), MISMATCH
 *  (the model of draft_path has another vocabulary; an adapter is of another base).
 *  @thread any; one call per context at a time. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_create(sharpi_context *context, const char *gguf_path,
                                            const sharpi_plan_params *params, sharpi_plan **out,
                                            sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. @thread any. @since 1.0 */
SHARPI_API void sharpi_plan_destroy(sharpi_plan *plan) SHARPI_NOEXCEPT;

/** The effective settings and totals of a plan. */
typedef struct sharpi_plan_summary {
  uint32_t struct_size;
  uint32_t n_ctx;                              /**< Effective context of a session. */
  uint32_t n_layers;                           /**< Of the model. */
  uint32_t n_gpu_layers;                       /**< With their mixer on the GPU. */
  uint32_t n_gpu_ffn;
  uint32_t n_expert_slots;
  sharpi_kv_dtype k_dtype, v_dtype;            /**< Effective, of the trunk (or of the CPU if it has all). */
  sharpi_kv_dtype tail_k_dtype, tail_v_dtype;  /**< Effective, of the tail. */
  sharpi_arithmetic arithmetic;
  uint32_t deterministic;
  uint32_t n_chunk, max_batch, max_logit_rows, max_concurrent, n_sessions;
  uint32_t n_rows;                             /**< Of sharpi_plan_rows(). */
  uint32_t n_mtp_layers;                       /**< In the file; loaded and priced only for
                                                    ::SHARPI_DRAFT_MTP. */
  uint32_t narrowed;                           /**< 1 = `auto` chose a narrower KV dtype to fit. */
  uint32_t capture_window, n_checkpoints, rewind, kv_budget;
  uint64_t device_payload_bytes, device_held_bytes;
  uint64_t host_payload_bytes, host_held_bytes; /**< Anonymous and pinned rows. */
  uint64_t mapped_bytes;                       /**< File pages used in place (MAP). */
  uint64_t kv_payload_bytes;                   /**< KV rows of one session. */
  uint64_t session_held_bytes;                 /**< All of one session, on all devices. */
  uint64_t fingerprint;                        /**< Of the file; checked again at load. */
  uint64_t device_peak_bytes, host_peak_bytes; /**< The most at any time: what is held, or weights and
                                                    staging while the model is loaded. */
  uint64_t expert_slot_bytes;                  /**< Of one expert slot; 0 = there can be none. */
  double device_rate, pcie_rate, host_rate;    /**< Used; 0 = not given, and not needed. */
  uint32_t n_gpu_experts;                      /**< Layers whose routed experts are all on the GPU. */
  uint32_t n_fallbacks;                        /**< Of sharpi_plan_fallback(). */
  uint32_t stream_rows;                        /**< As in the parameters; UNSET = nothing streams. */
  sharpi_load_mode load_mode;
  uint64_t device_token_bytes, host_token_bytes; /**< Weights that a decoded token reads; experts in
                                                    slots count as the host's. */
  uint64_t device_token_row_bytes, host_token_row_bytes; /**< KV rows and recurrent state, at the end of
                                                    the context. */
  double token_seconds, full_token_seconds;    /**< Seconds in which a token reads these bytes at the
                                                    rates: its weights alone, and (full) with its rows.
                                                    0 = a rate is not known. */
  uint64_t capture_bytes;                      /**< What the capture_window takes of a session, on all
                                                    devices: query ring, rows for as many queries of a
                                                    probe, scratch of scoring, tables of compaction.
                                                    Without a window, what one of 64 would take. */
  uint32_t n_devices;                          /**< Of sharpi_plan_devices(). */
  sharpi_split split;                          /**< As in the parameters. */
  uint32_t adapter_rank;                       /**< Of adapters that may be loaded; 0 = none. */
  uint32_t reserved;
} sharpi_plan_summary;

/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_info(const sharpi_plan *plan, sharpi_plan_summary *out,
                                          sharpi_error *err) SHARPI_NOEXCEPT;

typedef uint32_t sharpi_row_kind;
#define SHARPI_ROW_DEVICE    1u
#define SHARPI_ROW_PINNED    2u
#define SHARPI_ROW_ANONYMOUS 3u
#define SHARPI_ROW_MAPPED    4u                /**< Pages of the model file. */

typedef uint32_t sharpi_row_purpose;
#define SHARPI_ROW_WEIGHTS     1u
#define SHARPI_ROW_KV          2u
#define SHARPI_ROW_RECURRENT   3u
#define SHARPI_ROW_CHECKPOINTS 4u
#define SHARPI_ROW_CAPTURE     5u              /**< Ring buffer of captured queries. */
#define SHARPI_ROW_COMPACTION  6u              /**< Scratch reserved for compaction. */
#define SHARPI_ROW_ACTIVATIONS 7u              /**< Workspace of a call in flight. */
#define SHARPI_ROW_LOGITS      8u
#define SHARPI_ROW_STAGING     9u
#define SHARPI_ROW_EXPERTS    10u
#define SHARPI_ROW_GRAPHS     11u
#define SHARPI_ROW_TABLES     12u              /**< RoPE factors, pointer tables. */
#define SHARPI_ROW_LIBRARY    13u              /**< cuBLAS workspaces. */
#define SHARPI_ROW_DRIVER     14u              /**< Measured, not planned: what the driver took. */
#define SHARPI_ROW_KV_CHUNK   15u              /**< Chunk scratch of sliding-window layers. */
#define SHARPI_ROW_ADAPTERS   16u              /**< Weights of an adapter: taken when it is loaded. */

/** One line of a plan, or of what was really allocated. */
typedef struct sharpi_memory_row {
  sharpi_tier tier;
  uint32_t device;                             /**< Index as in sharpi_device_info(). */
  sharpi_row_purpose purpose;
  sharpi_row_kind kind;
  uint32_t first_layer, n_layers;              /**< Layers it serves; n_layers 0 = the whole model. */
  uint32_t per_session;                        /**< 1 = once for every session of the template. */
  uint32_t transient;                          /**< 1 = only while the model is loaded: in no total, but
                                                    in the peaks. */
  uint64_t payload_bytes;                      /**< What is used. */
  uint64_t held_bytes;                         /**< What is taken (payload plus rounding). */
  uint64_t shared_bytes;                       /**< Of held_bytes: what other sessions hold too, forks of one
                                                    another (sharpi_session_fork()); it is in the rows of
                                                    each, but was taken once. 0 in plans. */
  char label[64];
} sharpi_memory_row;

/** The itemised bytes of a plan. @param row_size sizeof(sharpi_memory_row) at the caller.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (*out_n = rows needed).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_rows(const sharpi_plan *plan, sharpi_memory_row *rows,
                                          uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                          sharpi_error *err) SHARPI_NOEXCEPT;
/** A device that a plan may use, and what it has there. The host is the first one. */
typedef struct sharpi_plan_device {
  uint32_t device;                             /**< Index as in sharpi_device_info(). */
  sharpi_tier tier;
  uint32_t n_layers, n_ffn;                    /**< Mixers, and dense FFNs or routers with shared experts. */
  uint32_t n_experts;                          /**< Layers whose routed experts are all here. */
  uint32_t n_expert_slots;
  uint32_t has_embedding, has_head;            /**< 0 or 1. The MTP block is where the head is. */
  uint64_t budget, reserve;                    /**< As asked for. */
  uint64_t payload_bytes, held_bytes;          /**< Sums of the plan's memory rows that are there; of the
                                                    host without pages of the file. */
  uint64_t peak_bytes;                         /**< The most at any time. */
  uint64_t token_bytes, token_row_bytes;       /**< Weights that a decoded token reads, and KV rows and
                                                    recurrent state at the end of the context. */
  double rate, link_rate;                      /**< Used; 0 = not given, and not needed. */
  char name[128];
  char id[64];                                 /**< As in sharpi_device. */
  char refusal[256];                           /**< Why this plan cannot use the device, one sentence;
                                                    empty = it can. */
} sharpi_plan_device;

/** The devices of a plan. @param row_size sizeof(sharpi_plan_device) at the caller.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (*out_n = devices). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_devices(const sharpi_plan *plan, sharpi_plan_device *rows,
                                             uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
typedef uint32_t sharpi_mixer_kind;
#define SHARPI_MIXER_ATTENTION 1u
#define SHARPI_MIXER_WINDOW    2u
#define SHARPI_MIXER_DELTA_NET 3u
#define SHARPI_MIXER_MAMBA2    4u
#define SHARPI_MIXER_NONE      5u   /**< The layer has an FFN only. */
/** Where a layer runs and what it stores for a session. In a plan n_slots is 0. */
typedef struct sharpi_layer_info {
  uint32_t struct_size;
  sharpi_mixer_kind mixer;
  sharpi_tier tier;                            /**< Of its mixer and its KV rows. */
  int32_t kv_source;                           /**< Layer whose rows it reads; its own index if it owns. */
  sharpi_kv_dtype k_dtype, v_dtype;            /**< Effective; AUTO when it stores no such rows: no KV,
                                                    or keys that are the values too. */
  uint32_t n_slots;                            /**< Live rows, of the fullest KV head. */
  uint32_t capacity;                           /**< Rows that have memory; of a sliding window the size of
                                                    its ring buffer. */
  uint32_t n_kv_heads, head_dim;
  sharpi_tier ffn_tier;                        /**< Of its dense FFN, or router and shared expert. */
  sharpi_tier experts_tier;                    /**< Of its routed experts; 0 = it has none. */
  uint32_t device, ffn_device, experts_device; /**< Devices of its mixer, FFN and experts; UNSET = it has
                                                    none of that kind. */
} sharpi_layer_info;
/** Effective placement and KV dtypes of one layer. @return SHARPI_OK; INVALID_ARGUMENT (layer).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_layer(const sharpi_plan *plan, uint32_t layer, sharpi_layer_info *out,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** The i-th thing that `auto` gave up to fit, as a sentence: a narrower KV dtype, blocks on the CPU, a
 *  model that the GPU's kernels cannot compute. There are none that this list leaves out.
 *  @return SHARPI_OK; NOT_FOUND (past the last), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_fallback(const sharpi_plan *plan, uint32_t index, char *out, size_t cap,
                                              size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** Any GGUF metadata value of the planned file, as sharpi_model_meta(); no weights are needed.
 *  @return SHARPI_OK; NOT_FOUND (key), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_meta(const sharpi_plan *plan, const char *key, char *out, size_t cap,
                                          size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** The i-th metadata key. @return SHARPI_OK; NOT_FOUND (past the last), BUFFER_TOO_SMALL.
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_meta_key(const sharpi_plan *plan, uint32_t index, char *out, size_t cap,
                                              size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** The plan as JSON. @return SHARPI_OK; BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_json(const sharpi_plan *plan, char *out, size_t cap, size_t *out_len,
                                          sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup model Model
 *  @{ */
/** Loads what the plan placed. The file must be the one that was planned, and stay so until this returns.
 *  @param progress nullable. @return SHARPI_OK; MISMATCH (the file changed since, or meanwhile), OUT_OF_MEMORY (also when
 *  others took memory since planning: nothing was taken then, and a retry may work), CANCELLED,
 *  NOT_FOUND, IO, FORMAT, DEVICE, INVALID_ARGUMENT (a plan of sharpi_plan_session()).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_load(const sharpi_plan *plan, sharpi_progress_fn progress,
                                           void *user_data, sharpi_model **out,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** Opens a file for its text alone: tokenizer, chat template, metadata. No context, no plan, no weights; files
 *  of a vocabulary alone will do. What needs weights answers STATE, sizes that only weights have are 0.
 *  @return SHARPI_OK; NOT_FOUND, IO, FORMAT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_open_text(const char *gguf_path, sharpi_model **out,
                                                sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. Sessions keep the weights alive.
 *  @thread any. @since 1.0 */
SHARPI_API void sharpi_model_destroy(sharpi_model *model) SHARPI_NOEXCEPT;

typedef uint32_t sharpi_chat_kind;
#define SHARPI_CHAT_UNKNOWN  0u                /**< No template; a format that is not known. */
#define SHARPI_CHAT_CHATML   1u                /**< No template; the vocabulary is of ChatML, whose plain
                                                    form is used. */
#define SHARPI_CHAT_GEMMA    2u                /**< No template; the plain form of Gemma 4 is used. */
#define SHARPI_CHAT_OLMOE    3u                /**< No template; the plain form of OLMoE is used. */
#define SHARPI_CHAT_TEMPLATE 4u                /**< The file's own template. */
#define SHARPI_CHAT_GEMMA3   5u                /**< No template; the plain form of Gemma 2 and 3 is used. */

/** What a model is. */
typedef struct sharpi_model_summary {
  uint32_t struct_size;
  uint32_t n_layers, n_embd, n_vocab, n_ctx_train;
  uint32_t n_mtp_layers;                       /**< In the file, loaded or not. */
  sharpi_chat_kind chat;
  int32_t bos, eos;                            /**< -1 = none. */
  uint32_t is_hybrid;                          /**< Has recurrent layers. */
  uint32_t has_window;                         /**< Has sliding-window layers. */
  uint32_t n_experts;
  uint64_t n_parameters;
  uint64_t file_bytes;
  uint64_t content_id;                         /**< Identifies the model in saved sessions. */
  char architecture[32];
  char name[128];
  uint32_t stream_rows;                        /**< Rows of a call from which weights stream to the GPU, as
                                                    given or as measured; UNSET = never. In a plan 0 =
                                                    will be measured. */
  uint32_t is_encoder;                         /**< Reads whole texts and has no sessions:
                                                    sharpi_embedder_create(). 0 for text alone. */
  char tokenizer[32];                          /**< "gpt2 qwen2": the file's tokenizer and its pre-tokenizer;
                                                    empty = none that this library knows. */
} sharpi_model_summary;

/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_info(const sharpi_model *model, sharpi_model_summary *out,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** The same of a planned model, before anything is loaded: architecture, sizes, tokenizer and chat kind.
 *  Reads the vocabulary for it (some tens of milliseconds for a large one).
 *  @return SHARPI_OK; INVALID_ARGUMENT, FORMAT (the vocabulary). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_model(const sharpi_plan *plan, sharpi_model_summary *out,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** Any GGUF metadata value as text, for example "tokenizer.chat_template" or "general.name".
 *  @return SHARPI_OK; NOT_FOUND (key), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_meta(const sharpi_model *model, const char *key, char *out,
                                           size_t cap, size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** The i-th metadata key of the file. @return SHARPI_OK; NOT_FOUND (past the last), BUFFER_TOO_SMALL.
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_meta_key(const sharpi_model *model, uint32_t index, char *out,
                                               size_t cap, size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** What the model holds, measured at the allocator; equals the plan's rows with per_session = 0 and
 *  transient = 0, but for those of adapters, which sharpi_adapter_memory() has.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_memory(const sharpi_model *model, sharpi_memory_row *rows,
                                             uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                             sharpi_error *err) SHARPI_NOEXCEPT;

/** A run of blocks on one device, and what it has cost so far. Calls of fewer rows than stream_rows take
 *  the segments of list 0, the others those of list 1, where blocks placed on the CPU run on the GPU. */
typedef struct sharpi_segment_info {
  sharpi_tier tier;                            /**< That runs it. */
  uint32_t list;                               /**< 0 or 1; a call takes one list from first to last. */
  uint32_t first_layer, n_layers;              /**< Layers it has blocks of. */
  uint32_t has_embedding, has_head;            /**< 0 or 1. */
  uint32_t n_mixers, n_ffn;                    /**< Blocks. */
  uint32_t n_experts;                          /**< Layers whose routed experts it computes. */
  uint32_t n_streamed;                         /**< FFN and expert blocks whose weights are copied to the
                                                    GPU for every call of this list. */
  uint64_t n_calls;                            /**< Times it ran. */
  uint64_t n_rows;                             /**< Rows of all calls. */
  uint64_t streamed_bytes;                     /**< Weights brought to the GPU's staging area, bytes of
                                                    all calls; routed experts with a slot come from
                                                    there, the others over the link. */
  double seconds;                              /**< From hand-over to hand-over, all calls. */
  uint32_t device;                             /**< That runs it: index as in sharpi_device_info(). */
  uint32_t reserved;
} sharpi_segment_info;

/** The segments of a model in execution order, list 0 first. Times are sums over all sessions since
 *  loading. @param row_size sizeof(sharpi_segment_info) at the caller.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (*out_n = segments). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_segments(const sharpi_model *model, sharpi_segment_info *rows,
                                               uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** JSON: architecture; "left_out": towers of images and sound that the file holds beside the text model
 *  and that are not read, in words, or null (the log has them at level WARN); placement, paths, "step" (what one row does; on a GPU its launches), experts, streaming, segments;
 *  "mtp": paths and step of the block for multi-token prediction, or null; "draft": the same JSON of the
 *  model that drafts, or null.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_json(const sharpi_model *model, char *out, size_t cap,
                                           size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** Routed experts that are on the CPU while their layer's router is on the GPU, since loading. The GPU
 *  keeps copies of some in slots and computes those, the CPU the others at the same time. Which are kept
 *  follows their use (a segmented LRU with frequencies), but never changes during a call, and not at all
 *  in a `deterministic` model; otherwise results may differ in the last bits with what was kept. */
typedef struct sharpi_expert_stats {
  uint32_t struct_size;
  uint32_t n_slots;                            /**< Of the plan. */
  uint32_t n_resident;                         /**< Slots that hold an expert now. */
  uint32_t n_pinned;                           /**< Of these, by sharpi_model_pin_experts(). */
  uint64_t slot_bytes;
  uint64_t n_uses;                             /**< Experts that rows were routed to. */
  uint64_t n_hits;                             /**< Of these, computed on the GPU. */
  uint64_t n_promotions, n_evictions;          /**< Experts that came into a slot for their use, or left. */
  uint64_t promoted_bytes;                     /**< Bytes of the experts that were copied to the GPU for
                                                    that. */
} sharpi_expert_stats;
/** All zero when no layer is placed like this. @return SHARPI_OK; INVALID_ARGUMENT.
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_experts(const sharpi_model *model, sharpi_expert_stats *out,
                                              sharpi_error *err) SHARPI_NOEXCEPT;
/** Uses of each expert of one layer since loading: what a host saves to pin the busiest next time.
 *  *out_n is 0 for a layer that is not placed like this.
 *  @return SHARPI_OK; INVALID_ARGUMENT (layer), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_expert_uses(const sharpi_model *model, uint32_t layer, uint64_t *out,
                                                  uint32_t cap, uint32_t *out_n,
                                                  sharpi_error *err) SHARPI_NOEXCEPT;
/** Brings n experts into slots now and keeps them there: expert experts[i] of layer layers[i]. Waits for
 *  calls on the model to end. Each goes to the device of its layer's router; where a later device refuses, those
 *  that went to others before stay. @return SHARPI_OK; INVALID_ARGUMENT (no such expert on the CPU beside a GPU),
 *  DOES_NOT_FIT (more pins than slots), UNSUPPORTED (no slots), DEVICE. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_model_pin_experts(const sharpi_model *model, const uint32_t *layers,
                                                  const uint32_t *experts, uint32_t n,
                                                  sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup text Text
 *  @{ */
#define SHARPI_TOKENIZE_ADD_SPECIAL   1u       /**< BOS/EOS as the file asks. */
#define SHARPI_TOKENIZE_PARSE_SPECIAL 2u       /**< Text of control tokens becomes their ids. */
#define SHARPI_DETOKENIZE_SPECIAL     1u       /**< Render control tokens as text. */
#define SHARPI_CHAT_NO_PROMPT         1u       /**< Do not open the assistant's turn. */
#define SHARPI_CHAT_THINKING          2u       /**< Sets the variables by which templates switch thinking
                                                    on (enable_thinking, ...). */
#define SHARPI_CHAT_NO_THINKING       4u       /**< Sets them to off. With neither flag the template
                                                    decides. */
#define SHARPI_CHAT_DESCRIBE_TOOLS    8u       /**< Tools, calls and answers of tools that the template has no
                                                    place for become text: the tools in the system message
                                                    (or before the first one) with the form of a call that
                                                    sharpi_chat_parse() reads, calls in that form, answers as
                                                    messages of the user. Without it they are refused. */

/** Text to token ids. Invalid UTF-8 is kept as byte tokens. @return SHARPI_OK; BUFFER_TOO_SMALL,
 *  UNSUPPORTED (the file's tokenizer is unknown). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_tokenize(const sharpi_model *model, const char *utf8, size_t len,
                                         uint32_t flags, int32_t *out, uint32_t cap, uint32_t *out_n,
                                         sharpi_error *err) SHARPI_NOEXCEPT;
/** Token ids to bytes (a token may end inside a UTF-8 character; see sharpi_text_stream).
 *  @return SHARPI_OK; INVALID_ARGUMENT (id outside the vocabulary), BUFFER_TOO_SMALL, UNSUPPORTED
 *  (tokenizer).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_detokenize(const sharpi_model *model, const int32_t *tokens, uint32_t n,
                                           uint32_t flags, char *out, size_t cap, size_t *out_len,
                                           sharpi_error *err) SHARPI_NOEXCEPT;

/** Bytes of an incomplete character between two calls; caller-owned, zero-initialised. */
typedef struct sharpi_text_stream {
  uint32_t n_held;
  char held[4];
} sharpi_text_stream;
/** Like sharpi_detokenize(), but always valid UTF-8: the incomplete tail waits in `stream`, and bytes that
 *  cannot become a character come out as U+FFFD, one for each longest beginning of one (as Unicode recommends).
 *  At the end of the text sharpi_text_stream_finish() gives what is held. On failure the stream is unchanged.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL, UNSUPPORTED (tokenizer).
 *  @thread one per stream. @since 1.0 */
SHARPI_API sharpi_status sharpi_detokenize_stream(const sharpi_model *model, sharpi_text_stream *stream,
                                                  const int32_t *tokens, uint32_t n, uint32_t flags,
                                                  char *out, size_t cap, size_t *out_len,
                                                  sharpi_error *err) SHARPI_NOEXCEPT;
/** The text has ended: what is held comes out as U+FFFD, and the stream is as new. On failure it is unchanged.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (16 bytes are always enough). @thread one per stream.
 *  @since 1.0 */
SHARPI_API sharpi_status sharpi_text_stream_finish(sharpi_text_stream *stream, char *out, size_t cap,
                                                   size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** 1 when the token ends a generation (end of turn, end of text), 0 when not or outside the vocabulary.
 *  @return 0 or 1. @thread any. @since 1.0 */
SHARPI_API int32_t sharpi_token_is_end(const sharpi_model *model, int32_t token) SHARPI_NOEXCEPT;

/** What a token is: attributes of sharpi_token_attributes(). A token without any is ordinary text. */
#define SHARPI_TOKEN_CONTROL      1u           /**< A marker: tokenised only with PARSE_SPECIAL. */
#define SHARPI_TOKEN_END          2u           /**< Ends a generation, as sharpi_token_is_end() says. */
#define SHARPI_TOKEN_BYTE         4u           /**< Stands for one byte. */
#define SHARPI_TOKEN_USER_DEFINED 8u           /**< Added to the vocabulary; always found in text. */
#define SHARPI_TOKEN_UNKNOWN     16u           /**< Stands for text that has no token. */
#define SHARPI_TOKEN_NEVER       32u           /**< Never drawn: unused, or on the file's suppress list. */
/** Attributes of a token, SHARPI_TOKEN_* added up; 0 also outside the vocabulary.
 *  @return the attributes. @thread any. @since 1.0 */
SHARPI_API uint32_t sharpi_token_attributes(const sharpi_model *model, int32_t token) SHARPI_NOEXCEPT;
/** The token that stands for exactly this text: a control token by its spelling, any other by the bytes that
 *  it adds to a text. No tokenising: text of several tokens is not found.
 *  @return SHARPI_OK; NOT_FOUND, UNSUPPORTED (tokenizer). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_token_id(const sharpi_model *model, const char *utf8, size_t len,
                                         int32_t *out_token, sharpi_error *err) SHARPI_NOEXCEPT;
/** The bytes that a token adds to a text, for building a grammar's vocabulary; of a control token its
 *  spelling. They need not be whole UTF-8 characters. @return SHARPI_OK; INVALID_ARGUMENT (id outside the
 *  vocabulary), BUFFER_TOO_SMALL, UNSUPPORTED (tokenizer). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_token_bytes(const sharpi_model *model, int32_t token, char *out, size_t cap,
                                            size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;

/** Longest stop string in bytes. */
#define SHARPI_STOP_BYTES 128u
/** Text that may be the beginning of a stop string; caller-owned, zero-initialised. */
typedef struct sharpi_stop_stream {
  uint32_t n_held;
  uint32_t stopped;                            /**< 1 when a stop string was found: nothing comes out any more. */
  uint32_t which;                              /**< Its index. */
  char held[SHARPI_STOP_BYTES];
} sharpi_stop_stream;
/** Passes text on up to the first stop string and holds back what may still become one. The stop string that
 *  ends first in the text counts, of those that end together the longest; how the text is cut into calls makes
 *  no difference, and empty ones change nothing. At the end of the text sharpi_stop_stream_finish() gives what is
 *  held. On failure the stream is unchanged.
 *  @param stops n_stops NUL-terminated strings of 1 to SHARPI_STOP_BYTES bytes, the same in every call.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (len + SHARPI_STOP_BYTES is always enough).
 *  @thread one per stream. @since 1.0 */
SHARPI_API sharpi_status sharpi_stop_stream_push(sharpi_stop_stream *stream, const char *const *stops,
                                                 uint32_t n_stops, const char *text, size_t len, char *out,
                                                 size_t cap, size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;

/** The text has ended: what is held comes out, unless a stop string was found. `stopped` and `which` stay.
 *  On failure the stream is unchanged.
 *  @return SHARPI_OK; INVALID_ARGUMENT, BUFFER_TOO_SMALL (SHARPI_STOP_BYTES are always enough).
 *  @thread one per stream. @since 1.0 */
SHARPI_API sharpi_status sharpi_stop_stream_finish(sharpi_stop_stream *stream, char *out, size_t cap,
                                                   size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;

/** One message of a conversation. What is null is absent; `content` that is null is JSON's null. */
typedef struct sharpi_message {
  const char *role;                            /**< NUL-terminated: "system", "user", "assistant", "tool", ... Like
                                                    all of a message it cannot make a control token, but for
                                                    roles of published templates (these, "developer", "model",
                                                    "tools", "function", "ipython", "observation",
                                                    "documents"), out of which some templates make theirs. */
  const char *content;
  size_t content_len;
  const char *reasoning;                       /**< An assistant's thoughts, apart from its answer. */
  size_t reasoning_len;
  const char *tool_calls;                      /**< An assistant's calls, a JSON array: [{"type": "function",
                                                    "function": {"name": ..., "arguments": {...}}}, ...]. */
  size_t tool_calls_len;
  const char *tool_call_id;                    /**< Of a "tool" message: the call it answers. NUL-terminated. */
  const char *name;                            /**< NUL-terminated. */
  const char *parts;                           /**< In place of `content`: a JSON array of parts, [{"type": "text",
                                                    "text": ...}, ...]. A template that looks into parts gets
                                                    the list, any other the texts one behind the other, and
                                                    then parts that are no text are refused by their type. */
  size_t parts_len;
} sharpi_message;

typedef struct sharpi_chat_params {
  uint32_t struct_size;
  uint32_t flags;                              /**< SHARPI_CHAT_*; default 0. */
  const sharpi_message *messages;
  uint32_t n_messages;
  uint32_t message_size;                       /**< sizeof(sharpi_message) at the caller; set by init. */
  const char *tools;                           /**< JSON array of functions; default null = none. */
  size_t tools_len;
  const char *variables;                       /**< JSON object of further variables of the template, for example
                                                    {"reasoning_effort": "low"}; default null. */
  size_t variables_len;
  uint64_t now;                                /**< Seconds since 1970 that templates print; 0 = the clock. */
} sharpi_chat_params;

/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_chat_params_init(sharpi_chat_params *p, size_t size) SHARPI_NOEXCEPT;

/** A conversation as prompt text: the file's "tokenizer.chat_template", rendered as HF transformers would, by an
 *  interpreter that reads no files and is bounded in steps, depth and memory; or the plain form of the format
 *  that the vocabulary shows where a file has no template. Whatever the messages contain is in the text, so
 *  use sharpi_chat_tokenize() for text that is not your own. Tools or calls that leave no trace in what the template
 *  renders are UNSUPPORTED, or see SHARPI_CHAT_DESCRIBE_TOOLS.
 *  @return SHARPI_OK; UNSUPPORTED (no template, or a feature that the text names, with line and column), FORMAT
 *  (not Jinja), INVALID_ARGUMENT (malformed JSON, or the template refuses these messages: its words are in the
 *  text), DOES_NOT_FIT (a bound of the interpreter), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_chat_format(const sharpi_model *model, const sharpi_chat_params *params,
                                            char *out, size_t cap, size_t *out_len,
                                            sharpi_error *err) SHARPI_NOEXCEPT;
/** The same conversation as token ids. Control tokens are recognised only where all their text is the template's:
 *  no message can close a turn or open one. BOS is there if the template prints it.
 *  @return as sharpi_chat_format(). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_chat_tokenize(const sharpi_model *model, const sharpi_chat_params *params,
                                              int32_t *out, uint32_t cap, uint32_t *out_n,
                                              sharpi_error *err) SHARPI_NOEXCEPT;

typedef uint32_t sharpi_part;
#define SHARPI_PART_CONTENT   0u
#define SHARPI_PART_REASONING 1u
#define SHARPI_PART_TOOL_CALL 2u
#define SHARPI_PART_HEADER    3u               /**< The head of a message of gpt-oss, or the place between two: what
                                                    follows is not known yet. With SHARPI_PARSE_PARTIAL only. */
#define SHARPI_PARSE_PARTIAL      1u           /**< More text is to come. */
#define SHARPI_PARSE_REASONING    2u           /**< Thoughts may occur. */
#define SHARPI_PARSE_CALLS        4u           /**< Calls of tools may occur. */
#define SHARPI_PARSE_CONSTRAINED  8u           /**< A grammar constrains the content: once it has begun, nothing in
                                                    it is a mark, and it is no call itself. */

/** What may occur in a generated text. */
typedef struct sharpi_parse_params {
  uint32_t struct_size;
  uint32_t flags;                              /**< SHARPI_PARSE_*; default REASONING and CALLS. What is not
                                                    asked for is not looked for, and stays in the content. */
  const char *prompt;                          /**< What the model read, or the end of it: a block that its end
                                                    opens goes on in the text. Default null. */
  size_t prompt_len;
  const char *tools;                           /**< As in sharpi_chat_params: their schemas give arguments that
                                                    are written as text their types, and Llama 3's calls are
                                                    calls of these alone. Default null = none are known. */
  size_t tools_len;
} sharpi_parse_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_parse_params_init(sharpi_parse_params *p, size_t size) SHARPI_NOEXCEPT;

/** Where the parts of a generated text are: one behind the other, in this order. */
typedef struct sharpi_chat_parts {
  uint32_t struct_size;
  sharpi_part open;                            /**< The part in which the text ends. */
  uint32_t n_tool_calls;
  uint32_t reserved;
  uint64_t reasoning_len, content_len;         /**< Bytes, without blanks at the ends. */
  uint64_t tool_calls_len;                     /**< A JSON array as sharpi_message has it; 0 without calls. */
} sharpi_chat_parts;

/** Takes generated text apart: reasoning, content and tool calls, in the marks of the formats in use (think blocks,
 *  Gemma 4's channels, messages of gpt-oss; calls of Hermes, Qwen, GLM, Gemma 4, FunctionGemma, LFM2, Mistral, DeepSeek
 *  up to V3.1, gpt-oss, and Llama 3's JSON objects without marks, where nothing but calls comes before them). Detokenise
 *  with SHARPI_DETOKENIZE_SPECIAL: some marks are control tokens. With SHARPI_PARSE_PARTIAL and all of the text so
 *  far, what may be the beginning of a mark or a call is held back, and longer texts only ever add to each part.
 *
 *  A thought begins where the prompt opened it or where no content has come; later such a mark is content. A thought
 *  that has no end ends where a call begins; until it is known that no end comes, text from that call on is held
 *  back. A mark inside a string of a call ends nothing; in the text of an XML argument it ends something only where
 *  the rest of a call follows. Such arguments are strings unless the tool's schema says otherwise and the text is
 *  that: then they are the JSON that they spell, in whose strings no mark ends anything. Where a schema lists strings
 *  beside other values (`enum`), those are told by the text. A malformed call stays in the content as it was written.
 *  @param params null = defaults. @param out reasoning, content and tool calls, one behind the other.
 *  @return SHARPI_OK; INVALID_ARGUMENT (tools that are no JSON array of functions, too), DOES_NOT_FIT (calls of more
 *  than 256 MiB), BUFFER_TOO_SMALL (parts are written). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_chat_parse(const sharpi_parse_params *params, const char *text, size_t len,
                                           sharpi_chat_parts *parts, char *out, size_t cap, size_t *out_len,
                                           sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup grammar Grammars
 *  What generated text has to match, as masks over the tokens that may come next. A *grammar* is compiled once,
 *  for the vocabulary of one model, immutable and shared; a *matcher* is how far one text has come. The mask goes
 *  into sharpi_sample_params; the token that was drawn goes into sharpi_matcher_accept(). All of it is bounded in
 *  work and memory: compiling takes a few hundred milliseconds at most, a mask or a token some tens (mostly
 *  microseconds), a grammar and what its matchers remember together about 100 MB, mostly less than one; what would
 *  take more is DOES_NOT_FIT.
 *
 *  **JSON Schema** (2020-12, and what earlier drafts wrote otherwise) as texts of one normal form: members in the
 *  order of the schema; members that it does not name only where it asks for them (`additionalProperties`,
 *  `unevaluatedProperties`, `patternProperties`, `propertyNames`, `minProperties`, or an object that names none at
 *  all), behind the named ones; between the parts nothing, one blank, or a line break and up to 40 blanks; numbers of 15 digits before
 *  and behind the point, more where a bound has more, those with bounds without exponents; strings with a pattern
 *  or a format, and names that are not fixed, without escapes that they could do without. Behind `prefixItems`
 *  there are items only with `items`, `unevaluatedItems` or `minItems`. Where no type is said, keywords about one type mean it.
 *  Enforced: type (`nullable`, too), enum, const, anyOf, oneOf (of alternatives that are told apart by their type,
 *  by members that they require or fix, or that are scalars), allOf, `$ref` to any place of the document, `$anchor`
 *  and `$id`, properties, required, dependentRequired, dependentSchemas (of up to 6 members of an object), additionalProperties, patternProperties, propertyNames, minProperties,
 *  maxProperties, items, prefixItems, minItems, maxItems, uniqueItems of up to 12 listed values,
 *  unevaluatedProperties, unevaluatedItems, minLength, maxLength, pattern (ECMAScript, with looking ahead), format (date-time, date, time, duration, email, hostname,
 *  ipv4, ipv6, uuid, uri), minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (whole numbers up to
 *  16777216, 0.1, 0.01, ...). Other formats are annotations. What cannot be enforced while a text is written
 *  (not, if, contains, uniqueItems of anything else, ...) and keywords that are not known are refused by their
 *  place, or with SHARPI_GRAMMAR_LENIENT left out and listed by sharpi_grammar_note(); sharpi_schema_check() says
 *  afterwards whether the whole text keeps to them.
 *  @{ */
typedef struct sharpi_grammar sharpi_grammar;
typedef struct sharpi_matcher sharpi_matcher;

/** What the text of a grammar is. */
typedef uint32_t sharpi_grammar_kind;
#define SHARPI_GRAMMAR_ANY         0u          /**< Nothing: any text, beside calls of `tools`. */
#define SHARPI_GRAMMAR_JSON_SCHEMA 1u          /**< A JSON Schema; {"type": "object"} is any object. */
#define SHARPI_GRAMMAR_REGEX       2u          /**< A regular expression as ECMAScript has them, for the whole
                                                    text. */
#define SHARPI_GRAMMAR_GBNF        3u          /**< Rules in the notation of llama.cpp, from `root` on. No rule may
                                                    begin with itself. */

#define SHARPI_GRAMMAR_LENIENT     1u          /**< What cannot be enforced is listed instead of refused. */
#define SHARPI_GRAMMAR_MUST_CALL   2u          /**< The text is one or more calls of `tools`, 16 at most. */
#define SHARPI_GRAMMAR_SINGLE_CALL 4u          /**< One call at most. */

typedef struct sharpi_grammar_params {
  uint32_t struct_size;
  uint32_t flags;                              /**< SHARPI_GRAMMAR_LENIENT, ...; default 0. */
  sharpi_grammar_kind kind;                    /**< Default ANY. */
  uint32_t reserved;
  const char *text;                            /**< Of this kind; default null. Not kept. */
  size_t text_len;
  const char *tools;                           /**< JSON array of functions as sharpi_chat_params has it: calls
                                                    may come in place of the text. With kind ANY they may
                                                    begin anywhere in it, in the spellings of JSON that
                                                    sharpi_chat_parse() reads; otherwise, and with MUST_CALL,
                                                    they are written as Hermes does. Where the model's
                                                    template shows the marks of Gemma 4, FunctionGemma or
                                                    LFM2, or calls as tags (Qwen3-Coder and Qwen 3.5, GLM),
                                                    they are written as that model does, in either
                                                    case. Between tags, an argument whose schema allows a
                                                    string is that string as it is, or null; the closing
                                                    tag cannot stand in it. Arguments keep to the
                                                    function's `parameters`,
                                                    unless it has "strict": false. Default null. Not kept. */
  size_t tools_len;
  const char *tool;                            /**< NUL-terminated: the only function that may be called; default
                                                    null = any. */
} sharpi_grammar_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_grammar_params_init(sharpi_grammar_params *p, size_t size) SHARPI_NOEXCEPT;

/** Compiles a grammar for a model's tokens; a model that was opened for its text alone will do. The first one of a
 *  model sorts its vocabulary (about 100 ms for a large one).
 *  @return SHARPI_OK; INVALID_ARGUMENT (malformed: the text says where), UNSUPPORTED (what cannot be enforced, by
 *  its place; nothing matches; the file's tokenizer is unknown), DOES_NOT_FIT (too large). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_grammar_compile(const sharpi_model *model, const sharpi_grammar_params *params,
                                                sharpi_grammar **out, sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. Matchers keep the grammar alive, which needs no model.
 *  @thread any. @since 1.0 */
SHARPI_API void sharpi_grammar_destroy(sharpi_grammar *grammar) SHARPI_NOEXCEPT;
/** The i-th thing of a schema that the grammar does not enforce, as a sentence that begins with its place: check
 *  the whole text for it.
 *  @return SHARPI_OK; NOT_FOUND (past the last), BUFFER_TOO_SMALL. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_grammar_note(const sharpi_grammar *grammar, uint32_t index, char *out, size_t cap,
                                             size_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;

/** Whether a JSON text is valid for a schema: all of JSON Schema 2020-12 within one document, and what earlier
 *  drafts wrote otherwise, the keywords that no grammar holds among it. Formats are annotations here; keywords that
 *  are not known say nothing.
 *  @param json the text, blanks around it allowed.
 *  @return SHARPI_OK (valid); MISMATCH (the text names the place in the value and the keyword, such as
 *  `$.items[2] is equal to another item (uniqueItems)`), INVALID_ARGUMENT (the schema is malformed, or the text is
 *  no JSON: it says which), UNSUPPORTED (a reference that leads out of the document, a pattern that is no regular
 *  expression), DOES_NOT_FIT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_schema_check(const char *schema, size_t schema_len, const char *json, size_t len,
                                             sharpi_error *err) SHARPI_NOEXCEPT;

/** A matcher at the beginning of a text. Matchers of one grammar share what they find out, so the second text is
 *  faster than the first.
 *  @return SHARPI_OK; DOES_NOT_FIT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_create(const sharpi_grammar *grammar, sharpi_matcher **out,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** A second matcher at the same place, independent from now on; cheap. @return SHARPI_OK.
 *  @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_clone(const sharpi_matcher *matcher, sharpi_matcher **out,
                                              sharpi_error *err) SHARPI_NOEXCEPT;
/** Frees it; null is allowed. @thread any. @since 1.0 */
SHARPI_API void sharpi_matcher_destroy(sharpi_matcher *matcher) SHARPI_NOEXCEPT;
/** Goes on behind a token; one that ends a generation is accepted where the text may end. On failure the matcher
 *  is unchanged.
 *  @return SHARPI_OK; INVALID_ARGUMENT (token id), MISMATCH (it may not come next), DOES_NOT_FIT.
 *  @thread one per matcher. @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_accept(sharpi_matcher *matcher, int32_t token,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** Goes on behind bytes, however they are cut into tokens: a text that the host has put there.
 *  @return SHARPI_OK; MISMATCH, DOES_NOT_FIT. @thread one per matcher. @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_accept_text(sharpi_matcher *matcher, const char *bytes, size_t len,
                                                    sharpi_error *err) SHARPI_NOEXCEPT;
/** The tokens that may come next, as allowed_mask of sharpi_sample_params takes them; those that end a generation
 *  are among them where the text may end. After such a token there are none.
 *  @param out cap words. @param out_words words of the vocabulary, (n_vocab + 31) / 32.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL, DOES_NOT_FIT. @thread one per matcher. @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_mask(sharpi_matcher *matcher, uint32_t *out, uint32_t cap,
                                             uint32_t *out_words, sharpi_error *err) SHARPI_NOEXCEPT;
#define SHARPI_MATCH_OPEN     0u               /**< More has to come. */
#define SHARPI_MATCH_MAY_END  1u               /**< The text matches, and may go on. */
#define SHARPI_MATCH_COMPLETE 2u               /**< It matches, and nothing may follow. */
/** How far the text is. @return one of SHARPI_MATCH_*; OPEN for null. @thread any while no call changes it.
 *  @since 1.0 */
SHARPI_API uint32_t sharpi_matcher_progress(const sharpi_matcher *matcher) SHARPI_NOEXCEPT;
/** The bytes that have to come next, as far as there is no choice (a fixed name, a bracket); empty where there is
 *  one. They may end within a character.
 *  @param cap at most so many bytes are looked for. @return SHARPI_OK; DOES_NOT_FIT. @thread one per matcher.
 *  @since 1.0 */
SHARPI_API sharpi_status sharpi_matcher_forced(sharpi_matcher *matcher, char *out, size_t cap, size_t *out_len,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup session Session
 *  @{ */
/** Prices one more session against what is left of the plan's budgets and the memory that is free now.
 *  The plan holds the session's rows only.
 *  @param params null = the model plan's template. @return SHARPI_OK; INVALID_ARGUMENT, UNSUPPORTED,
 *  DOES_NOT_FIT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_plan_session(const sharpi_model *model, const sharpi_session_params *params,
                                             sharpi_plan **out, sharpi_error *err) SHARPI_NOEXCEPT;
/** Creates a session and commits everything it will need: decode cannot run out of memory. There may
 *  be more of them than n_sessions while the plan's budgets have room; forks and
 *  sharpi_session_reserve() count, too, and what a compaction gave back is there for others.
 *  @param params null = the plan's template; otherwise at most what the template priced.
 *  @return SHARPI_OK; DOES_NOT_FIT (names the row or the budget that is short, and by how many bytes),
 *  OUT_OF_MEMORY, INVALID_ARGUMENT, UNSUPPORTED.
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_create(const sharpi_model *model, const sharpi_session_params *params,
                                               sharpi_session **out, sharpi_error *err) SHARPI_NOEXCEPT;
/** Frees the session; null is allowed. No call on it may be running. @thread any.
 *  @since 1.0 */
SHARPI_API void sharpi_session_destroy(sharpi_session *session) SHARPI_NOEXCEPT;

#define SHARPI_PREFILL_CHECKPOINT 1u           /**< Take a recurrent checkpoint at the end; needs a session
                                                    with checkpoints. */
#define SHARPI_PREFILL_MORE       2u           /**< The prompt continues in the next call: no compaction
                                                    to prompt_budget yet. */

typedef struct sharpi_prefill_params {
  uint32_t struct_size;
  uint32_t flags;                              /**< SHARPI_PREFILL_*; default 0. */
  uint32_t n_logit_rows;                       /**< Last rows whose logits stay readable: at most n and the
                                                    plan's max_logit_rows; default 1. */
  uint32_t n_chunk;                            /**< Chunked prefill: tokens of a chunk of this call, at
                                                    most the plan's; default 0 = the plan's. With smaller
                                                    chunks a cancel loses less, and reading is slower. */
  sharpi_progress_fn progress;                 /**< Called after every chunk, and after every layer of one
                                                    (on a GPU, of more than one token), whose tokens then
                                                    count by the share of layers that are computed; after
                                                    chunks alone while these pass several GPUs as a pipeline.
                                                    Default null. */
  void *user_data;
} sharpi_prefill_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_prefill_params_init(sharpi_prefill_params *p, size_t size) SHARPI_NOEXCEPT;

/** Reads n tokens after those already in the session, in chunks of n_chunk. On failure or
 *  cancel, whole committed chunks stay and *out_committed counts their tokens; if there are any,
 *  no logits are readable. *out_committed = n: only the compaction to prompt_budget (or the writing of a
 *  checkpoint) failed or was cancelled, and the logits are there.
 *  @param params null = defaults. @param out_committed nullable.
 *  @return SHARPI_OK; INVALID_ARGUMENT (token id, n = 0, n_logit_rows), UNSUPPORTED (a checkpoint of a
 *  session that has none), STATE (a checkpoint, and all are pinned; a bounded session that has no
 *  captured queries to compact by), KV_FULL (nothing read: n does not fit), CANCELLED, DEVICE.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_prefill(sharpi_session *session, const int32_t *tokens, uint32_t n,
                                                const sharpi_prefill_params *params,
                                                uint32_t *out_committed, sharpi_error *err) SHARPI_NOEXCEPT;
/** Reads one token; its logits become row 0. Allocates nothing.
 *  @return SHARPI_OK; KV_FULL, INVALID_ARGUMENT, STATE (as sharpi_session_prefill()), CANCELLED, DEVICE.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_decode(sharpi_session *session, int32_t token,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** One token for each of n distinct sessions of one model; weights are read once for all.
 *  All or nothing: on failure no session read a token. Where bounded ones among them had to compact and
 *  a later one cannot, the former stay compacted.
 *  @return SHARPI_OK; INVALID_ARGUMENT (n over the plan's max_batch, a session twice, two models, token id),
 *  STATE (as sharpi_session_prefill()), KV_FULL, CANCELLED (native_code is the index of
 *  the session; a cancel of another one is still to come), DEVICE.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_decode_batch(sharpi_session *const *sessions, const int32_t *tokens,
                                             uint32_t n, sharpi_error *err) SHARPI_NOEXCEPT;
/** Copies one row of logits of the last call that read tokens. Row 0 is the last token's, row 1 the
 *  one before it, and so on up to the n_logit_rows that were asked for.
 *  @return SHARPI_OK; STATE (nothing read yet, or rows discarded by truncate), INVALID_ARGUMENT (row),
 *  BUFFER_TOO_SMALL (cap below the vocabulary). @thread any while no call reads tokens. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_logits(const sharpi_session *session, uint32_t row, float *out,
                                               uint32_t cap, uint32_t *out_n, sharpi_error *err) SHARPI_NOEXCEPT;

/** A seed that differs from session to session, also for those that never set their sampler. */
#define SHARPI_SEED_RANDOM 0xFFFFFFFFFFFFFFFFull
/** Sampler settings. Order: logit bias, repetition penalty, temperature, top-k, top-p, min-p, draw. */
typedef struct sharpi_sampler_params {
  uint32_t struct_size;
  float temperature;                           /**< 0 = greedy, ties to the lowest id. Default 0.7. */
  uint32_t top_k;                              /**< 0 = off. Default 40. */
  float top_p;                                 /**< 1 = off. Default 0.95. */
  float min_p;                                 /**< 0 = off. Default 0.05. */
  float repeat_penalty;                        /**< 1 = off. Default 1.0. */
  uint32_t repeat_last_n;                      /**< Tokens looked back at; default 256. */
  uint32_t n_bias;                             /**< Entries of the two arrays below; default 0. */
  uint64_t seed;                               /**< Equal seeds give equal draws. Default
                                                    ::SHARPI_SEED_RANDOM: one that the session asks of the
                                                    operating system; sharpi_session_info() has it. */
  const int32_t *bias_tokens;                  /**< Copied. */
  const float *bias_values;                    /**< Added to the logits; -inf forbids. Copied. */
} sharpi_sampler_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_sampler_params_init(sharpi_sampler_params *p, size_t size) SHARPI_NOEXCEPT;
/** Sets the session's sampler and restarts its random sequence. A list of biases is the session's: 8 bytes
 *  an entry in its memory rows and of the plan's host_budget.
 *  @return SHARPI_OK; INVALID_ARGUMENT, DOES_NOT_FIT (the budget), OUT_OF_MEMORY. On failure nothing changed.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_set_sampler(sharpi_session *session,
                                                    const sharpi_sampler_params *params,
                                                    sharpi_error *err) SHARPI_NOEXCEPT;
/** A token and the natural logarithm of its probability: the softmax of the model's logits as they are,
 *  before bias, penalty, mask and temperature. */
typedef struct sharpi_logprob {
  int32_t token;
  float logprob;
} sharpi_logprob;
/** What the host can do while a step's token is being read: for example the next step's mask. Called once, on
 *  the caller's thread, with the token that was drawn (sharpi_session_verify(): with tokens[0]), unless that ends
 *  the generation and is not read: while the device computes where there is one (other calls on the same device
 *  wait until it returns), otherwise before the call returns. The call may fail afterwards. Like a
 *  sharpi_progress_fn it must not compute. Must not use the session of the call. */
typedef void (*sharpi_meanwhile_fn)(void *user_data, int32_t token);
/** What one draw takes besides the session's sampler. Neither the sampler nor its random sequence changes. */
typedef struct sharpi_sample_params {
  uint32_t struct_size;
  uint32_t mask_words;                         /**< Words of allowed_mask; default 0. */
  const uint32_t *allowed_mask;                /**< Bit t % 32 of word t / 32 says whether token t may be drawn,
                                                    as llguidance and xgrammar make them; tokens behind the last
                                                    word may not. Default null: all may. Read on the GPU where
                                                    the logits are. Not kept. */
  const int32_t *bias_tokens;                  /**< Like the sampler's, and added to it; not kept. */
  const float *bias_values;
  uint32_t n_bias;                             /**< Entries of the two arrays above; default 0. */
  uint32_t n_logprobs;                         /**< Entries of `logprobs` a token; default 0. */
  sharpi_logprob *logprobs;                    /**< Out: for every token of the call n_logprobs entries, the token
                                                    itself and then the most probable ones, descending, equal ones
                                                    by id. For a step: cap * n_logprobs entries. */
  sharpi_meanwhile_fn meanwhile;               /**< Steps and verify of one session only;
                                                    default null. */
  void *user_data;                             /**< Of `meanwhile`. */
} sharpi_sample_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_sample_params_init(sharpi_sample_params *p, size_t size) SHARPI_NOEXCEPT;
/** Draws a token from logits row 0 without reading it. @param params null = the sampler alone.
 *  @return SHARPI_OK; STATE (no logits, or bias and mask forbid every token), INVALID_ARGUMENT, FORMAT (no
 *  logit is a number: the file's weights are damaged), MISMATCH (so, and the file was changed since it was
 *  planned).
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_sample(sharpi_session *session, const sharpi_sample_params *params,
                                               int32_t *out_token, sharpi_error *err) SHARPI_NOEXCEPT;
/** Samples from the present logits and reads what it sampled, so that the next step can follow. With
 *  drafts (n_draft) one step may give several tokens. A token that ends the generation is returned and
 *  not read. @param params null = the sampler alone; bias holds for every token of the step, and with a mask
 *  the step gives one token.
 *  @return SHARPI_OK; STATE, FORMAT and MISMATCH (as sharpi_session_sample()), INVALID_ARGUMENT, KV_FULL,
 *  CANCELLED, DEVICE (the draw is undone), BUFFER_TOO_SMALL (cap 0).
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_step(sharpi_session *session, const sharpi_sample_params *params,
                                             int32_t *out_tokens, uint32_t cap, uint32_t *out_n,
                                             sharpi_error *err) SHARPI_NOEXCEPT;

/** Reads tokens[0], and the drafts behind it as far as the session's sampler draws the same: one pass over the
 *  weights for all of them. Then the session is as if *out_n tokens had been decoded one by one, each draft
 *  having been drawn first; the next draw comes from logits row 0. A draft counts as a certain guess, so the
 *  tokens have the distribution that they have without drafts (arXiv 2211.17192), and with `deterministic`
 *  they are the same tokens; otherwise several rows in a pass may round differently from one. Fewer drafts
 *  are tried where a bounded session would have to compact for them, at the end of the context, and behind
 *  a token that ends a generation, which is never read.
 *  @param n 1 + drafts, at most 1 + the session's n_draft. @param params null = the sampler alone; otherwise
 *  allowed_mask has n - 1 rows of mask_words words, row i for the draw after tokens[i], and logprobs n - 1
 *  times n_logprobs entries, written for accepted drafts.
 *  @param out_n tokens read: 1 to n.
 *  @return SHARPI_OK; INVALID_ARGUMENT (token id, n), STATE (as sharpi_session_prefill()), KV_FULL, CANCELLED,
 *  DEVICE.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_verify(sharpi_session *session, const int32_t *tokens, uint32_t n,
                                               const sharpi_sample_params *params, uint32_t *out_n,
                                               sharpi_error *err) SHARPI_NOEXCEPT;

/** One session's part of sharpi_verify_batch(). */
typedef struct sharpi_batch_read {
  sharpi_session *session;
  const int32_t *tokens;                       /**< As sharpi_session_verify() takes them. */
  uint32_t n;                                  /**< 1 + drafts, at most 1 + the session's n_draft. */
  uint32_t n_read;                             /**< Out: tokens read, 1 to n; 0 = none. */
  const sharpi_sample_params *params;          /**< As for sharpi_session_verify(); nullable. Without
                                                    `meanwhile`. */
} sharpi_batch_read;
/** sharpi_session_verify() for n distinct sessions of one model, each with as many drafts as it has; weights are
 *  read once for all. All rows together are at most the plan's max_logit_rows (or max_batch, or the template's
 *  n_draft + 1, whichever is most): of more, the longest reads try fewer drafts, the first tokens always fit.
 *  What is refused, cancelled, or a pass that fails leaves every session as it was (but that bounded ones may
 *  have compacted, as in sharpi_decode_batch(), and that a failed pass costs logits and captured queries) with
 *  n_read 0 everywhere; where a device fails afterwards, while the draws are made, n_read says which sessions have
 *  read.
 *  @param read_size sizeof(sharpi_batch_read) at the caller.
 *  @return SHARPI_OK; INVALID_ARGUMENT (n over the plan's max_batch, a session twice, two models, token id,
 *  drafts), STATE (as sharpi_session_prefill()), KV_FULL, CANCELLED (native_code is the index of the session; a
 *  cancel of another one is still to come), DEVICE. @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_verify_batch(sharpi_batch_read *reads, uint32_t read_size, uint32_t n,
                                             sharpi_error *err) SHARPI_NOEXCEPT;

/** One session's part of sharpi_step_batch(). */
typedef struct sharpi_batch_step {
  sharpi_session *session;
  const sharpi_sample_params *params;          /**< As for sharpi_session_step(); nullable. Without
                                                    `meanwhile`. */
  int32_t *out_tokens;                         /**< Out: the tokens of the step. */
  uint32_t cap;                                /**< Entries of out_tokens, 1 or more: the step gives at most
                                                    so many tokens. */
  uint32_t n_tokens;                           /**< Out: 1 to cap; 0 = the session made no step. */
} sharpi_batch_step;
/** sharpi_session_step() for n distinct sessions of one model: each draws a token, its own drafters add drafts (one
 *  session after the other), and one pass reads all; weights are read once. A session whose token ends
 *  its generation gets it and takes no part in the pass. The tokens are those that steps alone give, as far as
 *  sharpi_session_verify() says so. Rows are limited as in sharpi_verify_batch(). Drafts follow what they bring in
 *  the company that they are in: of a pass, each session is charged its rows and an equal share of the rest.
 *  Where the call is refused or cancelled, a draw gives no token, or the pass fails, all draws are undone and every
 *  session is as it was (but as sharpi_verify_batch() says) with n_tokens 0 everywhere; where a device fails
 *  afterwards, while drafts are compared, n_tokens says which sessions have stepped.
 *  @param step_size sizeof(sharpi_batch_step) at the caller.
 *  @return SHARPI_OK; INVALID_ARGUMENT (n over the plan's max_batch, a session twice, two models), STATE, FORMAT
 *  and MISMATCH (as sharpi_session_sample()), BUFFER_TOO_SMALL (cap 0), KV_FULL, CANCELLED (native_code is the
 *  index of the session; a cancel of another one is still to come), DEVICE. @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_step_batch(sharpi_batch_step *steps, uint32_t step_size, uint32_t n,
                                           sharpi_error *err) SHARPI_NOEXCEPT;

/** What drafts have brought since the session was created. */
typedef struct sharpi_draft_stats {
  uint32_t struct_size;
  uint32_t drafters;                           /**< SHARPI_DRAFT_NGRAM, _MTP, _MODEL: those that it has. */
  uint64_t n_passes;                           /**< That verified drafts. */
  uint64_t n_drafted, n_accepted;              /**< Tokens. */
  double draft_seconds;                        /**< Finding drafts. */
  double verify_seconds;                       /**< Those passes and their draws. */
} sharpi_draft_stats;
/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any while no call changes the session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_drafts(const sharpi_session *session, sharpi_draft_stats *out,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** The same by place behind the first token: how many drafts stood there, and how many of them were accepted.
 *  *out_n is the session's n_draft; both arrays have cap entries.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL. @thread any while no call changes the session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_draft_places(const sharpi_session *session, uint64_t *drafted,
                                                     uint64_t *accepted, uint32_t cap, uint32_t *out_n,
                                                     sharpi_error *err) SHARPI_NOEXCEPT;

/** Commits memory until the session can hold n_slots rows a layer (at most the priced context).
 *  @return SHARPI_OK; OUT_OF_MEMORY (nothing changed), DOES_NOT_FIT. @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_reserve(sharpi_session *session, uint32_t n_slots,
                                                sharpi_error *err) SHARPI_NOEXCEPT;
/** Forgets every token from position n_tokens on. Attention-only models: any length; sliding windows:
 *  back by at most `rewind`; hybrids: to a checkpoint. Logits are discarded, but for those that a checkpoint
 *  kept: then another answer can be drawn at once. In a session that shares rows with forks, the block of 64 that
 *  the new length falls into (on a GPU, the piece of memory), and those behind it, become its own.
 *  @return SHARPI_OK; INVALID_ARGUMENT (longer than the session), STATE (not reachable: the text has
 *  the nearest reachable lengths), OUT_OF_MEMORY and DOES_NOT_FIT (for rows of its own).
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_truncate(sharpi_session *session, uint32_t n_tokens,
                                                 sharpi_error *err) SHARPI_NOEXCEPT;
/** Keeps the recurrent state at the present length, with logits row 0 if that is readable; the oldest unpinned checkpoint is dropped when
 *  all are used. @param pin 1 = never dropped for a newer one. @return SHARPI_OK; STATE (all pinned),
 *  UNSUPPORTED (the session has no checkpoints). @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_checkpoint(sharpi_session *session, uint32_t pin,
                                                   sharpi_error *err) SHARPI_NOEXCEPT;
/** Lengths that truncate can reach, ascending, the present one last. Attention-only models: the lowest and
 *  the present one, and all between; the lowest is 0 where nothing was evicted. Hybrids: the checkpoints. 0 is
 *  always reachable, also where it is not listed.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL. @thread any while no call changes the session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_reachable(const sharpi_session *session, uint32_t *out, uint32_t cap,
                                                  uint32_t *out_n, sharpi_error *err) SHARPI_NOEXCEPT;
/** The token ids that the session has read, in order: its logical history, position by position. Compaction
 *  leaves it whole; truncate shortens it. The plan prices it ("token history").
 *  @return SHARPI_OK; BUFFER_TOO_SMALL (*out_n = tokens). @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_tokens(const sharpi_session *session, int32_t *out, uint32_t cap,
                                               uint32_t *out_n, sharpi_error *err) SHARPI_NOEXCEPT;
/** A second session with the same content and settings, independent from now on. Both share the full blocks
 *  of 64 rows that full-attention layers have so far: read by both, never written, each in memory once. Of them
 *  whole pages are shared; on a GPU whole pieces of 2 MiB, of 4 to 32 MiB where the rows of n_ctx tokens take
 *  more than 256 MiB there. The rest is copied, like rings of sliding windows, recurrent state, on a GPU a prefix
 *  smaller than a piece, and on Windows and macOS all rows of the host, where a fork costs what a session does.
 *  The fork takes its own memory for all that it will append, so decode cannot run out of memory; what changes
 *  shared rows (compaction, truncate into them, restore) takes memory of its own for them first, and where
 *  there is none is refused and changes nothing. Bounded sessions share nothing: each moves its rows at the
 *  first compaction, which a decode may ask for, so it would have to keep the memory for all of them at hand.
 *  sharpi_memory_row has shared_bytes.
 *  @return SHARPI_OK; OUT_OF_MEMORY, DOES_NOT_FIT. @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_fork(const sharpi_session *session, sharpi_session **out,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
/** Writes the session as a versioned, checksummed blob, the same from every tier and placement: tokens,
 *  KV rows, recurrent state, checkpoints, captured queries, logits, and the sampler with its settings and
 *  the state of its random numbers; and of its adapters which they are, but not their weights.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL (*out_len = bytes needed). @thread any while no call changes it.
 *  @since 1.0 */
SHARPI_API sharpi_status sharpi_session_save(const sharpi_session *session, void *out, uint64_t cap,
                                             uint64_t *out_len, sharpi_error *err) SHARPI_NOEXCEPT;
/** Takes the next piece of a blob. @return 0 to go on; anything else ends the call with ::SHARPI_E_IO and
 *  this number as native_code. */
typedef int32_t (*sharpi_write_fn)(void *user_data, const void *data, uint64_t bytes);
/** Fills out[bytes] with the blob's bytes from `offset` on. @return 0; anything else ends the call with
 *  ::SHARPI_E_IO and this number as native_code. */
typedef int32_t (*sharpi_read_fn)(void *user_data, uint64_t offset, void *out, uint64_t bytes);
/** sharpi_session_save() in pieces of at most some hundred KiB (or one part that cannot be divided, such as
 *  a layer's recurrent state), in order, to a file, a socket, a compressor. Callbacks run on the caller's
 *  thread and must not use the session but for sharpi_session_info().
 *  @param out_len nullable: bytes of the whole blob. @return SHARPI_OK; IO (the callback).
 *  @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_save_to(const sharpi_session *session, sharpi_write_fn write,
                                                void *user_data, uint64_t *out_len,
                                                sharpi_error *err) SHARPI_NOEXCEPT;
/** Replaces the session's content and its sampler by saved ones. The blob may come from anywhere: no
 *  field is trusted, and whatever is refused, or fails for want of memory, leaves the session as it was.
 *  Only a device that fails (DEVICE) while rows are copied to it leaves an empty session.
 *  @return SHARPI_OK; FORMAT (truncated, damaged, or saying what cannot be), MISMATCH (other model, dtype
 *  or version, other adapters or scales, fewer checkpoints or logit rows here), KV_FULL (longer than the capacity), OUT_OF_MEMORY.
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_restore(sharpi_session *session, const void *blob, uint64_t len,
                                                sharpi_error *err) SHARPI_NOEXCEPT;
/** sharpi_session_restore() from a callback. The blob is read from its beginning to its end: once where the
 *  session has neither tokens nor checkpoints, as a new one, so that it may come through a pipe; else twice,
 *  once to check it, once to apply it. Where the callback fails, or gives other bytes, the second time, the
 *  session may be left empty; everything else as sharpi_session_restore().
 *  @return SHARPI_OK; IO (the callback), and as sharpi_session_restore(). @thread one per session.
 *  @since 1.0 */
SHARPI_API sharpi_status sharpi_session_restore_from(sharpi_session *session, sharpi_read_fn read,
                                                     void *user_data, sharpi_error *err) SHARPI_NOEXCEPT;

typedef struct sharpi_session_summary {
  uint32_t struct_size;
  uint32_t n_tokens;                           /**< Logical length: the position of the next token. In a
                                                    bounded session at its context the last half of it,
                                                    or what is held if that is more, becomes the first:
                                                    positions then count from there, rows from before
                                                    move up to it, checkpoints are gone.
                                                    n_prefill_tokens and n_decode_tokens count all. */
  uint32_t n_ctx;                              /**< Highest logical length. */
  uint32_t capacity;                           /**< Slots committed in full-attention layers; the most of
                                                    any where layers have memory of their own. */
  uint32_t n_slots_min, n_slots_max;           /**< Live rows over full-attention layers and their KV heads. */
  uint32_t is_compacted;                       /**< Rows have been evicted. */
  uint32_t n_logit_rows;                       /**< Readable now. */
  uint32_t n_checkpoints;                      /**< Taken. */
  sharpi_kv_dtype k_dtype, v_dtype;            /**< Effective, of the trunk (or the CPU if it has all). */
  sharpi_kv_dtype tail_k_dtype, tail_v_dtype;
  uint32_t reserved;
  uint64_t kv_payload_bytes, kv_held_bytes;    /**< All KV rows now. */
  uint64_t kv_shared_bytes;                    /**< Of kv_held_bytes: what forks hold too. */
  uint64_t seed;                               /**< Of the sampler: as given, or as drawn. */
  uint64_t n_prefill_tokens, n_decode_tokens;  /**< Read by this session so far. */
  double prefill_seconds, decode_seconds;
  char paths[256];                             /**< Kernel paths, such as "cpu avx512; q4_K: int8-dot /
                                                    int8-panel": of one row / of the most. Cut off with
                                                    "..."; sharpi_model_json() has them whole. */
  uint64_t adapters_id;                        /**< Of the adapters it has and their scales; 0 = none. */
  uint32_t n_adapters;                         /**< With a scale other than 0. */
  uint32_t n_other_tokens;                     /**< The first so many tokens were read with other adapters, or
                                                    none: sharpi_session_set_adapters() came behind them. */
} sharpi_session_summary;
/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any while no call changes it, and in the callbacks of a call
 *  on it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_info(const sharpi_session *session, sharpi_session_summary *out,
                                             sharpi_error *err) SHARPI_NOEXCEPT;

/** @return SHARPI_OK; INVALID_ARGUMENT (layer). @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_layer(const sharpi_session *session, uint32_t layer,
                                              sharpi_layer_info *out, sharpi_error *err) SHARPI_NOEXCEPT;
/** What the session holds, measured at the allocator. @return SHARPI_OK; BUFFER_TOO_SMALL.
 *  @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_memory(const sharpi_session *session, sharpi_memory_row *rows,
                                               uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                               sharpi_error *err) SHARPI_NOEXCEPT;
/** Stops the call that computes on this session: sharpi_session_prefill(), sharpi_session_decode(),
 *  sharpi_decode_batch(), sharpi_session_step(), sharpi_session_verify(), sharpi_verify_batch(),
 *  sharpi_step_batch(), sharpi_session_compact(). It sticks, atomically: where none runs, or one is past its last chance to stop,
 *  the next one returns ::SHARPI_E_CANCELLED; the call after that computes again. Every token is a chance
 *  to stop, on every model and tier, and prefill stops within a chunk.
 *
 *  A cancelled call has changed nothing, or has committed whole chunks (prefill, which counts them). What
 *  cannot be taken back is finished first: the chunk or token of a model with sliding windows, of a session
 *  that captures queries, or of a bounded one that has made room for it. A prefill whose compaction at the
 *  end (prompt_budget) is cancelled has read all of its tokens.
 *  @thread any, also a signal handler. @since 1.0 */
SHARPI_API void sharpi_session_cancel(sharpi_session *session) SHARPI_NOEXCEPT;
/** Takes back a cancel that no call has answered yet: one atomic store.
 *  @thread any, also a signal handler. @since 1.0 */
SHARPI_API void sharpi_session_resume(sharpi_session *session) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup compact Compaction
 *  Keeps the KV rows that matter and gives the rest of the memory back. Logical length stays.
 *  @{ */
/** How a budget is shared. EQUAL: a layer keeps at most `budget` rows, and those that have fewer give
 *  nothing to others. PYRAMID and ENTROPY: the layers keep n_layers * budget rows in all (fewer if there
 *  are fewer), so some keep more than `budget`; what a layer cannot use goes to the others. In a bounded
 *  session no layer keeps more than kv_budget, whatever is asked for.
 *
 *  SHARED: one threshold over all KV heads of all layers, so that every head of every layer has a count of rows of its
 *  own. `budget` is their mean; sinks and recency stay in each head, and the 8 best of its other rows, as far as
 *  `budget` has them. A head's replay scores count times the sum of all heads' at the position. From then on the
 *  session's rows are in blocks of 64 rows of one head, until it is empty again; later compactions leave them so. A
 *  capacity is then that of the fullest head, and a head that has fewer rows takes as many fewer slots, in whole blocks.
 *  On the CPU, CUDA and Vulkan devices, and splits of them. */
typedef uint32_t sharpi_layer_budget;
#define SHARPI_LAYER_BUDGET_EQUAL   0u
#define SHARPI_LAYER_BUDGET_PYRAMID 1u         /**< More in low layers (arXiv 2406.02069). */
#define SHARPI_LAYER_BUDGET_ENTROPY 2u         /**< By the entropy of a layer's scores. */
#define SHARPI_LAYER_BUDGET_SHARED  3u         /**< By scores, over all KV heads of all layers. */

typedef struct sharpi_compact_params {
  uint32_t struct_size;
  sharpi_policy policy;                        /**< Default AUTO. */
  uint32_t budget;                             /**< Rows a layer keeps (sharpi_layer_budget says what that
                                                    means where layers differ); required (default UNSET
                                                    is refused), or ::SHARPI_BUDGET_AUTO. Not with KEEP. */
  uint32_t window;                             /**< Captured queries used; default UNSET = all. Not with a
                                                    probe, not with KEEP. */
  uint32_t recency;                            /**< Last rows always kept; default UNSET = 64, and 16 by
                                                    REPLAY with layer_budget SHARED, at most half of
                                                    the budget and what sinks leave. What is given is
                                                    kept, or refused where the budget is smaller than it
                                                    and sinks. Not with KEEP. */
  uint32_t sinks;                              /**< First rows always kept, which many heads lean on; default
                                                    UNSET = 4, at most half of what recency leaves. Not
                                                    with KEEP. */
  uint32_t headroom;                           /**< Free slots that stay committed; default 1024. Bounded
                                                    sessions keep what they were priced for. */
  uint32_t pool_kernel;                        /**< Rows averaged by SNAPKV, DEFENSIVE and VALUE: odd,
                                                    default 13, the only one of other policies. */
  uint32_t span;                               /**< Rows after a hit by SPAN, RETRIEVAL, REPLAY and MIXED;
                                                    default UNSET = 12, and 4 by replay scores where
                                                    layer_budget is not SHARED. Not with other
                                                    policies. */
  sharpi_layer_budget layer_budget;            /**< Default EQUAL, the only one of GLOBAL and KEEP. */
  uint32_t n_probe;                            /**< Probe tokens; default 0 = captured queries. Not with KEEP. */
  uint32_t n_keep;                             /**< Rows of `keep` (policy KEEP). */
  const int32_t *probe;                        /**< A question, run transiently in free slots; nothing is
                                                    committed. More tokens than the session's
                                                    capture_window take memory for the time of the call,
                                                    and so does a copy of recurrent state and sliding
                                                    windows where there are more than a chunk. */
  const uint32_t *keep;                        /**< Ascending slots kept in every layer and head. */
  sharpi_progress_fn progress;
  void *user_data;
} sharpi_compact_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_compact_params_init(sharpi_compact_params *p, size_t size) SHARPI_NOEXCEPT;

typedef struct sharpi_compact_report {
  uint32_t struct_size;
  sharpi_policy policy;                        /**< The one that ran. */
  uint32_t rows_before, rows_after;            /**< Of the fullest compacted layer, and of its fullest KV head. */
  uint32_t n_layers;                           /**< Layers compacted. */
  uint32_t capacity;                           /**< Slots that stay committed. */
  uint64_t payload_before, payload_after;      /**< KV bytes of live rows. */
  uint64_t held_before, held_after;            /**< KV bytes committed. */
  double score_ms, move_ms;
  uint32_t kept_sinks, kept_recent;            /**< Of rows_after: the first and the last ones. */
  uint32_t kept_scored;                        /**< Of rows_after: what the policy chose. 0 = it chose nothing,
                                                    whatever its name: the budget left no row to it. */
  uint32_t kept_unranked;                      /**< Of rows_after: rows that stayed without being scored:
                                                    the host's rows (KEEP), or all of them, if the budget
                                                    was large enough for all. */
  uint32_t kept_replayed;                      /**< Of kept_scored: chosen by replay scores. */
  uint32_t reserved;                           /**< 0. */
} sharpi_compact_report;

/** Scores, selects, moves, returns memory. On failure the session is bit-identical to before, and holds
 *  no more memory. What the plan did not price (no capture_window, a longer probe, a policy that looks at
 *  values) is taken from its budgets until the call ends; positions of the rows that stayed, 4 bytes a row
 *  and KV head, and with SHARED tables of blocks remain until the session is truncated to 0.
 *  @param params with a budget, or rows to keep. @param report nullable.
 *  @return SHARPI_OK; INVALID_ARGUMENT, STATE (no captured queries, not enough tokens), UNSUPPORTED,
 *  DOES_NOT_FIT (a budget has no room for that), OUT_OF_MEMORY, CANCELLED. @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_compact(sharpi_session *session, const sharpi_compact_params *params,
                                                sharpi_compact_report *report, sharpi_error *err) SHARPI_NOEXCEPT;
typedef struct sharpi_recall_params {
  uint32_t struct_size;
  uint32_t budget;                             /**< Rows of each KV head that may come back, at least 1;
                                                    required (default UNSET is refused). */
  uint32_t window;                             /**< Captured queries used; default UNSET = all. Not with a
                                                    probe. */
  uint32_t recency;                            /**< Last rows that stay in any case; default UNSET = 64, at
                                                    most half of the session's rows. */
  uint32_t sinks;                              /**< First rows that stay in any case; default UNSET = 4, at
                                                    most half of what recency leaves. */
  uint32_t n_probe;                            /**< Probe tokens; default 0 = captured queries. */
  const int32_t *probe;                        /**< The question, as in sharpi_compact_params. */
  sharpi_progress_fn progress;                 /**< ::SHARPI_PHASE_COMPACT: layers scored. */
  void *user_data;
} sharpi_recall_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_recall_params_init(sharpi_recall_params *p, size_t size) SHARPI_NOEXCEPT;

typedef struct sharpi_recall_report {
  uint32_t struct_size;
  uint32_t n_layers;                           /**< Layers in which rows came back. */
  uint32_t rows_in;                            /**< Of the KV head to which most came back; as many went. */
  uint32_t n_blocks;                           /**< Blocks of 16 archived rows that were scored row by row, of
                                                    the KV head that has most; 0 = the archive is empty. */
  uint32_t archived;                           /**< Rows in the archive of the KV head that has most. */
  uint32_t reserved;                           /**< 0. */
  uint64_t total_rows;                         /**< That came back, of all KV heads. */
  double score_ms, move_ms;
} sharpi_recall_report;

/** Brings archived rows back that a question wants. The question's queries score the bounds of the archive's
 *  blocks, then the rows of each KV head's best blocks (four times the budget, at least 1024) beside the
 *  session's; a hit counts in every layer and head at its position and marks the 12 that follow. The best
 *  archived rows of each KV head change places with its session's worst, as long as they are better. Rows keep
 *  their positions and their bits; the session's length, capacity and count of rows stay. Afterwards the
 *  session can be truncated to where it is, and to 0. On failure the session is bit-identical to before, its
 *  archive too. Memory of the call is taken from the plan's budgets until it ends.
 *  @param params with a budget. @param report nullable.
 *  @return SHARPI_OK, also where nothing was worth it; INVALID_ARGUMENT, STATE (an empty session, no captured
 *  queries, no free slots for the probe), UNSUPPORTED (archive_rows is 0), DOES_NOT_FIT, OUT_OF_MEMORY,
 *  CANCELLED. @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_recall(sharpi_session *session, const sharpi_recall_params *params,
                                               sharpi_recall_report *report, sharpi_error *err) SHARPI_NOEXCEPT;
/** Logical positions of the live rows of one layer and KV head, ascending.
 *  @return SHARPI_OK; INVALID_ARGUMENT, UNSUPPORTED (the layer stores no slots), BUFFER_TOO_SMALL.
 *  @thread any while no call changes it. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_kept(const sharpi_session *session, uint32_t layer, uint32_t kv_head,
                                             uint32_t *out, uint32_t cap, uint32_t *out_n,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup adapter Adapters
 *  Adapters (LoRA, arXiv 2106.09685) in GGUF files, as convert_lora_to_gguf.py of llama.cpp writes them: loaded beside
 *  a model and chosen for each session, with a scale. What a session reads then goes through W x + scale alpha / rank
 *  B (A x); the model's weights are never changed. Sessions with other adapters, or none, may share a call, and each
 *  has the bits that it has alone. They may change projections of attention and of delta nets, and dense and shared
 *  FFNs; routed experts, the embedding table and the head are refused by name. Drafters draft without them.
 *
 *  A plan that is to have adapters names them (`adapters`), or their largest rank (`adapter_rank`).
 *  @{ */
/** Loads an adapter. Its memory, f32 of all its elements, is taken from the plan's budgets, as a session's is.
 *  @return SHARPI_OK; NOT_FOUND, IO, FORMAT (no adapter, a key or one half of a pair missing, ranks that differ or are
 *  0, an element or alpha that is no finite number), MISMATCH (of another architecture or base: the text has the name
 *  or both shapes), UNSUPPORTED (another kind of adapter, a weight that adapters do not change here, a model planned
 *  without adapters), DOES_NOT_FIT (a larger rank than the plan's, a budget), OUT_OF_MEMORY, STATE (a model opened for
 *  its text). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_adapter_load(const sharpi_model *model, const char *gguf_path, sharpi_adapter **out,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. Sessions that have chosen it keep it alive.
 *  @thread any. @since 1.0 */
SHARPI_API void sharpi_adapter_destroy(sharpi_adapter *adapter) SHARPI_NOEXCEPT;

typedef struct sharpi_adapter_summary {
  uint32_t struct_size;
  uint32_t n_weights;                          /**< Weights of the model that it changes. */
  uint32_t max_rank;
  float alpha;
  uint64_t n_parameters;
  uint64_t held_bytes;
  uint64_t content_id;                         /**< Of its file. */
  char name[128];                              /**< general.name, or the file's. */
} sharpi_adapter_summary;
/** @return SHARPI_OK; INVALID_ARGUMENT. @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_adapter_info(const sharpi_adapter *adapter, sharpi_adapter_summary *out,
                                             sharpi_error *err) SHARPI_NOEXCEPT;
/** What it holds, measured at the allocator, a row for each device that has blocks it changes; equals the plan's rows
 *  of it, where the plan named it.
 *  @param row_size sizeof(sharpi_memory_row) at the caller. @return SHARPI_OK; BUFFER_TOO_SMALL.
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_adapter_memory(const sharpi_adapter *adapter, sharpi_memory_row *rows,
                                               uint32_t row_size, uint32_t cap, uint32_t *out_n,
                                               sharpi_error *err) SHARPI_NOEXCEPT;

/** An adapter for a session, and how much of it: 1 = as it was trained, 0 = as if it were not named. */
typedef struct sharpi_adapter_use {
  const sharpi_adapter *adapter;
  float scale;                                 /**< Any finite number. */
  uint32_t reserved;                           /**< 0. */
} sharpi_adapter_use;
/** Chooses the adapters of what the session reads from now on, in place of those it had. Rows that are there stay as
 *  they were read, and so do logits: truncate to 0 and read again what other adapters shall have read.
 *  sharpi_session_summary has `n_other_tokens`. Forks have the same adapters; a saved session is restored only by a
 *  session with the same ones, by content, order and scale.
 *  @param use_size sizeof(sharpi_adapter_use) at the caller. @param n 0 to 16; 0 = none.
 *  @return SHARPI_OK; INVALID_ARGUMENT (an adapter of another model, one twice, a scale that is no finite number).
 *  @thread one per session. @since 1.0 */
SHARPI_API sharpi_status sharpi_session_set_adapters(sharpi_session *session, const sharpi_adapter_use *uses,
                                                     uint32_t use_size, uint32_t n, sharpi_error *err) SHARPI_NOEXCEPT;
/** @} */

/** @defgroup embed Embeddings and reranking
 *  Vectors of texts, and scores of pairs of texts, from models that are made for that and from any chat model.
 *
 *  An *encoder* (bert, nomic-bert, gemma-embedding) reads a text in one pass, in which every token sees all of
 *  it, and keeps no KV rows: its plan prices *embedders* where that of a chat model prices sessions (n_sessions
 *  of them), n_ctx is the longest text, and a chunk is at least as long. It has no logits, so
 *  sharpi_session_create() is UNSUPPORTED. An embedder of any other model reads texts with sessions of its own,
 *  which cost what sessions cost and come back empty from every call.
 *  @{ */
/** What becomes of the rows of a text, one for each token. */
typedef uint32_t sharpi_pooling;
#define SHARPI_POOLING_AUTO 0u                 /**< What the file says; refused where it says nothing, for a
                                                    vector pooled otherwise than the model was trained for is
                                                    only noise. */
#define SHARPI_POOLING_NONE 1u                 /**< All rows. */
#define SHARPI_POOLING_MEAN 2u                 /**< Their mean. */
#define SHARPI_POOLING_CLS  3u                 /**< The first one. */
#define SHARPI_POOLING_LAST 4u                 /**< The last one. */
#define SHARPI_POOLING_RANK 5u                 /**< A score instead of a vector, by sharpi_rerank(): what files of
                                                    rerankers say. No call takes it. */

typedef struct sharpi_embedder_params {
  uint32_t struct_size;
  uint32_t n_ctx;                              /**< Longest text in tokens; default UNSET = the plan's n_ctx. */
  uint32_t n_parallel;                         /**< Sessions that read texts side by side, 1 to the plan's
                                                    max_batch; default 1. Encoders have none: they read as
                                                    many texts at once as a chunk has rows for (at most 64). */
  uint32_t reserved;
} sharpi_embedder_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_embedder_params_init(sharpi_embedder_params *p, size_t size) SHARPI_NOEXCEPT;

/** Takes all memory that embedding takes, from the plan's budgets, as sessions do.
 *  @param params null = defaults.
 *  @return SHARPI_OK; INVALID_ARGUMENT, DOES_NOT_FIT, OUT_OF_MEMORY, UNSUPPORTED (the head is on a GPU, from
 *  which hidden rows do not come back), STATE (a model opened for its text). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_embedder_create(const sharpi_model *model, const sharpi_embedder_params *params,
                                                sharpi_embedder **out, sharpi_error *err) SHARPI_NOEXCEPT;
/** Gives up the reference; null is allowed. @thread any. @since 1.0 */
SHARPI_API void sharpi_embedder_destroy(sharpi_embedder *embedder) SHARPI_NOEXCEPT;
/** What such an embedder would hold, row by row, and whether the budgets hold it: nothing is taken.
 *  @param row_size sizeof(sharpi_memory_row) at the caller. @return SHARPI_OK; BUFFER_TOO_SMALL, and as
 *  sharpi_embedder_create(). @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_embedder_price(const sharpi_model *model, const sharpi_embedder_params *params,
                                               sharpi_memory_row *rows, uint32_t row_size, uint32_t cap,
                                               uint32_t *out_n, sharpi_error *err) SHARPI_NOEXCEPT;

typedef struct sharpi_embedder_summary {
  uint32_t struct_size;
  uint32_t n_ctx;                              /**< Longest text in tokens. */
  uint32_t n_parallel;                         /**< Texts of one pass at most. */
  uint32_t n_embd;                             /**< Elements of a pooled vector. */
  uint32_t n_row;                              /**< Elements of a row with ::SHARPI_POOLING_NONE. */
  sharpi_pooling pooling;                      /**< What the file says; AUTO = it says nothing. */
  uint32_t is_encoder;                         /**< Texts are read in one pass, without KV rows. */
  uint32_t can_rank;                           /**< sharpi_rerank() has a score for its texts. */
  uint64_t held_bytes;
  uint64_t n_tokens;                           /**< Read so far, by calls that ended well. */
  double seconds;                              /**< What that took. */
} sharpi_embedder_summary;
/** @return SHARPI_OK; BUSY. @thread any while no call computes on it. @since 1.0 */
SHARPI_API sharpi_status sharpi_embedder_info(const sharpi_embedder *embedder, sharpi_embedder_summary *out,
                                              sharpi_error *err) SHARPI_NOEXCEPT;

/** A text as token ids, special tokens included, as sharpi_tokenize() with ADD_SPECIAL gives them. */
typedef struct sharpi_text_tokens {
  const int32_t *tokens;
  uint32_t n_tokens;                           /**< 1 to n_ctx. */
  uint32_t n_first;                            /**< Of a pair of texts: how many belong to the first; those behind
                                                    have the second token type, in models that have types.
                                                    0 = all. */
} sharpi_text_tokens;

typedef struct sharpi_embed_params {
  uint32_t struct_size;
  sharpi_pooling pooling;                      /**< Default AUTO. */
  uint32_t n_dims;                             /**< The first so many elements of each vector, which models trained
                                                    for that (Matryoshka, arXiv 2205.13147) need not be told
                                                    beforehand; default 0 = all. */
  uint32_t normalize;                          /**< 1 (default) = vectors have length 1, after n_dims. Rows of NONE
                                                    are left as they are whatever it says. */
  sharpi_progress_fn progress;                 /**< ::SHARPI_PHASE_EMBED: tokens read; default null. */
  void *user_data;
} sharpi_embed_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_embed_params_init(sharpi_embed_params *p, size_t size) SHARPI_NOEXCEPT;

/** Vectors of texts of any lengths. Texts share passes without padding, and the vector of one does not depend on
 *  the others beyond what `deterministic` of the plan says.
 *  @param text_size sizeof(sharpi_text_tokens) at the caller. @param params null = defaults.
 *  @param out cap floats: a vector of n_dims elements for each text, one behind the other; with NONE a row for
 *  each token of each text. *out_n = floats.
 *  @return SHARPI_OK; INVALID_ARGUMENT (an empty text, one longer than n_ctx, an id outside the vocabulary,
 *  n_dims: the sentence says which text), UNSUPPORTED (AUTO, but the file says no pooling, or is a reranker),
 *  BUFFER_TOO_SMALL, CANCELLED, DEVICE, BUSY. Whatever fails leaves `out` undefined and the embedder as it was.
 *  @thread one per embedder. @since 1.0 */
SHARPI_API sharpi_status sharpi_embed(sharpi_embedder *embedder, const sharpi_text_tokens *texts,
                                      uint32_t text_size, uint32_t n_texts, const sharpi_embed_params *params,
                                      float *out, uint64_t cap, uint64_t *out_n, sharpi_error *err) SHARPI_NOEXCEPT;

typedef struct sharpi_rerank_params {
  uint32_t struct_size;
  uint32_t normalize;                          /**< 1 (default) = the score as a probability, 0 to 1; 0 = as the head
                                                    gives it (a logit; the difference of two where it has a
                                                    label for yes and one for no). Both order alike. */
  sharpi_progress_fn progress;                 /**< ::SHARPI_PHASE_EMBED; default null. */
  void *user_data;
} sharpi_rerank_params;
/** Writes the defaults. @param size sizeof(*p) at the caller. @thread any. @since 1.0 */
SHARPI_API void sharpi_rerank_params_init(sharpi_rerank_params *p, size_t size) SHARPI_NOEXCEPT;

/** How well the second text of each pair answers the first, as sharpi_rank_tokenize() has made the pairs: by the
 *  score head of the file, or, of chat models without one, by the logits of "yes" and "no" behind the prompt
 *  (as Qwen3-Reranker is asked). @param out n_texts scores.
 *  @return as sharpi_embed(); UNSUPPORTED (an encoder without a score head; a vocabulary without single tokens
 *  "yes" and "no"). @thread one per embedder. @since 1.0 */
SHARPI_API sharpi_status sharpi_rerank(sharpi_embedder *embedder, const sharpi_text_tokens *texts,
                                       uint32_t text_size, uint32_t n_texts, const sharpi_rerank_params *params,
                                       float *out, sharpi_error *err) SHARPI_NOEXCEPT;
/** A query and a document as one text for sharpi_rerank(). Encoders: both with the special tokens between and
 *  around that the file's tokenizer puts there. Others: the file's template "rerank" with {query} and {document}
 *  filled in (and {instruction}, where it has that), or Qwen3-Reranker's where the vocabulary is ChatML's.
 *  Control tokens come from the template alone.
 *  @param instruction NUL-terminated: the task, for prompts that have a place for it; null = the usual one of
 *  web search; refused where there is no place. @param out_n_first nullable: tokens of the first text.
 *  @return SHARPI_OK; BUFFER_TOO_SMALL, UNSUPPORTED (no tokenizer, or no form of a pair is known for the model).
 *  @thread any. @since 1.0 */
SHARPI_API sharpi_status sharpi_rank_tokenize(const sharpi_model *model, const char *query, size_t query_len,
                                              const char *document, size_t document_len, const char *instruction,
                                              int32_t *out, uint32_t cap, uint32_t *out_n, uint32_t *out_n_first,
                                              sharpi_error *err) SHARPI_NOEXCEPT;
/** Stops the call that computes on this embedder, as sharpi_session_cancel() does on a session.
 *  @thread any, also a signal handler. @since 1.0 */
SHARPI_API void sharpi_embedder_cancel(sharpi_embedder *embedder) SHARPI_NOEXCEPT;
/** Takes back a cancel that no call has answered yet. @thread any, also a signal handler. @since 1.0 */
SHARPI_API void sharpi_embedder_resume(sharpi_embedder *embedder) SHARPI_NOEXCEPT;
/** @} */

#ifdef __cplusplus
}
#endif
#endif  /* SHARPI_H_ */
