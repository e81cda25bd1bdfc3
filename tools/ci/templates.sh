#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The template interpreter against jinja2, over the published templates that a package carries. They
# are fetched once, into .cache, which git ignores; without network the step is skipped and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=.cache/python/bin/python3
if ! "$python" -c 'import jinja2' 2> /dev/null; then
  if ! { python3 -m venv .cache/python && .cache/python/bin/pip -q install 'jinja2>=3.1,<3.2'; }; then
    echo "skipped: jinja2 could not be fetched"
    exit "$kSkipped"
  fi
fi
if ! ls .cache/templates/*.tar.gz > /dev/null 2>&1; then
  if ! .cache/python/bin/pip -q download --no-deps --no-binary :all: -d .cache/templates llama-cpp-python; then
    echo "skipped: the source package with templates could not be fetched"
    exit "$kSkipped"
  fi
fi
configure release -DSHARPI_TESTS=ON
build build render_template
"$python" tools/compare_templates.py build/tests/text/render_template .cache/templates
