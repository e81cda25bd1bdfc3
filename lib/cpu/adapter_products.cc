// SPDX-License-Identifier: MIT
#include "cpu/adapter_products.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "base/checked.h"
#include "base/limits.h"
#include "cpu/ops.h"
#include "tier/adapter_weights.h"

namespace sharpi::cpu {
namespace {

// What a thread takes at least: rows of A, and elements of a row of B.
constexpr uint64_t kRankUnit = 4, kOutputUnit = 512;

/// One adapter of each session over some products of the same rows.
class LowRankPass {
 public:
  LowRankPass(const Pass& p, ThreadPool& pool, const KernelSet& kernels, const MatmulInput& in,
              std::span<const WeightProduct> products)
      : p_(p), pool_(pool), kernels_(kernels), in_(in), products_(products) {
    const uint64_t floats = p.ws.size(Buf::kAdapter) / sizeof(float);
    rank_ = static_cast<uint32_t>(floats / kMaxProducts / p.ws.layout().max_rows);
  }

  /// The k-th adapter of every session that has so many.
  void run(const ModelSpec& spec, size_t k) {
    uint64_t most_rank = 0, most_out = 0;
    for (size_t s = 0; s < p_.rows.sequences.size(); ++s) {
      const std::span<const AdapterUse> uses = p_.rows.sequences[s].adapters;
      for (size_t i = 0; i < products_.size(); ++i) {
        Part& part = parts_[s][i];
        part = {};
        const AdapterWeights* own = k < uses.size() ? uses[k].on_host() : nullptr;
        if (own != nullptr) part.low = own->find(tensor_index(spec, *products_[i].w));
        if (part.low == nullptr) continue;
        assert(part.low->rank <= rank_);
        part.scale = uses[k].scale * part.low->scale;
        most_rank = std::max<uint64_t>(most_rank, part.low->rank);
        most_out = std::max(most_out, part.low->n_out);
      }
    }
    if (most_rank == 0) return;
    each_part(most_rank, kRankUnit,
              [&](uint64_t r, size_t i, uint64_t first) { multiply_a(r, i, first); });
    each_part(most_out, kOutputUnit,
              [&](uint64_t r, size_t i, uint64_t first) { add_b(r, i, first); });
  }

 private:
  struct Part {
    const AdapterProduct* low = nullptr;
    float scale = 0.0f;
  };

  /// body(row, product, first) for every row, product and unit of `n`; rows innermost, so that they
  /// share what they read of the adapter.
  template <class Body>
  void each_part(uint64_t n, uint64_t unit, const Body& body) {
    const uint64_t n_rows = in_.n_rows, units = div_up(n, unit);
    pool_.for_range(products_.size() * units * n_rows, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t at = begin; at < end; ++at) {
        const uint64_t block = at / n_rows;
        body(at % n_rows, block / units, block % units * unit);
      }
    });
  }

  const Part& part_of(uint64_t row, size_t product) const {
    size_t s = 0;
    while (row >= uint64_t{p_.rows.sequences[s].first_row} + p_.rows.sequences[s].n_rows) ++s;
    return parts_[s][product];
  }
  float* scratch(uint64_t row, size_t product) const {
    return p_.ws.get(Buf::kAdapter) + (row * kMaxProducts + product) * rank_;
  }

  void multiply_a(uint64_t row, size_t product, uint64_t first) const {
    const Part& part = part_of(row, product);
    if (part.low == nullptr) return;
    const AdapterProduct& low = *part.low;
    float* t = scratch(row, product);
    const float* x = in_.x + row * in_.stride;
    const uint64_t end = std::min<uint64_t>(first + kRankUnit, low.rank);
    for (uint64_t j = first; j < end; ++j)
      t[j] = part.scale * dot(kernels_, low.a + j * low.n_in, x, low.n_in);
  }

  void add_b(uint64_t row, size_t product, uint64_t first) const {
    const Part& part = part_of(row, product);
    if (part.low == nullptr || first >= part.low->n_out) return;
    const AdapterProduct& low = *part.low;
    const float* t = scratch(row, product);
    float* y = products_[product].y + row * products_[product].y_stride + first;
    const uint64_t n = std::min(kOutputUnit, low.n_out - first);
    for (uint64_t j = 0; j < low.rank; ++j)
      add_scaled(kernels_, y, low.b + j * low.n_out + first, t[j], n);
  }

  const Pass& p_;
  ThreadPool& pool_;
  const KernelSet& kernels_;
  const MatmulInput& in_;
  const std::span<const WeightProduct> products_;
  uint32_t rank_ = 0;  // that the scratch has room for
  std::array<std::array<Part, kMaxProducts>, kMaxBatch> parts_;
};

}  // namespace

void add_adapters(const Pass& p, const ModelSpec& spec, ThreadPool& pool, const KernelSet& kernels,
                  const MatmulInput& in, std::span<const WeightProduct> products) {
  size_t most = 0;
  for (const SequenceRows& q : p.rows.sequences) most = std::max(most, q.adapters.size());
  if (most == 0) return;
  LowRankPass pass(p, pool, kernels, in, products);
  for (size_t k = 0; k < most; ++k) pass.run(spec, k);
}

}  // namespace sharpi::cpu
