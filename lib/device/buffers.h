// SPDX-License-Identifier: MIT
// The buffers of a call on a device, by name. Launches are planned with the names and get addresses
// when they are made. Thread rule: a plain enumeration.
#pragma once

#include <cstdint>

namespace sharpi::device {

/// Names of the buffers; `kCount` last. R = rows of a call.
enum class Buf : uint32_t {
  kX,        // [R][E] hidden
  kArrival,  // [R][E] hidden rows of the next pass in a pipeline, from the device in front
  kPair,     // [R][2E] normalised embedding and hidden row of an MTP block
  kHead,     // [head rows][E] normalised input of the head
  kQ,        // [R][H*D (*2 with output gate)] projections
  kK,
  kV,          // [R][Hk*D]
  kQuery,      // [R][H*D] after norm and RoPE; latent attention: then outputs of heads
  kMix,        // [R][H*D] attention output; recurrent mixers: output; latent attention: q_a's first
  kQkv,        // [R][conv_dim] what a recurrent mixer's convolution reads
  kZ,          // [R][value_dim] gate
  kAlpha,      // [R][v heads] delta net: alpha; Mamba-2: steps
  kBeta,       // [R][v heads]
  kY,          // [R][E] block output before a norm and the residual add
  kFfn,        // [R][F]
  kUp,         // [R][F] beside it, where gates are applied by a launch of their own
  kAdapter,    // [R][kMaxProductTasks][rank] A x of adapters
  kRouter,     // [R][n_experts]
  kMoeIds,     // [R][k]
  kMoeWeight,  // [R][k]
  kSharedGate,  // [R]
  kMoeSum,      // [R][E] a dense path's output that waits for the experts beside it
  kMoeSync,     // of moe_step.h; zero when the workspace is made
  kHandover,    // HandoverState, where experts are on the CPU
  kPleRaw,      // [R] rows of the per-layer table, file bytes
  kPleTable,    // [R][n_layers * P] the same in f32
  kPle,         // [R][n_layers * P]
  kPleTmp,      // [R][P]
  kCos,
  kSin,        // [rope tables][R][n_half]
  kKvChunk,    // chunk scratch of windowed layers, in codec rows
  kLogits,     // [head rows][V]
  kTable,      // CallTable
  kAttention,  // scratch of kernels
  kKernel,     // scratch of products, experts and recurrent mixers, which never run at once
  kOtherX,     // [1][E] hidden row of a chain whose kX is still being read
  kChainSync,  // where the blocks of chains meet
  kCount,
};

}  // namespace sharpi::device
