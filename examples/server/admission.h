// SPDX-License-Identifier: MIT
// Who may ask: the key, and pages of other sites, which a browser lets send requests here. They say
// so in Origin; or their name was made to point to this machine, and stands in Host.
// Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http_message.h"
#include "settings.h"

namespace server {

class Admission {
 public:
  explicit Admission(const Settings& settings);

  /// Throws RequestError for who may not ask.
  void check(const HttpRequest& request) const;
  /// The same without the key, which a browser does not send when it asks whether it may ask.
  void check_site(const HttpRequest& request) const;
  /// The request's Origin where --allow-origin names it; a page of it may read the answer.
  std::string named_origin(const HttpRequest& request) const;

 private:
  bool is_own_name(const std::string& host) const;

  const Settings& settings_;
  const bool is_loopback_;
  const std::vector<std::string> hosts_, origins_;
};

}  // namespace server
