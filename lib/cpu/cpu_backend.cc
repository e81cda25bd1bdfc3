// SPDX-License-Identifier: MIT
#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "base/host_info.h"
#include "cpu/cpu_model.h"
#include "cpu/cpu_scorer.h"
#include "plan/adapter_plan.h"
#include "tier/host_weights.h"

namespace sharpi::cpu {
namespace {

class CpuBackend final : public Backend, public TierSizer {
 public:
  CpuBackend(const KernelSet& kernels, HostAllocator allocator, std::unique_ptr<ThreadPool> pool)
      : kernels_(kernels), meter_(allocator), pool_(std::move(pool)) {}

  const TierSizer& sizer() const override { return *this; }
  MemoryMeter& meter() { return meter_; }
  TierId tier() const override { return TierId::kCpu; }
  uint64_t free_bytes() const override { return host_free_bytes(); }
  uint64_t total_bytes() const override { return host_total_bytes(); }
  std::string device_name() const override { return host_cpu_name(); }
  std::string device_id() const override { return "cpu"; }

  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model,
                                    const SessionShape& session) const override {
    return CpuModel::plan_rows(spec, placement, model, session, kernels_, pool_->size());
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    if (spec.is_encoder()) return {};  // its embedders are the engine's
    std::vector<MemoryRow> rows = CpuSession::plan_rows(spec, placement, model, session);
    const uint32_t queries = score_queries(session);
    if (queries == 0) return rows;
    ScoreShape shape;
    shape.n_slots = session.capacity(model.n_chunk);
    shape.n_queries = queries;
    shape.values = policy_needs_values(session.policy);
    shape.replay = session.replay_every != 0;
    for (const MemoryRow& r : CpuScorer::plan_rows(spec, placement, pool_->size(), shape))
      rows.push_back(r);
    return rows;
  }

  std::vector<MemoryRow> adapter_rows(const ModelSpec&, const Placement& placement,
                                      const ModelShape&,
                                      const AdapterFile& adapter) const override {
    return host_adapter_rows(adapter, placement);
  }

  std::vector<MemoryRow> copied_weight_plan_rows(const ModelSpec& spec,
                                                 const Placement& placement) const override {
    return host_weight_plan_rows(spec, placement);
  }

  Status describe(uint32_t flags, sharpi_device* out) const override {
    out->n_cores = pool_->size();
    out->total_bytes = total_bytes();
    out->free_bytes = free_bytes();
    std::snprintf(out->name, sizeof out->name, "%s", device_name().c_str());
    std::snprintf(out->isa, sizeof out->isa, "%s", isa_name(kernels_.isa));
    std::snprintf(out->id, sizeof out->id, "%s", device_id().c_str());
    out->bandwidth = 0;
    if ((flags & SHARPI_DEVICE_MEASURE) != 0) {
      SHARPI_TRY_ASSIGN(out->bandwidth, measure_read_bandwidth(*pool_));
    }
    return Status::ok();
  }

  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<CpuModel> m,
                      CpuModel::create(&meter_, pool_.get(), kernels_, std::move(plan), progress));
    return std::unique_ptr<TierModel>(std::move(m));
  }

  Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                    const LoadProgress& progress) override {
    return HostWeights::create(meter_, *pool_, *plan.spec, plan.placement, progress);
  }

 private:
  const KernelSet& kernels_;
  MemoryMeter meter_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const CpuBackendOptions& options) {
  SHARPI_TRY_ASSIGN(const InstructionSet* const set, resolve_isa(options.isa));
  SHARPI_TRY_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::create(options.n_threads));
  return std::unique_ptr<Backend>(
      new CpuBackend(kernel_set(*set), options.allocator, std::move(pool)));
}

MemoryMeter& meter_of(Backend& backend) {
  return static_cast<CpuBackend&>(backend).meter();
}

}  // namespace sharpi::cpu
