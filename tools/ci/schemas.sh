#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Grammars of JSON schemas against jsonschema and the JSON Schema Test Suite, which the source package
# of jsonschema carries. Both are pinned, so that a failure is of this tree, and fetched once, into the
# user's cache; without network the step is skipped and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(fetched_python schemas-venv jsonschema jsonschema==4.26.0) || exit "$kSkipped"
package=$kFetched/schemas/jsonschema-4.26.0.tar.gz
if [[ ! -f $package ]]; then
  if ! "$venv/bin/pip" -q --disable-pip-version-check download --no-deps --no-binary jsonschema \
    -d "$kFetched/schemas" jsonschema==4.26.0; then
    echo "skipped: the source package with the suite could not be fetched"
    exit "$kSkipped"
  fi
fi
if ! sha256sum --quiet -c <<< "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326  $package"; then
  echo "$package is not the package that this tree was tested with; remove it"
  exit 1
fi
configure_tested
build build sharpi
suite=$(mktemp -d)
trap 'rm -rf "$suite"' EXIT
tar xf "$package" -C "$suite"
export PYTHONPATH=bindings/python SHARPI_LIBRARY=$PWD/build/lib/libsharpi.so.1
fixture=tests/fixtures/tiny-qwen3-q8_0.gguf
"$venv/bin/python3" tools/check_schema_suite.py "$fixture" "$suite"/jsonschema-*/json
"$venv/bin/python3" tools/compare_schemas.py "$fixture" --cases 6000
