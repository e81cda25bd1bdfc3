// SPDX-License-Identifier: MIT
// Chooses the kernel of a matrix product (GEMV or GEMM) by its number of rows and its weight type,
// and fills in its parameters.
#include <algorithm>

#include "cuda/kernels/device_query.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/paths.h"
#include "cuda/kernels/products/chain.h"
#include "cuda/kernels/products/cublas_lt.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/products/matvec.h"

namespace sharpi::cuda {
namespace {

uint64_t align_up(uint64_t n) {
  return (n + 255) / 256 * 256;
}

Status check_tasks(const MatmulParams& p) {
  const bool gated = is_gated_epilogue(p.epilogue);
  if (p.n_tasks == 0 || p.n_tasks > kMaxMatmulTasks || (gated && p.n_tasks != 2) ||
      p.epilogue == Epilogue::kSquare) {
    return Status::error(Code::kInternal, "a product cannot have %u tasks with epilogue %u",
                         p.n_tasks, static_cast<uint32_t>(p.epilogue));
  }
  const uint32_t n_in = p.tasks[0].w.n_in;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    const DeviceMatrix& w = p.tasks[t].w;
    if (!w || w.n_in != n_in || n_in % kColumnStep != 0 || w.n_out == 0 ||
        !ggml_traits(w.type).computable || (p.tasks[t].bias && p.row_scale)) {
      return Status::error(
          Code::kInternal,
          "task %u of a product cannot be computed: its matrix is %u x %u of type %s", t, w.n_out,
          w.n_in, ggml_traits(w.type).name);
    }
  }
  if (gated && p.tasks[0].w.n_out != p.tasks[1].w.n_out) {
    return Status::error(Code::kInternal, "a gated product has a gate of %u rows, but up has %u",
                         p.tasks[0].w.n_out, p.tasks[1].w.n_out);
  }
  if (p.n_rows == 0 || p.x_stride % 4 != 0 || reinterpret_cast<uintptr_t>(p.x) % 16 != 0) {
    return Status::error(Code::kInternal,
                         "the rows of a product are missing or not aligned to 16 bytes");
  }
  return Status::ok();
}

Status check_moe(const MoeParams& p) {
  const DeviceMatrix &up = p.up, &gate = p.gate;
  const bool gated = is_gated_epilogue(p.activation);
  const bool gates = gated ? gate.n_out == up.n_out && gate.n_in == up.n_in &&
                                 gate.n_experts == up.n_experts && ggml_traits(gate.type).computable
                           : p.activation == Epilogue::kSquare && p.gate_bias == nullptr;
  const bool shapes = static_cast<bool>(gate) == gated && up && p.down && p.down.n_in == up.n_out &&
                      p.down.n_out == up.n_in && up.n_experts == p.down.n_experts;
  const bool kinds = ggml_traits(up.type).computable && ggml_traits(p.down.type).computable;
  if (!gates || !shapes || !kinds || p.n_rows == 0 || p.n_used == 0 || p.n_used > 32 ||
      p.x_stride % 4 != 0 || up.n_in % kColumnStep != 0 || up.n_out % kColumnStep != 0 ||
      p.workspace == nullptr || reinterpret_cast<uintptr_t>(p.x) % 16 != 0) {
    return Status::error(Code::kInternal,
                         "%u of %u experts of %u x %u weights cannot be computed for %u rows",
                         p.n_used, up.n_experts, up.n_out, up.n_in, p.n_rows);
  }
  return Status::ok();
}

StreamTask stream_task(const MatmulTask& t) {
  StreamTask s = {};
  s.data = reinterpret_cast<const uint8_t*>(t.w.data);
  s.expert_bytes = t.w.expert_bytes;
  s.y = t.y;
  s.y_stride = t.y_stride;
  s.panel_bytes = panel_bytes_of(t.w.type, t.w.n_in);
  s.unit_bytes = unit_bytes_of(t.w.type);
  s.n_out = t.w.n_out;
  s.tail_bytes =
      s.panel_bytes - (t.w.n_in + kUnitColumns - 1) / kUnitColumns * s.unit_bytes + s.unit_bytes;
  s.type = t.w.type;
  s.layout = t.w.layout;
  s.bias = t.bias;
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
  s->biased = s->biased || task.bias != nullptr;
  s->tasks[s->n_tasks++] = task;
  if (!second) s->n_groups += panels_of(t.w.n_out);
}

bool streams_in_f16(const KernelConfig& config, const DeviceMatrix& w, bool force_f32) {
  return w.layout == WeightLayout::kTiles && !config.exact && !force_f32;
}

bool streams_weights(const KernelConfig& config, uint32_t n_rows) {
  return n_rows <= kStreamedRows && !config.deterministic;
}

/// Whether all tasks go to the kernel of weights in tiles.
bool all_in_f16(const KernelConfig& config, const MatmulParams& p) {
  bool all = true;
  for (uint32_t t = 0; t < p.n_tasks; ++t)
    all = all && streams_in_f16(config, p.tasks[t].w, p.force_f32);
  return all;
}

bool streams_product(const KernelConfig& config, const MatmulParams& p) {
  return !config.deterministic &&
         p.n_rows <= (all_in_f16(config, p) ? streamed_tile_rows(config) : kStreamedRows);
}

/// Up to kMatvecRows rows: the tasks in tiles in one launch, the others in their own. `branch`:
/// only where all are in tiles.
Status run_streams(const KernelConfig& config, const MatmulParams& p, cudaStream_t stream,
                   const ChainBranch* branch = nullptr) {
  StreamParams f16 = stream_params(p), f32 = f16;
  const bool all = all_in_f16(config, p), together = is_gated_epilogue(p.epilogue);
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    const bool half = together ? all : streams_in_f16(config, p.tasks[t].w, p.force_f32);
    add_task(half ? &f16 : &f32, p.tasks[t]);
  }
  if (f16.n_tasks != 0)
    SHARPI_TRY(launch_matvec(config, f16, 1, p.workspace, p.workspace_bytes, stream, branch));
  if (f32.n_tasks == 0) return Status::ok();
  for (uint32_t first = 0; first < p.n_rows; first += kMatvecF32Rows) {
    const uint32_t n = std::min(kMatvecF32Rows, p.n_rows - first);
    SHARPI_TRY(launch_matvec_f32(config, some_rows(f32, first, n), 1, stream));
  }
  return Status::ok();
}

/// Routed experts of a few rows: every row by itself.
Status run_expert_streams(const KernelConfig& config, const MoeParams& p, cudaStream_t stream) {
  auto* h = reinterpret_cast<float*>(p.workspace);
  MatmulParams up = {};
  up.x = p.x;
  up.x_stride = p.x_stride;
  up.n_rows = 1;
  up.norm_weight = p.norm_weight;
  up.norm_eps = p.norm_eps;
  const bool gated = is_gated_epilogue(p.activation);
  if (gated) up.tasks[up.n_tasks++] = {p.gate, h, p.up.n_out, p.gate_bias};
  up.tasks[up.n_tasks++] = {p.up, h, p.up.n_out, p.up_bias};
  up.epilogue = p.activation;
  StreamParams s = stream_params(up);
  for (uint32_t t = 0; t < up.n_tasks; ++t) add_task(&s, up.tasks[t]);
  s.mode = StreamMode::kExpertsUp;
  s.ids = p.ids;
  s.slot_of_expert = p.slot_of_expert;
  s.n_used = p.n_used;
  s.by_panels = make_divider(panels_of(p.up.n_out));
  s.n_groups = s.by_panels.divisor * p.n_used;
  const bool up_f16 =
      (!gated || streams_in_f16(config, p.gate, false)) && streams_in_f16(config, p.up, false);
  const bool up_streams = up_f16 && takes_row(config, s);
  SHARPI_TRY(up_f16 ? launch_matvec(config, s, p.n_rows, nullptr, 0, stream)
                    : launch_matvec_f32(config, s, p.n_rows, stream));

  MatmulParams down = {};
  down.x = h;
  down.x_stride = uint64_t{p.n_used} * p.down.n_in;
  down.n_rows = 1;
  down.n_tasks = 1;
  down.tasks[0] = {p.down, p.y, p.y_stride, p.down_bias};
  down.epilogue = p.add ? Epilogue::kAdd : Epilogue::kStore;
  s = stream_params(down);
  add_task(&s, down.tasks[0]);
  s.mode = StreamMode::kExpertsDown;
  s.ids = p.ids;
  s.slot_of_expert = p.slot_of_expert;
  s.weights = p.weights;
  s.n_used = s.n_segments = p.n_used;
  // The launch before waits for ids and weights in all of its blocks before this one may start.
  s.ids_known = up_streams;
  return streams_in_f16(config, p.down, false)
             ? launch_matvec(config, s, p.n_rows, nullptr, 0, stream)
             : launch_matvec_f32(config, s, p.n_rows, stream);
}

/// Where things are in the workspace of a product of many rows.
struct GemmSpace {
  uint64_t image_rows, image, tiles, tile_bytes;
  uint64_t scalars, up, library;  // cuBLASLt, behind the image
  uint64_t bytes;
};
/// From how many rows cuBLASLt, for weights in tiles: it wins where there is no warpgroup kernel.
constexpr uint32_t kCublasRows = 192;

bool use_cublas(const KernelConfig& config, uint32_t n_rows) {
  if (config.cublas_lt == nullptr || config.deterministic || config.exact) return false;
  if (config.gemm_path == GemmPath::kCublasLt) return true;
  return config.gemm_path == GemmPath::kAuto && n_rows >= kCublasRows && !have_gemm_sm90(config);
}

GemmSpace gemm_space(const KernelConfig& config, uint32_t n_rows, uint32_t n_in, uint32_t n_out) {
  GemmSpace s = {};
  s.image_rows = (uint64_t{n_rows} + 7) / 8 * 8;
  s.image = align_up(s.image_rows * sizeof(float));
  s.tiles = s.image + align_up(image_bytes(s.image_rows, n_in));
  if (config.cublas_lt != nullptr) {
    s.scalars = s.tiles;
    s.up = s.scalars + 256;
    s.library = s.up + align_up(uint64_t{n_rows} *
                                std::min((n_out + 3) / 4 * 4, kCublasGatedSlice) * sizeof(float));
    s.tiles = s.library + kCublasWorkspaceBytes;
  }
  const uint64_t panel = f16_panel_bytes(n_in);
  s.tile_bytes = std::max(2 * panel, std::min(kF16TileBytes, 2 * panels_of(n_out) * panel));
  s.bytes = align_up(s.tiles + s.tile_bytes);
  return s;
}

/// The library's epilogues have none.
bool has_bias(const MatmulParams& p) {
  return std::any_of(p.tasks, p.tasks + p.n_tasks,
                     [](const MatmulTask& t) { return t.bias != nullptr; });
}

bool has_fragments(const MatmulParams& p, uint32_t t) {
  const bool pair = !is_gated_epilogue(p.epilogue) || p.tasks[0].w.type == p.tasks[1].w.type;
  const bool tiles = is_gated_epilogue(p.epilogue) ? p.tasks[0].w.layout == WeightLayout::kTiles &&
                                                         p.tasks[1].w.layout == WeightLayout::kTiles
                                                   : p.tasks[t].w.layout == WeightLayout::kTiles;
  return pair && tiles;
}

/// Tasks (one, or gate and up) whose weights have to become f16 tiles first, slice by slice.
Status run_converted(const KernelConfig& config, const MatmulParams& p, GemmParams g, uint32_t t,
                     const GemmSpace& space, cudaStream_t stream) {
  const uint32_t n = is_gated_epilogue(p.epilogue) ? 2 : 1, n_out = p.tasks[t].w.n_out;
  const uint64_t panel = f16_panel_bytes(g.n_in);
  auto slice = static_cast<uint32_t>(
      std::min<uint64_t>(space.tile_bytes / (panel * n), panels_of(n_out)) * kPanelRows);
  if (slice == 0) {
    return Status::error(Code::kInternal,
                         "the product has no room in its workspace for a panel of %u columns",
                         g.n_in);
  }
  auto* area = reinterpret_cast<uint8_t*>(p.workspace) + space.tiles;
  for (uint32_t first = 0; first < n_out; first += slice) {
    const uint32_t rows = std::min(slice, n_out - first);
    g.n_tasks = n;
    for (uint32_t k = 0; k < n; ++k) {
      g.tasks[k] = gemm_task(p.tasks[t + k].w, p.tasks[t + k].y, p.tasks[t + k].y_stride);
      SHARPI_TRY(convert_task(p.tasks[t + k].w, first, rows, 0, 1,
                              area + k * panels_of(slice) * panel, &g.tasks[k], stream));
      g.tasks[k].y += first;
      g.tasks[k].bias = p.tasks[t + k].bias != nullptr ? p.tasks[t + k].bias + first : nullptr;
    }
    SHARPI_TRY(launch_gemm(config, g, 0, 0, stream));
  }
  return Status::ok();
}

/// Any number of rows: tensor cores, or f32.
Status run_gemm(const KernelConfig& config, const MatmulParams& p, cudaStream_t stream) {
  uint32_t max_out = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) max_out = std::max(max_out, p.tasks[t].w.n_out);
  const uint32_t n_in = p.tasks[0].w.n_in;
  const bool f32 = config.exact || p.force_f32;
  GemmSpace space = gemm_space(config, p.n_rows, n_in, max_out);
  const uint64_t needed = f32 ? space.image : space.tiles;
  const bool room = p.workspace_bytes >= needed;
  space.tile_bytes = room ? std::min(space.tile_bytes, p.workspace_bytes - needed) : 0;
  if (!room || reinterpret_cast<uintptr_t>(p.workspace) % 256 != 0) {
    return Status::error(Code::kInternal,
                         "the product has a workspace of %llu bytes, but %llu are needed",
                         static_cast<unsigned long long>(p.workspace_bytes),
                         static_cast<unsigned long long>(needed));
  }
  auto* base = reinterpret_cast<uint8_t*>(p.workspace);
  StageParams stage = {};
  stage.x = p.x;
  stage.x_stride = p.x_stride;
  stage.norm_weight = p.norm_weight;
  stage.norm_eps = p.norm_eps;
  stage.row_scale = is_gated_epilogue(p.epilogue) ? nullptr : p.row_scale;
  stage.n_rows = p.n_rows;
  stage.n_in = n_in;
  stage.image = f32 ? nullptr : base + space.image;
  stage.image_rows = space.image_rows;
  stage.factor = reinterpret_cast<float*>(base);
  if (!f32 && !has_bias(p) && use_cublas(config, p.n_rows)) {
    return run_cublas(
        {config.cublas_lt, stage, base + space.image, base + space.tiles, space.tile_bytes,
         reinterpret_cast<float*>(base + space.up), base + space.scalars, base + space.library},
        p, stream);
  }
  SHARPI_TRY(launch_stage_image(stage, config.pdl, stream));

  GemmParams g = {};
  g.image = stage.image;
  g.image_rows = space.image_rows;
  g.factor = stage.factor;
  g.n_experts = 1;
  g.n_rows = p.n_rows;
  g.n_in = n_in;
  g.n_image_blocks = image_blocks(n_in);
  g.epilogue = p.epilogue;
  g.x = p.x;
  g.x_stride = p.x_stride;
  g.norm_weight = p.norm_weight;
  GemmParams direct = g;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    if (f32 || has_fragments(p, t)) {
      GemmTask& task = direct.tasks[direct.n_tasks++];
      task = gemm_task(p.tasks[t].w, p.tasks[t].y, p.tasks[t].y_stride);
      task.bias = p.tasks[t].bias;
    }
  }
  if (f32) return launch_gemm_f32(config, direct, 0, stream);
  if (direct.n_tasks != 0) SHARPI_TRY(launch_gemm(config, direct, 0, 0, stream));
  for (uint32_t t = 0; t < p.n_tasks; t += is_gated_epilogue(p.epilogue) ? 2 : 1) {
    if (!has_fragments(p, t)) SHARPI_TRY(run_converted(config, p, g, t, space, stream));
  }
  return Status::ok();
}

}  // namespace

GemmTask gemm_task(const DeviceMatrix& w, float* y, uint64_t y_stride) {
  GemmTask t = {};
  t.data = reinterpret_cast<const uint8_t*>(w.data);
  t.expert_bytes = w.expert_bytes;
  t.y = y;
  t.y_stride = y_stride;
  t.panel_bytes = ggml_row_bytes(w.type, w.n_in) * kPanelRows;
  t.n_out = w.n_out;
  t.type = w.type;
  t.layout = w.layout;
  return t;
}

Status convert_task(const DeviceMatrix& w, uint32_t first, uint32_t n, uint32_t e,
                    uint32_t n_experts, uint8_t* dst, GemmTask* task, cudaStream_t stream) {
  F16TilesParams p = {};
  p.data = reinterpret_cast<const uint8_t*>(w.data) + e * w.expert_bytes +
           first * ggml_row_bytes(w.type, w.n_in);
  p.type = w.type;
  p.layout = w.layout;
  p.n_in = w.n_in;
  p.n_out = n;
  p.dst = dst;
  p.n_experts = n_experts;
  p.expert_bytes = w.expert_bytes;
  task->data = dst;
  task->panel_bytes = f16_panel_bytes(w.n_in);
  task->expert_bytes = panels_of(n) * task->panel_bytes;
  task->n_out = n;
  task->type = GgmlType::kF16;
  task->layout = WeightLayout::kTiles;
  return launch_f16_tiles(p, stream);
}

Status prepare_matmul(const KernelConfig& config) {
  SHARPI_TRY(prepare_gemm(config));
  SHARPI_TRY(prepare_moe_step(config));
  if (has_chains(config)) SHARPI_TRY(prepare_chain(config));
  return prepare_matvec(config.device.shared_per_block);
}

Status make_kernel_config(KernelConfig* config) {
  int device = 0;
  SHARPI_TRY(kernel_status(cudaGetDevice(&device), "device"));
  SHARPI_TRY(query_profile(device, "the device", &config->device));
  return prepare_matmul(*config);
}

uint64_t matmul_workspace_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t max_in,
                                uint32_t max_out) {
  uint64_t bytes = stream_workspace_bytes(std::min(max_rows, kMatvecRows), max_in);
  if (!streams_weights(config, max_rows))  // some go another way
    bytes = std::max(bytes, gemm_space(config, max_rows, max_in, max_out).bytes);
  return align_up(bytes);
}

uint32_t streamed_tile_rows(const KernelConfig& config) {
  constexpr int kRoomForSixteen = 200 << 10;
  return config.device.shared_per_block >= kRoomForSixteen ? 48 : kStreamedRows;
}

Status launch_matmul(const KernelConfig& config, const MatmulParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_tasks(p));
  if (!streams_product(config, p)) return run_gemm(config, p, stream);
  // Launches of about as many rows each.
  const uint32_t n_launches = (p.n_rows + kMatvecRows - 1) / kMatvecRows;
  const uint32_t each = (p.n_rows + n_launches - 1) / n_launches;
  for (uint32_t first = 0; first < p.n_rows; first += each) {
    MatmulParams some = p;
    some.x += first * p.x_stride;
    some.n_rows = std::min(each, p.n_rows - first);
    if (p.row_scale != nullptr) some.row_scale += first;
    for (uint32_t t = 0; t < p.n_tasks; ++t) some.tasks[t].y += first * p.tasks[t].y_stride;
    SHARPI_TRY(run_streams(config, some, stream));
  }
  return Status::ok();
}

Status launch_branch_sum(const KernelConfig& config, const float* x, const ChainBranch& branch,
                         uint32_t n_rows, uint32_t width, cudaStream_t stream) {
  ResidualParams r;
  r.x = x;
  r.to = branch.x_out;
  r.y = branch.y;
  r.weight = branch.weight;
  r.eps = branch.eps;
  r.scale = branch.scale;
  r.share = branch.share;
  r.n_rows = n_rows;
  r.width = width;
  return launch_residual(r, {stream, config.pdl});
}

Status launch_link(const KernelConfig& config, const ChainLink& link, cudaStream_t stream) {
  MatmulParams p = link.product;
  if (link.branch.y == nullptr) return launch_matmul(config, p, stream);
  SHARPI_TRY(check_tasks(p));
  const uint32_t n_in = p.tasks[0].w.n_in;
  const bool together = !config.deterministic && all_in_f16(config, p) && p.n_rows > 1 &&
                        p.n_rows <= kMatvecRows && stages_sums(n_in) && p.x_stride == n_in &&
                        link.branch.share == 1.0f;
  if (together) return run_streams(config, p, stream, &link.branch);
  SHARPI_TRY(launch_branch_sum(config, p.x, link.branch, p.n_rows, n_in, stream));
  p.x = link.branch.x_out;
  return launch_matmul(config, p, stream);
}

const char* matmul_path(const KernelConfig& config, uint32_t n_rows) {
  if (!config.exact && !config.deterministic && n_rows <= streamed_tile_rows(config))
    return "f16 streaming";
  return use_cublas(config, n_rows) ? "f16 weights and cuBLASLt" : moe_path(config, n_rows);
}

const char* moe_path(const KernelConfig& config, uint32_t n_rows) {
  if (streams_weights(config, n_rows)) return config.exact ? "f32 streaming" : "f16 streaming";
  if (config.exact) return "f32 tiles";
  const bool warpgroups =
      have_gemm_sm90(config) && !config.deterministic && config.gemm_path != GemmPath::kMma;
  return warpgroups ? "f16 warpgroup tensor cores" : "f16 tensor cores";
}

uint64_t moe_workspace_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t n_embd,
                             uint32_t d_ff, uint32_t n_experts, uint32_t n_used) {
  const uint64_t few = uint64_t{std::min(max_rows, kStreamedRows)} * n_used * d_ff * sizeof(float);
  const bool many = !streams_weights(config, max_rows);
  return align_up(std::max(
      few, many ? grouped_moe_bytes(config, max_rows, n_embd, d_ff, n_experts, n_used) : 0));
}

Status launch_moe(const KernelConfig& config, const MoeParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_moe(p));
  if (!streams_weights(config, p.n_rows)) return launch_grouped_moe(config, p, stream);
  const uint64_t needed = uint64_t{p.n_rows} * p.n_used * p.up.n_out * sizeof(float);
  if (p.workspace_bytes < needed) {
    return Status::error(Code::kInternal,
                         "the experts have a workspace of %llu bytes, but %llu are needed",
                         static_cast<unsigned long long>(p.workspace_bytes),
                         static_cast<unsigned long long>(needed));
  }
  return run_expert_streams(config, p, stream);
}

}  // namespace sharpi::cuda
