# SPDX-License-Identifier: MIT
"""Puts libsharpi-cuda.so beside the library of the package sharpi, which is the only one that takes it.

SHARPI_WHEEL_MODULE names the module (the target sharpi_cuda_module_bundled).
"""

import importlib.util
import os
import pathlib
from typing import Any, Dict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MODULE = "libsharpi-cuda.so"


def library_hook(root: str) -> Any:
    """What the package of the library knows of libraries."""
    path = pathlib.Path(root).parent / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("sharpi_hatch_build", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"there is no {path}")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class DependencyHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: Dict[str, Any]) -> None:
        metadata["dependencies"] = [f"sharpi=={metadata['version']}"]


class ModuleHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        named = os.environ.get("SHARPI_WHEEL_MODULE")
        if not named or not pathlib.Path(named).exists():
            raise SystemExit("SHARPI_WHEEL_MODULE names no module: build the target sharpi_cuda_module_bundled")
        module = pathlib.Path(named)
        build_data["pure_python"] = False
        build_data["tag"] = library_hook(self.root).tag_of(module)
        build_data["force_include"][str(module.resolve())] = f"sharpi/lib/{MODULE}"
