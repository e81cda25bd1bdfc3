// SPDX-License-Identifier: MIT
#include "admission.h"

#include <algorithm>

#include "fields.h"
#include "settings_values.h"
#include "sockets.h"

namespace server {
namespace {

bool same_text(std::string_view a, std::string_view b) {
  // Takes as long for a nearly right key as for a wrong one.
  unsigned difference = static_cast<unsigned>(a.size() ^ b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^
        static_cast<unsigned>(static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
  }
  return difference == 0;
}

// What stands behind "Bearer", in whatever letters.
std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (!same_but_case(authorization.substr(0, kScheme.size()), kScheme)) return {};
  return trimmed(authorization.substr(kScheme.size()));
}

// A Host header without its port.
std::string name_of(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  return small_letters(host.substr(0, end));
}

bool is_address(std::string name) {
  if (name.starts_with('[')) name = name.substr(1, name.size() - 2);
  return is_numeric_address(name);
}

// The page of the server itself, by whichever name it was asked for.
bool is_own(std::string_view origin, std::string_view host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (same_but_case(origin.substr(0, scheme.size()), scheme)) {
      return same_but_case(origin.substr(scheme.size()), host);
    }
  }
  return false;
}

}  // namespace

Admission::Admission(const Settings& settings)
    : settings_(settings),
      is_loopback_(is_loopback_name(settings.host)),
      hosts_(parse_list(settings.allow_host)),
      origins_(parse_list(settings.allow_origin)) {}

// Names that others cannot give theirs: those of this machine for itself, those that were allowed,
// and, where other machines may ask, addresses.
bool Admission::is_own_name(const std::string& host) const {
  const std::string name = name_of(host);
  if (host.empty() || is_loopback_name(name) || same_but_case(name, settings_.host)) return true;
  if (!is_loopback_ && is_address(name)) return true;
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const std::string& allowed) {
    return same_but_case(allowed, name) || same_but_case(allowed, host);
  });
}

std::string Admission::named_origin(const HttpRequest& request) const {
  const std::string origin = request.header("origin");
  if (origin.empty()) return "";
  const bool named = std::any_of(origins_.begin(), origins_.end(), [&](const std::string& allowed) {
    if (!allowed.ends_with('*')) return same_but_case(allowed, origin);
    const size_t n = allowed.size() - 1;
    return same_but_case(std::string_view(origin).substr(0, n),
                         std::string_view(allowed).substr(0, n));
  });
  return named ? origin : "";
}

void Admission::check_site(const HttpRequest& request) const {
  const std::string origin = request.header("origin"), host = request.header("host");
  // "null" is what a page says that hides where it is from.
  if (!origin.empty() && !is_own(origin, host) && named_origin(request).empty()) {
    throw RequestError(403,
                       "requests from pages of other sites are not served; --allow-origin "
                       "names those that are");
  }
  if (settings_.api_key.empty() && !is_own_name(host)) {
    throw RequestError(403,
                       "without an API key only this machine's own names, and those of "
                       "--allow-host, are served");
  }
}

void Admission::check(const HttpRequest& request) const {
  check_site(request);
  if (settings_.api_key.empty()) return;
  const std::string given = request.header("authorization");
  const std::string other = request.header("x-api-key");  // as Anthropic's clients say it
  if (!same_text(bearer_of(given), settings_.api_key) && !same_text(other, settings_.api_key)) {
    throw RequestError(401, "the API key is missing or wrong", "", "invalid_api_key");
  }
}

}  // namespace server
