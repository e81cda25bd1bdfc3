#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What is in the Python package for Windows, where no Python for Windows is at hand to install it:

    wheel_contents.py WHEEL FOLDER

The tag of its name is that of its own WHEEL file; every file is in RECORD with its hash; its modules are those of
this tree; its one library lies where the package looks for it on Windows, is for x86-64, imports what every Windows
has, and exports every function that the package declares; ctypes lays the declarations out as the facts
of the ABI say, with no type whose size is another one on Windows. It is unpacked into FOLDER."""
import ast
import base64
import csv
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

TREE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = TREE / "bindings/python/sharpi"
LIBRARY = "sharpi/lib/sharpi.dll"
SYSTEM = re.compile(r"(kernel32|msvcrt|bcrypt|advapi32|shell32|psapi|ws2_32|api-ms-win-core-synch-l1-2-0)\.dll", re.I)
# Of another size on Windows than on Linux, or as the compiler likes.
UNEVEN = {"c_long", "c_ulong", "c_longdouble", "c_wchar", "c_wchar_p"}


def must(holds, text):
    if not holds:
        raise SystemExit(f"the wheel: {text}")


def check_record(at, info):
    record = list(csv.reader((info / "RECORD").read_text().splitlines()))
    listed = {name for name, _, _ in record}
    there = {file.relative_to(at).as_posix() for file in at.rglob("*") if file.is_file()}
    must(listed == there, f"RECORD and the files differ in {sorted(listed ^ there)}")
    for name, digest, size in record:
        if digest:
            kind, _, value = digest.partition("=")
            content = (at / name).read_bytes()
            made = base64.urlsafe_b64encode(hashlib.new(kind, content).digest()).rstrip(b"=").decode()
            must(made == value and len(content) == int(size), f"{name} is not what RECORD says")
    return there


def check_modules(at, files):
    ours = {"sharpi/" + file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")}
    theirs = {name for name in files if name.endswith(".py")}
    must(ours == theirs, f"its modules differ from the tree's in {sorted(ours ^ theirs)}")
    for name in sorted(ours):
        must((at / name).read_bytes() == (PACKAGE.parent / name).read_bytes(), f"{name} is not the tree's")
        tree = ast.parse((at / name).read_text(encoding="utf-8"))
        used = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}
        must(not used & UNEVEN, f"{name} uses {sorted(used & UNEVEN)}")


def check_library(at, files):
    libraries = {name for name in files if re.search(r"\.(dll|pyd|so)(\.|$)", name)}
    must(libraries == {LIBRARY}, f"its libraries are {sorted(libraries)}")
    said = subprocess.run(["x86_64-w64-mingw32-objdump", "-p", str(at / LIBRARY)], check=True, capture_output=True,
                          text=True).stdout
    must("file format pei-x86-64" in said, "its library is not for Windows on x86-64")
    foreign = [name for name in re.findall(r"DLL Name: (\S+)", said) if not SYSTEM.fullmatch(name)]
    must(not foreign, f"its library needs {foreign}")
    exported = set(re.findall(r"\b(sharpi_[a-z0-9_]+)$", said.split("Ordinal/Name Pointer", 1)[1], re.M))
    declared = subprocess.run([sys.executable, "-B", str(TREE / "tests/ffi/layout.py"), str(at / "sharpi/_abi.py")],
                              check=True, capture_output=True, text=True).stdout.splitlines()
    called = {line.split()[1] for line in declared if line.startswith("function ")}
    must(called == exported, f"declared and exported functions differ: {sorted(called ^ exported)}")
    facts = (TREE / "tests/abi/sharpi-1.facts").read_text().splitlines()
    must(sorted(declared) == sorted(facts), f"ctypes lays out {sorted(set(declared) ^ set(facts))}")
    return len(called), len(facts)


def main():
    wheel, at = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    shutil.rmtree(at, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(at)
    info = next(at.glob("*.dist-info"))
    text = (info / "WHEEL").read_text()
    tag = re.search(r"^Tag: (.*)$", text, re.M)[1]
    must(tag == "py3-none-win_amd64" and wheel.name.endswith(f"-{tag}.whl"), f"its tag is {tag}")
    must("Root-Is-Purelib: false" in text, "it says that it is the same on every system")
    files = check_record(at, info)
    check_modules(at, files)
    functions, facts = check_library(at, files)
    print(f"{wheel.name}: {len(files)} files as RECORD says, {functions} functions, {facts} facts of the ABI")


main()
