#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the Python wheel, and tests it where a user has it: installed into fresh virtual environments,
# with the oldest CPython (from 3.9 on) that is at hand and with the newest; wheel.sh --all: with every
# one. The newest also sees what is optional (numpy, llm, matplotlib) and mypy. What is not
# ours is fetched once for each version, into the user's cache. Without PyPI the step is skipped.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
unset LD_LIBRARY_PATH PYTHONPATH SHARPI_LIBRARY SHARPI_WHEEL_LIBRARY
readonly folder=build tree=$PWD
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
# What is imported is compiled once, what is only installed never.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONPYCACHEPREFIX="$kFetched/bytecode"

# One line "3.9 /path/of/python" for each version, oldest first.
interpreters() {
  local python
  for python in python3 python3.{9..20} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
    python=$(command -v "$python") || continue
    "$python" -c 'import ensurepip, sys, venv
if sys.implementation.name == "cpython" and sys.version_info >= (3, 9):
    print("%d.%d" % sys.version_info[:2], sys.executable)' 2> /dev/null || true
  done | sort -V -k 1,1 -u
}
mapfile -t all < <(interpreters)
((${#all[@]})) || {
  echo "skipped: no CPython from 3.9 on with venv; on Debian: apt-get install python3-venv"
  exit "$kSkipped"
}
newest=${all[-1]}
chosen=("${all[@]}")
if [[ ${1:-} != --all && ${#all[@]} -gt 2 ]]; then
  chosen=("${all[0]}" "$newest")
fi

environment() {  # version, python, packages...: a fresh virtual environment that sees these packages
  local at="$tree/$folder/wheel-python$1" packages="$kFetched/wheel-packages-$1" wanted="${*:3}"
  "$2" -m venv --clear "$at" || return
  if [[ $(cat "$packages/wanted" 2> /dev/null) != "$wanted" ]]; then
    rm -rf "$packages"
    "$at/bin/pip" install --quiet --no-compile --target "$packages" "${@:3}" || return
    echo "$wanted" > "$packages/wanted"
  fi
  echo "$packages" > "$("$at/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fetched.pth"
}
if ! quietly environment "${newest%% *}" "${newest#* }" \
  pytest auditwheel numpy llm matplotlib mypy; then
  echo "skipped: the Python package index cannot be reached"
  exit "$kSkipped"
fi

# The tree that `make test` configured, or a new one.
quietly make wheel BUILD="$folder" CMAKE_FLAGS=-DSHARPI_WERROR=ON
wheel=$(ls "$tree/$folder"/dist/sharpi-*.whl)
echo "${wheel##*/}: $(stat -c %s "$wheel") bytes"

# The tag says what auditwheel finds that the library needs.
bin=$tree/$folder/wheel-python${newest%% *}/bin
tag=$(sed -E 's/.*-(manylinux_[0-9_]+_x86_64)\.whl/\1/' <<< "${wheel##*/}")
"$bin/python" -m auditwheel show "$wheel" | tr '\n' ' ' | grep -q "following platform tag: \"$tag\"" ||
  { "$bin/python" -m auditwheel show "$wheel"; echo "the wheel is tagged $tag"; exit 1; }

tools/dist/glibc_floor.sh "$tree/$folder/bundled/libsharpi.so.1"

mkdir "$empty/folder"
run_version() {  # version, python
  local at="$tree/$folder/wheel-python$1" ours=("$wheel")
  if [[ "$1 $2" == "$newest" ]]; then  # its environment is there
    ours+=("$tree/bindings/python/llm-sharpi")
  else
    environment "$1" "$2" pytest || return
  fi
  "$at/bin/pip" install --quiet --no-compile "${ours[@]}" && cd "$empty/folder" &&
    "$at/bin/python" -m pytest -q -p no:cacheprovider "$tree/bindings/python/tests"
}
# Two at a time; one that is done says so by the file of its status.
failed=0
for ((i = 0; i < ${#chosen[@]}; i += 2)); do
  for one in "${chosen[@]:i:2}"; do
    { status=0; run_version "${one%% *}" "${one#* }" || status=$?; echo "$status" > "$empty/${one%% *}.status"; } \
      > "$empty/${one%% *}.log" 2>&1 &
  done
  wait
  for one in "${chosen[@]:i:2}"; do
    [[ $(< "$empty/${one%% *}.status") == 0 ]] || { cat "$empty/${one%% *}.log"; failed=1; }
    echo "CPython ${one%% *}: $(tail -n 1 "$empty/${one%% *}.log")"
  done
done
bin=$tree/$folder/wheel-python${newest%% *}/bin
for checked in "-p sharpi" "$tree/bindings/python/tests/typed_program.py"; do
  # shellcheck disable=SC2086
  (cd "$empty/folder" &&
    quietly "$bin/python" -m mypy --strict --python-executable "$bin/python" --cache-dir "$empty/mypy" $checked) ||
    failed=1
done
((failed)) || echo "mypy --strict: no complaint"
exit "$failed"
