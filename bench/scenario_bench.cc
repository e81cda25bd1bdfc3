// SPDX-License-Identifier: MIT
// The scenarios that a 12 GB card should serve, on a real device that may use that much, through
// the C ABI: plan, load, a session; what was taken equals what was planned; prefill and decode.
//   scenario_bench MODEL FILE [--budget MIB] [--depth N,N,..] [--tokens N] [--kv LIST] [--threads
//   N] MODEL: gemma4-12b coder-30b 27b olmoe gemma4-e4b 35b snapkv  (FILE: tools/synth_gguf.py)
//   --budget 12288     MiB of device memory that plans may take
//   --depth N,N        tokens in the session when decode is measured (default: the scenario's)
//   --tokens 32        tokens decoded at each depth
//   --kv f32,bf16,q8_0 KV dtypes to run (default: the scenario's)
//   --threads 0        of the CPU tier, 0 = all
//   --chunk 512        tokens of one prefill chunk
//   --prompt N         tokens whose reading is timed (default: the scenario's)
// Ends with the number of checks that failed; 0 = all held.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handles.h"
#include "kv_names.h"
#include "scenario_rows.h"
#include "sharpi.h"

namespace {

using namespace sharpi::bench;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr double kMiB = 1024.0 * 1024.0;
const char* kv_name(sharpi_kv_dtype d) {
  const KvName* known = kv_of(d);
  return known != nullptr ? known->name : "?";
}

struct Options {
  std::string model, file;
  uint64_t budget_mib = 12288;
  uint32_t tokens = 32, n_threads = 0, n_chunk = 512, prompt = 0;
  std::vector<uint32_t> depths;
  std::vector<sharpi_kv_dtype> kv;
};

/// One request: what to plan and how far to read.
struct Run {
  sharpi_kv_dtype kv = SHARPI_KV_AUTO;
  uint32_t n_ctx = 4096;
  int32_t layers = -1, ffn = -1, experts = -1, slots = -1, ends = -1;
  std::vector<uint32_t> depths{};
  uint32_t prompt = 2048;    // tokens whose reading is timed
  bool fits = true;          // false: a refusal is what is wanted
  bool free_budget = false;  // all that is free, not the card's
};

class Bench {
 public:
  explicit Bench(const Options& o) : o_(o) {
    sharpi_context_params p;
    sharpi_context_params_init(&p, sizeof p);
    p.n_threads = o.n_threads;
    p.flags = SHARPI_CONTEXT_READ_ENV;  // the scenario of a budget by environment alone
    sharpi_context* c = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_context_create(&p, &c, &e), e, "context");
    context_.reset(c);
    std::printf("%s on %s, budget %llu MiB\n", o.file.c_str(), device().name,
                static_cast<unsigned long long>(o.budget_mib));
    std::printf("%-5s %7s %6s %4s %4s %6s %9s %9s %8s %7s %9s %s\n", "kv", "n_ctx", "layers", "ffn",
                "exp", "slots", "planned", "payload", "load s", "", "prefill", "decode t/s @depth");
  }

  sharpi_device device() const {
    sharpi_device d{};
    d.struct_size = sizeof d;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_device_info(context_.get(), 1, 0, &d, &e), e, "device");
    return d;
  }

  /// Null when it was refused as wanted.
  PlanPtr plan(const Run& r, sharpi_plan_summary* info) {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = r.n_ctx;
    s.k_dtype = s.v_dtype = r.kv;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.n_gpu_layers = r.layers;
    p.n_gpu_ffn = r.ffn;
    p.n_gpu_experts = r.experts;
    p.n_expert_slots = r.slots;
    p.gpu_ends = r.ends;
    p.n_chunk = o_.n_chunk;
    p.device_budget = r.free_budget ? SHARPI_ALL_FREE : o_.budget_mib << 20;
    sharpi_plan* out = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status status = sharpi_plan_create(context_.get(), o_.file.c_str(), &p, &out, &e);
    PlanPtr owner(out);
    check((status == SHARPI_OK) == r.fits, std::string("plan: ") + e.text);
    if (status != SHARPI_OK) {
      std::printf("%-5s %7u refused: %s\n", kv_name(r.kv), r.n_ctx, e.text);
      return nullptr;
    }
    info->struct_size = sizeof *info;
    must(sharpi_plan_info(out, info, &e), e, "plan");
    for (uint32_t i = 0; i < info->n_fallbacks; ++i) {
      std::string text(512, '\0');
      size_t n = 0;
      must(sharpi_plan_fallback(out, i, text.data(), text.size(), &n, &e), e, "fallback");
      std::printf("  %.*s\n", static_cast<int>(n), text.c_str());
    }
    return owner;
  }

  sharpi_plan_summary run(const Run& r) {
    sharpi_plan_summary info{};
    const PlanPtr p = plan(r, &info);
    if (!p) return info;
    const auto start = Clock::now();
    const ModelPtr model = load(p.get());
    const double load_s = seconds_since(start);
    const SessionPtr session = create(model.get());
    compare_rows(p.get(), model.get(), session.get());
    const sharpi_device now = device();
    check(now.held_bytes == info.device_held_bytes, "the device holds what was planned");
    std::printf("%-5s %7u %6u %4u %4u %6u %9.1f %9.1f %8.2f ", kv_name(info.k_dtype), info.n_ctx,
                info.n_gpu_layers, info.n_gpu_ffn, info.n_gpu_experts, info.n_expert_slots,
                static_cast<double>(info.device_held_bytes) / kMiB,
                static_cast<double>(info.kv_payload_bytes) / kMiB, load_s);
    std::fflush(stdout);
    uint32_t at = 0;
    const uint32_t prompt = o_.prompt != 0 ? o_.prompt : r.prompt;
    if (prompt != 0) {
      warm_up(session.get(), std::min(info.n_ctx, info.n_chunk));
      const double rate = read(session.get(), &at, prompt);
      std::printf("%7u %9.0f", prompt, rate);
    }
    for (const uint32_t depth : r.depths) {
      if (depth > at) read(session.get(), &at, depth - at);
      std::printf("  %.1f @%u", decode(session.get(), &at), at);
      std::fflush(stdout);
    }
    std::printf(
        "\n  other bytes on the device %.1f MiB; reading a token's weights takes %.2f ms, at the "
        "end of the context %.2f ms\n",
        static_cast<double>(device().other_bytes) / kMiB, info.token_seconds * 1e3,
        info.full_token_seconds * 1e3);
    return info;
  }

  ModelPtr load(const sharpi_plan* plan) {
    sharpi_model* model = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_model_load(plan, nullptr, nullptr, &model, &e), e, "load");
    return ModelPtr(model);
  }

  SessionPtr create(const sharpi_model* model, const sharpi_session_params* params = nullptr) {
    sharpi_session* session = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_create(model, params, &session, &e), e, "session");
    return SessionPtr(session);
  }

  /// Device bytes of one more session.
  static uint64_t price(const sharpi_model* model, const sharpi_session_params* params) {
    sharpi_plan* plan = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_plan_session(model, params, &plan, &e), e, "price of a session");
    const PlanPtr owner(plan);
    sharpi_plan_summary s{};
    s.struct_size = sizeof s;
    must(sharpi_plan_info(plan, &s, &e), e, "plan");
    return s.device_held_bytes;
  }

  /// Reads n tokens; tokens per second.
  double read(sharpi_session* session, uint32_t* at, uint32_t n, uint32_t flags = 0) {
    std::vector<int32_t> tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>((*at + i) * 7919u % 32000u);
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    p.flags = flags;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto start = Clock::now();
    must(sharpi_session_prefill(session, tokens.data(), n, &p, nullptr, &e), e, "prefill");
    *at += n;
    return n / seconds_since(start);
  }

  /// The first calls of a shape load what later ones use: one whole chunk, forgotten again.
  void warm_up(sharpi_session* session, uint32_t n) {
    uint32_t at = 0;
    read(session, &at, n);
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_truncate(session, 0, &e), e, "truncate");
  }

  double decode(sharpi_session* session, uint32_t* at) {
    sharpi_error e = SHARPI_ERROR_INIT;
    for (int i = 0; i < 4; ++i) must(sharpi_session_decode(session, 11, &e), e, "decode");
    const auto start = Clock::now();
    for (uint32_t i = 0; i < o_.tokens; ++i)
      must(sharpi_session_decode(session, static_cast<int32_t>(13 + i), &e), e, "decode");
    *at += 4 + o_.tokens;
    return o_.tokens / seconds_since(start);
  }

  const Options& options() const { return o_; }

 private:
  Options o_;
  ContextPtr context_;
};

std::vector<sharpi_kv_dtype> dtypes(const Options& o, std::vector<sharpi_kv_dtype> own) {
  return o.kv.empty() ? own : o.kv;
}
std::vector<uint32_t> depths(const Options& o, std::vector<uint32_t> own) {
  return o.depths.empty() ? own : o.depths;
}

constexpr sharpi_kv_dtype kAll[] = {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0};

/// Rows of four bits hold twice the context of the others in the card's memory.
void gemma4_12b(Bench* b) {
  const bool card = b->options().budget_mib < 11264;
  for (const sharpi_kv_dtype kv : dtypes(b->options(), {kAll[0], kAll[1], kAll[2], SHARPI_KV_Q4})) {
    const uint32_t n_ctx = kv == SHARPI_KV_Q4 ? 262144 : 131072;
    Run r{.kv = kv, .n_ctx = n_ctx, .layers = 48, .ffn = 48, .ends = 1};
    r.depths = depths(b->options(), {2048, 32768, 131000});
    r.fits = kv != SHARPI_KV_F32 || !card;
    b->run(r);
  }
  Run far{.kv = SHARPI_KV_F32, .n_ctx = 262144, .layers = 48, .ffn = 48, .ends = 1, .fits = false};
  b->run(far);
  sharpi_plan_summary info{};
  far.kv = SHARPI_KV_AUTO;
  far.fits = true;
  check(b->plan(far, &info) && info.narrowed == 1, "auto narrows and says so");
}

void coder_30b(Bench* b) {
  sharpi_plan_summary wide{};
  for (const sharpi_kv_dtype kv :
       dtypes(b->options(), {SHARPI_KV_F32, SHARPI_KV_Q8_0, SHARPI_KV_Q4})) {
    Run r{.kv = kv, .n_ctx = 32768, .layers = 48, .ffn = 48, .ends = 1};
    r.prompt = 6169;
    r.depths = depths(b->options(), {6169});
    const sharpi_plan_summary got = b->run(r);
    const uint64_t want = kv_bytes(kv, uint64_t{1536} << 20);
    check(got.kv_payload_bytes == want, "KV payload of " + std::to_string(want >> 20));
    if (kv == SHARPI_KV_F32) wide = got;
    if (kv == SHARPI_KV_F32 || wide.kv_payload_bytes == 0) continue;
    const uint64_t slot = std::max<uint64_t>(1, wide.expert_slot_bytes);
    const uint64_t freed = wide.session_held_bytes - got.session_held_bytes;
    const uint64_t more = got.n_expert_slots - wide.n_expert_slots;
    std::printf("  %llu MiB of KV rows less: %llu more slots of %llu bytes\n",
                static_cast<unsigned long long>(freed >> 20), static_cast<unsigned long long>(more),
                static_cast<unsigned long long>(slot));
    check(more >= freed / slot && more <= freed / slot + 1, "slots grow by what is freed");
  }
}

/// Bytes of the largest of the FFN blocks from `first` to `last`, by plans that differ in it.
uint64_t ffn_block_bytes(Bench* b, uint32_t first, uint32_t last) {
  uint64_t largest = 1, before = 0;
  for (uint32_t n = first; n <= last + 1; ++n) {
    sharpi_plan_summary s{};
    Run r{.kv = SHARPI_KV_BF16, .n_ctx = 4096, .layers = 64, .ffn = static_cast<int32_t>(n)};
    r.ends = 1;
    r.free_budget = true;
    if (!b->plan(r, &s)) return 1;
    if (before != 0) largest = std::max(largest, s.device_held_bytes - before);
    before = s.device_held_bytes;
  }
  return largest;
}

void hybrid_27b(Bench* b) {
  sharpi_plan_summary wide{};
  for (const sharpi_kv_dtype kv :
       dtypes(b->options(), {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q4})) {
    Run r{.kv = kv, .n_ctx = 4096, .layers = 64, .ends = 1};
    r.prompt = 512;
    r.depths = depths(b->options(), {512});
    const sharpi_plan_summary got = b->run(r);
    const uint64_t want = kv_bytes(kv, uint64_t{128} << 20);
    check(got.kv_payload_bytes == want, "KV payload of " + std::to_string(want >> 20));
    if (kv == SHARPI_KV_F32) wide = got;
    if (kv == SHARPI_KV_F32 || wide.kv_payload_bytes == 0) continue;
    std::printf("  FFN blocks on the GPU: %u with f32, %u with %s\n", wide.n_gpu_ffn, got.n_gpu_ffn,
                kv_name(kv));
    const uint64_t block = ffn_block_bytes(b, wide.n_gpu_ffn, got.n_gpu_ffn);
    const uint64_t freed = wide.session_held_bytes - got.session_held_bytes;
    check(freed / block >= 1, "what narrower rows free is at least one block");
    check(got.n_gpu_ffn - wide.n_gpu_ffn >= freed / block, "as many blocks more as were freed");
    for (const auto& s : {wide, got}) {
      check(s.device_held_bytes + block > b->options().budget_mib << 20, "one more does not fit");
    }
  }
}

void olmoe(Bench* b) {
  for (const sharpi_kv_dtype kv : dtypes(b->options(), {kAll[0], kAll[1], kAll[2]})) {
    Run r{.kv = kv, .n_ctx = 4096, .layers = 8};
    r.depths = depths(b->options(), {2048});
    const sharpi_plan_summary s = b->run(r);
    check(s.k_dtype == kv && s.tail_k_dtype == SHARPI_KV_F32, "dtypes of trunk and tail");
  }
}

void gemma4_e4b(Bench* b) {
  for (const int32_t layers : {12, 22, 30, 42}) {
    Run r{.kv = SHARPI_KV_Q8_0, .n_ctx = 8192, .layers = layers};
    r.fits = layers != 30;  // inside the group that shares rows
    r.depths = depths(b->options(), {2048});
    b->run(r);
  }
}

void hybrid_35b(Bench* b) {
  for (const sharpi_kv_dtype kv : dtypes(b->options(), {SHARPI_KV_F32, SHARPI_KV_BF16})) {
    for (const int32_t slots : {0, -1}) {
      Run r{.kv = kv, .n_ctx = 4096, .layers = 40, .ffn = 40, .experts = 0, .slots = slots};
      r.ends = 1;
      r.depths = depths(b->options(), {2048});
      const sharpi_plan_summary s = b->run(r);
      check(s.kv_payload_bytes == kv_bytes(kv, 40ull << 20), "KV payload");
    }
  }
}

/// KV bytes of the layers that compaction shortens.
uint64_t full_payload(const sharpi_session* session, uint32_t n_layers) {
  uint64_t n = 0;
  for (uint32_t l = 0; l < n_layers; ++l) {
    sharpi_layer_info i{};
    i.struct_size = sizeof i;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_layer(session, l, &i, &e), e, "layer");
    if (i.mixer != SHARPI_MIXER_ATTENTION || i.kv_source != static_cast<int32_t>(l)) continue;
    for (const sharpi_kv_dtype d : {i.k_dtype, i.v_dtype}) {
      const uint64_t elements = uint64_t{i.n_slots} * i.n_kv_heads * i.head_dim;
      n += kv_bytes(d, elements);
    }
  }
  return n;
}

/// SHARPI_SNAPKV_BUDGET=2048 by environment alone, a prompt of 16384 tokens.
void snapkv(Bench* b) {
  for (const sharpi_kv_dtype kv : dtypes(b->options(), {kAll[0], kAll[1], kAll[2]})) {
    sharpi_plan_summary info{};
    const PlanPtr plan = b->plan({.kv = kv, .n_ctx = 20480}, &info);
    if (!plan) continue;
    const ModelPtr model = b->load(plan.get());
    const SessionPtr session = b->create(model.get());
    compare_rows(plan.get(), model.get(), session.get());
    uint32_t at = 0;
    b->read(session.get(), &at, 16383, SHARPI_PREFILL_MORE);
    const uint64_t before = full_payload(session.get(), info.n_layers) / 16383 * 16384;
    const sharpi_device full = b->device();
    const auto start = Clock::now();
    b->read(session.get(), &at, 1);
    const double ms = seconds_since(start) * 1e3;
    const uint64_t after = full_payload(session.get(), info.n_layers);
    const sharpi_device compacted = b->device();
    const uint64_t freed = full.held_bytes - compacted.held_bytes;
    std::printf("%-5s payload %.1f -> %.1f MiB, %.1f MiB given back to the device in %.1f ms; ",
                kv_name(kv), static_cast<double>(before) / kMiB, static_cast<double>(after) / kMiB,
                static_cast<double>(freed) / kMiB, ms);
    check(after != 0 && before == 8 * after, "the payload falls 8x");
    check(compacted.free_bytes - full.free_bytes == freed, "cudaMemGetInfo sees it");
    // What came back serves another conversation, which holds as much as a compacted one.
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 3072;
    const uint64_t wanted = b->price(model.get(), &s);
    const SessionPtr second = b->create(model.get(), &s);
    uint32_t other = 0;
    b->read(second.get(), &other, 1024);
    const sharpi_device both = b->device();
    check(both.held_bytes == compacted.held_bytes + wanted, "the second session takes its price");
    // Rings and recurrent states are not compacted: where they are large, a second one takes more.
    check(wanted > freed || both.held_bytes <= full.held_bytes, "it lives in what was freed");
    std::printf("a second session takes %.1f MiB; ", static_cast<double>(wanted) / kMiB);
    std::printf("decode %.1f and %.1f t/s\n", b->decode(session.get(), &at),
                b->decode(second.get(), &other));
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Options read_options(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const bool flag = a.rfind("--", 0) == 0;
    if (flag && i + 1 == argc) die(a + " needs a value");
    if (a == "--budget") {
      o.budget_mib = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--tokens") {
      o.tokens = static_cast<uint32_t>(std::max(1, std::atoi(argv[++i])));
    } else if (a == "--chunk") {
      o.n_chunk = static_cast<uint32_t>(std::max(8, std::atoi(argv[++i])));
    } else if (a == "--prompt") {
      o.prompt = static_cast<uint32_t>(std::atoi(argv[++i]));
    } else if (a == "--threads") {
      o.n_threads = static_cast<uint32_t>(std::atoi(argv[++i]));
    } else if (a == "--depth") {
      for (const std::string& n : split(argv[++i]))
        o.depths.push_back(static_cast<uint32_t>(std::atoi(n.c_str())));
    } else if (a == "--kv") {
      for (const std::string& n : split(argv[++i])) {
        const KvName* known = kv_of_name(n);
        if (known == nullptr) die("--kv takes auto, f32, bf16 and q8_0");
        o.kv.push_back(known->dtype);
      }
    } else if (flag) {
      die("unknown flag " + a);
    } else {
      (o.model.empty() ? o.model : o.file) = a;
    }
  }
  if (o.file.empty()) die("usage: scenario_bench MODEL FILE [flags]; see the top of this file");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = read_options(argc, argv);
  const std::pair<const char*, void (*)(Bench*)> scenarios[] = {
      {"gemma4-12b", gemma4_12b}, {"coder-30b", coder_30b}, {"27b", hybrid_27b}, {"olmoe", olmoe},
      {"gemma4-e4b", gemma4_e4b}, {"35b", hybrid_35b},      {"snapkv", snapkv}};
  for (const auto& [name, scenario] : scenarios) {
    if (o.model != name) continue;
    if (o.model == "snapkv") setenv("SHARPI_SNAPKV_BUDGET", "2048", 1);
    Bench bench(o);
    scenario(&bench);
    std::printf("%d checks failed\n", n_failed);
    return n_failed == 0 ? 0 : 1;
  }
  die("unknown model " + o.model);
}
