// SPDX-License-Identifier: MIT
// How a model's speed changes with length: one prompt is read chunk by chunk up to a length, and
// at every doubling some tokens are decoded. One line of CSV a measurement, for
// docs/plot_scaling.py:
//   engine,model,kv,kind,depth,tokens,seconds,flop,bytes
// kind `chunk`: tokens behind `depth` others; `prompt`: all tokens up to `depth`, decoding apart;
// `decode`: tokens one by one behind `depth`. flop and bytes: what they must compute and read.
// Last a line of kind `memory`: bytes that the memory gives in a second.
//   scaling_bench MODEL [--name TEXT] [--kv TYPE] [--to TOKENS] [--chunk TOKENS] [--decode TOKENS]
//                 [--threads N] [--gpu]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "handles.h"
#include "must.h"
#include "read_stream.h"
#include "sharpi.h"
#include "work_counter.h"

namespace sharpi::bench {
namespace {

struct Settings {
  std::string model, name, kv = "auto";
  uint32_t to = 8192, chunk = 512, decode = 16, threads = 0;
  bool gpu = false;
};

uint32_t count(const char* option, const char* text) {
  char* end = nullptr;
  const unsigned long n = text == nullptr ? 0 : std::strtoul(text, &end, 10);
  if (text == nullptr || *end != '\0' || n == 0 || n > 1u << 24) {
    die(std::string(option) + ": a count is expected");
  }
  return static_cast<uint32_t>(n);
}

Settings read_settings(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--gpu") {
      s.gpu = true;
    } else if (option.rfind("--", 0) != 0) {
      s.model = option;
    } else {
      ++i;
      if (option == "--name" && value != nullptr) {
        s.name = value;
      } else if (option == "--kv" && value != nullptr) {
        s.kv = value;
      } else if (option == "--to") {
        s.to = count("--to", value);
      } else if (option == "--chunk") {
        s.chunk = count("--chunk", value);
      } else if (option == "--decode") {
        s.decode = count("--decode", value);
      } else if (option == "--threads") {
        s.threads = count("--threads", value);
      } else {
        die(option + ": no such option, or its value is missing");
      }
    }
  }
  if (s.model.empty()) die("a GGUF file is expected");
  if (s.name.empty()) s.name = s.model.substr(s.model.find_last_of('/') + 1);
  return s;
}

class Scaling {
 public:
  explicit Scaling(const Settings& s) : settings_(s) {
    std::string why;
    if (!read_work(s.model, &work_, &why)) die(why);
    open();
  }

  void run() {
    std::printf("engine,model,kv,kind,depth,tokens,seconds,flop,bytes\n");
    double prompt = 0, flop = 0;
    uint32_t read = 0, next = settings_.chunk;
    while (read < settings_.to) {
      const uint32_t n = std::min(settings_.chunk, settings_.to - read);
      const double t = prefill(n), f = work_.flop(read, n);
      print("chunk", read, n, t, f, 0);
      read += n;
      prompt += t;
      flop += f;
      if (read < next && read < settings_.to) continue;
      while (next <= read) next *= 2;
      print("prompt", read, read, prompt, flop, 0);
      decode(read);
    }
    print("memory", 0, 0, 1, 0, stream_rate());
  }

 private:
  void open() {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_context_params cp;
    sharpi_context_params_init(&cp, sizeof cp);
    cp.n_threads = settings_.threads;
    sharpi_context* context = nullptr;
    must(sharpi_context_create(&cp, &context, &e), e, "context");
    context_.reset(context);
    sharpi_session_params sp;
    sharpi_session_params_init(&sp, sizeof sp);
    // What is decoded goes to the end of the session as well.
    sp.n_ctx = settings_.to + 32 * settings_.decode + 64;
    const KvName* kv = kv_of_name(settings_.kv);
    if (kv == nullptr) die("--kv: no such type");
    sp.k_dtype = sp.v_dtype = kv->dtype;
    sharpi_plan_params pp;
    sharpi_plan_params_init(&pp, sizeof pp);
    pp.n_gpu_layers = settings_.gpu ? static_cast<int32_t>(work_.n_layers()) : 0;
    pp.n_chunk = settings_.chunk;
    pp.session = &sp;
    sharpi_plan* plan = nullptr;
    must(sharpi_plan_create(context, settings_.model.c_str(), &pp, &plan, &e), e, "plan");
    plan_.reset(plan);
    sharpi_model* model = nullptr;
    must(sharpi_model_load(plan, nullptr, nullptr, &model, &e), e, "load");
    model_.reset(model);
    sharpi_session* session = nullptr;
    must(sharpi_session_create(model, nullptr, &session, &e), e, "session");
    session_.reset(session);
    prefill(settings_.chunk);  // first touches
    must(sharpi_session_truncate(session, 0, &e), e, "truncate");
  }
  double prefill(uint32_t n) {
    sharpi_error e = SHARPI_ERROR_INIT;
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = next_token();
    const auto start = std::chrono::steady_clock::now();
    must(sharpi_session_prefill(session_.get(), tokens.data(), n, nullptr, nullptr, &e), e,
         "prefill");
    return seconds_since(start);
  }
  /// Tokens one by one; they stay, so the chunks behind them see a few keys more than is counted.
  void decode(uint32_t depth) {
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_decode(session_.get(), next_token(), &e), e, "decode");  // first touches
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < settings_.decode; ++i) {
      must(sharpi_session_decode(session_.get(), next_token(), &e), e, "decode");
    }
    const double t = seconds_since(start);
    const uint64_t bytes = work_.weight_bytes + work_.state_bytes +
                           kv_read_bytes(session_.get(), work_, depth + settings_.decode / 2);
    print("decode", depth, settings_.decode, t, 0,
          static_cast<double>(bytes) * static_cast<double>(settings_.decode));
  }
  /// Bytes/s at which the memory that the model is in is read.
  double stream_rate() {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_device d{};
    d.struct_size = sizeof d;
    if (settings_.gpu) {
      must(sharpi_device_info(context_.get(), 1, SHARPI_DEVICE_MEASURE, &d, &e), e, "device");
      return d.bandwidth;
    }
    must(sharpi_device_info(context_.get(), 0, 0, &d, &e), e, "device");
    return ReadStream::create(d.n_cores)->best_rate();
  }
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  /// Any ids will do; they differ so that experts do.
  int32_t next_token() {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int32_t>((random_ >> 33) % work_.n_vocab);
  }
  void print(const char* kind, uint32_t depth, uint32_t n, double seconds, double flop,
             double bytes) const {
    std::printf("libsharpi,%s,%s,%s,%u,%u,%.6f,%.6g,%.6g\n", settings_.name.c_str(),
                settings_.kv.c_str(), kind, depth, n, seconds, flop, bytes);
    std::fflush(stdout);
  }

  Settings settings_;
  Work work_;
  uint64_t random_ = 1;
  ContextPtr context_;
  PlanPtr plan_;
  ModelPtr model_;
  SessionPtr session_;
};

}  // namespace
}  // namespace sharpi::bench

int main(int argc, char** argv) {
  sharpi::bench::Scaling(sharpi::bench::read_settings(argc, argv)).run();
  return 0;
}
