#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The template interpreter against jinja2, over the published templates that a package carries. They
# are fetched once, into the user's cache; without network the step is skipped and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(fetched_python templates-venv jinja2 'jinja2>=3.1,<3.2') || exit "$kSkipped"
templates=$kFetched/templates
if ! compgen -G "$templates/*.tar.gz" > /dev/null; then
  if ! "$venv/bin/pip" -q --disable-pip-version-check download --no-deps --no-binary llama-cpp-python \
    -d "$templates" llama-cpp-python; then
    echo "skipped: the source package with templates could not be fetched"
    exit "$kSkipped"
  fi
fi
configure_tested
build build render_template
"$venv/bin/python3" tools/compare_templates.py build/tests/text/render_template "$templates"
