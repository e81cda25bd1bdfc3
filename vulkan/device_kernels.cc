// SPDX-License-Identifier: MIT
// The kernels outside of passes (device/kernels.h). Weights lie as in the file.
#include <algorithm>

#include "base/checked.h"
#include "base/limits.h"
#include "device/kernels.h"
#include "kv/rotation.h"
#include "vulkan/queue.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {
namespace {

using namespace device;

const Queue& own(const device::Queue& queue) {
  return static_cast<const Queue&>(queue);
}

class VulkanKernels final : public DeviceKernels {
 public:
  explicit VulkanKernels(const Device& device) : device_(device) {}

  uint64_t layout_unit(const TensorRef&) const override { return 0; }
  uint64_t most_layout_unit(uint64_t) const override { return 0; }
  Status lay_out(const TensorRef&, const std::byte* from, std::byte* to, uint64_t bytes,
                 const device::Queue& queue) const override {
    return own(queue).copy_within(address(to), address(from), bytes, "weights");
  }
  uint32_t max_gathered() const override { return 1024; }
  Status gather(const GatherParams& p, const device::Queue& queue) const override {
    for (const GatherParams::Pair& x : p.pairs) {
      SHARPI_TRY(own(queue).copy_within(address(p.to + x.expert * p.bytes),
                                        address(p.slots + x.slot * p.stride), p.bytes,
                                        "experts from their slots"));
    }
    return Status::ok();
  }
  Status move_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t,
                   const device::Queue& queue) const override {
    return run(queue, Shader::move_rows, {0}, Args().at(jobs).at(pages()).u(n_jobs), n_jobs);
  }

  bool keeps_by_head() const override { return true; }
  Status move_head_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t,
                        const device::Queue& queue) const override {
    return run(queue, Shader::move_rows, {1}, Args().at(jobs).at(pages()).u(n_jobs), n_jobs);
  }
  Status copy_rows(const RowCopyParams& p, const device::Queue& queue) const override;
  Status bound_keys(const KeyBoundsParams& p, const device::Queue& queue) const override;
  Status score_bounds(const BoundsParams& p, const device::Queue& queue) const override;
  Status take_apart(const ApartParams& p, const device::Queue& queue) const override;
  Status move_units(const UnitMoveParams& p, const device::Queue& queue) const override;
  Status prepare_moves(bool by_head, const device::Queue& queue) const override;
  Status prepare_archive(KvDtype keys, uint32_t head_dim,
                         const device::Queue& queue) const override;

  uint32_t most_best(uint32_t n_vocab) const override { return std::min(n_vocab, 64u); }
  uint64_t best_bytes(uint32_t, uint32_t, uint32_t) const override { return 256; }
  Status find_best(const BestParams& p, const device::Queue& queue) const override {
    const Args args = Args()
                          .at(p.logits)
                          .at(p.allowed.words)
                          .at(p.values)
                          .at(p.ids)
                          .u(p.n_rows)
                          .u(p.n_vocab)
                          .u(p.k)
                          .u(p.allowed.n_words);
    return own(queue).dispatch(
        {Shader::find_best, {}, args, p.n_rows, 1, device_.driver().profile().gathering_threads});
  }
  Status prepare_best(const device::Queue& queue) const override;

  /// Of each query of each head: its largest product and the sum of exponentials.
  uint64_t score_bytes(uint32_t, uint32_t n_queries, uint32_t n_heads, uint32_t,
                       uint32_t) const override {
    return uint64_t{n_queries} * n_heads * 2 * sizeof(float);
  }
  Status score(const ScoreParams& p, const device::Queue& queue) const override;
  Status replay_scores(const ReplayParams& p, const device::Queue& queue) const override;
  uint64_t norm_bytes(uint32_t, uint32_t, uint32_t) const override { return 256; }
  Status value_norms(const NormParams& p, const device::Queue& queue) const override;
  Status join_terms(const JoinParams& p, const device::Queue& queue) const override {
    const Args args = Args()
                          .at(p.out.terms)
                          .at(p.sum)
                          .at(p.top)
                          .at(p.norms)
                          .u(p.out.n_heads)
                          .u(p.out.n_slots)
                          .f(p.scale);
    return run(queue, Shader::join_terms, {}, args, p.out.n_heads);
  }
  Status share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                    const device::Queue& queue) const override {
    return hits(0, t, at, shared, queue);
  }
  Status take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                   const device::Queue& queue) const override {
    return hits(1, t, at, shared, queue);
  }
  Status select(const SelectParams& p, const device::Queue& queue) const override {
    const Args args = Args().at(p.lists).u(p.n_lists).u(p.reach);
    return run(queue, Shader::select, {p.smooth == Smooth::kPool ? 1u : 0u}, args, p.n_lists);
  }

 private:
  static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }
  uint64_t pages() const { return device_.driver().pages().table(); }
  Status run(const device::Queue& queue, Shader shader, const Constants& constants,
             const Args& args, uint64_t items) const {
    return own(queue).dispatch({shader, constants, args, items, 1, 0});
  }
  /// The pipelines of what `launches` gives the queue, which runs nothing of it.
  template <class Launches>
  Status make_pipelines(const device::Queue& queue, const Launches& launches) const {
    own(queue).list_pipelines(true);
    const Status listed = launches();
    own(queue).list_pipelines(false);
    SHARPI_TRY(listed);
    return device_.driver().pipelines().make_wanted();
  }
  uint64_t groups_of(uint64_t n) const {
    return (n + device_.driver().profile().threads - 1) / device_.driver().profile().threads;
  }
  Status hits(uint32_t takes, const HeldTerms& t, const RowPositions& at, const float* shared,
              const device::Queue& queue) const {
    const Args args = Args()
                          .at(t.terms)
                          .at(at.lists)
                          .at(shared)
                          .u(t.n_heads)
                          .u(t.n_slots)
                          .u(at.stride)
                          .u(at.n_compacted)
                          .u(at.tail_position);
    return run(queue, Shader::hits, {takes}, args, groups_of(uint64_t{t.n_heads} * t.n_slots));
  }
  Status latent_norms(const NormParams& p, const device::Queue& queue) const;
  const Device& device_;
};

/// A workgroup has 64 rows of a job.
Status VulkanKernels::copy_rows(const RowCopyParams& p, const device::Queue& queue) const {
  if (p.n_jobs == 0) return Status::ok();
  const uint64_t parts = div_up(p.most_rows, kKvBlockSlots);
  return run(queue, Shader::copy_rows, {}, Args().at(p.jobs).at(pages()).u(p.n_jobs).u(parts),
             parts * p.n_jobs);
}

/// A workgroup has a job.
Status VulkanKernels::bound_keys(const KeyBoundsParams& p, const device::Queue& queue) const {
  if (p.n_jobs == 0) return Status::ok();
  const auto codec = static_cast<uint32_t>(p.dtype);
  return run(queue, Shader::bound_keys, {codec, kv_rotation(p.dtype, p.head_dim), p.head_dim},
             Args().at(p.jobs).at(pages()).u(p.n_jobs), p.n_jobs);
}

/// A workgroup has as many blocks of a KV head as threads.
Status VulkanKernels::score_bounds(const BoundsParams& p, const device::Queue& queue) const {
  const Args args = Args()
                        .at(p.bounds)
                        .at(p.queries)
                        .at(p.weight)
                        .at(p.out)
                        .u(p.stride)
                        .u(p.n_blocks)
                        .u(p.query_rows)
                        .u(p.first_query % p.query_rows)
                        .u(p.n_queries)
                        .u(p.n_heads)
                        .u(p.n_kv)
                        .u(p.head_dim)
                        .u(p.add ? 1 : 0)
                        .f(p.scale);
  return run(queue, Shader::bounds, {}, args, groups_of(p.n_blocks) * p.n_kv);
}

/// A part of a layer for each desk at a time.
Status VulkanKernels::take_apart(const ApartParams& p, const device::Queue& queue) const {
  const uint32_t n_parts = p.n_layers * p.most_blocks;
  for (uint32_t first = 0; first < n_parts; first += p.n_desks) {
    const Args args = Args()
                          .at(p.base)
                          .at(p.layers)
                          .at(p.desks)
                          .at(pages())
                          .u(p.n_layers)
                          .u(first)
                          .u(n_parts)
                          .u(p.desk_bytes)
                          .u(p.block_stride);
    SHARPI_TRY(own(queue).dispatch({Shader::take_apart,
                                    {p.granule},
                                    args,
                                    std::min(p.n_desks, n_parts - first),
                                    1,
                                    device_.driver().profile().gathering_threads}));
  }
  return Status::ok();
}

Status VulkanKernels::move_units(const UnitMoveParams& p, const device::Queue& queue) const {
  constexpr uint32_t kColumnBytes = 128;  // of a workgroup (shaders/move_units.comp)
  const Args args =
      Args().at(p.base).at(p.room).at(p.moves).at(pages()).u(p.n_units).u(p.n_moves).u(
          p.unit_bytes);
  return own(queue).dispatch({Shader::move_units,
                              {},
                              args,
                              div_up(p.unit_bytes, kColumnBytes),
                              1,
                              device_.driver().profile().gathering_threads});
}

/// Some address and size: what is only listed reads nothing.
constexpr uint64_t kPosed = 256;
template <class T>
T* any() {
  return reinterpret_cast<T*>(uintptr_t{kPosed});
}

Status VulkanKernels::prepare_best(const device::Queue& queue) const {
  return make_pipelines(queue, [&]() -> Status {
    BestParams p;
    p.logits = any<float>();
    p.values = any<float>();
    p.ids = any<int32_t>();
    p.n_rows = p.n_vocab = p.k = 1;
    SHARPI_TRY(find_best(p, queue));
    p.allowed = {any<uint32_t>(), 1};
    return find_best(p, queue);
  });
}

Status VulkanKernels::prepare_moves(bool by_head, const device::Queue& queue) const {
  return make_pipelines(queue, [&]() -> Status {
    SHARPI_TRY(move_rows(any<const KvMoveJob>(), 1, 0, queue));
    if (!by_head) return Status::ok();
    SHARPI_TRY(move_head_rows(any<const KvMoveJob>(), 1, 0, queue));
    SHARPI_TRY(move_units({any<std::byte>(), kPosed, any<std::byte>(), 1, any<const UnitMove>(), 1},
                          queue));
    ApartParams p;
    p.base = p.desks = any<std::byte>();
    p.layers = any<const ApartLayer>();
    p.n_layers = p.most_blocks = p.n_desks = 1;
    for (p.granule = 1; p.granule <= 16; p.granule *= 2) SHARPI_TRY(take_apart(p, queue));
    return Status::ok();
  });
}

Status VulkanKernels::prepare_archive(KvDtype keys, uint32_t head_dim,
                                      const device::Queue& queue) const {
  return make_pipelines(queue, [&]() -> Status {
    RowCopyParams rows;
    rows.jobs = any<const RowCopyJob>();
    rows.n_jobs = rows.most_rows = 1;
    SHARPI_TRY(copy_rows(rows, queue));
    return bound_keys({any<const KeyBoundsJob>(), 1, head_dim, keys}, queue);
  });
}

Status VulkanKernels::score(const ScoreParams& p, const device::Queue& queue) const {
  const KvView& kv = p.kv;
  const Args args = Args()
                        .at(kv.k)
                        .at(p.queries)
                        .at(p.visible)
                        .at(p.weight)
                        .at(p.sum)
                        .at(p.max)
                        .at(pages())
                        .at(p.workspace)
                        .at(p.sinks)
                        .at(kv.table)
                        .u(p.n_slots)
                        .u(p.query_rows)
                        .u(p.first_query % p.query_rows)
                        .u(p.n_queries)
                        .u(p.n_heads)
                        .u(kv.n_heads)
                        .u(p.query_stride != 0 ? p.query_stride : uint64_t{p.n_heads} * kv.head_dim)
                        .u(kv.k_row_bytes)
                        .u(kv.block_stride)
                        .u(p.add ? 1 : 0)
                        .f(p.scale);
  const auto codec = static_cast<uint32_t>(kv.k_dtype);
  const uint32_t rotated = kv_rotation(kv.k_dtype, kv.head_dim);
  SHARPI_TRY(run(queue, Shader::score, {0, codec, rotated, kv.head_dim}, args,
                 uint64_t{p.n_heads} * p.n_queries));
  return run(queue, Shader::score, {1, codec, rotated, kv.head_dim}, args,
             groups_of(p.n_slots) * kv.n_heads);
}

Status VulkanKernels::replay_scores(const ReplayParams& p, const device::Queue& queue) const {
  const KvView& kv = p.kv;
  const uint32_t group = p.n_heads / kv.n_heads;
  const Args args = Args()
                        .at(kv.k)
                        .at(p.queries)
                        .at(p.cos)
                        .at(p.sin)
                        .at(p.scores)
                        .at(pages())
                        .at(kv.table)
                        .u(p.first_slot)
                        .u(p.n_rows)
                        .u(p.tail_slot)
                        .u(p.first_place)
                        .u(p.first_asked)
                        .u(p.every)
                        .u(p.query_stride)
                        .u(p.query_rows)
                        .u(p.first_query % p.query_rows)
                        .u(group)
                        .u(kv.n_heads)
                        .u(kv.k_row_bytes)
                        .u(kv.block_stride)
                        .u(p.n_half)
                        .u(p.stride)
                        .f(p.scale);
  const uint32_t terms = device_.driver().profile().replay_terms(kv.head_dim),
                 turns = p.n_half == 0  ? 0u
                         : p.neighbours ? 2u
                                        : 1u;
  const auto constants = [&](uint32_t pass) {
    return Constants{pass,
                     static_cast<uint32_t>(kv.k_dtype),
                     kv_rotation(kv.k_dtype, kv.head_dim),
                     kv.head_dim,
                     terms,
                     turns,
                     p.rotated ? 1u : 0u};
  };
  const uint32_t threads = device_.driver().profile().gathering_threads;
  if (!p.add)
    SHARPI_TRY(own(queue).dispatch({Shader::replay, constants(0), args,
                                    div_up(uint64_t{p.n_rows} * kv.n_heads, threads), 1, threads}));
  const uint64_t parts = div_up(div_up(kReplayChunk, p.every) * group, terms);
  const uint64_t n_chunks = div_up(p.first_place + p.n_rows, kReplayChunk);
  return own(queue).dispatch(
      {Shader::replay, constants(1), args, n_chunks * kv.n_heads * parts, 1, threads});
}

/// Head by head: a norm is a sum over them.
Status VulkanKernels::latent_norms(const NormParams& p, const device::Queue& queue) const {
  const KvView& kv = p.kv;
  for (uint32_t h = 0; h < p.n_heads; ++h) {
    const Args args = Args()
                          .at(kv.v)
                          .at(p.o_data)
                          .at(p.map_data)
                          .at(p.norms)
                          .at(pages())
                          .at(kv.table)
                          .u(p.n_slots)
                          .u(h)
                          .u(p.n_heads)
                          .u(kv.head_dim)
                          .u(p.map_first)
                          .u(p.map->n_in)
                          .u(p.map->n_out)
                          .u(kv.v_row_bytes)
                          .u(kv.block_stride)
                          .u(p.n_outputs)
                          .u(p.o->row_bytes())
                          .u(p.map->row_bytes());
    SHARPI_TRY(run(
        queue, Shader::latent_norms,
        {static_cast<uint32_t>(p.o->tensor->type), static_cast<uint32_t>(p.map->tensor->type),
         static_cast<uint32_t>(kv.v_dtype), kv_rotation(kv.v_dtype, kv.head_dim), h != 0 ? 1u : 0u},
        args, p.n_slots));
  }
  return Status::ok();
}

Status VulkanKernels::value_norms(const NormParams& p, const device::Queue& queue) const {
  if (p.map != nullptr) return latent_norms(p, queue);
  const KvView& kv = p.kv;
  const Args args = Args()
                        .at(kv.v)
                        .at(p.o_data)
                        .at(p.norms)
                        .at(pages())
                        .at(kv.table)
                        .u(p.n_slots)
                        .u(p.n_heads)
                        .u(kv.n_heads)
                        .u(kv.head_dim)
                        .u(kv.v_row_bytes)
                        .u(kv.block_stride)
                        .u(p.n_outputs)
                        .u(p.o->row_bytes())
                        .u(p.first_kv)
                        .u(p.n_kv != 0 ? p.n_kv : kv.n_heads);
  return run(queue, Shader::value_norms,
             {static_cast<uint32_t>(p.o->tensor->type), static_cast<uint32_t>(kv.v_dtype),
              kv_rotation(kv.v_dtype, kv.head_dim)},
             args, uint64_t{kv.n_heads} * p.n_slots);
}

}  // namespace

std::unique_ptr<device::DeviceKernels> make_device_kernels(const Device& device) {
  return std::make_unique<VulkanKernels>(device);
}

}  // namespace sharpi::vulkan
