// SPDX-License-Identifier: MIT
// KV rows of a CUDA session on their way to and from the host, and the moves of compaction.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "cuda/cuda_store.h"

namespace sharpi::cuda {

Status CudaSession::copy_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              std::byte* host, Way way) const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const KvView v = view(layer);
  const uint64_t row = value ? v.v_row_bytes : v.k_row_bytes;
  const bool out = way == Way::kToHost;
  const cudaMemcpyKind kind = out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  for (uint32_t done = 0; done < n;) {
    const uint32_t slot = first + done;
    const uint32_t in_block = slot % kKvBlockSlots;
    // Whole blocks at once, the rest block by block.
    const bool whole = in_block == 0 && n - done >= kKvBlockSlots;
    const uint32_t blocks = whole ? (n - done) / kKvBlockSlots : 1;
    const uint32_t rows = whole ? kKvBlockSlots : std::min(kKvBlockSlots - in_block, n - done);
    const uint64_t width = rows * row;
    std::byte* there = value ? v.v_row(slot) : v.k_row(slot);
    std::byte* here = host + done * row;
    SHARPI_TRY(device_->check(
        cudaMemcpy2DAsync(out ? here : there, out ? width : v.block_stride, out ? there : here,
                          out ? v.block_stride : width, width, blocks, kind, stream_->get()),
        "copying KV rows"));
    done += blocks * rows;
  }
  return stream_->wait();
}

Status CudaSession::read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  return copy_rows(layer, value, first, n, static_cast<std::byte*>(out), Way::kToHost);
}

Status CudaSession::write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                               const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  auto* from = static_cast<std::byte*>(const_cast<void*>(in));  // only read
  return copy_rows(layer, value, first, n, from, Way::kToDevice);
}

namespace {

/// The jobs of a compaction and the keep lists that they read, as one block for the device.
class MoveList {
 public:
  void add(const KvView& v, const KvMove& m) {
    if (m.keep.size() == 1) {
      const uint64_t at = add_list(m.keep[0]);
      add_job(v, false, at, m.keep[0].size(), 0, v.k_row_bytes);
      add_job(v, true, at, m.keep[0].size(), 0, v.v_row_bytes);
      return;
    }
    for (uint32_t h = 0; h < v.n_heads; ++h) {
      const uint64_t at = add_list(m.keep[h]);
      add_head(v, false, at, m.keep[h].size(), h);
      add_head(v, true, at, m.keep[h].size(), h);
    }
  }
  const std::vector<KvMoveJob>& jobs() const { return jobs_; }
  uint64_t bytes() const { return job_bytes() + lists_.size() * sizeof(uint32_t); }
  uint32_t max_bytes() const { return max_bytes_; }
  /// The block for the device address `base`.
  std::vector<std::byte> image(const std::byte* base) {
    std::vector<std::byte> out(bytes());
    for (size_t i = 0; i < jobs_.size(); ++i) {
      jobs_[i].keep = reinterpret_cast<const uint32_t*>(base + job_bytes()) + list_of_[i];
    }
    std::memcpy(out.data(), jobs_.data(), jobs_.size() * sizeof(KvMoveJob));
    if (!lists_.empty()) {
      std::memcpy(out.data() + job_bytes(), lists_.data(), lists_.size() * sizeof(uint32_t));
    }
    return out;
  }

 private:
  uint64_t job_bytes() const { return round_up(jobs_.size() * sizeof(KvMoveJob), 256); }
  uint64_t add_list(std::span<const uint32_t> keep) {
    const uint64_t at = lists_.size();
    lists_.insert(lists_.end(), keep.begin(), keep.end());
    return at;
  }
  void add_job(const KvView& v, bool value, uint64_t list, size_t n, uint32_t offset,
               uint32_t bytes) {
    if (n == 0) return;
    KvMoveJob j;
    j.rows = value ? v.v : v.k;
    j.block_stride = v.block_stride;
    j.row_bytes = value ? v.v_row_bytes : v.k_row_bytes;
    j.offset = offset;
    j.bytes = bytes;
    j.n_keep = static_cast<uint32_t>(n);
    jobs_.push_back(j);
    list_of_.push_back(list);
    max_bytes_ = std::max(max_bytes_, bytes);
  }
  /// One head's part of every row.
  void add_head(const KvView& v, bool value, uint64_t list, size_t n, uint32_t head) {
    for (const KvPart& part : KvHeadParts(v, value, head)) {
      add_job(v, value, list, n, part.offset, part.bytes);
    }
  }
  std::vector<KvMoveJob> jobs_;
  std::vector<uint64_t> list_of_;  // first entry of a job's list
  std::vector<uint32_t> lists_;
  uint32_t max_bytes_ = 0;
};

}  // namespace

uint64_t move_list_bytes(const KvLayout& layout) {
  uint64_t n_jobs = 0, n_kept = 0;
  for (const KvGroup& g : layout.groups) {
    if (g.ring) continue;
    for (const KvLayerLayout& l : g.layers) {
      for (const KvDtype d : {l.k_dtype, l.v_dtype}) {
        n_jobs += l.n_heads * kv_codec(d)->planes.size();
      }
      n_kept += uint64_t{l.n_heads} * g.capacity;
    }
  }
  return round_up(n_jobs * sizeof(KvMoveJob), 256) + n_kept * sizeof(uint32_t);
}

Status CudaSession::copy_queries(uint32_t layer, uint64_t first, uint32_t n, std::byte* host,
                                 Way way) const {
  SHARPI_TRY(check_queries(layer, n));
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const uint64_t ring = query_rows(Capture::kRing);
  float* base = queries(layer, Capture::kRing);
  const uint64_t row = uint64_t{query_layout_.dim_of_layer[layer]} * sizeof(float);
  const bool out = way == Way::kToHost;
  for (uint64_t done = 0; done < n;) {
    const uint64_t slot = (first + done) % ring, rows = std::min<uint64_t>(n - done, ring - slot);
    std::byte* there = reinterpret_cast<std::byte*>(base) + slot * row;
    std::byte* here = host + done * row;
    SHARPI_TRY(device_->check(
        cudaMemcpyAsync(out ? here : there, out ? there : here, rows * row,
                        out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream_->get()),
        "copying captured queries"));
    done += rows;
  }
  return stream_->wait();
}

Status CudaSession::read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const {
  return copy_queries(layer, first, n, reinterpret_cast<std::byte*>(out), Way::kToHost);
}

Status CudaSession::write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) {
  auto* from = reinterpret_cast<std::byte*>(const_cast<float*>(in));  // only read
  return copy_queries(layer, first, n, from, Way::kToDevice);
}

Status CudaSession::stage_moves(std::span<const KvMove> moves) {
  discard_moves();
  SHARPI_TRY(check_moves(moves));
  MoveList list;
  for (const KvMove& m : moves) list.add(view(m.layer), m);
  if (list.jobs().empty()) return Status::ok();
  DeviceBuffer memory;
  if (list.bytes() > move_lists_.bytes()) {
    SHARPI_TRY_ASSIGN(memory, DeviceBuffer::allocate(*device_, list.bytes(), "kept rows"));
  }
  std::byte* to = memory.bytes() != 0 ? memory.data() : move_lists_.data();
  const std::vector<std::byte> image = list.image(to);
  SHARPI_TRY(copy(to, image.data(), image.size(), cudaMemcpyHostToDevice, "upload of kept rows"));
  call_moves_ = std::move(memory);
  jobs_ = reinterpret_cast<const KvMoveJob*>(to);
  n_moves_ = static_cast<uint32_t>(list.jobs().size());
  move_bytes_ = list.max_bytes();
  return Status::ok();
}

void CudaSession::apply_moves() noexcept {
  if (n_moves_ == 0) return;
  const DeviceScope scope(*device_);
  Status done = device_->settle(launch_kv_move(jobs_, n_moves_, move_bytes_, stream_->get()));
  if (done.is_ok()) done = stream_->wait();
  // A launch that was checked and does not run is a fault of the device: nothing here can be
  // trusted any more.
  if (!done.is_ok()) device_->mark_lost(done.native());
  discard_moves();
}

void CudaSession::discard_moves() noexcept {
  call_moves_.reset();
  jobs_ = nullptr;
  n_moves_ = 0;
}

}  // namespace sharpi::cuda
