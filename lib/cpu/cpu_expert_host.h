// SPDX-License-Identifier: MIT
// Routed experts on the CPU for a tier that runs the rest of their layer (expert offloading): the
// arithmetic of the CPU tier's own FFN blocks, weights in host memory. During a decode step, which
// sends one request of few rows for each layer, all threads of the pool stay in one parallel region
// from the first request to the last. Within a request every thread reads a contiguous share of the
// weights, and when it is done takes parts of the others' shares: first gate and up with their
// activation, by ranges of hidden rows; when an expert's are complete, its hidden row is quantised;
// then down, all experts of a range of outputs together, added up in the order of the router's
// choice.
// Bound: the weights' bytes / memory bandwidth.
// Thread rule: one call at a time per host.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cpu/expert_blocks.h"
#include "tier/expert_host.h"

namespace sharpi::cpu {

class CpuExpertHost final : public ExpertHost {
 public:
  /// All of it outlives the host. `ws`: of the same call, which runs no segment meanwhile.
  CpuExpertHost(const ExpertBlocks& blocks, CpuWorkspace& ws, ThreadPool* pool,
                const KernelSet& kernels);
  uint32_t max_rows() const override { return ws_.layout().max_rows; }
  Status compute(const ExpertRequest& request) override;
  Status serve(ExpertLine& line) override;

 private:
  /// A thread's share of the units of a phase; others may take from it.
  struct alignas(64) Share {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };
  /// One expert of a request: products of its rows, which lie together.
  struct Expert {
    MatmulTask gate, up, down;
    uint32_t id = 0, first_slot = 0, n_slots = 0;
    std::atomic<uint32_t> units_left{0};
  };
  struct Phase {
    uint32_t n_units = 0, unit_rows = 0, units_each = 0;  // units_each: of one expert
    uint32_t most = 1;                                    // units that are taken at a time
  };
  /// Units [first, first + n) of a phase.
  struct Units {
    uint32_t first = 0, n = 0;
  };
  void lead(ExpertLine& line);
  void follow(uint32_t worker);
  bool prepare(const ExpertRequest& r);
  void prepare_tasks(const ExpertRequest& r, uint32_t n_slots);
  void set_task(MatmulTask* t, const TensorRef& w, uint64_t first_row, uint64_t n_out,
                const MatmulInput& in, float* y, uint64_t y_stride) const;
  void set_phase(Phase* phase, std::vector<Share>* shares, uint32_t n_units) const;
  void work(uint32_t worker, uint32_t round);
  /// Asks for the first weights of a worker's share, while something else is still waited for.
  void look_ahead(uint32_t worker, bool hidden) const;
  void hidden_units(Units units, uint32_t worker);
  void gated_rows(const Expert& x, uint64_t r, uint64_t n, uint32_t worker);
  void rows_alone(const Expert& x, uint64_t r, uint64_t n, uint32_t worker);
  void output_units(Units units, uint32_t worker);
  /// The next units for a worker: some of its own, then single ones of others; false = none is
  /// left.
  bool take(std::vector<Share>& shares, uint32_t most, uint32_t worker, uint32_t* victim,
            Units* out);

  const ExpertBlocks& blocks_;
  CpuWorkspace& ws_;
  ThreadPool* pool_;
  const KernelSet& kernels_;
  uint32_t n_rounds_ = 0;  // the leader's
  // The request at work. Written by the leader while no round is open.
  ExpertRequest request_;
  const FfnSpec* ffn_ = nullptr;
  MatmulInput in_, hidden_;
  uint32_t n_experts_ = 0;
  std::unique_ptr<Expert[]> experts_;
  std::vector<Share> hidden_shares_, output_shares_;
  Phase hidden_phase_, output_phase_;
  alignas(64) std::atomic<uint32_t> round_{0};  // 0 = closed
  alignas(64) std::atomic<uint32_t> input_{0};  // round whose input is prepared
  alignas(64) std::atomic<uint32_t> active_{0};
  alignas(64) std::atomic<uint32_t> n_prepared_{0};
  alignas(64) std::atomic<uint32_t> n_outputs_{0};
  std::atomic<bool> over_{false};
};

}  // namespace sharpi::cpu
