// SPDX-License-Identifier: MIT
// Mamba-2 as files have it: keys under "ssm.", and one matrix for the projections to the gate, to
// x, B and C, and to the steps. Thread rule: as SpecBuilder.
#pragma once

#include <vector>

#include "model/arch_common.h"

namespace sharpi {

/// The sizes, without tensors.
Result<Mamba2Spec> read_mamba2(const SpecBuilder& b);

/// Takes "ssm_in.weight" of a block apart; nothing of a block without.
Status take_mamba2_apart(const SpecBuilder& b, const TrunkKeys& trunk, const Mamba2Spec& sizes,
                         uint32_t block, std::vector<GgufPart>* parts);

/// The parts of all blocks that are recurrent. Keys: trunk, mamba and is_recurrent(block).
template <class Keys>
Result<std::vector<GgufPart>> mamba2_parts(const SpecBuilder& b, const Keys& keys) {
  std::vector<GgufPart> parts;
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i) {
    if (keys.is_recurrent(i)) SHARPI_TRY(take_mamba2_apart(b, keys.trunk, keys.mamba, i, &parts));
  }
  return parts;
}

/// The tensors of a block's mixer, but for its norm, of a file that is taken apart.
Status load_mamba2(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, Mamba2Spec* mamba);

}  // namespace sharpi
