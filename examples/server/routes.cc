// SPDX-License-Identifier: MIT
// Which path is answered by what.
#include <httplib.h>

#include <ctime>

#include "answer_format.h"
#include "http_server.h"
#include "listening.h"
#include "page.h"
#include "sse.h"

namespace server {
namespace {

void send(httplib::Response& response, const json& body) {
  response.set_content(dump(body), "application/json");
}

sharpi_compact_params compact_params(const json& body) {
  Fields f(body, "");
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  const json& budget = f.need("budget");
  p.budget = budget == "auto" ? SHARPI_BUDGET_AUTO
                              : static_cast<uint32_t>(f.integer("budget", 1, 0x7FFFFFFF).value());
  try {
    p.policy = policy_of(f.text("policy").value_or("auto"));
  } catch (const SettingsError& e) {
    f.refuse("policy", std::string("is not one of ") + e.what());
  }
  if (const auto recency = f.integer("recency", 0, 0x7FFFFFFF)) {
    p.recency = static_cast<uint32_t>(*recency);
  }
  p.sinks = static_cast<uint32_t>(f.integer("sinks", 0, 0x7FFFFFFF).value_or(p.sinks));
  p.headroom = static_cast<uint32_t>(f.integer("headroom", 0, 0x7FFFFFFF).value_or(p.headroom));
  f.finish();
  return p;
}

}  // namespace

// Failures of any handler become JSON with the status that fits.
template <typename Handler>
static auto guarded(Handler handler, auto refuse) {
  return [handler, refuse](const httplib::Request& request, httplib::Response& response) {
    try {
      handler(request, response);
    } catch (const RequestError& e) {
      refuse(response, e.status(), error_json(e.status(), e.what(), e.param(), e.code()));
    } catch (const Busy& e) {
      refuse(response, 429, error_json(429, e.what()));
    } catch (const LibraryError& e) {
      const bool theirs = e.status() == SHARPI_E_INVALID_ARGUMENT || e.status() == SHARPI_E_STATE ||
                          e.status() == SHARPI_E_UNSUPPORTED;
      refuse(response, theirs ? 400 : 500,
             error_json(theirs ? 400 : 500, e.what(), "", sharpi_status_name(e.status())));
    } catch (const std::exception& e) {
      refuse(response, 500, error_json(500, e.what()));
    }
  };
}

void HttpServer::add_routes() {
  const auto refusal = [this](auto& response, int status, const json& body) {
    refuse(response, status, body);
  };
  const auto open = [&](auto handler) { return guarded(handler, refusal); };
  const auto keyed = [&](auto handler) {
    return guarded(
        [this, handler](const auto& request, auto& response) {
          guard(request);
          handler(request, response);
        },
        refusal);
  };
  http_->Get("/health", open([](const auto&, auto& response) {
               send(response, {{"status", "ok"}});
             }));
  http_->Get("/metrics", keyed([this](const auto&, auto& response) {
               scheduler_.run([](SessionCache& sessions) { sessions.count(); });
               response.set_content(metrics_.text(), "text/plain; version=0.0.4");
             }));
  const std::time_t created = std::time(nullptr);
  const json model = {{"id", engine_.name()},
                      {"object", "model"},
                      {"created", created},
                      {"owned_by", "sharpi"},
                      {"meta",
                       {{"n_ctx", engine_.n_ctx()},
                        {"n_ctx_train", engine_.info().n_ctx_train},
                        {"n_vocab", engine_.info().n_vocab},
                        {"n_parameters", engine_.info().n_parameters}}}};
  http_->Get("/v1/models", keyed([model](const auto&, auto& response) {
               send(response, {{"object", "list"}, {"data", json::array({model})}});
             }));
  http_->Get(R"(/v1/models/(.+))", keyed([this, model](const auto& request, auto& response) {
               if (request.matches[1] != engine_.name()) {
                 throw RequestError(404, "no such model is served", "model", "model_not_found");
               }
               send(response, model);
             }));
  http_->Post("/v1/chat/completions", keyed([this](const auto& request, auto& response) {
                answer(request, response, read_chat);
              }));
  http_->Post("/v1/completions", keyed([this](const auto& request, auto& response) {
                answer(request, response, read_completion);
              }));
  http_->Post("/v1/responses", keyed([this](const auto& request, auto& response) {
                answer(request, response, read_response);
              }));
}

void HttpServer::add_session_routes() {
  const auto refusal = [this](auto& response, int status, const json& body) {
    refuse(response, status, body);
  };
  const auto keyed = [&](auto handler) {
    return guarded(
        [this, handler](const auto& request, auto& response) {
          guard(request);
          handler(request, response);
        },
        refusal);
  };
  http_->Get("/v1/sharpi/plan", keyed([this](const auto&, auto& response) {
               send(response, {{"settings", settings_json(settings_)},
                               {"model", engine_.model_json()},
                               {"plan", engine_.plan_json()}});
             }));
  http_->Get("/v1/sharpi/sessions", keyed([this](const auto&, auto& response) {
               json out;
               scheduler_.run([&](SessionCache& sessions) { out = sessions.describe(); });
               send(response, out);
             }));
  http_->Get(R"(/v1/sharpi/sessions/([^/]+)/kept)",
             keyed([this](const auto& request, auto& response) {
               const std::string id = request.matches[1], text = request.get_param_value("bins");
               if (text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos) {
                 throw RequestError(400, "bins is not a number from 1 to 9999", "bins");
               }
               const auto bins = static_cast<uint32_t>(text.empty() ? 96 : std::stoul(text));
               nlohmann::ordered_json out;
               scheduler_.run([&](SessionCache& sessions) {
                 const Conversation* c = sessions.find(id);
                 if (c == nullptr) throw RequestError(404, "there is no session " + id);
                 out = kept_json(c->session.get(), engine_.info().n_layers, bins);
               });
               send(response, out);
             }));
  http_->Post(R"(/v1/sharpi/sessions/([^/]+)/compact)",
              keyed([this](const auto& request, auto& response) {
                const sharpi_compact_params params = compact_params(parse_body(request.body));
                const std::string id = request.matches[1];
                json out;
                scheduler_.run([&](SessionCache& sessions) {
                  Conversation* c = sessions.find(id);
                  if (c == nullptr) throw RequestError(404, "there is no session " + id);
                  out = sessions.compact(c, params);
                });
                send(response, out);
              }));
}

void HttpServer::add_page() {
  for (const PageFile& file : page_files()) {
    const auto handler = [file](const httplib::Request&, httplib::Response& response) {
      response.set_header("X-Content-Type-Options", "nosniff");
      response.set_header(
          "Content-Security-Policy",
          "default-src 'none'; script-src 'self'; style-src 'self'; "
          "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'; require-trusted-types-for 'script'");
      response.set_header("Referrer-Policy", "no-referrer");
      response.set_header("Cache-Control", "no-cache");
      response.set_content(reinterpret_cast<const char*>(file.data), file.size,
                           content_type(file.name));
    };
    std::string pattern = "/";
    for (const char c : std::string(file.name)) {
      if (std::string("\\^$.|?*+()[]{}").find(c) != std::string::npos) pattern += '\\';
      pattern += c;
    }
    http_->Get(pattern, handler);
    if (std::string(file.name) == "index.html") http_->Get("/", handler);
  }
}

}  // namespace server
