#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The template interpreter against jinja2, over the published templates that a package carries and
# those of the real models that are here. What is compared with is pinned, so that a failure is of
# this tree. It is fetched once, into .cache, which git ignores; without network the step is skipped
# and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=.cache/python/bin/python3
if ! "$python" -c 'import gguf, jinja2; assert jinja2.__version__ == "3.1.6"' 2> /dev/null; then
  if ! { python3 -m venv .cache/python && .cache/python/bin/pip -q install jinja2==3.1.6 'gguf>=0.17'; }; then
    echo "skipped: jinja2 and gguf could not be fetched"
    exit "$kSkipped"
  fi
fi
package=.cache/templates/llama_cpp_python-0.3.36.tar.gz
if [[ ! -f $package ]]; then
  if ! .cache/python/bin/pip -q download --no-deps --no-binary :all: -d .cache/templates llama-cpp-python==0.3.36; then
    echo "skipped: the source package with templates could not be fetched"
    exit "$kSkipped"
  fi
fi
if ! sha256sum --quiet -c <<< "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e  $package"; then
  echo "$package is not the package that this tree was tested with; remove it"
  exit 1
fi
configure release -DSHARPI_TESTS=ON
build build render_template
models=${SHARPI_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/models}
shopt -s nullglob
"$python" tools/compare_templates.py build/tests/text/render_template --least 40 "$package" "$models"/*.gguf
