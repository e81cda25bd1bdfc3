// SPDX-License-Identifier: MIT
// An HTTP server for one model, over sharpi.h alone. docs/server.md says what it answers.
#include <malloc.h>

#include <cstdio>

#include "host_process.h"
#include "http_server.h"

namespace {

void print_settings(const server::Settings& settings, const server::Engine& engine) {
  const nlohmann::ordered_json all = server::settings_json(settings);
  for (const auto& [name, option] : all.items()) {
    std::printf("%-16s %s (%s)\n", name.c_str(), option["value"].dump().c_str(),
                option["source"].get<std::string>().c_str());
  }
  const sharpi_plan_summary& plan = engine.plan();
  std::printf("effective: context %u, KV %s/%s, %u of %u layers on the GPU, %.1f MiB a session\n",
              plan.n_ctx, server::kv_dtype_name(plan.k_dtype), server::kv_dtype_name(plan.v_dtype),
              plan.n_gpu_layers, plan.n_layers,
              static_cast<double>(plan.session_held_bytes) / (1024.0 * 1024.0));
  const nlohmann::ordered_json json = engine.plan_json();
  std::printf("effective: drafts by %s, at most %u a step\n",
              server::draft_name(json["drafters"].get<uint32_t>()),
              json["n_draft"].get<uint32_t>());
  for (const auto& fallback : json["fallbacks"]) {
    std::printf("given up: %s\n", fallback.get<std::string>().c_str());
  }
}

// Long texts of clients come from the system, and go back to it when they are forgotten.
void bound_allocator() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

int serve(const server::Settings& settings) {
  const server::Engine engine(settings);
  print_settings(settings, engine);
  server::keep_stop_requests();
  server::HttpServer http(engine, settings);
  const int port = http.bind();
  std::printf("listening on %s\n", http.address(port).c_str());
  std::fflush(stdout);
  const server::StopWaiter waiter([&http] { http.stop(); });
  http.listen();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bound_allocator();
  const std::vector<std::string> arguments = server::program_arguments(argc, argv);
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(server::settings_help().c_str(), stdout);
      return 0;
    }
  }
  try {
    return serve(server::read_settings(arguments, server::process_environment()));
  } catch (const server::SettingsError& e) {
    std::fprintf(stderr, "server: %s\n", e.what());
    return 2;
  } catch (const server::LibraryError& e) {
    std::fprintf(stderr, "server: %s: %s\n", sharpi_status_name(e.status()), e.what());
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "server: %s\n", e.what());
    return 1;
  }
}
