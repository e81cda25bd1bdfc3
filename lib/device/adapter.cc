// SPDX-License-Identifier: MIT
#include "device/adapter.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "plan/adapter_plan.h"

namespace sharpi::device {
namespace {

using Pairs = std::vector<const AdapterPair*>;

/// Elements that are converted before they go to the device.
constexpr uint64_t kStageFloats = 1 << 16;

Pairs pairs_here(const ModelSpec& spec, const Placement& placement, const ModelShape& model,
                 const AdapterFile& adapter) {
  return adapter_pairs_on(adapter, streamed_placement(spec, placement, model), DeviceIndex::kHere);
}

uint64_t table_bytes(const ModelSpec& spec) {
  return round_up(spec.file->tensors().size() * sizeof(AdapterEntry), 64);
}

/// Both halves of pairs, by way of a little memory of the host.
class Upload {
 public:
  Upload(const GgufFile& file, const Queue& queue) : file_(file), queue_(queue) {}

  /// To [rank][n_in], as the file has it.
  Status first(const AdapterPair& p, float* to) {
    const uint64_t some = rows_of(p.n_in);
    stage_.resize(some * p.n_in);
    return read_adapter_rows(file_, *p.a, 0, p.rank, [&](uint64_t j, const auto& row) {
      const uint64_t at = j % some;
      std::memcpy(stage_.data() + at * p.n_in, row.data(), p.n_in * sizeof(float));
      if (at + 1 != some && j + 1 != p.rank) return Status::ok();
      SHARPI_TRY(queue_.copy(to + (j - at) * p.n_in, stage_.data(),
                             (at + 1) * p.n_in * sizeof(float), Way::kToDevice, kWhat));
      return queue_.wait();
    });
  }
  /// To [rank][n_out], of the file's [n_out][rank].
  Status second(const AdapterPair& p, float* to) {
    const uint64_t some = rows_of(p.rank);
    stage_.resize(some * p.rank);
    return read_adapter_rows(file_, *p.b, p.first_row, p.n_out, [&](uint64_t o, const auto& row) {
      const uint64_t at = o % some;
      for (uint64_t j = 0; j < p.rank; ++j) stage_[j * some + at] = row[j];
      if (at + 1 != some && o + 1 != p.n_out) return Status::ok();
      SHARPI_TRY(queue_.copy_rows({to + (o - at), p.n_out * sizeof(float)},
                                  {stage_.data(), some * sizeof(float)}, (at + 1) * sizeof(float),
                                  p.rank, Way::kToDevice, kWhat));
      return queue_.wait();
    });
  }

 private:
  static constexpr const char* kWhat = "upload of an adapter";
  static uint64_t rows_of(uint64_t width) { return std::max<uint64_t>(1, kStageFloats / width); }
  const GgufFile& file_;
  const Queue& queue_;
  std::vector<float> stage_;
};

}  // namespace

std::vector<MemoryRow> DeviceAdapter::plan_rows(const Device& device, const ModelSpec& spec,
                                                const Placement& placement, const ModelShape& model,
                                                const AdapterFile& adapter) {
  const Pairs pairs = pairs_here(spec, placement, model, adapter);
  if (pairs.empty()) return {};
  return {device.row(SHARPI_ROW_ADAPTERS, SHARPI_ROW_DEVICE, "adapter " + adapter.name,
                     adapter_payload_bytes(pairs),
                     device.held_bytes(table_bytes(spec) + adapter_bytes(pairs)))};
}

Result<std::unique_ptr<DeviceAdapter>> DeviceAdapter::load(const LoadedModel& model,
                                                           const AdapterFile& adapter) {
  const Plan& plan = *model.plan;
  const Pairs pairs = pairs_here(*plan.spec, plan.placement, plan.model, adapter);
  std::unique_ptr<DeviceAdapter> a;
  if (pairs.empty()) return a;
  const uint64_t table = table_bytes(*plan.spec), bytes = table + adapter_bytes(pairs);
  if (bytes > model.device->largest_block()) {
    return Status::error(Code::kDoesNotFit,
                         "the adapter takes %llu bytes of the device, which gives at most %llu in "
                         "one block",
                         static_cast<unsigned long long>(bytes),
                         static_cast<unsigned long long>(model.device->largest_block()));
  }
  SHARPI_TRY(model.device->usable());
  const DeviceScope scope(*model.device);
  a.reset(new DeviceAdapter);
  a->device_ = model.device;
  a->row_ = plan_rows(*model.device, *plan.spec, plan.placement, plan.model, adapter)[0];
  SHARPI_TRY_ASSIGN(a->memory_, DeviceBuffer::allocate(*model.device, bytes, "an adapter"));
  std::vector<AdapterEntry> entries(plan.spec->file->tensors().size());
  Upload upload(*adapter.file, *model.stream);
  std::byte* at = a->memory_.data() + table;
  for (const AdapterPair* p : pairs) {
    auto* first = reinterpret_cast<float*>(at);
    auto* second = reinterpret_cast<float*>(at + adapter_half_bytes(p->n_in, p->rank));
    at += adapter_half_bytes(p->n_in, p->rank) + adapter_half_bytes(p->n_out, p->rank);
    SHARPI_TRY(upload.first(*p, first));
    SHARPI_TRY(upload.second(*p, second));
    entries[p->tensor] = {first, second, p->rank, p->scale};
  }
  SHARPI_TRY(model.stream->copy(a->memory_.data(), entries.data(),
                                entries.size() * sizeof(AdapterEntry), Way::kToDevice,
                                "upload of an adapter"));
  SHARPI_TRY(model.stream->wait());
  return a;
}

MemoryRow DeviceAdapter::memory_row() const {
  MemoryRow row = row_;
  row.held_bytes = device_->held_bytes(memory_.bytes());
  return row;
}

DeviceAdapter::~DeviceAdapter() {
  if (device_ == nullptr) return;
  const DeviceScope scope(*device_);
  memory_.reset();
}

uint32_t most_adapters(const Submission& rows) {
  size_t most = 0;
  for (const SequenceRows& q : rows.sequences) most = std::max(most, q.adapters.size());
  return static_cast<uint32_t>(most);
}

}  // namespace sharpi::device
