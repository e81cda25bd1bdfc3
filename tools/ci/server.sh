#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The server and its page from outside: clients that others wrote (openai, httpx-sse, curl), bare
# sockets, load, and a headless Chromium. The clients are fetched once, into the user's cache; where
# they cannot be had, or the server cannot be built, the step is skipped and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(server_clients) || exit "$kSkipped"
configure_tested -DSHARPI_EXAMPLES=ON
has_server build || exit "$kSkipped"
build build server
SHARPI_SERVER=$PWD/build/examples/server/server \
  timeout 600 "$venv/bin/python3" -m pytest -q -rs -p no:cacheprovider tests/server "$@"
