// SPDX-License-Identifier: MIT
#include "device/best_logits.h"

#include <algorithm>
#include <cstring>

#include "device/kernels.h"

namespace sharpi::device {
namespace {

/// The most that is sent along, as samplers ask for (top-k of 40 is common); more is read alone.
constexpr uint32_t kMostSent = 64;
/// The most that is found of a row on any device.
constexpr uint32_t kMaxTopK = 256;

/// Values and ids of n rows.
constexpr uint64_t result_bytes(uint32_t n, uint32_t k) {
  return (uint64_t{n} * k * (sizeof(float) + sizeof(int32_t)) + 255) / 256 * 256;
}
uint64_t results(uint32_t n_rows) {
  return std::max(result_bytes(1, kMaxTopK), result_bytes(n_rows, kMostSent));
}
uint64_t mask_bytes(uint32_t n_vocab) {
  return (uint64_t{n_vocab} + 2047) / 2048 * 256;
}
uint64_t scratch_bytes(const DeviceKernels& kernels, uint32_t n_vocab, uint32_t n_rows) {
  const uint32_t most = kernels.most_best(n_vocab);
  if (most == 0) return 0;
  return std::max(kernels.best_bytes(1, n_vocab, most),
                  kernels.best_bytes(n_rows, n_vocab, std::min(most, kMostSent)));
}

/// Pinned memory: what was read alone, a mask on its way, what was sent along.
uint64_t mask_at() {
  return result_bytes(1, kMaxTopK);
}
uint64_t sent_at(uint32_t n_vocab) {
  return mask_at() + mask_bytes(n_vocab);
}

}  // namespace

BestBytes best_bytes(const DeviceKernels& kernels, uint32_t n_vocab, uint32_t n_rows) {
  return {results(n_rows) + scratch_bytes(kernels, n_vocab, n_rows) + mask_bytes(n_vocab),
          sent_at(n_vocab) + result_bytes(n_rows, kMostSent)};
}

Status BestLogits::allocate(uint32_t n_vocab, uint32_t n_rows) {
  const BestBytes bytes = best_bytes(device_->kernels(), n_vocab, n_rows);
  SHARPI_TRY_ASSIGN(memory_, DeviceBuffer::allocate(*device_, bytes.device, "best logits"));
  SHARPI_TRY_ASSIGN(host_, PinnedBuffer::allocate(*device_, bytes.pinned, "best logits"));
  n_vocab_ = n_vocab;
  n_rows_ = n_rows;
  return Status::ok();
}

uint32_t BestLogits::most() const {
  return memory_.bytes() == 0 ? 0 : std::min(device_->kernels().most_best(n_vocab_), kMaxTopK);
}

/// To the device's results: [n][k] values, then ids.
Status BestLogits::find(const LogitsOnDevice& logits, uint32_t row, Rows rows,
                        const std::span<const uint32_t>* allowed, const Queue& stream) const {
  BestParams t;
  t.logits = logits.first + uint64_t{row} * logits.n_vocab;
  t.n_vocab = logits.n_vocab;
  t.n_rows = rows.n;
  t.k = rows.k;
  t.values = memory_.as<float>();
  t.ids = reinterpret_cast<int32_t*>(t.values + uint64_t{rows.n} * rows.k);
  t.workspace = memory_.data() + results(n_rows_);
  t.workspace_bytes = scratch_bytes(device_->kernels(), n_vocab_, n_rows_);
  if (allowed != nullptr) {
    std::byte* mask = t.workspace + t.workspace_bytes;
    if (allowed->size_bytes() > mask_bytes(n_vocab_)) {
      return Status::error(Code::kInternal, "the mask has %zu words, which do not fit %u tokens",
                           allowed->size(), n_vocab_);
    }
    // From pinned memory, so that the copy does not wait.
    std::byte* host = host_.data() + mask_at();
    std::memcpy(host, allowed->data(), allowed->size_bytes());
    if (!allowed->empty()) {
      SHARPI_TRY(stream.copy(mask, host, allowed->size_bytes(), Way::kToDevice,
                             "upload of the allowed tokens"));
    }
    t.allowed = {reinterpret_cast<const uint32_t*>(mask), static_cast<uint32_t>(allowed->size())};
  }
  return device_->kernels().find_best(t, stream);
}

Status BestLogits::read(const LogitsOnDevice& logits, uint32_t row, uint32_t k,
                        const std::span<const uint32_t>* allowed, float* values,
                        int32_t* ids) const {
  const uint64_t bytes = uint64_t{k} * sizeof(float);
  if (allowed == nullptr && row < here_.n && k <= here_.k) {
    const auto* sent = reinterpret_cast<const float*>(host_.data() + sent_at(n_vocab_));
    std::memcpy(values, sent + uint64_t{row} * here_.k, bytes);
    std::memcpy(ids, sent + uint64_t{here_.n + row} * here_.k, bytes);
    return Status::ok();
  }
  SHARPI_TRY(device_->usable());
  const std::lock_guard lock(reading_);
  const DeviceScope scope(*device_);
  SHARPI_TRY(find(logits, row, {1, k}, allowed, *stream_));
  SHARPI_TRY(copies_.bytes(host_.data(), memory_.data(), 2 * bytes, Way::kToHost,
                           "reading the best logits"));
  std::memcpy(values, host_.data(), bytes);
  std::memcpy(ids, host_.data() + bytes, bytes);
  return Status::ok();
}

Status BestLogits::send(const LogitsOnDevice& logits, uint32_t n, uint32_t k, const Queue& pass) {
  forget();
  if (n == 0 || n > n_rows_ || k == 0 || k > std::min(most(), kMostSent)) return Status::ok();
  SHARPI_TRY(find(logits, 0, {n, k}, nullptr, pass));
  std::byte* to = host_.data() + sent_at(n_vocab_);
  SHARPI_TRY(pass.copy(to, memory_.data(), uint64_t{n} * k * 2 * sizeof(float), Way::kToHost,
                       "sending the best logits"));
  sent_ = {n, k};
  return Status::ok();
}

}  // namespace sharpi::device
