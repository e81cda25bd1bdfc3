// SPDX-License-Identifier: MIT
// Which path is answered by what.
#include <httplib.h>
#include <strings.h>

#include <ctime>

#include "answer_format.h"
#include "http_server.h"
#include "listening.h"
#include "page.h"
#include "request_stream.h"
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

// What a browser sends to other sites without asking them first is never of this type, whatever
// parameters it has.
bool is_json(const httplib::Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  const std::string name = type.substr(0, type.find(';'));
  const size_t begin = name.find_first_not_of(" \t"), end = name.find_last_not_of(" \t");
  if (begin == std::string::npos) return false;
  return strcasecmp(name.substr(begin, end + 1 - begin).c_str(), "application/json") == 0;
}

}  // namespace

void HttpServer::get(const std::string& pattern, const Handler& handler) {
  http_->Get(pattern, [this, handler](const auto& request, auto& response) {
    try {
      handler(request, response);
    } catch (...) {
      refuse_failure(response);
    }
  });
}

void HttpServer::post(const std::string& pattern, const BodyHandler& handler) {
  const httplib::Server::HandlerWithContentReader whole =
      [this, handler](const auto& request, auto& response, const auto& read) {
        try {
          if (!is_json(request)) {
            throw RequestError(415, "the body has to be of type application/json");
          }
          handler(request, response, parse_body(read_body(request, read, settings_.max_body)));
        } catch (...) {
          refuse_failure(response);
        }
      };
  http_->Post(pattern, whole);
}

void HttpServer::add_routes() {
  get("/health", [](const auto&, auto& response) { send(response, {{"status", "ok"}}); });
  get("/metrics", [this](const auto&, auto& response) {
    scheduler_.run([](SessionCache& sessions) { sessions.count(); });
    response.set_content(metrics_.text(), "text/plain; version=0.0.4");
  });
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
  get("/v1/models", [model](const auto&, auto& response) {
    send(response, {{"object", "list"}, {"data", json::array({model})}});
  });
  get(R"(/v1/models/(.+))", [this, model](const auto& request, auto& response) {
    if (request.matches[1] != engine_.name()) {
      throw RequestError(404, "no such model is served", "model", "model_not_found");
    }
    send(response, model);
  });
  post("/v1/chat/completions", [this](const auto& request, auto& response, json body) {
    answer(request, response, std::move(body), read_chat);
  });
  post("/v1/completions", [this](const auto& request, auto& response, json body) {
    answer(request, response, std::move(body), read_completion);
  });
  post("/v1/responses", [this](const auto& request, auto& response, json body) {
    answer(request, response, std::move(body), read_response);
  });
}

void HttpServer::add_session_routes() {
  get("/v1/sharpi/plan", [this](const auto&, auto& response) {
    send(response, {{"settings", settings_json(settings_)},
                    {"model", engine_.model_json()},
                    {"plan", engine_.plan_json()}});
  });
  get("/v1/sharpi/sessions", [this](const auto&, auto& response) {
    json out;
    scheduler_.run([&](SessionCache& sessions) { out = sessions.describe(); });
    send(response, out);
  });
  get(R"(/v1/sharpi/sessions/([^/]+)/kept)", [this](const auto& request, auto& response) {
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
  });
  post(R"(/v1/sharpi/sessions/([^/]+)/compact)",
       [this](const auto& request, auto& response, const json& body) {
         const sharpi_compact_params params = compact_params(body);
         const std::string id = request.matches[1];
         json out;
         scheduler_.run([&](SessionCache& sessions) {
           Conversation* c = sessions.find(id);
           if (c == nullptr) throw RequestError(404, "there is no session " + id);
           out = sessions.compact(c, params);
         });
         send(response, out);
       });
}

// The HTTP library reads the body of what has no other handler, however long it is.
void HttpServer::add_rest() {
  const std::string any = R"([\s\S]*)";
  const httplib::Server::HandlerWithContentReader nothing = [this](const auto&, auto& response,
                                                                   const auto&) {
    refuse(response, 404, error_json(404, "there is no such page"));
  };
  http_->Post(any, nothing).Put(any, nothing).Patch(any, nothing).Delete(any, nothing);
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
