#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The server under frameworks for agents that others wrote (LangChain, litellm, instructor), and loops
# of tool calls at their whole length, with SmolLM2 where it is here. The packages are fetched once,
# into the user's cache; those that cannot be had are skipped by name.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(fetched_python agents-venv openai,langchain_openai,litellm,instructor,jsonschema,pytest \
  openai langchain-openai litellm instructor jsonschema pytest) || exit "$kSkipped"
configure_tested -DSHARPI_EXAMPLES=ON
has_server build || exit "$kSkipped"
build build server
SHARPI_AGENTS=1 SHARPI_SERVER=$PWD/build/examples/server/server \
  timeout 1500 "$venv/bin/python3" -m pytest -q -rs -p no:cacheprovider \
  tests/server/test_frameworks.py tests/server/test_agents.py "$@"
