# SPDX-License-Identifier: MIT
"""The package as a whole: it covers the header, and what is installed is complete."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import TREE

import sharpi
from sharpi import _abi

PACKAGE = pathlib.Path(sharpi.__file__).parent
IS_INSTALLED = "site-packages" in PACKAGE.parts


def test_every_function_of_the_header_is_used():
    source = "".join(file.read_text(encoding="utf-8") for file in PACKAGE.glob("*.py")
                     if file.name not in ("_abi.py", "types.py"))
    used = set(re.findall(r"\blib(?:rary)?\.(sharpi_\w+)", source))
    # Their _to and _from forms do the same without a second copy; one form of the stream is enough.
    unused = set(_abi.FUNCTIONS) - used - {"sharpi_session_save"}
    assert unused == set()


def test_every_public_name_has_its_words():
    for name in sharpi.__all__:
        thing = getattr(sharpi, name)
        if isinstance(thing, int):
            continue
        assert thing.__doc__, name
        if isinstance(thing, type) and not issubclass(thing, (int, Exception)):
            for member, value in vars(thing).items():
                if not member.startswith("_") and callable(value):
                    assert member in ("keys", "close") or value.__doc__ or member in WORDLESS, (name, member)


# Said by the class, or by the name alone.
WORDLESS = {"meta_keys"}


def test_versions_agree():
    major, minor, patch = map(int, sharpi.__version__.split("."))
    assert sharpi.version() == major * 10000 + minor * 100 + patch
    assert sharpi.build_info().startswith(f"libsharpi {sharpi.__version__}")
    header = (_abi.SHARPI_VERSION_MAJOR, _abi.SHARPI_VERSION_MINOR, _abi.SHARPI_VERSION_PATCH)
    assert header == (major, minor, patch)


def test_numbers_that_only_a_newer_library_knows():
    policy = sharpi.Policy(99)
    assert policy == 99 and policy.name == "UNKNOWN_99"


@pytest.mark.skipif(not IS_INSTALLED, reason="the package is not installed from a wheel")
def test_the_wheel_has_all_that_it_needs():
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "lib" / "libsharpi.so.1").exists()
    files = [str(file) for file in importlib.metadata.files("sharpi")]
    for licence in ("LICENSE", "PCRE2.txt", "utf8proc.txt"):
        assert any(file.endswith(licence) and "dist-info" in file for file in files)
    own = [file for file in importlib.metadata.files("sharpi") if file.name == "LICENSE"]
    assert own[0].read_text() == (TREE / "LICENSE").read_text()


@pytest.mark.skipif(not IS_INSTALLED, reason="the package is not installed from a wheel")
def test_the_wheels_library_needs_the_c_library_alone():
    code = "import sharpi; print(open('/proc/self/maps').read())"
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    maps = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                          env=environment).stdout
    assert str(PACKAGE / "lib" / "libsharpi.so.1") in maps
    for other in ("pcre2", "utf8proc", "libstdc++", "numpy"):
        assert other not in maps


def test_a_library_that_is_none_is_an_import_error(tmp_path):
    for name in (tmp_path / "missing.so", "libc.so.6"):
        done = subprocess.run([sys.executable, "-c", "import sharpi"], capture_output=True, text=True,
                              env={**os.environ, "SHARPI_LIBRARY": str(name),
                                   "PYTHONPATH": str(PACKAGE.parent)})
        assert done.returncode == 1 and "ImportError" in done.stderr
