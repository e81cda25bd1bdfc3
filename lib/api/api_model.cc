// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "gguf/gguf_file.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

namespace {

/// What the tensors say.
void add_tensors(const sharpi::ModelSpec& spec, sharpi_model_summary* out) {
  sharpi_model_summary& s = *out;
  s.n_layers = spec.n_layers();
  s.n_embd = spec.n_embd;
  s.n_vocab = spec.n_vocab;
  s.n_ctx_train = spec.n_ctx_train;
  s.n_mtp_layers = spec.n_mtp_layers;
  s.is_hybrid = spec.is_hybrid() ? 1 : 0;
  s.has_window = spec.has_window() ? 1 : 0;
  s.is_encoder = spec.is_encoder() ? 1 : 0;
  for (const sharpi::LayerSpec& layer : spec.layers) {
    if (layer.ffn.kind == sharpi::FfnKind::kMoe) {
      s.n_experts = std::max(s.n_experts, layer.ffn.n_experts);
    }
  }
  s.n_parameters = spec.parameter_count();
  s.content_id = spec.saved_id();
  api::copy_line(spec.architecture, s.architecture, sizeof s.architecture);
  api::copy_line(spec.name, s.name, sizeof s.name);
}

/// "gpt2 qwen2"
std::string tokenizer_kind(const sharpi::GgufFile& file) {
  std::string kind;
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    const sharpi::GgufValue* value = file.find_value(key);
    if (value == nullptr) continue;
    if (!kind.empty()) kind += ' ';
    kind += file.value_text(*value);
  }
  return kind;
}

/// `spec` is null for text alone.
sharpi::Result<sharpi_model_summary> summarise(const sharpi::TextModel& text,
                                               const sharpi::ModelSpec* spec,
                                               uint32_t stream_rows) {
  const sharpi::GgufFile& file = text.file();
  sharpi_model_summary s{};
  const sharpi::Tokenizer* tokenizer = text.tokenizer();
  s.bos = tokenizer != nullptr ? tokenizer->bos() : -1;
  s.eos = tokenizer != nullptr ? tokenizer->eos() : -1;
  const auto format = tokenizer != nullptr ? text.chat()->format() : sharpi::ChatFormat{};
  s.chat = static_cast<sharpi_chat_kind>(format);
  s.n_vocab = tokenizer != nullptr ? tokenizer->n_vocab() : 0;
  s.file_bytes = file.file_bytes();
  s.stream_rows = stream_rows;
  SHARPI_TRY_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  SHARPI_TRY_ASSIGN(const auto name, file.get_string("general.name"));
  api::copy_line(architecture.value_or(""), s.architecture, sizeof s.architecture);
  api::copy_line(name.value_or(""), s.name, sizeof s.name);
  if (tokenizer != nullptr) {
    api::copy_line(tokenizer_kind(file), s.tokenizer, sizeof s.tokenizer);
  }
  if (spec != nullptr) add_tensors(*spec, &s);
  return s;
}

Status copy_meta(const sharpi::GgufFile& file, const char* key, char* out, size_t cap,
                 size_t* out_len) {
  SHARPI_TRY(api::require(key, "key"));
  SHARPI_TRY(api::check_out(out, cap, out_len));
  const sharpi::GgufValue* value = file.find_value(key);
  if (value == nullptr) {
    return Status::error(Code::kNotFound, "the file has no metadata key \"%.200s\"", key);
  }
  return api::copy_text(file.value_text(*value), out, cap, out_len);
}

Status copy_meta_key(const sharpi::GgufFile& file, uint32_t index, char* out, size_t cap,
                     size_t* out_len) {
  SHARPI_TRY(api::check_out(out, cap, out_len));
  const auto& values = file.values();
  if (index >= values.size()) {
    return Status::error(Code::kNotFound, "metadata key %u does not exist; the file has %zu", index,
                         values.size());
  }
  return api::copy_text(values[index].key, out, cap, out_len);
}

}  // namespace

sharpi_status sharpi_model_load(const sharpi_plan* plan, sharpi_progress_fn progress,
                                void* user_data, sharpi_model** out,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require(plan, "plan"));
    if (plan->p->session_only) {
      return Status::error(Code::kInvalidArgument,
                           "the plan prices only a session of a loaded model; it places no "
                           "weights, so no model can be loaded from it");
    }
    sharpi::LoadProgress report;
    if (progress != nullptr) {
      report = [=](uint64_t done, uint64_t total) {
        return progress(user_data, SHARPI_PHASE_LOAD, done, total) == 0;
      };
    }
    auto handle = std::make_unique<sharpi_model>();
    if (plan->group == nullptr) {
      SHARPI_TRY_ASSIGN(handle->p, sharpi::Model::load(plan->context, plan->p, report));
    } else {
      SHARPI_TRY_ASSIGN(handle->p,
                        sharpi::Model::load_part(plan->context, plan->p, report, plan->group));
    }
    handle->text = handle->p->text();
    *out = handle.release();
    return Status::ok();
  });
}

sharpi_status sharpi_model_open_text(const char* gguf_path, sharpi_model** out,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require(gguf_path, "gguf_path"));
    SHARPI_TRY_ASSIGN(auto file, sharpi::GgufFile::open(gguf_path));
    auto handle = std::make_unique<sharpi_model>();
    SHARPI_TRY_ASSIGN(handle->text, sharpi::TextModel::create(std::move(file)));
    *out = handle.release();
    return Status::ok();
  });
}

void sharpi_model_destroy(sharpi_model* model) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete model;
}

sharpi_status sharpi_model_info(const sharpi_model* model, sharpi_model_summary* out,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(model, "model"));
    SHARPI_TRY(api::check_out_struct(out, 232, "sharpi_model_summary"));
    const sharpi::ModelSpec* spec = model->p == nullptr ? nullptr : &model->p->spec();
    const uint32_t stream_rows = model->p == nullptr ? SHARPI_UNSET : model->p->stream_rows();
    SHARPI_TRY_ASSIGN(const auto summary, summarise(*model->text, spec, stream_rows));
    api::write_out(summary, out);
    return Status::ok();
  });
}

sharpi_status sharpi_plan_model(const sharpi_plan* plan, sharpi_model_summary* out,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    SHARPI_TRY(api::check_out_struct(out, 232, "sharpi_model_summary"));
    const sharpi::Plan& p = *plan->p;
    SHARPI_TRY_ASSIGN(auto text, sharpi::TextModel::create(p.spec->file));
    SHARPI_TRY_ASSIGN(const auto summary, summarise(*text, p.spec.get(), p.summary().stream_rows));
    api::write_out(summary, out);
    return Status::ok();
  });
}

sharpi_status sharpi_plan_meta(const sharpi_plan* plan, const char* key, char* out, size_t cap,
                               size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    return copy_meta(*plan->p->spec->file, key, out, cap, out_len);
  });
}

sharpi_status sharpi_plan_meta_key(const sharpi_plan* plan, uint32_t index, char* out, size_t cap,
                                   size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    return copy_meta_key(*plan->p->spec->file, index, out, cap, out_len);
  });
}

sharpi_status sharpi_model_meta(const sharpi_model* model, const char* key, char* out, size_t cap,
                                size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(model, "model"));
    return copy_meta(model->text->file(), key, out, cap, out_len);
  });
}

sharpi_status sharpi_model_meta_key(const sharpi_model* model, uint32_t index, char* out,
                                    size_t cap, size_t* out_len,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(model, "model"));
    return copy_meta_key(model->text->file(), index, out, cap, out_len);
  });
}

sharpi_status sharpi_model_memory(const sharpi_model* model, sharpi_memory_row* rows,
                                  uint32_t row_size, uint32_t cap, uint32_t* out_n,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    return api::copy_rows(model->p->memory_rows(), rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_model_segments(const sharpi_model* model, sharpi_segment_info* rows,
                                    uint32_t row_size, uint32_t cap, uint32_t* out_n,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    return api::copy_structs(std::span<const sharpi_segment_info>(model->p->segment_stats()),
                             "sharpi_segment_info", rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_model_json(const sharpi_model* model, char* out, size_t cap, size_t* out_len,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    return api::copy_text(model->p->json(), out, cap, out_len);
  });
}

sharpi_status sharpi_model_experts(const sharpi_model* model, sharpi_expert_stats* out,
                                   sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    SHARPI_TRY(api::check_out_struct(out, 64, "sharpi_expert_stats"));
    api::write_out(model->p->expert_stats(), out);
    return Status::ok();
  });
}

sharpi_status sharpi_model_expert_uses(const sharpi_model* model, uint32_t layer, uint64_t* out,
                                       uint32_t cap, uint32_t* out_n,
                                       sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    const uint32_t n = model->p->spec().n_layers();
    if (layer >= n) {
      return Status::error(Code::kInvalidArgument,
                           "layer %u does not exist; the model has %u layers", layer, n);
    }
    const std::vector<uint64_t> uses = model->p->expert_uses(layer);
    return api::copy_array(std::span<const uint64_t>(uses), out, cap, out_n);
  });
}

sharpi_status sharpi_model_pin_experts(const sharpi_model* model, const uint32_t* layers,
                                       const uint32_t* experts, uint32_t n,
                                       sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    if (n == 0) return Status::ok();
    SHARPI_TRY(api::require(layers, "layers"));
    SHARPI_TRY(api::require(experts, "experts"));
    std::vector<sharpi::ExpertId> ids(n);
    for (uint32_t i = 0; i < n; ++i) ids[i] = {layers[i], experts[i]};
    return model->p->pin_experts(ids);
  });
}
