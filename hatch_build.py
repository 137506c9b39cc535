"""Compiles the kernels into the wheel, where there is a compiler; without them specllm runs on llama.cpp's own.

A wheel for others: `pip install build ziglang`, then `python -m build --wheel --no-isolation`. What zig compiles runs on every
x86-64 Linux from manylinux2014 on; what this machine's own compiler does, on systems like this one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":  # scripts/setup compiles them for a checkout
            return
        kernels = self._read("specllm/kernels/build.py")
        compiler = kernels.find_compiler()
        if not kernels.IS_SUPPORTED or compiler is None:
            self.app.display_warning("without specllm's kernels: they need x86-64 Linux and a C++ compiler")
            return
        self._folder = tempfile.TemporaryDirectory(prefix="specllm-kernels.")
        library = Path(self._folder.name) / kernels.LIBRARY.name
        try:
            kernels.build(compiler, library)
        except kernels.BuildFailed as error:
            self.app.display_warning(f"without specllm's kernels: {error}")
            return
        build_data["force_include"][str(library)] = f"specllm/kernels/{library.name}"
        build_data["pure_python"] = False
        system = f"manylinux_{kernels.GLIBC.replace('.', '_')}" if compiler.is_zig else "linux"
        build_data["tag"] = f"py3-none-{system}_x86_64"

    def _read(self, file: str) -> ModuleType:
        """The module alone: what specllm needs to be imported is not here."""
        spec = importlib.util.spec_from_file_location("specllm_kernels_build", Path(self.root) / file)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
