#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The declarations of the Python package are what its generator makes of the header, and ctypes lays
# them out as the C compiler lays out the header: python.sh generator package header cc work-folder
# Exits 77 when there is no Python. The package itself is tested by tools/ci/wheel.sh.
set -euo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
generator=$1 package=$2 header=$3 cc=$4 work=$5
python=${PYTHON:-python3}
"$python" -c 'import ctypes, dataclasses' > /dev/null 2>&1 ||
  { echo "skipped: $python is not on this machine; on Debian: apt-get install python3"; exit 77; }
export PYTHONDONTWRITEBYTECODE=1
rm -rf "$work"
mkdir -p "$work/changed" "$work/written"

"$python" "$generator" --check "$header" "$package"
"$here/header_facts.sh" "$header" "$cc" "$work" > "$work/header.facts"
"$python" "$here/layout.py" "$package/_abi.py" | LC_ALL=C sort > "$work/python.facts"
diff -U 0 "$work/header.facts" "$work/python.facts" ||
  { echo "ctypes lays the ABI out otherwise than C"; exit 1; }

# A header that says something else is noticed, and what the generator makes of it is right again.
changes=(
  's/^\} sharpi_session_params;/  uint64_t extra;\n&/'
  's/(sharpi_session_decode\(sharpi_session \*session, int32_t token,)/\1 uint32_t extra,/'
  's/(\*sharpi_progress_fn\)\(void \*user_data, uint32_t phase, uint64_t)/\1 extra, uint64_t/'
  's/^(#define SHARPI_ROW_KV_CHUNK +)15u/\199u/'
)
changed=$work/changed/sharpi.h all=()
for change in "${changes[@]}"; do
  all+=(-e "$change")
  sed -E "$change" "$header" > "$changed"
  ! cmp -s "$header" "$changed" || { echo "$change: changes nothing"; exit 1; }
  if "$python" "$generator" --check "$changed" "$package" > "$work/log" 2>&1; then
    echo "$change: the generator does not notice it"
    exit 1
  fi
  grep -q 'is not what .* says: run tools/make_python_abi.py' "$work/log" || { cat "$work/log"; exit 1; }
done
sed -E "${all[@]}" "$header" > "$changed"
"$python" "$generator" "$changed" "$work/written" > /dev/null
"$here/header_facts.sh" "$changed" "$cc" "$work/changed" > "$work/header.facts"
"$python" "$here/layout.py" "$work/written/_abi.py" | LC_ALL=C sort |
  diff -U 0 "$work/header.facts" - || { echo "the generator gets a changed header wrong"; exit 1; }
echo "declarations and layout as in the header"
