// SPDX-License-Identifier: MIT
#include "device/kv_moves.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/kernels.h"
#include "device/session_copies.h"

namespace sharpi::device {

uint64_t move_list_bytes(const KvLayout& layout, bool scores) {
  uint64_t n_jobs = 0, n_kept = 0;
  for (const KvGroup& g : layout.groups) {
    if (g.ring) continue;
    for (const KvLayerLayout& l : g.layers) {
      for (const KvDtype d : {l.k_dtype, l.v_dtype}) {
        n_jobs += l.n_heads * kv_codec(d)->planes.size();
      }
      if (scores) n_jobs += l.n_heads;
      n_kept += uint64_t{l.n_heads} * g.capacity;
    }
  }
  return round_up(n_jobs * sizeof(KvMoveJob), 256) + n_kept * sizeof(uint32_t);
}

void MoveList::add(const KvView& v, const KvMove& m) {
  if (m.keep.size() == 1) {
    add_rows(v, m.keep[0]);
    return;
  }
  for (uint32_t h = 0; h < v.n_heads; ++h) {
    const uint64_t at = add_list(m.keep[h]);
    add_head(v, false, at, m.keep[h].size(), h);
    if (!v.one_row) add_head(v, true, at, m.keep[h].size(), h);
  }
}

void MoveList::add_rows(const KvView& v, std::span<const uint32_t> keep) {
  const uint64_t at = add_list(keep);
  add_job(v, false, at, keep.size(), 0, v.k_row_bytes);
  if (!v.one_row) add_job(v, true, at, keep.size(), 0, v.v_row_bytes);
}

/// As rows of four bytes.
void MoveList::add_scores(float* scores, std::span<const uint32_t> keep) {
  if (keep.empty()) return;
  KvMoveJob j;
  j.rows = reinterpret_cast<std::byte*>(scores);
  j.block_stride = kKvBlockSlots * sizeof(float);
  j.row_bytes = j.bytes = sizeof(float);
  j.n_keep = static_cast<uint32_t>(keep.size());
  put(j, false, add_list(keep));
}

void MoveList::put(const KvMoveJob& job, bool by_head, uint64_t list) {
  const auto behind = by_head ? 0 : static_cast<std::ptrdiff_t>(n_by_head_);
  jobs_.insert(jobs_.end() - behind, job);
  list_of_.insert(list_of_.end() - behind, list);
  n_by_head_ += by_head ? 1 : 0;
  max_bytes_ = std::max(max_bytes_, job.bytes);
}

std::vector<std::byte> MoveList::image(const std::byte* base) {
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

uint64_t MoveList::job_bytes() const {
  return round_up(jobs_.size() * sizeof(KvMoveJob), 256);
}

uint64_t MoveList::add_list(std::span<const uint32_t> keep) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& k) {
    return k.keep.data() == keep.data() && k.keep.size() == keep.size();
  });
  if (known != known_.end()) return known->at;
  const uint64_t at = lists_.size();
  known_.push_back({keep, at});
  lists_.insert(lists_.end(), keep.begin(), keep.end());
  return at;
}

void MoveList::add_job(const KvView& v, bool value, uint64_t list, size_t n, uint32_t offset,
                       uint32_t bytes) {
  if (n == 0) return;
  KvMoveJob j;
  j.rows = value ? v.v : v.k;
  if (v.table != nullptr) {
    j.table = v.table;
  } else {
    j.block_stride = v.block_stride;
  }
  j.row_bytes = value ? v.v_row_bytes : v.k_row_bytes;
  j.offset = offset;
  j.bytes = bytes;
  j.n_keep = static_cast<uint32_t>(n);
  put(j, v.table != nullptr, list);
}

void MoveList::add_head(const KvView& v, bool value, uint64_t list, size_t n, uint32_t head) {
  for (const KvPart& part : KvHeadParts(v, value, head)) {
    add_job(v, value, list, n, part.offset, part.bytes);
  }
}

Status KvMoves::allocate(uint64_t bytes) {
  SHARPI_TRY_ASSIGN(lists_, DeviceBuffer::allocate(*device_, bytes, "lists of kept rows"));
  return Status::ok();
}

uint64_t KvMoves::stage_bytes(const MoveList& list, uint64_t least) const {
  const uint64_t bytes = std::max(list.bytes(), least);
  return bytes <= lists_.bytes() ? 0 : device_->held_bytes(bytes);
}

Status KvMoves::stage(MoveList* list, uint64_t least) {
  discard();
  if (list->jobs().empty() && least == 0) return Status::ok();
  SHARPI_TRY(device_->kernels().prepare_moves(list->n_by_head() != 0 || least != 0, *stream_));
  const uint64_t bytes = std::max(list->bytes(), least);
  DeviceBuffer memory;
  if (bytes > lists_.bytes()) {
    SHARPI_TRY_ASSIGN(memory, DeviceBuffer::allocate(*device_, bytes, "kept rows"));
  }
  std::byte* to = memory.bytes() != 0 ? memory.data() : lists_.data();
  const std::vector<std::byte> image = list->image(to);
  SHARPI_TRY(SessionCopies(*device_, *stream_)
                 .bytes(to, image.data(), image.size(), Way::kToDevice, "upload of kept rows"));
  call_lists_ = std::move(memory);
  jobs_ = reinterpret_cast<const KvMoveJob*>(to);
  n_moves_ = static_cast<uint32_t>(list->jobs().size());
  move_bytes_ = list->max_bytes();
  n_by_head_ = list->n_by_head();
  return Status::ok();
}

Status KvMoves::apply() const {
  if (n_moves_ == 0) return Status::ok();
  const DeviceScope scope(*device_);
  const DeviceKernels& kernels = device_->kernels();
  const uint32_t n_together = n_moves_ - n_by_head_;
  if (n_together != 0) SHARPI_TRY(kernels.move_rows(jobs_, n_together, move_bytes_, *stream_));
  if (n_by_head_ != 0)
    SHARPI_TRY(kernels.move_head_rows(jobs_ + n_together, n_by_head_, move_bytes_, *stream_));
  return stream_->wait();
}

void KvMoves::discard() noexcept {
  call_lists_.reset();
  jobs_ = nullptr;
  n_moves_ = 0;
}

}  // namespace sharpi::device
