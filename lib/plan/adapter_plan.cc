// SPDX-License-Identifier: MIT
#include "plan/adapter_plan.h"

#include <algorithm>

#include "base/checked.h"

namespace sharpi {

uint64_t adapter_half_bytes(uint64_t n, uint32_t rank) {
  return round_up(n * rank * sizeof(float), 64);
}

MemoryRow adapter_row(const AdapterFile& adapter) {
  uint64_t held = 0;
  for (const AdapterPair& p : adapter.pairs)
    held += adapter_half_bytes(p.n_in, p.rank) + adapter_half_bytes(p.n_out, p.rank);
  return make_row(TierId::kCpu, 0, SHARPI_ROW_ADAPTERS, SHARPI_ROW_ANONYMOUS,
                  "adapter " + adapter.name, adapter.parameter_count() * sizeof(float), held);
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
