#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The template interpreter against jinja2, over the published templates that a package carries and
# those of the real models that are here. What is compared with is pinned, so that a failure is of
# this tree. It is fetched once, into the user's cache; without network the step is skipped and says
# so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(fetched_python templates-venv 'gguf, jinja2' jinja2==3.1.6 'gguf>=0.17') || exit "$kSkipped"
templates=$kFetched/templates
package=$templates/llama_cpp_python-0.3.36.tar.gz
if [[ ! -f $package ]]; then
  if ! "$venv/bin/pip" -q --disable-pip-version-check download --no-deps --no-binary llama-cpp-python \
    -d "$templates" llama-cpp-python==0.3.36; then
    echo "skipped: the source package with templates could not be fetched"
    exit "$kSkipped"
  fi
fi
if ! sha256sum --quiet -c <<< "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e  $package"; then
  echo "$package is not the package that this tree was tested with; remove it"
  exit 1
fi
configure_tested
build build render_template
models=${SHARPI_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/models}
shopt -s nullglob
"$venv/bin/python3" tools/compare_templates.py build/tests/text/render_template --least 40 "$package" "$models"/*.gguf
