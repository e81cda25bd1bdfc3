// SPDX-License-Identifier: MIT
#include "plan/adapter_plan.h"

#include <algorithm>

#include "base/checked.h"

namespace sharpi {

uint64_t adapter_half_bytes(uint64_t n, uint32_t rank) {
  return round_up(n * rank * sizeof(float), 64);
}

std::vector<const AdapterPair*> adapter_pairs_on(const AdapterFile& adapter, const Placement& runs,
                                                 DeviceIndex device) {
  std::vector<const AdapterPair*> out;
  for (const AdapterPair& p : adapter.pairs) {
    if ((p.of_ffn ? runs.ffn : runs.mixer)[p.layer] == device) out.push_back(&p);
  }
  return out;
}

uint64_t adapter_payload_bytes(std::span<const AdapterPair* const> pairs) {
  uint64_t n = 0;
  for (const AdapterPair* p : pairs) n += (p->n_in + p->n_out) * p->rank * sizeof(float);
  return n;
}

uint64_t adapter_bytes(std::span<const AdapterPair* const> pairs) {
  uint64_t n = 0;
  for (const AdapterPair* p : pairs)
    n += adapter_half_bytes(p->n_in, p->rank) + adapter_half_bytes(p->n_out, p->rank);
  return n;
}

std::vector<MemoryRow> host_adapter_rows(const AdapterFile& adapter, const Placement& placement) {
  const std::vector<const AdapterPair*> pairs =
      adapter_pairs_on(adapter, placement, DeviceIndex::kHost);
  if (pairs.empty()) return {};
  return {make_row(TierId::kCpu, 0, SHARPI_ROW_ADAPTERS, SHARPI_ROW_ANONYMOUS,
                   "adapter " + adapter.name, adapter_payload_bytes(pairs), adapter_bytes(pairs))};
}

Result<uint32_t> resolve_adapter_rank(const ModelSpec& spec, uint32_t asked,
                                      std::span<const AdapterFile> adapters) {
  uint32_t most = 0;
  const AdapterFile* widest = nullptr;
  for (const AdapterFile& a : adapters) {
    if (a.max_rank > most) most = a.max_rank, widest = &a;
  }
  const uint32_t rank = asked == SHARPI_UNSET ? most : asked;
  if (rank < most) {
    return Status::error(Code::kInvalidArgument,
                         "adapter_rank is %u, but the adapter %.64s has rank %u", rank,
                         widest->name.c_str(), most);
  }
  if (rank == 0 || !spec.is_encoder()) return rank;
  return Status::error(Code::kUnsupported,
                       "adapters are asked for, but %s is an encoder, and adapters are those of "
                       "sessions",
                       spec.architecture.c_str());
}

}  // namespace sharpi
