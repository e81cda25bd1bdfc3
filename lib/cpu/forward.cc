// SPDX-License-Identifier: MIT
#include "cpu/forward.h"

#include <cmath>
#include <cstring>

#include "cpu/cpu_session.h"
#include "cpu/ops.h"

namespace sharpi::cpu {

Forward::Forward(const ModelSpec& spec, ThreadPool& pool, const MatmulConfig& config)
    : ops_(spec, pool, config),
      spec_(spec),
      kernels_(*config.kernels),
      attention_(ops_),
      delta_(ops_),
      mamba_(ops_),
      ffn_(ops_),
      experts_(ops_) {}

Status Forward::run(const Segment& segment, const Submission& rows, CpuWorkspace& ws) const {
  Pass p{rows, ws};
  if (segment.first_here) ws.pending_ring = -1;  // of a call that another tier ended
  const uint64_t hidden_bytes = uint64_t{rows.n_rows} * spec_.n_embd * sizeof(float);
  if (rows.hidden_in != nullptr) std::memcpy(ws.get(Buf::kX), rows.hidden_in, hidden_bytes);
  const Status done = run_program(segment, p);
  if (!done.is_ok()) {
    ws.pending_ring = -1;  // the rows of a failed chunk must not reach a ring later
    return done;
  }
  if (rows.hidden_out != nullptr) std::memcpy(rows.hidden_out, ws.get(Buf::kX), hidden_bytes);
  return done;
}

Status Forward::run_program(const Segment& segment, Pass& p) const {
  const Submission& rows = p.rows;
  // A row that was overwritten in the ring buffer of a sliding window is lost, so models with such
  // layers finish the chunk before a cancel ends the call.
  const bool may_stop = rows.cancel != nullptr && (rows.transient || !spec_.has_window());
  const auto cancelled = [] { return Status::error(Code::kCancelled, "the call was cancelled"); };
  for (const Op& op : segment.program) {
    if (op.opens && may_stop && rows.cancel->load(std::memory_order_relaxed)) return cancelled();
    SHARPI_TRY(run_op(op, p));
    if (op.kind != OpKind::kLayerEnd || rows.progress == nullptr) continue;
    if (!rows.progress->layer_done(op.layer) && may_stop) return cancelled();
  }
  return Status::ok();
}

Status Forward::run_op(const Op& op, Pass& p) const {
  switch (op.kind) {
    case OpKind::kEmbed:
      embed(p, Buf::kX);
      return Status::ok();
    case OpKind::kEmbedPairs:
      embed_pairs(p);
      return Status::ok();
    case OpKind::kPerLayerInputs:
      embed_per_layer(p, Buf::kX);
      return Status::ok();
    case OpKind::kPerLayerInputsAgain:
      embed(p, Buf::kNorm);
      embed_per_layer(p, Buf::kNorm);
      return Status::ok();
    case OpKind::kRopeTables:
    case OpKind::kKeepRing:
    case OpKind::kAttentionIn:
    case OpKind::kAttentionRows:
    case OpKind::kAttend:
    case OpKind::kAttentionOut:
      return attention_.run(op, p);
    case OpKind::kDeltaIn:
    case OpKind::kDeltaNet:
    case OpKind::kDeltaOut:
      return delta_.run(op, p);
    case OpKind::kMambaIn:
    case OpKind::kMamba:
    case OpKind::kMambaOut:
      return mamba_.run(op, p);
    case OpKind::kExperts:
      experts_.run(p, op.layer);
      return Status::ok();
    case OpKind::kFfnIn:
    case OpKind::kFfnOut:
    case OpKind::kRoute:
    case OpKind::kSharedExpert:
    case OpKind::kInjectPerLayer:
    case OpKind::kScaleLayer:
      return ffn_.run(op, p);
    case OpKind::kFetchWeights:
    case OpKind::kReleaseWeights:
      return Status::ok();  // all weights of the file are in host memory
    case OpKind::kLayerEnd:
      return Status::ok();  // the pass says so
    case OpKind::kHead:
      keep_hidden(p);
      if (!p.rows.transient) head(p);
      return Status::ok();
  }
  return Status::error(Code::kInternal, "an operation has a kind that does not exist");
}

void Forward::replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const {
  switch (spec_.layers[layer].mixer) {
    case MixerKind::kGatedDeltaNet:
      return delta_.replay(session, layer, state, conv);
    case MixerKind::kMamba2:
      return mamba_.replay(session, layer, state, conv);
    case MixerKind::kAttention:
    case MixerKind::kNone:
      return;  // no state
  }
}

void Forward::embed(const Pass& p, Buf to) const {
  float* x = p.ws.get(to);
  ops_.each_row(p.rows.n_rows,
                [&](uint64_t r) { embed_token(spec_, p.rows.tokens[r], x + r * spec_.n_embd); });
  if (spec_.embd_norm || spec_.position_embd || spec_.token_types) add_places(p, x);
}

/// Positions and token types of the texts' rows, and the norm of the sum.
void Forward::add_places(const Pass& p, float* x) const {
  const uint64_t e = spec_.n_embd;
  for (const SequenceRows& q : p.rows.sequences) {
    ops_.each_row(q.n_rows, [&](uint64_t i) {
      float* row = x + (q.first_row + i) * e;
      float* table = p.ws.get(Buf::kY) + (q.first_row + i) * e;
      if (spec_.position_embd) {
        table_row(spec_.position_embd, q.position + i, table);
        add_inplace(kernels_, row, table, e);
      }
      if (spec_.token_types) {
        const bool second = q.n_first != 0 && i >= q.n_first && spec_.token_types.n_out > 1;
        table_row(spec_.token_types, second ? 1 : 0, table);
        add_inplace(kernels_, row, table, e);
      }
      ops_.layer_norm_row(spec_.embd_norm, row);
    });
  }
}

Status Forward::product(const TensorRef& w, const float* x, uint32_t n_rows, float* y,
                        CpuWorkspace& ws) const {
  MatmulInput in;
  in.x = x;
  in.stride = in.n_in = w.n_in;
  in.n_rows = n_rows;
  in.prepared = ws.get<std::byte>(w.n_in == spec_.n_embd ? Buf::kActE : Buf::kActWide);
  ws.matmul().prepare(in);
  const MatmulTask t = matmul_task(w, in, y, w.n_out, /*force_f32=*/true);
  ws.matmul().run({&t, 1});
  return Status::ok();
}

/// From the hidden rows that came in and the tokens behind them.
void Forward::embed_pairs(const Pass& p) const {
  const PairInput& s = spec_.pair;
  const uint64_t e = spec_.n_embd;
  embed(p, Buf::kNorm);
  float* x = p.ws.get(Buf::kX);
  float* to = p.ws.get(Buf::kPair);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    const float* embedded = p.ws.get(Buf::kNorm) + r * e;
    const float* hidden = x + r * e;
    rms_norm(kernels_, embedded, f32_weights(s.embd_norm), spec_.rms_eps, e, to + 2 * r * e);
    rms_norm(kernels_, hidden, f32_weights(s.hidden_norm), spec_.rms_eps, e, to + (2 * r + 1) * e);
  });
  const MatmulInput in = p.input(Buf::kPair, 2 * e, p.rows.n_rows, Buf::kActWide);
  p.product(s.proj, in, x, e);
}

void Forward::embed_per_layer(const Pass& p, Buf embedded) const {
  const ModelSpec& s = spec_;
  const uint64_t width = uint64_t{s.n_layers()} * s.d_ple;
  const MatmulInput in = p.input(embedded, s.n_embd, p.rows.n_rows, Buf::kActE);
  float* ple = p.ws.get(Buf::kPle);
  p.product(s.ple_model_proj, in, ple, width);
  const float to_unit = 1.0f / std::sqrt(static_cast<float>(s.n_embd));
  const float table_scale = std::sqrt(static_cast<float>(s.d_ple));
  const float half = 1.0f / std::sqrt(2.0f);
  float* rows_tmp = p.ws.get(Buf::kPleTmp);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    const auto token = static_cast<uint64_t>(p.rows.tokens[r]);
    const GgmlType type = s.ple_embd.tensor->type;
    const std::byte* table = s.ple_embd.tensor->data + token * s.ple_embd.row_bytes();
    const GgmlTypeTraits& traits = ggml_traits(type);
    const uint64_t block = traits.block_elements;
    float* tmp = rows_tmp + r * ple_slice_floats(s);
    for (uint32_t l = 0; l < s.n_layers(); ++l) {
      float* c = ple + r * width + uint64_t{l} * s.d_ple;
      scale_inplace(kernels_, c, to_unit, s.d_ple);
      rms_norm(kernels_, c, f32_weights(s.ple_proj_norm), s.rms_eps, s.d_ple, c);
      // The blocks that hold the slice, which need not begin or end with one.
      const uint64_t first = uint64_t{l} * s.d_ple, at = first / block;
      const uint64_t n = (first + s.d_ple + block - 1) / block - at;
      dequantize_row(type, table + at * traits.block_bytes, tmp, n * block);
      add_scaled(kernels_, c, tmp + (first - at * block), table_scale, s.d_ple);
      scale_inplace(kernels_, c, half, s.d_ple);
    }
  });
}

void Forward::keep_hidden(const Pass& p) const {
  const uint64_t e = spec_.n_embd;
  for (const SequenceRows& q : p.rows.sequences) {
    if (q.hidden == nullptr) continue;
    const float* x = p.ws.get(Buf::kX) + (q.first_row + q.first_hidden_row) * e;
    const uint64_t n_rows = q.n_rows - q.first_hidden_row;
    if (!spec_.output_norm) std::memcpy(q.hidden, x, n_rows * e * sizeof(float));
    for (uint64_t r = 0; spec_.output_norm && r < n_rows; ++r) {
      rms_norm(kernels_, x + r * e, f32_weights(spec_.output_norm), spec_.rms_eps, e,
               q.hidden + r * e);
    }
  }
}

void Forward::head(const Pass& p) const {
  const ModelSpec& s = spec_;
  const uint64_t e = s.n_embd, v = s.n_vocab;
  const float* x = p.ws.get(Buf::kX);
  float* n = p.ws.get(Buf::kNorm);
  // The wanted rows, newest first within each sequence: the order of the sessions' logit rows.
  uint32_t n_rows = 0;
  for (const SequenceRows& q : p.rows.sequences) {
    for (uint32_t i = q.n_rows; i-- > q.first_logit_row;) {
      rms_norm(kernels_, x + (q.first_row + i) * e, f32_weights(s.output_norm), s.rms_eps, e,
               n + n_rows * e);
      ++n_rows;
    }
  }
  if (n_rows == 0) return;
  const bool direct = p.rows.sequences.size() == 1;
  const SequenceRows& q0 = p.rows.sequences[0];
  float* y = direct ? static_cast<CpuSession*>(q0.session)->logits() + q0.last_logit_row * v
                    : p.ws.get(Buf::kLogits);
  const MatmulInput in = p.input(Buf::kNorm, e, n_rows, Buf::kActE);
  p.product(s.output, in, y, v);
  if (s.logit_scale != 1.0f) {
    ops_.pool().for_range(n_rows * v, 4096, [&](uint64_t b, uint64_t end) {
      scale_inplace(kernels_, y + b, s.logit_scale, end - b);
    });
  }
  if (s.logit_softcap != 0.0f) {
    ops_.pool().for_range(n_rows * v, 4096, [&](uint64_t b, uint64_t end) {
      softcap(kernels_, y + b, s.logit_softcap, end - b);
    });
  }
  if (direct) return;
  for (const SequenceRows& q : p.rows.sequences) {
    const uint64_t count = (q.n_rows - q.first_logit_row) * v;
    std::memcpy(static_cast<CpuSession*>(q.session)->logits() + q.last_logit_row * v, y,
                count * sizeof(float));
    y += count;
  }
}

}  // namespace sharpi::cpu
