// SPDX-License-Identifier: MIT
#include "model/model_spec.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "gguf/ggml_type.h"
#include "gguf/gguf_parse.h"
#include "model/arch_registry.h"
#include "model/pooled_spec.h"
#include "model/spec_builder.h"

namespace sharpi {

const AttentionSpec* LayerSpec::attends() const {
  switch (mixer) {
    case MixerKind::kAttention:
      return &attention;
    case MixerKind::kGatedDeltaNet:
    case MixerKind::kMamba2:
    case MixerKind::kNone:
      return nullptr;
  }
  return nullptr;
}

bool LayerSpec::is_recurrent() const {
  switch (mixer) {
    case MixerKind::kAttention:
    case MixerKind::kNone:
      return false;
    case MixerKind::kGatedDeltaNet:
    case MixerKind::kMamba2:
      return true;
  }
  return false;
}

Recurrence LayerSpec::recurrence() const {
  Recurrence r;
  switch (mixer) {
    case MixerKind::kAttention:
    case MixerKind::kNone:
      break;
    case MixerKind::kMamba2:
      r.state = uint64_t{mamba.inner()} * mamba.state_dim;
      r.conv = uint64_t{mamba.conv_kernel - 1} * mamba.conv_dim();
      r.inputs.resize(Mamba2Spec::kInputs);
      r.inputs[Mamba2Spec::kXbc] = mamba.conv_dim();
      r.inputs[Mamba2Spec::kDt] = mamba.n_heads;
      r.in_place = uint64_t{mamba.conv_dim()} + mamba.n_heads;
      r.outs = mamba.inner();
      break;
    case MixerKind::kGatedDeltaNet:
      r.state = uint64_t{delta.n_v_heads} * delta.head_dim * delta.head_dim;
      r.conv = uint64_t{delta.conv_kernel - 1} * delta.conv_dim();
      r.inputs.resize(DeltaNetSpec::kInputs);
      r.inputs[DeltaNetSpec::kQkv] = delta.conv_dim();
      r.inputs[DeltaNetSpec::kAlpha] = r.inputs[DeltaNetSpec::kBeta] = delta.n_v_heads;
      r.in_place = delta.conv_dim();
      r.outs = delta.value_dim();
      break;
  }
  return r;
}

std::vector<const TensorRef*> LayerSpec::mixer_products() const {
  const AttentionSpec& a = attention;
  const DeltaNetSpec& d = delta;
  const Mamba2Spec& m = mamba;
  switch (mixer) {
    case MixerKind::kAttention:
      return {&a.q, &a.k, &a.v, &a.o, &a.latent.q_a, &a.latent.k_b, &a.latent.v_b};
    case MixerKind::kGatedDeltaNet:
      return {&d.qkv, &d.gate, &d.alpha, &d.beta, &d.out};
    case MixerKind::kMamba2:
      return {&m.gate, &m.xbc, &m.dt, &m.out};
    case MixerKind::kNone:
      break;
  }
  return {};
}

std::vector<const TensorRef*> LayerSpec::mixer_vectors() const {
  const AttentionSpec& a = attention;
  const DeltaNetSpec& d = delta;
  const Mamba2Spec& m = mamba;
  switch (mixer) {
    case MixerKind::kAttention:
      return {&a.q_norm, &a.k_norm, &a.q_bias,        &a.k_bias,        &a.v_bias,
              &a.o_bias, &a.sinks,  &a.latent.q_norm, &a.latent.kv_norm};
    case MixerKind::kGatedDeltaNet:
      return {&d.conv1d, &d.dt_bias, &d.a, &d.norm};
    case MixerKind::kMamba2:
      return {&m.conv1d, &m.conv_bias, &m.dt_bias, &m.a, &m.d, &m.norm};
    case MixerKind::kNone:
      break;
  }
  return {};
}

std::vector<const TensorRef*> LayerSpec::ffn_others() const {
  const FfnSpec& f = ffn;
  return {&ffn_norm,
          &ffn_post_norm,
          &ple_gate,
          &ple_proj,
          &ple_post_norm,
          &f.router,
          &f.shared_gate_inp,
          &f.shared_gate,
          &f.shared_up,
          &f.shared_down,
          &f.router_scale,
          &f.expert_norm,
          &f.expert_post_norm,
          &f.shared_post_norm,
          &f.expert_scale,
          &f.router_bias,
          &f.choice_bias,
          &f.gate_bias,
          &f.up_bias,
          &f.down_bias,
          &ffn_residual_norm.weight,
          &ffn_residual_norm.bias};
}

bool ModelSpec::is_hybrid() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& l) { return l.is_recurrent(); });
}

bool ModelSpec::is_encoder() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerSpec& l) {
    return l.attends() != nullptr && !l.attends()->causal;
  });
}

bool ModelSpec::has_window() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& l) { return l.window() > 0; });
}

uint64_t ModelSpec::saved_id(bool long_rope) const {
  // Stored keys depend on the angles, so models that differ in them are no more the same.
  return file->content_id() ^ (long_rope ? 0x9E3779B97F4A7C15u : 0);
}

bool ModelSpec::has_long_rope() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerSpec& l) {
    return l.attends() != nullptr && l.attends()->rope.is_long;
  });
}

std::shared_ptr<const ModelSpec> make_mtp_spec(const ModelSpec& spec, uint32_t n_draft_vocab,
                                               bool table_on_host) {
  const MtpSpec& m = spec.mtp;
  auto own = std::make_shared<ModelSpec>();
  own->file = spec.file;
  own->architecture = spec.architecture;
  own->name = spec.name;
  own->n_embd = spec.n_embd;
  own->n_vocab = spec.n_vocab;
  own->n_ctx_train = spec.n_ctx_train;
  own->rms_eps = spec.rms_eps;
  own->embedding_scale = spec.embedding_scale;
  own->logit_scale = spec.logit_scale;
  own->logit_softcap = spec.logit_softcap;
  own->layers = {m.layer};
  own->token_embd = m.embd ? m.embd : spec.token_embd;
  own->output_norm = m.head_norm ? m.head_norm : spec.output_norm;
  own->output = m.head ? m.head : spec.output;
  own->tied_output = own->output.tensor == own->token_embd.tensor;
  own->default_kv_dtype = spec.default_kv_dtype;
  own->pair = m.pair;
  own->pair.table_on_host = table_on_host && !m.embd;
  if (n_draft_vocab != 0 && n_draft_vocab < spec.n_vocab) {
    own->n_vocab = n_draft_vocab;
    own->output.n_left_out = own->output.n_out - n_draft_vocab;
    own->output.n_out = n_draft_vocab;
  }
  if (!m.embd) own->lent.push_back(own->token_embd.tensor);
  if (!m.head_norm) own->lent.push_back(own->output_norm.tensor);
  if (!m.head) own->lent.push_back(own->output.tensor);
  return own;
}

void table_row(const TensorRef& table, uint64_t row, float* out) {
  dequantize_row(table.tensor->type, table.tensor->data + row * table.row_bytes(), out, table.n_in);
}

void embed_token(const ModelSpec& spec, int32_t token, float* out) {
  table_row(spec.token_embd, static_cast<uint64_t>(token), out);
  if (spec.embedding_scale == 1.0f) return;
  for (uint64_t i = 0; i < spec.n_embd; ++i) out[i] *= spec.embedding_scale;
}

uint64_t ModelSpec::parameter_count() const {
  std::unordered_set<const GgufTensor*> counted;  // a tied head and shared rope factors count once
  uint64_t n = 0;
  const auto add = [&](const GgufTensor* t) {
    if (t != nullptr && counted.insert(t).second) n += t->elements();
  };
  for (const TensorRef* t :
       {&token_embd, &output_norm, &output, &ple_embd, &ple_model_proj, &ple_proj_norm,
        &position_embd, &token_types, &embd_norm.weight, &embd_norm.bias, &pooled.dense,
        &pooled.dense_bias, &pooled.out, &pooled.out_bias}) {
    add(t->tensor);
  }
  for (const TensorRef& t : pooled.projections) add(t.tensor);
  for (const LayerSpec& l : layers) {
    const FfnSpec& f = l.ffn;
    for (const TensorRef* t : l.mixer_products()) add(t->tensor);
    for (const TensorRef* t : l.mixer_vectors()) add(t->tensor);
    for (const TensorRef* t : l.ffn_others()) add(t->tensor);
    for (const TensorRef* t : {&l.mixer_norm, &l.mixer_post_norm, &l.mixer_residual_norm.weight,
                               &l.mixer_residual_norm.bias, &f.gate, &f.up, &f.down}) {
      add(t->tensor);
    }
    if (const AttentionSpec* attention = l.attends()) {
      add(attention->rope.freq_factors);
      add(attention->rope.long_factors);
    }
  }
  return n;
}

Result<std::shared_ptr<const ModelSpec>> load_model_spec(std::shared_ptr<const GgufFile> file) {
  SHARPI_TRY_ASSIGN(const std::optional<std::string_view> arch,
                    file->get_string("general.architecture"));
  if (!arch) return Status::error(Code::kFormat, "key general.architecture is missing");
  const Architecture* known = find_architecture(*arch);
  if (known == nullptr && *arch == "clip") {
    return Status::error(Code::kUnsupported,
                         "this file holds towers of images or sound alone (architecture clip); the "
                         "text model is a file of its own");
  }
  if (known == nullptr) {
    return Status::error(Code::kUnsupported, "architecture %s is not supported, only %s",
                         gguf_quoted(*arch).c_str(), architecture_names().c_str());
  }
  auto spec = std::make_shared<ModelSpec>();
  spec->architecture = std::string(*arch);
  SHARPI_TRY_ASSIGN(const std::optional<std::string_view> name, file->get_string("general.name"));
  spec->name = std::string(name.value_or(std::string_view()));
  if (known->parts != nullptr) {
    SpecBuilder whole(*file, spec->architecture);
    SHARPI_TRY_ASSIGN(std::vector<GgufPart> parts, known->parts(whole));
    if (!parts.empty()) {
      SHARPI_TRY_ASSIGN(file, file->with_parts(std::move(parts)));
    }
  }
  SpecBuilder builder(*file, spec->architecture);
  SHARPI_TRY(known->load(builder, *spec));
  SHARPI_TRY(load_pooled(builder, spec.get()));
  SHARPI_TRY_ASSIGN(spec->left_out, builder.check_leftovers());
  spec->default_kv_dtype = spec->is_hybrid() ? KvDtype::kBf16 : KvDtype::kF32;
  spec->file = std::move(file);
  return std::shared_ptr<const ModelSpec>(std::move(spec));
}

std::shared_ptr<const ModelSpec> spec_for_context(std::shared_ptr<const ModelSpec> spec,
                                                  uint32_t n_ctx) {
  const auto chosen = [n_ctx](const RopeSpec& r) { return r.long_values && n_ctx > r.long_from; };
  const auto changes = [&](const LayerSpec& l) {
    return l.attends() != nullptr && l.attends()->rope.is_long != chosen(l.attends()->rope);
  };
  if (std::none_of(spec->layers.begin(), spec->layers.end(), changes)) return spec;
  auto other = std::make_shared<ModelSpec>(*spec);
  for (LayerSpec& l : other->layers) {
    if (changes(l)) l.attention.rope.is_long = chosen(l.attention.rope);
  }
  return other;
}

Result<std::shared_ptr<const ModelSpec>> reload_spec(const ModelSpec& spec,
                                                     std::shared_ptr<const GgufFile> file) {
  SHARPI_TRY_ASSIGN(std::shared_ptr<const ModelSpec> again, load_model_spec(std::move(file)));
  if (spec.part.is_part()) again = make_part_spec(*again, spec.part, spec.n_layers());
  return spec_for_context(std::move(again), spec.has_long_rope() ? UINT32_MAX : 0);
}

std::shared_ptr<const ModelSpec> make_part_spec(const ModelSpec& spec, const ModelPart& part,
                                                uint32_t n) {
  auto own = std::make_shared<ModelSpec>(spec);
  own->part = part;
  const auto first = spec.layers.begin() + part.first;
  own->layers.assign(first, first + n);
  for (LayerSpec& l : own->layers) {
    if (l.attention.kv_source >= 0) l.attention.kv_source -= static_cast<int32_t>(part.first);
  }
  own->tied_output = false;
  if (!part.has_embedding()) own->token_embd = {};
  if (!part.has_head()) own->output = own->output_norm = {};
  own->n_mtp_layers = 0;
  own->mtp_bytes = 0;
  own->mtp = {};
  return own;
}

}  // namespace sharpi
