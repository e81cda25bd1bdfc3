# SPDX-License-Identifier: MIT
"""Puts libsharpi into the wheel and tags the wheel by the system that it is for: for Linux by the processor
and the C library that it needs.

SHARPI_WHEEL_LIBRARY names a library that is built already (the target sharpi_bundled); otherwise CMake
builds it here, with the arguments of CMAKE_ARGS.
"""

import os
import pathlib
import re
import shlex
import subprocess
from typing import Any, Dict, List, Optional, Tuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SONAME = "libsharpi.so.1"
# What every Linux of the manylinux kind has; libraries beyond these would have to be in the wheel.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d")
# The processor of an ELF file, and of a library of Windows.
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
PE_MACHINES = {0x8664: "win_amd64"}


def needs(library: pathlib.Path) -> Tuple[List[str], Tuple[int, int]]:
    """The libraries that this one names, and the oldest glibc that has its symbols."""
    text = subprocess.run(["readelf", "-dVW", str(library)], check=True, capture_output=True,
                          text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
    versions = [(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text)]
    if not versions:
        raise SystemExit(f"{library} names no version of glibc: manylinux wheels are for glibc")
    return libraries, max(versions)


def number_at(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at:at + size], "little")


def windows_tag(content: bytes) -> str:
    header = number_at(content, 0x3C, 4)
    machine = number_at(content, header + 4, 2)
    if content[header:header + 4] != b"PE\0\0" or machine not in PE_MACHINES:
        raise SystemExit(f"not a library for Windows on x86-64 (machine {machine:#x})")
    return f"py3-none-{PE_MACHINES[machine]}"


def tag_of(library: pathlib.Path) -> str:
    content = library.read_bytes()
    if content[:2] == b"MZ":
        return windows_tag(content)
    libraries, (major, minor) = needs(library)
    foreign = [name for name in libraries if not SYSTEM.fullmatch(name)]
    if foreign:
        raise SystemExit(f"{library} needs {', '.join(foreign)}, which a wheel cannot expect: build the "
                         "target sharpi_bundled")
    machine = ELF_MACHINES.get(number_at(content, 18, 2))
    if machine is None:
        raise SystemExit(f"{library} is for a processor that no wheel is made for")
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


class LibraryHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def sources(self) -> pathlib.Path:
        """libsharpi's sources: around us in its own tree, below us in a source distribution."""
        here = pathlib.Path(self.root)
        for tree in (here / "libsharpi", here.parent.parent):
            if (tree / "lib" / "libsharpi.map").exists():
                return tree
        raise SystemExit(f"libsharpi's sources are not around {here}")

    def build_library(self) -> pathlib.Path:
        tree = self.sources()
        folder = tree / "build-wheel"
        arguments = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        subprocess.run(["cmake", "--preset", "release", "-B", str(folder), "-DSHARPI_TESTS=OFF",
                        "-DSHARPI_EXAMPLES=OFF", "-DSHARPI_INSTALL=OFF", *arguments], cwd=tree, check=True)
        subprocess.run(["cmake", "--build", str(folder), "--target", "sharpi_bundled"], check=True)
        return folder / "bundled" / SONAME

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        if version == "editable":
            return  # SHARPI_LIBRARY names the library then
        named: Optional[str] = os.environ.get("SHARPI_WHEEL_LIBRARY")
        library = pathlib.Path(named) if named else self.build_library()
        if not library.exists():
            raise SystemExit(f"there is no {library}: is libpcre2-8.a or libutf8proc.a missing?")
        build_data["pure_python"] = False
        build_data["tag"] = tag_of(library)
        name = "sharpi.dll" if build_data["tag"] == "py3-none-win_amd64" else SONAME
        build_data["force_include"][str(library.resolve())] = f"sharpi/lib/{name}"
