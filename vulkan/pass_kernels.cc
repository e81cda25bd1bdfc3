// SPDX-License-Identifier: MIT
// Passes of one model on a Vulkan device. Kernels take one operation each.
#include "device/pass_kernels.h"

#include <algorithm>

#include "base/checked.h"
#include "vulkan/pass_launches.h"
#include "vulkan/recurrent_launches.h"

namespace sharpi::vulkan {
namespace {

using device::PassFacts;
using device::PassScratch;
using device::WorkspaceWidths;

class OneByOne final : public device::StepKernels {
 public:
  uint32_t max_chain_rows() const override { return 0; }
  uint32_t max_chain_links() const override { return 0; }
  bool chain_takes(const device::RowLink&) const override { return false; }
  bool chain_fits(std::span<const device::RowLink>) const override { return false; }
  bool takes(const device::ExpertStep&) const override { return false; }
};

class VulkanPassKernels final : public device::PassKernels {
 public:
  explicit VulkanPassKernels(const Device& device) : device_(device) {}

  /// Normalised inputs of a product; keys and values before they are stored; inputs, hidden rows
  /// and outputs of routed experts.
  PassScratch scratch(const ModelSpec& spec, const ModelShape& model, const WorkspaceWidths& w,
                      uint32_t rows, uint32_t head_rows) const override {
    PassScratch s;
    const Profile f = make_profile(device_.physical());
    const uint64_t all = std::max(rows, head_rows);
    const uint64_t in = std::max<uint64_t>(w.widest_in, spec.n_embd);
    // Of a pair of a row and an expert: hidden elements, and in tiles its number and some outputs.
    uint64_t pair = w.d_expert;
    if (!model.deterministic) pair += 1 + std::min(spec.n_embd, kJoinedOutputs);
    const uint64_t experts = w.n_experts == 0 ? 0 : spec.n_embd + w.n_used * pair;
    s.kernel = all * std::max({in, 2 * w.kv, experts}) * sizeof(float);
    if (w.n_experts != 0) s.kernel += expert_tile_bytes(all * w.n_used, w.n_experts) + 64;
    if ((f.byte_dots || f.matrix_threads != 0) && !model.exact) {
      const uint64_t pairs = row_bytes_of(all * w.n_used, w.d_expert);
      s.kernel += round_up(std::max(row_bytes_of(all, in), pairs), 256) + 256;
    }
    if (!model.deterministic) {
      s.attention = uint64_t{std::min(rows, kShareRows)} * w.attn_heads * f.shares(1) *
                    (w.attn_dim + 4) * sizeof(float);
    }
    return s;
  }
  uint32_t max_sorted_experts() const override { return 1024; }
  bool takes_slots(uint32_t, uint32_t) const override { return true; }
  bool fuses(uint32_t) const override { return false; }
  bool blocks_meet(const ModelSpec&) const override { return false; }
  Status prepare() override { return Status::ok(); }
  bool compiles_late() const override { return true; }
  Status compile(const device::Queue& queue, const std::function<Status()>& record) const override {
    const auto& q = static_cast<const Queue&>(queue);
    q.list_pipelines(true);
    const Status listed = record();
    q.list_pipelines(false);
    SHARPI_TRY(listed);
    return device_.driver().pipelines().make_wanted();
  }
  void keep_compiled() const override { device_.driver().pipelines().keep(); }
  LaunchList fuse(const LoadedModel&, const SegmentProgram& program, const PassFacts& facts,
                  bool) const override {
    return device::fuse(program, facts, OneByOne());
  }
  Status launch(Pass& p, const LaunchList& list, const Launch& l) const override {
    return PassLaunches(device_, p, list, l).make();
  }
  Status replay(const LoadedModel& model, const device::DeviceSession& session,
                uint32_t layer) const override {
    return replay_rows(device_, model, layer, device::pending_sequence(session));
  }
  std::string paths(const LoadedModel& model) const override {
    const uint32_t version = device_.physical().version;
    return "vulkan " + std::to_string(VK_API_VERSION_MAJOR(version)) + "." +
           std::to_string(VK_API_VERSION_MINOR(version)) +
           block_paths(model, device_.driver().profile());
  }

 private:
  const Device& device_;
};

}  // namespace

std::unique_ptr<device::PassKernels> make_pass_kernels(const Device& device, const ModelShape&) {
  return std::make_unique<VulkanPassKernels>(device);
}

}  // namespace sharpi::vulkan
