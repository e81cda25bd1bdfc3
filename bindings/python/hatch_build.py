# SPDX-License-Identifier: MIT
"""Puts libsharpi into the wheel and tags the wheel by the C library that it needs.

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
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux-x86-64\.so\.2")


def needs(library: pathlib.Path) -> Tuple[List[str], Tuple[int, int]]:
    """The libraries that this one names, and the oldest glibc that has its symbols."""
    text = subprocess.run(["readelf", "-dVW", str(library)], check=True, capture_output=True,
                          text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
    versions = [(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text)]
    if not versions:
        raise SystemExit(f"{library} names no version of glibc: manylinux wheels are for glibc")
    return libraries, max(versions)


def tag_of(library: pathlib.Path) -> str:
    libraries, (major, minor) = needs(library)
    foreign = [name for name in libraries if not SYSTEM.fullmatch(name)]
    if foreign:
        raise SystemExit(f"{library} needs {', '.join(foreign)}, which a wheel cannot expect: build the "
                         "target sharpi_bundled")
    machine = os.uname().machine
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
        build_data["force_include"][str(library.resolve())] = f"sharpi/lib/{SONAME}"
