// SPDX-License-Identifier: MIT
#include "engine/log_lines.h"

#include <cstdarg>
#include <cstdio>
#include <string_view>

#include "engine/adapter.h"
#include "engine/model.h"
#include "gguf/gguf_file.h"
#include "kv/codec.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

SHARPI_FORMAT(3, 4)
void line(const Context& context, sharpi_log_level level, const char* format, ...) {
  if (!context.logs(level)) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  context.log(level, text);
}

const char* kind_name(uint32_t kind) {
  switch (kind) {
    case SHARPI_ROW_DEVICE:
      return "device";
    case SHARPI_ROW_PINNED:
      return "pinned";
    case SHARPI_ROW_MAPPED:
      return "mapped";
    default:
      return "host";
  }
}

const char* dtype(uint32_t d) {
  return kv_dtype_name(static_cast<KvDtype>(d));
}

}  // namespace

void log_devices(const Context& context) {
  if (!context.logs(SHARPI_LOG_INFO)) return;
  for (uint32_t i = 0; i < context.backends().size(); ++i) {
    sharpi_device d{};
    if (!context.device_info(i, 0, &d).is_ok()) continue;
    line(context, SHARPI_LOG_INFO, "device %u: %s (%s, %u cores), %llu of %llu bytes free", i,
         d.name, d.isa, d.n_cores, static_cast<ull>(d.free_bytes), static_cast<ull>(d.total_bytes));
    if (std::string_view(d.isa) != "scalar") continue;
    line(context, SHARPI_LOG_INFO,
         "device %u: generic kernels, which use no vectors of the processor and are many times "
         "slower",
         i);
  }
}

void log_plan(const Context& context, const Plan& plan) {
  if (!context.logs(SHARPI_LOG_INFO)) return;
  const sharpi_plan_summary s = plan.summary();
  line(context, SHARPI_LOG_INFO,
       "planned %s: %u of %u layers, %u FFN blocks and %u expert slots on the GPU; n_ctx %u, KV "
       "%s/%s, chunks of %u; %llu bytes of device, %llu of host memory, %llu of the file in place",
       plan.spec->file->path().c_str(), s.n_gpu_layers, s.n_layers, s.n_gpu_ffn, s.n_expert_slots,
       s.n_ctx, dtype(s.k_dtype), dtype(s.v_dtype), s.n_chunk,
       static_cast<ull>(s.device_held_bytes), static_cast<ull>(s.host_held_bytes),
       static_cast<ull>(s.mapped_bytes));
  for (const std::string& what : plan.fallbacks)
    line(context, SHARPI_LOG_INFO, "planned: %s", what.c_str());
  if (s.full_token_seconds > 0) {
    line(context, SHARPI_LOG_DEBUG,
         "a token takes at least %.3f ms, at the end of the context %.3f", s.token_seconds * 1e3,
         s.full_token_seconds * 1e3);
  }
  for (const MemoryRow& r : plan.rows) {
    line(context, SHARPI_LOG_DEBUG, "row: %s, %s: %llu bytes used, %llu held%s", r.label,
         kind_name(r.kind), static_cast<ull>(r.payload_bytes), static_cast<ull>(r.held_bytes),
         r.per_session != 0 ? ", a session" : "");
  }
}

void log_loaded(const Model& model, double seconds) {
  const Context& context = model.context();
  line(context, SHARPI_LOG_INFO, "loaded %s in %.2f s", model.spec().file->path().c_str(), seconds);
  line(context, SHARPI_LOG_INFO, "kernels: %s", model.paths().c_str());
  if (!model.spec().left_out.empty()) {
    line(context, SHARPI_LOG_WARN, "this file is read as a text model; left out: %s",
         model.spec().left_out.c_str());
  }
}

void log_adapter(const Adapter& adapter) {
  const AdapterFile& f = adapter.facts();
  line(adapter.model().context(), SHARPI_LOG_INFO,
       "loaded the adapter %s: %zu weights, rank %u, %llu bytes", f.file->path().c_str(),
       f.pairs.size(), f.max_rank, static_cast<ull>(adapter.held_bytes()));
}

void log_experts(const Model& model) {
  if (!model.context().logs(SHARPI_LOG_INFO)) return;
  const sharpi_expert_stats s = model.expert_stats();
  if (s.n_slots == 0) return;
  line(model.context(), SHARPI_LOG_INFO,
       "experts: %llu of %llu uses were on the GPU, in %u slots; %llu came (%llu bytes), %llu left",
       static_cast<ull>(s.n_hits), static_cast<ull>(s.n_uses), s.n_slots,
       static_cast<ull>(s.n_promotions), static_cast<ull>(s.promoted_bytes),
       static_cast<ull>(s.n_evictions));
}

}  // namespace sharpi
