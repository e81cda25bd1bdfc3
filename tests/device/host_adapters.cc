// SPDX-License-Identifier: MIT
// What adapters change in a pass of the tests' device: products, and gates behind them.
#include "base/limits.h"
#include "device/host_launch.h"
#include "model/adapter_file.h"

namespace sharpi::testing {

void HostLaunch::activate() const {
  const bool gates = has_gate(layer().ffn);
  for (uint64_t i = 0; i < uint64_t{n()} * hidden_width(layer().ffn); ++i) {
    float& h = buf(Buf::kFfn)[i];
    h = gates ? act(hidden_epilogue(layer().ffn), h, buf(Buf::kUp)[i])
              : std::max(h, 0.0f) * std::max(h, 0.0f);
  }
}

/// The k-th adapter of every sequence, to the product in front.
void HostLaunch::add_adapter(uint32_t k) const {
  const RowProduct& p = links_[0].product;
  const RowSum& sum = links_[0].sum;
  const uint64_t width = p.tasks[0].w->n_in;
  std::vector<float> x(width);
  for (uint64_t r = 0; r < n(); ++r) {
    const uint32_t sequence = batch_.table.rows[r].sequence;
    if (sequence == kNoSequence) continue;
    const BatchAdapter& adapter = ws_.adapters()[uint64_t{sequence} * kMaxAdapters + k];
    if (adapter.table == nullptr) continue;
    std::copy_n(buf(sum.adds ? sum.to : p.x) + r * width, width, x.data());
    if (const float* weight = floats(p.norm); weight != nullptr)
      norm(x.data(), weight, s_.rms_eps, width, x.data());
    const float share = p.shared_scale ? buf(Buf::kSharedGate)[r] : 1.0f;
    for (uint32_t t = 0; t < p.n_tasks; ++t) {
      const AdapterEntry& low = adapter.table[tensor_index(s_, *p.tasks[t].w)];
      if (low.a == nullptr) continue;
      const uint64_t n_out = p.tasks[t].w->n_out;
      float* y = buf(p.tasks[t].y) + r * n_out;
      for (uint64_t j = 0; j < low.rank; ++j) {
        const float got = adapter.scale * low.scale * dot(low.a + j * width, x.data(), width);
        for (uint64_t o = 0; o < n_out; ++o) y[o] += share * got * low.b[j * n_out + o];
      }
    }
  }
}

}  // namespace sharpi::testing
