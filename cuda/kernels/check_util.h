// SPDX-License-Identifier: MIT
// What the kernels' check programs share: device buffers, random data, comparison with references
// in double, timing of captured graphs.
// Thread rule: one thread, except parallel_for's workers.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/kernels/batch.h"
#include "cuda/kernels/device_query.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/matmul.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::cuda::check {

inline int g_failed = 0, g_passed = 0;

/// How much is checked: the reduced sets are for compute-sanitizer, the least one for racecheck.
enum class Extent : uint8_t { kAll, kSmall, kLeast };
inline Extent g_extent = Extent::kAll;

inline void must(Status s, const char* what) {
  if (s.is_ok()) return;
  std::printf("FATAL %s: %s\n", what, s.text().c_str());
  std::exit(1);
}
inline void must(cudaError_t e, const char* what) {
  must(kernel_status(e, what), what);
}

template <class T>
struct Buffer {
  T* p = nullptr;
  size_t n = 0;
  explicit Buffer(size_t count, int fill = 0xFF) : n(count) {
    must(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)), "malloc");
    must(cudaMemset(p, fill, std::max<size_t>(count, 1) * sizeof(T)), "memset");
  }
  explicit Buffer(const std::vector<T>& v) : Buffer(v.size()) {
    must(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~Buffer() { cudaFree(p); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::vector<T> host() const {
    std::vector<T> v(n);
    must(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return v;
  }
};

inline std::mt19937 g_rng(11);
inline uint32_t random_below(uint32_t n) {
  return static_cast<uint32_t>(g_rng() % n);
}
inline std::vector<float> random_floats(size_t n, float scale) {
  std::vector<float> v(n);
  std::normal_distribution<float> d(0.0f, scale);
  for (float& f : v) f = d(g_rng);
  return v;
}

/// The device that the program runs on.
inline DeviceProfile this_device() {
  int ordinal = 0;
  DeviceProfile device;
  must(cudaGetDevice(&ordinal), "device");
  must(query_profile(ordinal, "the device", &device), "profile");
  return device;
}

/// body(i) for i < n on all cores.
inline void parallel_for(size_t n, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  const size_t n_threads = std::max(1u, std::thread::hardware_concurrency());
  for (size_t t = 0; t < n_threads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < n; i = next++) body(i);
    });
  }
  for (std::thread& t : threads) t.join();
}

inline void expect(bool ok, const std::string& name) {
  (ok ? g_passed : g_failed)++;
  if (!ok && g_failed < 60) std::printf("FAIL %s\n", name.c_str());
}

/// ||got - want|| / ||want|| <= tolerance; a NaN in `got` fails.
inline void expect_close(const std::string& name, const std::vector<float>& got,
                         const std::vector<double>& want, double tolerance) {
  double err = 0, ref = 0, worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (!(e <= worst)) {
      worst = e;
      at = i;
    }
    err += e * e;
    ref += want[i] * want[i];
  }
  const double rel = std::sqrt(err / std::max(ref, 1e-300));
  const bool ok = rel <= tolerance;
  (ok ? g_passed : g_failed)++;
  if (!ok && g_failed < 60) {
    std::printf("FAIL %s: relative error %.3g > %.2g; worst at %zu: got %.7g want %.7g\n",
                name.c_str(), rel, tolerance, at, static_cast<double>(got[at]), want[at]);
  }
}

/// Milliseconds of one replay of what `body` launches, captured; the median of 15.
inline double time_graph(const std::function<void(cudaStream_t)>& body) {
  cudaStream_t s;
  must(cudaStreamCreate(&s), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
  body(s);
  must(cudaStreamEndCapture(s, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t from, to;
  must(cudaEventCreate(&from), "event");
  must(cudaEventCreate(&to), "event");
  std::vector<float> ms;
  for (int i = 0; i < 18; ++i) {
    float t = 0;
    must(cudaEventRecord(from, s), "record");
    must(cudaGraphLaunch(exec, s), "launch");
    must(cudaEventRecord(to, s), "record");
    must(cudaEventSynchronize(to), "sync");
    must(cudaEventElapsedTime(&t, from, to), "elapsed");
    if (i >= 3) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(s);
  return static_cast<double>(ms[ms.size() / 2]);
}

/// A batch table on host and device. Sequences are filled in by the caller, rows by finish().
struct TestBatch {
  BatchShape shape;
  std::vector<std::byte> host;
  Buffer<std::byte> device;
  BatchTable table;  // of the host
  TestBatch(uint32_t n_rows, uint32_t n_sequences, uint32_t n_groups)
      : shape{n_rows, n_sequences, n_groups},
        host(batch_table_bytes(shape)),
        device(host.size()),
        table(batch_table_at(shape, host.data())) {
    for (uint32_t i = 0; i < n_rows; ++i) table.rows[i] = BatchRow();
    for (uint32_t i = 0; i < n_sequences; ++i) table.sequences[i] = BatchSequence();
    for (uint32_t i = 0; i < n_sequences * n_groups; ++i) table.groups[i] = BatchGroup();
  }
  Batch finish() {
    for (uint32_t s = 0; s < shape.max_sequences; ++s) {
      const BatchSequence& q = table.sequences[s];
      for (uint32_t i = 0; i < q.n_rows; ++i) {
        table.rows[q.first_row + i] = {s, i, q.position + i};
      }
    }
    must(cudaMemcpy(device.p, host.data(), host.size(), cudaMemcpyHostToDevice), "upload");
    return {batch_table_at(shape, device.p), shape.max_rows, shape.max_sequences};
  }
};

/// The layer inside its group: other layers' bytes before and after it.
inline KvLayer make_layer(uint32_t n_kv, uint32_t dim, KvDtype k, KvDtype v, uint32_t window) {
  KvLayer l;
  const uint64_t n = uint64_t{n_kv} * dim;
  l.group = 1;
  l.n_heads = n_kv;
  l.head_dim = dim;
  l.window = window;
  l.k_dtype = k;
  l.v_dtype = v;
  l.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(k, n));
  l.v_row_bytes = static_cast<uint32_t>(kv_row_bytes(v, n));
  l.k_offset = uint64_t{kKvBlockSlots} * l.k_row_bytes;
  l.v_offset = 2 * l.k_offset;
  l.block_stride = l.v_offset + uint64_t{kKvBlockSlots} * l.v_row_bytes + 64 * 16;
  return l;
}

inline uint32_t blocks_of(uint32_t rows) {
  return (rows + kKvBlockSlots - 1) / kKvBlockSlots;
}

inline const char* name_of(KvDtype d) {
  return kv_dtype_name(d);
}

constexpr KvDtype kF = KvDtype::kF32, kB = KvDtype::kBf16, kQ = KvDtype::kQ8_0, kT = KvDtype::kQ4;

/// A row as a session stores it, and the values that it then has.
inline void put_row(KvDtype d, uint32_t dim, const float* x, uint64_t n, std::byte* to,
                    float* values) {
  std::vector<float> row(x, x + n);
  kv_rotate(row.data(), n, kv_rotation(d, dim));
  must(kv_encode_row(d, row.data(), n, to), "encode");
  must(kv_decode_row(d, to, n, 0, n, values), "decode");
  kv_unrotate(values, n, kv_rotation(d, dim));
}

constexpr double kBandwidth = 4.2e12;  // bytes per second, measured copy rate of the H200

// The parts of the program.
void check_qkvs();
void bench_qkvs(const KernelConfig& config);
void check_deltas(const KernelConfig& config);
void check_mambas(const KernelConfig& config);
void check_states();  // scoring, moves
void check_selections(bool small);
void check_bounds();
void check_replays(bool small);
void bench_deltas(const KernelConfig& config);
void bench_states();
void bench_selections();
void bench_bounds();
void bench_replays();
void bench_attentions(const KernelConfig& config);
void bench_attention_q4(const KernelConfig& config);
void bench_attention_one(const KernelConfig& config, int which);  // for a profiler

}  // namespace sharpi::cuda::check
