#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The server and its page from outside: clients that others wrote (openai, httpx-sse, curl), bare
# sockets, load, and a headless Chromium. The clients are fetched once, into the user's cache; where
# they cannot be had, or the server cannot be built, the step is skipped and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/server-venv
wanted=(openai httpx httpx-sse pytest)
if ! "$venv/bin/python3" -c 'import openai, httpx, httpx_sse, pytest' 2> /dev/null; then
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" -q --disable-pip-version-check install "${wanted[@]}"; }; then
    echo "skipped: ${wanted[*]} could not be fetched"
    exit "$kSkipped"
  fi
fi
configure release -DSHARPI_EXAMPLES=ON
if ! cmake --build build --target help | grep '^server: ' > /dev/null; then
  echo "skipped: the server is not built here; it needs libcpp-httplib-dev and nlohmann-json3-dev"
  exit "$kSkipped"
fi
build build server
SHARPI_SERVER=$PWD/build/examples/server/server \
  timeout 300 "$venv/bin/python3" -m pytest -q -rs -p no:cacheprovider tests/server "$@"
