// SPDX-License-Identifier: MIT
// What a tier is given to run: rows of sessions, and where hidden rows come from and go. Thread
// rule: plain values.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "kv/ledger.h"
#include "tier/adapter_weights.h"
#include "tier/meanwhile.h"
#include "tier/pass_progress.h"
#include "tier/score_request.h"

namespace sharpi {

class TierSession;
class Workspace;

/// One session's share of a submission: n_rows consecutive rows of the batch.
struct SequenceRows {
  TierSession* session = nullptr;
  const KvLedger* ledger = nullptr;
  uint32_t first_row = 0, n_rows = 0;
  uint64_t position = 0;  // of the first row, as RoPE and rings count: KvLedger::next_position()
  /// Passes of the session that are under way in front of this one (pipeline_stage.h), whose state
  /// is not committed yet; and rows in front of this one that the ledger has not: of those passes,
  /// or of a probe.
  uint32_t passes_ahead = 0, rows_ahead = 0;
  /// Logits are wanted for the rows r of this share with r >= first_logit_row (index in the share);
  /// row n_rows-1 goes to logit row last_logit_row, the one before it to last_logit_row + 1, ...
  uint32_t first_logit_row = 0;
  uint32_t last_logit_row = 0;
  /// How many of the best logits of every wanted row read_best() will be asked for, as far as the
  /// engine knows; a tier may find them with the pass. 0 = none.
  uint32_t n_best = 0;
  /// Rows after the first may be taken back: what recurrent layers need for that is kept, and the
  /// engine calls commit_rows() for commit_state(). At most the session's n_draft + 1 rows.
  bool drafted = false;
  bool replay = false;  // the pass gives its rows their replay scores
  /// What is added to products of these rows.
  std::span<const AdapterUse> adapters;
  /// Where the hidden rows of this share go, as the head's norm leaves them, from row
  /// first_hidden_row (index in the share) on: [n_rows - first_hidden_row][n_embd]. Null = nobody
  /// wants them. The tier of the head writes them; a GPU's has to be loaded with Placement::mtp.
  float* hidden = nullptr;
  uint32_t first_hidden_row = 0;
  /// Of an encoder's pair of texts: rows of the first one, 0 = all. An encoder's sequences have
  /// neither session nor ledger, their submission is transient, and each is a whole text.
  uint32_t n_first = 0;
};

struct Submission {
  const int32_t* tokens = nullptr;  // [n_rows]
  uint32_t n_rows = 0;
  std::span<const SequenceRows> sequences;
  /// Nothing of the pass stays: neither ring buffers nor logits are written; KV rows past the
  /// ledger's length and the working recurrent state are left as scratch.
  bool transient = false;
  /// Of a transient pass: its rows go to ring buffers all the same, because another pass follows
  /// that sees them. The caller puts back what was there.
  bool stores_rings = false;
  /// Rows see each other only, at their true positions.
  bool no_context = false;
  Capture capture = Capture::kRing;
  const std::atomic<bool>* cancel = nullptr;  // polled between blocks that overwrite nothing
  PassProgress* progress = nullptr;
  /// Set by a tier before rows of the pass overwrite others in a sliding window's ring buffer: from
  /// then on a pass that fails has cost its sessions rows. Null = nobody asks.
  bool* rings_written = nullptr;
  /// A tier that computes asynchronously calls run() between submitting its work and waiting for
  /// it.
  Meanwhile* meanwhile = nullptr;
  /// Hidden rows [n_rows][n_embd] that the segment starts from and leaves behind, in a workspace's
  /// handover() memory; null at the ends of a pass. They may be the same. Rows of a chunk may go
  /// from device to device without the host's memory: then hidden_out is the landing() of the next
  /// segment's workspace, and there hidden_in is null.
  const float* hidden_in = nullptr;
  float* hidden_out = nullptr;
  /// In a pipeline: workspaces of the devices in front of and behind this one; null at the ends.
  const Workspace *from = nullptr, *to = nullptr;
};

}  // namespace sharpi
