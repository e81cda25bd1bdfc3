// SPDX-License-Identifier: MIT
#include <algorithm>
#include <functional>

#include "cuda/kernels/products/chain_launch.h"
#include "cuda/kernels/products/fixed_map.h"
#include "cuda/kernels/products/gemm.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kMostRowOutputs = 65535 * kPanelRows;

uint32_t groups_of(const MatmulParams& m) {
  uint32_t n = 0;
  const uint32_t counted = is_gated_epilogue(m.epilogue) ? 1 : m.n_tasks;
  for (uint32_t t = 0; t < counted; ++t) n += m.tasks[t].w.n_out / kPanelRows;
  return n;
}

ChainTask chain_task(const MatmulTask& t, uint32_t first_group) {
  ChainTask c = {};
  c.data = reinterpret_cast<const uint8_t*>(t.w.data);
  c.y = t.y;
  c.panel_bytes = panel_bytes_of(t.w.type, t.w.n_in);
  c.unit_bytes = unit_bytes_of(t.w.type);
  c.first_group = first_group;
  c.type = t.w.type;
  c.hand = c.before = kNotHanded;
  c.stores = true;
  c.width = static_cast<uint16_t>(t.w.n_out / kPanelRows);
  return c;
}

ChainProduct chain_product(const ChainLink& link) {
  const MatmulParams& m = link.product;
  ChainProduct q = {};
  q.x = {m.x, kNotHanded};
  q.branch = {link.branch.y, kNotHanded};
  q.has_branch = link.branch.y != nullptr;
  q.norm_weight = m.norm_weight;
  q.norm_eps = m.norm_eps;
  q.row_scale = m.row_scale;
  q.branch_weight = link.branch.weight;
  q.branch_eps = link.branch.eps;
  q.branch_scale = link.branch.scale;
  q.x_out = link.branch.x_out;
  q.x_out_hand = kNotHanded;
  q.n_in = m.tasks[0].w.n_in;
  q.units = q.n_in / kUnitColumns;
  q.epilogue = m.epilogue;
  uint32_t group = 0;
  for (uint32_t t = 0; t < m.n_tasks; ++t) {
    q.tasks[q.n_tasks++] = chain_task(m.tasks[t], group);
    group += m.tasks[t].w.n_out / kPanelRows;
  }
  return q;
}

/// Bytes of the launch's widest unit of weights.
uint32_t widest_unit(const ChainLaunch& l) {
  uint32_t widest = 0;
  for (uint32_t k = 0; k < l.n_products; ++k) {
    const ChainProduct& q = l.products[k];
    for (uint32_t t = 0; t < q.n_tasks; ++t) widest = std::max(widest, q.tasks[t].unit_bytes);
  }
  return widest;
}

/// Offsets in shared memory, and what is left for the rings; false when it is too little.
bool divide_memory(ChainLaunch* l, uint32_t limit, bool rings) {
  uint32_t units = 0, panels = 0, all_panels = 0;
  for (uint32_t k = 0; k < l->n_products; ++k) {
    const ChainProduct& q = l->products[k];
    const uint32_t n =
        (l->splits[k].groups + (l->splits[k].more != 0 ? 1 : 0)) * l->splits[k].members;
    units = std::max(units, q.units);
    panels = std::max(panels, n);
    all_panels += n;
  }
  const uint32_t widest = widest_unit(*l);
  const uint32_t rows = chain_kernel_rows(l->n_rows);
  const uint32_t image = (fixed_map(units * rows).bytes + 127) / 128 * 128;
  // Squares of branches, of several rows their norms too.
  const uint32_t sums = (rows * (kShareWarps + (rows > 1 ? 1 : 0)) * 4 + 15) / 16 * 16;
  const uint32_t part = piece_bytes(panels) * rows,
                 range = (piece_range_bytes(panels) + 15) / 16 * 16,
                 table = all_panels * static_cast<uint32_t>(sizeof(ChainPanel)),
                 works = kMaxChainProducts * static_cast<uint32_t>(sizeof(Work)) +
                         static_cast<uint32_t>(sizeof(ChainProgress));
  const uint32_t slots = rings ? sizeof(ChainSlots) : 0,
                 rest = image + part + range + table + sums + works + slots;
  l->ring_bytes = rings && limit > rest ? (limit - rest) / kShareWarps / 128 * 128 : 0;
  l->image = l->ring_bytes * kShareWarps;
  l->part = l->image + image;
  l->range = l->part + part;
  l->panels = l->range + range;
  l->sums = l->panels + table;
  l->works = l->sums + sums;
  l->slots = l->works + works;
  l->shared_bytes = l->slots + slots;
  return l->shared_bytes <= limit && (!rings || l->ring_bytes >= 2 * widest);
}

/// Whether a product of several rows may go in parts of its columns: a thread carries few sums, and
/// norms and branches are of whole rows.
bool has_parts(const ChainLaunch& l, uint32_t k) {
  const ChainProduct& q = l.products[k];
  const ChainSplit& split = l.splits[k];
  const uint32_t outputs =
      (split.groups + (split.more != 0 ? 1 : 0)) * kPanelRows * chain_kernel_rows(l.n_rows);
  return !q.has_branch && q.norm_weight == nullptr && split.members == 1 &&
         outputs <= kCarriedOutputs * kShareThreads;
}

bool has_minima(const ChainProduct& q) {
  bool minima = false;
  for (uint32_t t = 0; t < q.n_tasks; ++t)
    minima = minima || q.tasks[t].type == GgmlType::kQ4_K || q.tasks[t].type == GgmlType::kQ5_K;
  return minima;
}

/// Takes products of more than `units` units in parts if it may: products of their own behind each
/// other, of which a block multiplies the same panels. false: there are too many.
bool part_columns(ChainLaunch* l, uint32_t units) {
  const ChainLaunch whole = *l;
  l->n_products = 0;
  for (uint32_t k = 0; k < whole.n_products; ++k) {
    const ChainProduct& q = whole.products[k];
    const uint32_t n = has_parts(whole, k) ? (q.units + units - 1) / units : 1;
    for (uint32_t i = 0; i < n; ++i) {
      if (l->n_products == kMaxChainProducts) return false;
      const uint32_t first = i * q.units / n, at = l->n_products++;
      l->splits[at] = whole.splits[k];
      l->columns[at] = {q.n_in, i + 1 < n, has_minima(q)};
      ChainProduct& part = l->products[at] = q;
      part.units = (i + 1) * q.units / n - first;
      if (part.x.handed == kNotHanded) {
        part.x.plain += uint64_t{first} * kUnitColumns;
      } else {
        part.x.handed += first * kUnitColumns;
      }
      for (uint32_t t = 0; t < part.n_tasks; ++t)
        part.tasks[t].data += uint64_t{first} * part.tasks[t].unit_bytes;
    }
  }
  return true;
}

/// Memory for several rows, which have no rings: as few parts as have room; of the widest product
/// alone if that does.
bool divide_rows(ChainLaunch* l, uint32_t limit, uint32_t least_parts) {
  const ChainLaunch whole = *l;
  uint32_t widest = 0, next = 0;
  for (uint32_t k = 0; k < l->n_products; ++k) {
    const uint32_t units = l->products[k].units;
    next = std::max(next, std::min(widest, units));
    widest = std::max(widest, units);
  }
  for (uint32_t n = std::max(least_parts, 1u); n <= kMostColumnParts; ++n) {
    const uint32_t units = (widest + n - 1) / n;
    for (const uint32_t most : {std::max(units, next), units}) {
      *l = whole;
      if (part_columns(l, most) && divide_memory(l, limit, false)) return true;
    }
  }
  return false;
}

/// Rows of floats that a link reads or writes.
struct RowRef {
  const float* data;
  uint32_t n;
  explicit operator bool() const { return data != nullptr; }
};
bool overlap(const RowRef& a, const RowRef& b) {
  return a && b && std::less<>()(a.data, b.data + b.n) && std::less<>()(b.data, a.data + a.n);
}
bool equal(const RowRef& a, const RowRef& b) {
  return a.data == b.data && a.n == b.n;
}

uint32_t outputs_of(const ChainProduct& q) {
  return is_gated_epilogue(q.epilogue) ? 1 : q.n_tasks;
}

/// Who reads what of whom. Blocks do not wait for each other but for what they read: a link has to
/// read all that the one before it puts out, then whoever has a link's input knows that all have
/// read the inputs of the links before.
class Wiring {
 public:
  Wiring(const ChainLink* links, ChainLaunch* l) : links_(links), l_(l) {}

  bool run() {
    for (uint32_t k = 0; k < l_->n_products; ++k) {
      if (!(k == 0 || follows(k)) || !reads(k) || !writes(k)) return false;
    }
    return l_->n_handed <= kHandedFloats;
  }

 private:
  RowRef output(uint32_t k, uint32_t t) const {
    const MatmulTask& task = links_[k].product.tasks[t];
    return {task.y, task.w.n_out * l_->n_rows};
  }
  RowRef input(uint32_t k, const float* data) const {
    return {data, l_->products[k].n_in * l_->n_rows};
  }
  RowRef sum(uint32_t k) const { return input(k, links_[k].branch.x_out); }
  RowRef x(uint32_t k) const { return input(k, links_[k].product.x); }
  RowRef branch(uint32_t k) const { return input(k, links_[k].branch.y); }

  bool follows(uint32_t k) const {
    return outputs_of(l_->products[k - 1]) == 1 &&
           equal(l_->products[k].has_branch ? branch(k) : x(k), output(k - 1, 0));
  }

  /// The place where the last of the links before k that writes `row` hands it on; false: one
  /// writes a part of it.
  bool find(uint32_t k, const RowRef& row, uint32_t* at) {
    for (uint32_t j = k; j-- > 0;) {
      ChainProduct& q = l_->products[j];
      for (uint32_t t = 0; t < outputs_of(q); ++t) {
        if (!overlap(row, output(j, t))) continue;
        *at = place(&q.tasks[t].hand, row.n);
        return equal(row, output(j, t));
      }
      if (!overlap(row, sum(j))) continue;
      *at = place(&q.x_out_hand, row.n);
      return equal(row, sum(j));
    }
    return true;
  }
  uint32_t place(uint32_t* hand, uint32_t n) {
    if (*hand == kNotHanded) {
      *hand = l_->n_handed;
      l_->n_handed += n;
    }
    return *hand;
  }

  bool reads(uint32_t k) {
    ChainProduct& q = l_->products[k];
    if (!find(k, x(k), &q.x.handed)) return false;
    if (q.has_branch && !find(k, branch(k), &q.branch.handed)) return false;
    for (uint32_t t = 0; q.epilogue == Epilogue::kAdd && t < q.n_tasks; ++t) {
      if (!find(k, output(k, t), &q.tasks[t].before)) return false;
    }
    return true;
  }

  /// What links before wrote there stays in the set; what they read from there, all have read.
  bool writes(uint32_t k) {
    for (uint32_t t = 0; t < outputs_of(l_->products[k]); ++t) {
      if (!overwrites(k, output(k, t), true)) return false;
    }
    return overwrites(k, sum(k), false);
  }
  bool overwrites(uint32_t k, const RowRef& row, bool product) {
    if (overlap(row, x(k)) || overlap(row, branch(k))) return false;
    for (uint32_t j = 0; j < k; ++j) {
      ChainProduct& q = l_->products[j];
      for (uint32_t t = 0; t < outputs_of(q); ++t) {
        if (!overlap(row, output(j, t))) continue;
        if (!equal(row, output(j, t))) return false;
        q.tasks[t].stores = false;
      }
      if (overlap(row, sum(j))) {
        if (!equal(row, sum(j))) return false;
        q.x_out = nullptr;
      }
      const bool read = (q.x.handed == kNotHanded && overlap(row, x(j))) ||
                        (q.branch.handed == kNotHanded && overlap(row, branch(j)));
      if (!read) continue;
      // A link's sum is stored while some still read the link before; and blocks without work in a
      // link read its branch for the units that they store.
      if (product ? q.has_branch : k < j + 2 || !equal(row, x(j))) return false;
    }
    return true;
  }

  const ChainLink* links_;
  ChainLaunch* l_;
};

}  // namespace

ChainForm chain_form(const KernelConfig& config, const ChainTuning& tuning) {
  if (tuning.form != ChainForm::kByDevice) return tuning.form;
  // Rings of less shared memory would not outlast a meeting.
  constexpr int kLeastShared = 200 << 10;
  return config.device.bulk_copies && config.device.shared_per_block >= kLeastShared
             ? ChainForm::kRings
             : ChainForm::kRegisters;
}

bool has_chains(const KernelConfig& config) {
  return config.device.n_sm <= static_cast<int>(kMaxChainBlocks) && !config.exact &&
         !config.deterministic;
}

uint32_t max_chain_rows(const KernelConfig& config, const ChainTuning& tuning) {
  if (!has_chains(config)) return 0;
  return chain_form(config, tuning) == ChainForm::kRegisters ? kMaxChainRows : 1;
}

uint32_t max_fused_rows(const KernelConfig& config) {
  return has_chains(config) ? kMatvecRows : 0;
}

bool chain_takes(const KernelConfig& config, const ChainLink& link, const ChainTuning& tuning) {
  const MatmulParams& m = link.product;
  if (m.force_f32 || m.n_rows == 0 || m.n_rows > max_chain_rows(config, tuning) || m.n_tasks == 0)
    return false;
  // Columns that the warps have in registers at once.
  const uint32_t n_in = m.tasks[0].w.n_in, at_once = kShareWarps * kUnitColumns;
  const bool branch = link.branch.y != nullptr;
  bool tiles = true;
  for (uint32_t t = 0; t < m.n_tasks; ++t) {
    tiles = tiles && has_unit_shares(m.tasks[t].w) && m.tasks[t].w.n_in == n_in &&
            m.tasks[t].bias == nullptr;
    // Rows without gaps, whose length a panel knows.
    const uint32_t n_out = m.tasks[t].w.n_out;
    tiles = tiles && (m.n_rows == 1 || (m.tasks[t].y_stride == n_out && n_out <= kMostRowOutputs));
  }
  tiles = tiles && (m.n_rows == 1 || m.x_stride == n_in);
  const uint32_t panels = groups_of(m) / static_cast<uint32_t>(config.device.n_sm) + 1;
  const bool added = !branch || (n_in <= at_once * kBranchUnits && link.branch.share == 1.0f);
  return tiles && added && n_in <= kMaxColumns && panels <= kMaxPanels / 4;
}

bool make_chain_launch(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                       std::byte* sync, const ChainTuning& tuning, ChainLaunch* out) {
  const auto blocks = static_cast<uint32_t>(config.device.n_sm);
  ChainLaunch& l = *out;
  l = {};
  if (n_links == 0 || n_links > kMaxChainLinks) return false;
  l.n_rows = links[0].product.n_rows;
  if (l.n_rows > max_chain_rows(config, tuning)) return false;
  if (sync != nullptr) {  // null where it is only asked whether there is room
    l.states = reinterpret_cast<ChainState*>(sync);
    l.handed = reinterpret_cast<float*>(sync + kMaxChainBlocks * sizeof(ChainState));
  }
  uint32_t first_more = 0;
  for (uint32_t k = 0; k < n_links; ++k) {
    if (links[k].product.n_rows != l.n_rows) return false;
    l.products[l.n_products++] = chain_product(links[k]);
    const uint32_t n = groups_of(links[k].product);
    const bool gated = is_gated_epilogue(links[k].product.epilogue);
    l.splits[k] = {n / blocks, n % blocks, first_more, gated ? 2u : 1u};
    first_more = (first_more + n % blocks) % blocks;
  }
  l.arrivals = tuning.every_lane_arrives ? 32 : 1;
  const int limit = std::min(config.device.shared_per_block, tuning.shared_bytes);
  const bool rings = chain_form(config, tuning) == ChainForm::kRings;
  if (rings && !config.device.bulk_copies) return false;  // it copies in bulk
  const auto room = static_cast<uint32_t>(std::max(limit, 0));
  if (!Wiring(links, &l).run()) return false;
  return l.n_rows == 1 ? divide_memory(&l, room, rings)
                       : divide_rows(&l, room, tuning.column_parts);
}

bool chain_fits(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                const ChainTuning& tuning) {
  ChainLaunch launch;
  return make_chain_launch(config, links, n_links, nullptr, tuning, &launch);
}

}  // namespace sharpi::cuda
