// SPDX-License-Identifier: MIT
// Who may ask: by key, by the name that the server is asked for, and by the site that a page is
// from.
#include "admission.h"

#include <gtest/gtest.h>

#include "fields.h"

namespace server {
namespace {

struct Asker {
  std::string host = "127.0.0.1:8080", origin, authorization;
};

int status_of(const Settings& settings, const Asker& asker) {
  HttpRequest request;
  request.headers = {{"host", asker.host}};
  if (!asker.origin.empty()) request.headers.emplace_back("origin", asker.origin);
  if (!asker.authorization.empty()) {
    request.headers.emplace_back("authorization", asker.authorization);
  }
  const Admission admission(settings);
  try {
    admission.check(request);
    return 200;
  } catch (const RequestError& e) {
    return e.status();
  }
}

TEST(Admission, NamesThatPointHereAreRefusedWithoutAKey) {
  Settings settings;
  settings.allow_host = "proxy.example, box:9000";
  for (const char* host : {"127.0.0.1:1", "127.9.9.9", "LocalHost:1234", "[::1]:8080", "localhost",
                           "PROXY.example:443", "proxy.example", "box:9000"}) {
    EXPECT_EQ(status_of(settings, {host, "", ""}), 200) << host;
  }
  for (const char* host : {"other.example", "127.0.0.1.other.example", "[", "[x", ":8080",
                           "10.0.0.5", "localhost.other.example", "box:9001", "xproxy.example"}) {
    EXPECT_EQ(status_of(settings, {host, "", ""}), 403) << host;
  }
  settings.host = "0.0.0.0";
  settings.no_key = true;
  for (const char* host : {"10.0.0.5:8080", "[fe80::1]", "localhost", "proxy.example"}) {
    EXPECT_EQ(status_of(settings, {host, "", ""}), 200) << host;
  }
  EXPECT_EQ(status_of(settings, {"other.example", "", ""}), 403);
  settings.api_key = "secret";
  EXPECT_EQ(status_of(settings, {"other.example", "", "Bearer secret"}), 200);
}

TEST(Admission, PagesOfOtherSitesAreRefusedUnlessTheyAreNamed) {
  Settings settings;
  settings.allow_origin = "https://chat.example,app://obsidian.md,chrome-extension://*";
  const std::string host = "localhost:8080";
  for (const char* origin :
       {"http://localhost:8080", "HTTP://LOCALHOST:8080", "https://localhost:8080",
        "https://chat.example", "HTTPS://Chat.Example", "app://obsidian.md",
        "chrome-extension://abcdefg"}) {
    EXPECT_EQ(status_of(settings, {host, origin, ""}), 200) << origin;
  }
  for (const char* origin :
       {"null", "http://chat.example", "https://chat.example.other", "https://chat.example:1",
        "app://localhost:8080", "http://localhost:8081", "localhost:8080", "chrome-extension:"}) {
    EXPECT_EQ(status_of(settings, {host, origin, ""}), 403) << origin;
  }
  settings.api_key = "secret";
  EXPECT_EQ(status_of(settings, {host, "http://other.example", "Bearer secret"}), 403);
}

TEST(Admission, KeysAreComparedWhole) {
  Settings settings;
  settings.api_key = "secret";
  for (const char* given : {"Bearer secret", "bearer secret", "BEARER  secret "}) {
    EXPECT_EQ(status_of(settings, {"x", "", given}), 200) << given;
  }
  for (const char* given : {"", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "secret",
                            "Bearersecret", "Basic secret", "Bearer Secret"}) {
    EXPECT_EQ(status_of(settings, {"x", "", given}), 401) << given;
  }
}

}  // namespace
}  // namespace server
