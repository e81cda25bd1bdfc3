# SPDX-License-Identifier: MIT
# What the steps of CI share; sourced by them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly kSkipped=77  # Exit status of a step that this machine cannot run.
jobs=$(nproc)

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" > "$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log"
  rm -f "$log"
  return "$status"
}

# configure <preset> [cmake arguments]: into the preset's folder, which is build-<preset>.
configure() { quietly cmake --preset "$1" "${@:2}"; }
# The folder of `make test`, as CI configures it. A step that gave another set of flags, of which the
# preset's own WERROR=OFF would be one, would have everything compiled again, and so would the next.
configure_tested() { configure release -DSHARPI_WERROR=ON -DSHARPI_TESTS=ON "$@"; }
# build <folder> [targets...]
build() {
  local folder=$1
  shift
  quietly cmake --build "$folder" -j "$jobs" ${1:+--target "$@"}
}

# What steps fetch is kept here, so that only the first run of a machine fetches it, whatever checkout
# it runs in.
readonly kFetched=${XDG_CACHE_HOME:-$HOME/.cache}/sharpi

# fetched_python <name> <modules> <packages...>: prints the folder of a virtual environment in which
# the modules (separated by commas) can be imported; the packages are fetched if they cannot. False
# where they cannot be had.
fetched_python() {
  local at=$kFetched/$1 modules=$2 wanted=("${@:3}")
  "$at/bin/python3" -c "import $modules" 2> /dev/null ||
    { python3 -m venv "$at" && "$at/bin/pip" -q --disable-pip-version-check install "${wanted[@]}"; } >&2 ||
    { echo "skipped: ${wanted[*]} could not be fetched" >&2; return 1; }
  echo "$at"
}
# The clients that test the server.
server_clients() {
  fetched_python server-venv openai,anthropic,httpx,httpx_sse,jsonschema,pytest \
    openai anthropic httpx httpx-sse jsonschema pytest prometheus_client
}
# Whether the build in a folder has the server: it needs libraries of its own.
has_server() {
  cmake --build "$1" --target help | grep '^server: ' > /dev/null ||
    { echo "skipped: the server is not built here; it needs libboost-dev, zlib1g-dev and nlohmann-json3-dev"; return 1; }
}
# Runs tests of the server in a build folder under a sanitizer, whose options are set, with the library
# and the server under it: load, bad clients, and every route. sanitized_server folder command... The
# command is put before the interpreter.
sanitized_server() {
  local folder=$1 clients
  shift
  has_server "$folder" && clients=$(server_clients) || return 0
  SHARPI_SERVER=$PWD/$folder/examples/server/server SHARPI_SERVER_SANITIZED=1 timeout 400 "$@" \
    "$clients/bin/python3" -m pytest -q -rs -p no:cacheprovider tests/server/test_load.py \
    tests/server/test_http.py tests/server/test_openai.py tests/server/test_arrival.py \
    tests/server/test_hostile.py tests/server/test_saved_files.py tests/server/test_memory.py
}

# Runs the test programs that carry a label in the given build folder, as many at a time as there are
# cores: run_labelled folder label command... The command is put before the program. What a program
# says is shown if it fails.
run_labelled() {
  local list=$1/tests_$2.txt
  shift 2
  [[ -s $list ]] || { echo "no test program in $list"; return 1; }
  export -f run_one
  grep . "$list" | xargs -P "$jobs" -I '{}' bash -c 'run_one "$@"' run_one '{}' "$@"
}
run_one() {  # program, command before it...
  local program=$1 log status=0
  shift
  log=$(mktemp)
  "$@" "$program" --gtest_brief=1 < /dev/null > "$log" 2>&1 || status=$?
  if ((status == 0)); then
    echo "${program##*/}: passed"
  else
    echo "${program##*/}: FAILED ($status)"
    cat "$log"
  fi
  rm -f "$log"
  return $((status != 0))
}
