#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what a packaged library consists of, as SPDX 2.3 JSON: sbom.py PLATFORM VERSION LIBRARY OUT [--cuda]
--cuda: the library is the module with the CUDA tier.

The library's own name and hash, and everything that was linked into it, with versions as pkg-config and
the compiler tell them. The same library gives the same file: its time is SOURCE_DATE_EPOCH, or that of the
commit."""

import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import uuid


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def package(name, version, licence, copyright_text, purpose="LIBRARY"):
    return {
        "SPDXID": f"SPDXRef-{name}", "name": name, "versionInfo": version,
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": licence,
        "licenseDeclared": licence, "copyrightText": copyright_text, "supplier": "NOASSERTION",
        "primaryPackagePurpose": purpose,
    }


def linked_in(is_module):
    """What the target sharpi_bundled links statically, or that of the module."""
    gcc = said(os.environ.get("CC", "gcc"), "-dumpfullversion")
    exception = "GPL-3.0-or-later WITH GCC-exception-3.1"
    both = [package("libstdcxx", gcc, exception, "Free Software Foundation, Inc."),
            package("libgcc", gcc, exception, "Free Software Foundation, Inc.")]
    if is_module:
        return [*both, package("cudart", "NOASSERTION", "LicenseRef-CUDA-EULA", "NVIDIA Corporation")]
    return [
        package("PCRE2", said("pkg-config", "--modversion", "libpcre2-8"),
                "BSD-3-Clause AND BSD-2-Clause", "University of Cambridge; Zoltan Herczeg (sljit)"),
        package("utf8proc", said("pkg-config", "--modversion", "libutf8proc"),
                "MIT AND Unicode-DFS-2015", "Jan Behrens, Steven G. Johnson and others; Unicode, Inc."),
        *both,
    ]


def document(platform, version, library, is_module):
    content = library.read_bytes()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or said("git", "log", "-1", "--format=%ct")
    made = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    own = package("libsharpi", version, "MIT", "the authors of libsharpi")
    inner = linked_in(is_module)
    file = {
        "SPDXID": "SPDXRef-library", "fileName": f"./lib/{library.name}", "fileTypes": ["BINARY"],
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": hashlib.sha1(content).hexdigest()},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(content).hexdigest()}],
        "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
        "copyrightText": "NOASSERTION",
    }
    related = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-libsharpi"),
               ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-library"),
               ("SPDXRef-library", "GENERATED_FROM", "SPDXRef-libsharpi")]
    related += [(file["SPDXID"], "STATIC_LINK", p["SPDXID"]) for p in inner]
    made_of = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"libsharpi{'-cuda' if is_module else ''}-{version}-{platform}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(content).hexdigest())}",
        "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: libsharpi-sbom.py"]},
        "documentDescribes": ["SPDXRef-libsharpi", "SPDXRef-library"],
        "packages": [own, *inner], "files": [file],
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in related],
    }
    if is_module:
        made_of["hasExtractedLicensingInfos"] = [{
            "licenseId": "LicenseRef-CUDA-EULA", "name": "CUDA Toolkit End User License Agreement",
            "extractedText": "See the CUDA Toolkit's EULA, attachment A."}]
    return made_of


def main():
    platform, version, library, out = sys.argv[1:5]
    made = document(platform, version, pathlib.Path(library), "--cuda" in sys.argv)
    pathlib.Path(out).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


main()
