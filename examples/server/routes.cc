// SPDX-License-Identifier: MIT
// Which path is answered by what.
#include <ctime>
#include <string_view>

#include "answer_format.h"
#include "host_process.h"
#include "http_server.h"
#include "json_document.h"
#include "messages_request.h"
#include "page.h"
#include "sse.h"
#include "tokenize.h"

namespace server {
namespace {

HttpResponse response_of(const json& body) {
  HttpResponse response;
  response.type = "application/json";
  response.body = dump(body);
  return response;
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

HttpResponse page_file(const PageFile& file) {
  HttpResponse response;
  response.type = content_type(file.name);
  response.fixed = {reinterpret_cast<const char*>(file.data), file.size};
  response.headers = {{"X-Content-Type-Options", "nosniff"},
                      {"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; "
                       "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'; require-trusted-types-for 'script'"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

// A path against that of a route, in which "*" stands for what has no slash and is not empty, and a
// "**" at the end for what is not empty.
bool matches(std::string_view route, std::string_view path, std::vector<std::string>* parts) {
  parts->clear();
  while (!route.empty()) {
    if (route == "**") {
      parts->emplace_back(path);
      return !path.empty();
    }
    if (route.front() == '*') {
      const std::string_view part = path.substr(0, path.find('/'));
      if (part.empty()) return false;
      parts->emplace_back(part);
      path.remove_prefix(part.size());
    } else {
      if (path.empty() || path.front() != route.front()) return false;
      path.remove_prefix(1);
    }
    route.remove_prefix(1);
  }
  return path.empty();
}

}  // namespace

// HEAD is answered as GET is, without the body.
const HttpServer::Route* HttpServer::find_route(const HttpRequest& request, Parts* parts) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  for (const Route& route : routes_) {
    if (route.method == method && matches(route.path, request.path, parts)) return &route;
  }
  return nullptr;
}

void HttpServer::get(const std::string& path, Handler handler) {
  routes_.push_back({"GET", path, {}, std::move(handler)});
}

void HttpServer::get_at_once(const std::string& path, const HttpResponse& response) {
  routes_.push_back({"GET", path, [response] { return response; }, {}});
}

void HttpServer::post(const std::string& path, const BodyHandler& handler) {
  const Handler whole = [handler](Exchange& exchange, const Parts& parts) {
    JsonDocument body = parse_body(exchange.request.body, exchange.share());
    handler(exchange, std::move(body), parts);
  };
  routes_.push_back({"POST", path, {}, whole});
}

void HttpServer::add_routes() {
  get_at_once("/health", response_of({{"status", "ok"}}));
  get("/metrics", [this](Exchange& exchange, const Parts&) {
    scheduler_.run([](SessionCache& sessions) { sessions.count(); });
    exchange.response.type = "text/plain; version=0.0.4";
    exchange.response.body = metrics_.text();
  });
  const std::time_t created = std::time(nullptr);
  const std::string day = utc_text(created);
  const json model = {{"id", engine_.name()},
                      {"object", "model"},
                      {"created", created},
                      {"owned_by", "sharpi"},
                      {"type", "model"},  // this and the next two are Anthropic's
                      {"display_name", engine_.name()},
                      {"created_at", day},
                      {"meta",
                       {{"n_ctx", engine_.n_ctx()},
                        {"n_ctx_train", engine_.info().n_ctx_train},
                        {"n_vocab", engine_.info().n_vocab},
                        {"n_parameters", engine_.info().n_parameters}}}};
  get_at_once("/v1/models", response_of({{"object", "list"},
                                         {"data", json::array({model})},
                                         {"has_more", false},
                                         {"first_id", engine_.name()},
                                         {"last_id", engine_.name()}}));
  get("/v1/models/**", [this, model](Exchange& exchange, const Parts& parts) {
    if (parts[0] != engine_.name()) {
      throw RequestError(404, "no such model is served", "model", "model_not_found");
    }
    exchange.response = response_of(model);
  });
  const auto answers = [this](const std::string& path, Read read) {
    post(path, [this, read](Exchange& exchange, JsonDocument body, const Parts&) {
      answer(exchange, std::move(body), read);
    });
  };
  answers("/v1/chat/completions", read_chat);
  answers("/v1/completions", read_completion);
  answers("/v1/responses", read_response);
  answers("/v1/messages", read_anthropic);
  const auto tells = [this](const std::string& path, json (*tell)(const json&, const Engine&)) {
    post(path, [this, tell](Exchange& exchange, const JsonDocument& body, const Parts&) {
      exchange.response = response_of(tell(body.root(), engine_));
    });
  };
  get_at_once("/lora-adapters", response_of(engine_.lora_json()));
  tells("/v1/messages/count_tokens", count_anthropic);
  tells("/v1/tokenize", tokenized);
  tells("/v1/detokenize", detokenized);
}

void HttpServer::add_embedding_routes() {
  const auto tells = [this](const std::string& path,
                            void (Embeddings::*tell)(Exchange&, const json&)) {
    post(path, [this, tell](Exchange& exchange, const JsonDocument& body, const Parts&) {
      (embeddings_.*tell)(exchange, body.root());
    });
  };
  tells("/v1/embeddings", &Embeddings::embed);
  // Clients of several services have several names for it.
  for (const char* path : {"/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"})
    tells(path, &Embeddings::rerank);
}

void HttpServer::add_session_routes() {
  get("/v1/sharpi/plan", [this](Exchange& exchange, const Parts&) {
    exchange.response = response_of({{"settings", settings_json(settings_)},
                                     {"model", engine_.model_json()},
                                     {"plan", engine_.plan_json()}});
  });
  get("/v1/sharpi/sessions", [this](Exchange& exchange, const Parts&) {
    json out;
    scheduler_.run([&](SessionCache& sessions) { out = sessions.describe(); });
    exchange.response = response_of(out);
  });
  get("/v1/sharpi/sessions/*/kept", [this](Exchange& exchange, const Parts& parts) {
    const std::string text = exchange.request.parameter("bins");
    if (text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos) {
      throw RequestError(400, "bins is not a number from 1 to 9999", "bins");
    }
    const auto bins = static_cast<uint32_t>(text.empty() ? 96 : std::stoul(text));
    json out;
    scheduler_.run([&](SessionCache& sessions) {
      const Conversation* c = sessions.find(parts[0]);
      if (c == nullptr) throw RequestError(404, "there is no session " + parts[0]);
      out = kept_json(c->session.get(), engine_.info().n_layers, bins);
    });
    exchange.response = response_of(out);
  });
  post("/v1/sharpi/sessions/*/compact",
       [this](Exchange& exchange, const JsonDocument& body, const Parts& parts) {
         const sharpi_compact_params params = compact_params(body.root());
         json out;
         scheduler_.run([&](SessionCache& sessions) {
           Conversation* c = sessions.find(parts[0]);
           if (c == nullptr) throw RequestError(404, "there is no session " + parts[0]);
           out = sessions.compact(c, params);
         });
         exchange.response = response_of(out);
       });
}

void HttpServer::add_page() {
  for (const PageFile& file : page_files()) {
    get_at_once("/" + std::string(file.name), page_file(file));
    if (std::string(file.name) == "index.html") get_at_once("/", page_file(file));
  }
}

}  // namespace server
