// SPDX-License-Identifier: MIT
#include "engine/adapter.h"

#include <cmath>
#include <utility>

#include "base/hash.h"
#include "engine/log_lines.h"
#include "plan/adapter_plan.h"

namespace sharpi {
namespace {

Status check_rank(const Plan& plan, const AdapterFile& file) {
  const uint32_t most = plan.model.adapter_rank;
  if (most == 0) {
    return Status::error(Code::kUnsupported,
                         "the model was planned without adapters: name them in the plan's "
                         "`adapters`, or say their largest rank in `adapter_rank`");
  }
  if (file.max_rank <= most) return Status::ok();
  return Status::error(Code::kDoesNotFit,
                       "the adapter has rank %u, but the plan has scratch for products of rank %u "
                       "(adapter_rank)",
                       file.max_rank, most);
}

std::vector<MemoryRow> planned_rows(const Model& model, const AdapterFile& file) {
  std::vector<MemoryRow> rows;
  for (const TierSizer* sizer : model.context().sizers()) {
    if (!model.plan().uses(*sizer)) continue;
    for (const MemoryRow& r : model.plan().adapter_rows(*sizer, file)) rows.push_back(r);
  }
  return rows;
}

}  // namespace

Result<std::shared_ptr<const Adapter>> Adapter::load(std::shared_ptr<const Model> model,
                                                     const std::string& path) {
  std::shared_ptr<Adapter> a(new Adapter(std::move(model)));
  SHARPI_TRY_ASSIGN(a->file_, open_adapter(path, a->model_->spec()));
  SHARPI_TRY(check_rank(a->model_->plan(), a->file_));
  const Model& m = *a->model_;
  SHARPI_TRY(a->share_.take(HeldBytes::of(planned_rows(m, a->file_))));
  for (size_t t = 0; t < m.tiers().size(); ++t) {
    SHARPI_TRY_ASSIGN(a->parts_.of[index_of(m.devices()[t])], m.tiers()[t]->load_adapter(a->file_));
  }
  log_adapter(*a);
  return std::shared_ptr<const Adapter>(std::move(a));
}

std::vector<MemoryRow> Adapter::memory_rows() const {
  std::vector<MemoryRow> rows;
  for (const auto& part : parts_.of)
    if (part != nullptr) rows.push_back(part->memory_row());
  return rows;
}

uint64_t Adapter::held_bytes() const {
  uint64_t n = 0;
  for (const MemoryRow& r : memory_rows()) n += r.held_bytes;
  return n;
}

Status ChosenAdapters::choose(const Model& model, std::span<const AdapterChoice> choices) {
  if (choices.size() > kMaxAdapters) {
    return Status::error(Code::kInvalidArgument, "a session takes at most %u adapters, not %zu",
                         kMaxAdapters, choices.size());
  }
  ChosenAdapters next;
  Hash64 hash;
  for (size_t i = 0; i < choices.size(); ++i) {
    const AdapterChoice& c = choices[i];
    if (&c.adapter->model() != &model) {
      return Status::error(Code::kInvalidArgument,
                           "adapter %zu was loaded beside another model than the session's", i);
    }
    if (!std::isfinite(c.scale)) {
      return Status::error(Code::kInvalidArgument,
                           "the scale of adapter %zu is %g, which is no finite number", i,
                           static_cast<double>(c.scale));
    }
    for (size_t j = 0; j < i; ++j) {
      if (choices[j].adapter == c.adapter)
        return Status::error(Code::kInvalidArgument, "adapters %zu and %zu are the same", j, i);
    }
    if (c.scale == 0.0f) continue;
    next.adapters_.push_back(c.adapter);
    next.uses_.push_back({&c.adapter->parts(), c.scale});
    hash.add_u64(c.adapter->facts().file->content_id());
    hash.add(&c.scale, sizeof c.scale);
  }
  if (!next.uses_.empty()) next.id_ = hash.value() == 0 ? 1 : hash.value();
  *this = std::move(next);
  return Status::ok();
}

Status ChosenAdapters::check_saved(uint64_t saved) const {
  if (saved == id_) return Status::ok();
  const char* why = saved == 0 ? "without adapters, but this one has some"
                    : id_ == 0 ? "with adapters, but this one has none"
                               : "with other adapters, or scales, than this one has";
  return Status::error(Code::kMismatch,
                       "the session was saved %s; sharpi_session_set_adapters() chooses them", why);
}

}  // namespace sharpi
