#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs a NuGet package: nuget.py OUT.nupkg VERSION FOLDER, of all that lies in the folder."""

import pathlib
import sys
import zipfile

SPEC = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata>
    <id>LibSharpi</id>
    <version>{version}</version>
    <authors>libsharpi</authors>
    <license type="expression">MIT AND BSD-3-Clause AND BSD-2-Clause AND Unicode-DFS-2015</license>
    <description>GGUF language models on a GPU and a CPU together, with the KV cache as storage</description>
    <readme>README.md</readme>
    <tags>gguf llm inference kv-cache</tags>
    <dependencies><group targetFramework=".NETStandard2.0" /></dependencies>
  </metadata>
</package>
"""
RELATIONS = """<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/LibSharpi.nuspec" Id="R0" />
</Relationships>
"""
TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
{types}
{parts}
</Types>
"""


def content_types(names):
    octets = 'ContentType="application/octet"'
    suffixes = sorted({pathlib.PurePath(n).suffix[1:] for n in names if pathlib.PurePath(n).suffix})
    parts = sorted(n for n in names if not pathlib.PurePath(n).suffix)
    return TYPES.format(
        types="\n".join(f'  <Default Extension="{s}" {octets} />' for s in suffixes),
        parts="\n".join(f'  <Override PartName="/{p}" {octets} />' for p in parts))


def main():
    out, version, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    files["LibSharpi.nuspec"] = SPEC.format(version=version).encode()
    files["[Content_Types].xml"] = content_types([n for n in files]).encode()
    files["_rels/.rels"] = RELATIONS.encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in files.items():
            package.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


main()
