// SPDX-License-Identifier: MIT
// The launches of a pass as dispatches: what each kind (device/launches.h) runs, with the addresses
// of its buffers. pass_launches.cc has embeddings, products and ends, mixer_launches.cc attention,
// recurrent_launches.cc recurrent mixers, ffn_launches.cc the mixtures of experts,
// square_launches.cc activations by themselves, adapter_launches.cc adapters.
// Thread rule: of the call that runs.
#pragma once

#include "device/latent.h"
#include "device/loaded_model.h"
#include "device/pass.h"
#include "device/session.h"
#include "vulkan/forms.h"
#include "vulkan/queue.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {

using device::Batch;
using device::Buf;
using device::DeviceWorkspace;
using device::KvLayer;
using device::Launch;
using device::LaunchKind;
using device::LaunchList;
using device::LoadedModel;
using device::Pass;
using device::RowProduct;
using device::RowSum;

/// Matrices of routed experts: `stride` bytes from each other.
struct ExpertMatrix {
  const std::byte* data = nullptr;
  uint64_t stride = 0;
};

/// What every way of routed experts is told.
struct ExpertRun {
  const FfnSpec& f;
  const TensorRef& up_ref;
  ExpertMatrix gate, up, down;
  const int32_t* ids = nullptr;
  const int32_t* table = nullptr;  // of slots
  float *x = nullptr, *h = nullptr;
  uint32_t pairs = 0;  // of a row and an expert
  // Of tiles: the outputs of pairs, these in order, and the tiles themselves.
  float *made = nullptr, *order = nullptr;
  uint64_t tiles = 0;
  bool matrices = false;
  uint32_t rows_of_matrix = 0;
  uint32_t side() const { return matrices ? 4 * rows_of_matrix : kExpertTile; }
};

/// Bytes of rows in 16 bits, which is more than in 8.
constexpr uint64_t row_bytes_of(uint64_t rows, uint64_t width) {
  return rows * (2 * width + 4);
}

/// Rows, and outputs, of a tile of shaders/product_tile.glsl.
constexpr uint32_t kTile = 64;

class PassLaunches {
 public:
  PassLaunches(const Device& device, const Pass& p, const LaunchList& list, const Launch& l)
      : device_(device),
        m_(p.model),
        s_(p.model.spec()),
        p_(p),
        ws_(p.ws),
        list_(list),
        l_(l),
        queue_(static_cast<const Queue&>(p.ws.queue())) {}
  Status make() const;

 private:
  uint32_t n() const { return p_.batch.n_rows; }
  float* buf(Buf b) const { return ws_.get(b); }
  const float* floats(const TensorRef* w) const { return w == nullptr ? nullptr : m_.floats(*w); }
  const LayerSpec& layer() const { return s_.layers[l_.layer]; }
  uint64_t pages() const { return device_.driver().pages().table(); }
  uint64_t pinned(const void* p) const { return device_.driver().address_of_pinned(p); }
  Status run(Shader shader, const Constants& constants, const Args& args, uint64_t items,
             uint32_t layers = 1) const {
    return queue_.dispatch({shader, constants, args, items, layers, 0});
  }
  /// Workgroups for n elements, one a thread.
  uint64_t groups_of(uint64_t n) const { return (n + profile().threads - 1) / profile().threads; }
  const Profile& profile() const { return device_.driver().profile(); }

  /// How products of `rows` rows with this matrix take them, and where `rows` rows of `width`
  /// elements lie in fewer bits than floats: behind what else is in kKernel.
  RowForm form_of(const TensorRef& w, uint32_t rows) const {
    return row_form(profile(), m_.plan->model, w, rows, takes_floats(s_, w));
  }
  std::byte* bytes_of(uint64_t rows, uint64_t width) const;
  Status halve(const float* x, uint64_t rows, uint32_t width, bool product) const;
  Status quantise(const float* x, uint64_t rows, uint32_t width) const;
  Status run_rows(Shader shader, const Constants& constants, const Args& args,
                  uint64_t rows) const {
    return queue_.dispatch({shader, constants, args, rows, 1, profile().row_threads});
  }

  Status ends() const;
  Status embed(Buf to) const;
  Status pairs() const;
  /// `bytes`: in 8 bits too, unless null.
  Status norm(const float* x, const float* weight, float* y, uint32_t width, uint32_t rows,
              uint32_t y_stride, const uint32_t* picks = nullptr,
              const std::byte* bytes = nullptr) const;
  Status links() const;
  Status product(const RowProduct& p, const RowSum& sum) const;
  Status task(const RowProduct& p, uint32_t t, uint32_t rows, const float* x) const;
  /// And, unless `next` is null, the norm behind it, as norm() does it.
  Status adapters() const;
  Status residual(const RowSum& sum, const float* next_weight = nullptr, float* next = nullptr,
                  const std::byte* bytes = nullptr) const;
  Status ropes() const;
  Status per_layer_table() const;
  Status per_layer_combine() const;
  Status per_layer_gate() const;
  Status logits() const;

  KvLayer kv() const;
  /// Whether rows of the call may be in blocks of one head there: a constant of shaders.
  uint32_t by_head(const KvLayer& kv) const { return p_.by_head && kv.window == 0 ? 1 : 0; }
  Status rows() const;
  /// WHICH of shaders/rows.comp.
  enum HeadRow : uint32_t { kQueryRow, kKeyRow, kValueRow, kLatentQuery, kLatentRow };
  Status head_rows(HeadRow which, const float* from, float* to) const;
  Status latent_rows() const;
  Status heads() const;
  Status store_heads(const KvLayer& kv, bool value, const float* from) const;
  Status store(const KvLayer& kv, bool value, const float* from) const;
  Args attention_args(const KvLayer& kv, const void* queries, float* to) const;
  Status attend() const;
  Status attend_in_shares(const KvLayer& kv) const;
  /// Whether attention leaves its outputs in 8 bits too, as the product behind it reads them.
  bool joins_to_bytes() const;
  Status attend_by_matrices(const KvLayer& kv, uint32_t split) const;
  Status keep_ring() const;
  Status delta() const;
  Status mamba() const;
  template <class Run>
  Status recurrent(Run run) const;
  Status activation() const;

  Status route() const;
  Status choose_experts() const;
  Status shared_gate() const;
  Status experts(bool slots) const;
  ExpertRun expert_run(bool slots) const;
  Status expert_sums(const ExpertRun& e, bool dots) const;
  struct PairProduct;
  Status pair_product(const ExpertRun& e, const PairProduct& p) const;
  Status experts_by_pairs(const ExpertRun& e) const;
  Status experts_by_tiles(const ExpertRun& e) const;
  Status send_rows() const;
  Status answers() const;
  ExpertMatrix matrix_of(const TensorRef& w, bool slots, uint64_t at) const;

  const Device& device_;
  const LoadedModel& m_;
  const ModelSpec& s_;
  const Pass& p_;
  DeviceWorkspace& ws_;
  const LaunchList& list_;
  const Launch& l_;
  const Queue& queue_;
};

}  // namespace sharpi::vulkan
