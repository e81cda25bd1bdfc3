// SPDX-License-Identifier: MIT
// Which kernel a product goes to, and the parameters it wants.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/matvec.h"

namespace sharpi::cuda {
namespace {

bool is_gated_epilogue(Epilogue e) {
  return e == Epilogue::kSwiGlu || e == Epilogue::kGeGlu;
}

uint64_t align_up(uint64_t n) {
  return (n + 255) / 256 * 256;
}

Status check_tasks(const MatmulParams& p) {
  const bool gated = is_gated_epilogue(p.epilogue);
  if (p.n_tasks == 0 || p.n_tasks > kMaxMatmulTasks || (gated && p.n_tasks != 2)) {
    return Status::error(Code::kInternal, "matmul of %u tasks", p.n_tasks);
  }
  const uint32_t n_in = p.tasks[0].w.n_in;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    const DeviceMatrix& w = p.tasks[t].w;
    if (!w || w.n_in != n_in || n_in % 8 != 0 || w.n_out == 0 || !ggml_traits(w.type).computable) {
      return Status::error(Code::kInternal, "matmul: task %u is %u x %u of %s", t, w.n_out, w.n_in,
                           ggml_traits(w.type).name);
    }
  }
  if (gated && p.tasks[0].w.n_out != p.tasks[1].w.n_out) {
    return Status::error(Code::kInternal, "matmul: gate of %u rows, up of %u", p.tasks[0].w.n_out,
                         p.tasks[1].w.n_out);
  }
  if (p.x_stride % 4 != 0 || reinterpret_cast<uintptr_t>(p.x) % 16 != 0) {
    return Status::error(Code::kInternal, "matmul: rows are not aligned to 16 bytes");
  }
  return Status::ok();
}

StreamTask stream_task(const MatmulTask& t) {
  StreamTask s = {};
  const uint64_t row_bytes = ggml_row_bytes(t.w.type, t.w.n_in);
  const GgmlTypeTraits& traits = ggml_traits(t.w.type);
  s.data = reinterpret_cast<const uint8_t*>(t.w.data);
  s.expert_bytes = t.w.expert_bytes;
  s.y = t.y;
  s.y_stride = t.y_stride;
  s.panel_bytes = static_cast<uint32_t>(row_bytes * kPanelRows);
  s.unit_bytes = kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
  s.n_out = t.w.n_out;
  s.tail_bytes =
      s.panel_bytes - (t.w.n_in + kUnitColumns - 1) / kUnitColumns * s.unit_bytes + s.unit_bytes;
  s.type = t.w.type;
  s.layout = t.w.layout;
  return s;
}

uint32_t panels_of(uint32_t n_out) {
  return (n_out + kPanelRows - 1) / kPanelRows;
}

/// All of StreamParams that a dense product sets.
StreamParams stream_params(const MatmulParams& p) {
  StreamParams s = {};
  s.x = p.x;
  s.x_stride = p.x_stride;
  s.norm_weight = p.norm_weight;
  s.norm_eps = p.norm_eps;
  s.row_scale = p.row_scale;
  s.n_rows = p.n_rows;
  s.n_in = p.tasks[0].w.n_in;
  s.n_segments = 1;
  s.n_used = 1;
  s.epilogue = p.epilogue;
  s.mode = StreamMode::kDense;
  s.units = (s.n_in + kUnitColumns - 1) / kUnitColumns;
  s.by_units = make_divider(s.units);
  s.by_panels = make_divider(1);
  return s;
}

void add_task(StreamParams* s, const MatmulTask& t) {
  StreamTask task = stream_task(t);
  task.first_group = s->n_groups;
  const bool second = is_gated_epilogue(s->epilogue) && s->n_tasks == 1;
  s->tasks[s->n_tasks++] = task;
  if (!second) s->n_groups += panels_of(t.w.n_out);
}

bool streams_in_f16(const MatmulConfig& config, const DeviceMatrix& w, bool force_f32) {
  return w.layout == WeightLayout::kTiles && !config.exact && !force_f32;
}

/// Up to kMatvecRows rows: the tasks in tiles in one launch, the others in another.
Status run_streams(const MatmulConfig& config, const MatmulParams& p, cudaStream_t stream) {
  StreamParams f16 = stream_params(p), f32 = f16;
  bool all = true;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    all = all && streams_in_f16(config, p.tasks[t].w, p.force_f32);
  }
  const bool together = is_gated_epilogue(p.epilogue);
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    const bool half = together ? all : streams_in_f16(config, p.tasks[t].w, p.force_f32);
    add_task(half ? &f16 : &f32, p.tasks[t]);
  }
  if (f16.n_tasks != 0)
    SHARPI_TRY(launch_matvec(config, f16, 1, p.workspace, p.workspace_bytes, stream));
  if (f32.n_tasks != 0) SHARPI_TRY(launch_matvec_f32(config, f32, 1, stream));
  return Status::ok();
}

/// Routed experts of a few rows: every row by itself.
Status run_expert_streams(const MatmulConfig& config, const MoeParams& p, cudaStream_t stream) {
  auto* h = reinterpret_cast<float*>(p.workspace);
  MatmulParams up = {};
  up.x = p.x;
  up.x_stride = p.x_stride;
  up.n_rows = 1;
  up.norm_weight = p.norm_weight;
  up.norm_eps = p.norm_eps;
  up.n_tasks = 2;
  up.tasks[0] = {p.gate, h, p.gate.n_out};
  up.tasks[1] = {p.up, h, p.gate.n_out};
  up.epilogue = p.activation;
  StreamParams s = stream_params(up);
  add_task(&s, up.tasks[0]);
  add_task(&s, up.tasks[1]);
  s.mode = StreamMode::kExpertsUp;
  s.ids = p.ids;
  s.n_used = p.n_used;
  s.by_panels = make_divider(panels_of(p.gate.n_out));
  s.n_groups = s.by_panels.divisor * p.n_used;
  const bool up_f16 = streams_in_f16(config, p.gate, false) && streams_in_f16(config, p.up, false);
  SHARPI_TRY(up_f16 ? launch_matvec(config, s, p.n_rows, nullptr, 0, stream)
                    : launch_matvec_f32(config, s, p.n_rows, stream));

  MatmulParams down = {};
  down.x = h;
  down.x_stride = uint64_t{p.n_used} * p.down.n_in;
  down.n_rows = 1;
  down.n_tasks = 1;
  down.tasks[0] = {p.down, p.y, p.y_stride};
  down.epilogue = p.add ? Epilogue::kAdd : Epilogue::kStore;
  s = stream_params(down);
  add_task(&s, down.tasks[0]);
  s.mode = StreamMode::kExpertsDown;
  s.ids = p.ids;
  s.weights = p.weights;
  s.n_used = s.n_segments = p.n_used;
  return streams_in_f16(config, p.down, false)
             ? launch_matvec(config, s, p.n_rows, nullptr, 0, stream)
             : launch_matvec_f32(config, s, p.n_rows, stream);
}

}  // namespace

Status make_matmul_config(MatmulConfig* config) {
  int device = 0, major = 0, minor = 0;
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    return kernel_status(cudaDeviceGetAttribute(value, attribute, device), "attributes");
  };
  SHARPI_TRY(kernel_status(cudaGetDevice(&device), "device"));
  SHARPI_TRY(get(&config->n_sm, cudaDevAttrMultiProcessorCount));
  SHARPI_TRY(get(&major, cudaDevAttrComputeCapabilityMajor));
  SHARPI_TRY(get(&minor, cudaDevAttrComputeCapabilityMinor));
  SHARPI_TRY(get(&config->max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  config->compute_capability = 10 * major + minor;
  return prepare_matvec(config->max_shared_bytes);
}

Status launch_matmul(const MatmulConfig& config, const MatmulParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_tasks(p));
  return run_streams(config, p, stream);
}

uint64_t moe_workspace_bytes(const MatmulConfig&, uint32_t max_rows, uint32_t, uint32_t d_ff,
                             uint32_t, uint32_t n_used) {
  return align_up(uint64_t{max_rows} * n_used * d_ff * sizeof(float));
}

Status launch_moe(const MatmulConfig& config, const MoeParams& p, cudaStream_t stream) {
  return run_expert_streams(config, p, stream);
}

}  // namespace sharpi::cuda
