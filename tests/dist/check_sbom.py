#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An SBOM is whole and of this library: check_sbom.py SBOM LIBRARY. With the package spdx-tools it is also
validated against SPDX 2.3."""

import hashlib
import json
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    sbom = json.load(file)
with open(sys.argv[2], "rb") as file:
    own = hashlib.sha256(file.read()).hexdigest()

assert sbom["spdxVersion"] == "SPDX-2.3" and sbom["dataLicense"] == "CC0-1.0", sbom["spdxVersion"]
assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sbom["creationInfo"]["created"])
sums = {c["algorithm"]: c["checksumValue"] for c in sbom["files"][0]["checksums"]}
assert sums["SHA256"] == own, "it is the SBOM of another library"
names = {p["name"]: p for p in sbom["packages"]}
missing = {"libsharpi", "PCRE2", "utf8proc", "libstdcxx", "libgcc"} - set(names)
assert not missing, f"it lacks {missing}"
ids = {p["SPDXID"] for p in sbom["packages"]} | {f["SPDXID"] for f in sbom["files"]} | {sbom["SPDXID"]}
for relation in sbom["relationships"]:
    assert relation["spdxElementId"] in ids and relation["relatedSpdxElement"] in ids, relation
for package in sbom["packages"]:
    assert package["versionInfo"] and package["licenseDeclared"], package["name"]
try:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
except ImportError:
    print("SBOM: whole (not validated: spdx-tools is not installed)")
else:
    complaints = validate_full_spdx_document(parse_file(sys.argv[1]))
    assert not complaints, complaints
    print("SBOM: valid")
