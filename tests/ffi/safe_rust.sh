#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests of Rust's safe layer against the installed library: safe_rust.sh bindings prefix libdir work-folder model
# Exits 77 when cargo is not on this machine.
set -euo pipefail
bindings=$1 prefix=$2 libdir=$3 work=$4 model=$5
cargo --version > /dev/null 2>&1 || { echo "skipped: cargo is not on this machine; on Debian: apt-get install cargo"; exit 77; }
mkdir -p "$work"
cp -r "$bindings/rust/." "$work/"  # cargo writes beside the sources
cd "$work"
export SHARPI_LIBRARY="$prefix/$libdir/libsharpi.so.1" SHARPI_TEST_MODEL="$model" RUSTFLAGS="-D warnings"
cargo test --quiet --offline 2>&1 | tee log
! grep -q '^skipped' log || { echo "a test was skipped"; exit 1; }
[[ $(grep -c 'test result: ok. [1-9]' log) -ge 2 ]] || { echo "tests were not run"; exit 1; }
