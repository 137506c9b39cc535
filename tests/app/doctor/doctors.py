"""What the tests of the doctor share: models to find, and what it says of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from specllm.app.doctor.diagnosis import Check
from specllm.app.doctor.use_case import diagnose
from specllm.kernels.loader import Kernels
from specllm.runtime.backend import BackendInfo, Device
from specllm.ui.doctor import Terminal

GIB = 1 << 30
TERMINAL = Terminal(is_terminal=True, encoding="utf-8", columns=100, has_colour=True)
PLAIN_BUILD = BackendInfo(
    binding_version="0.3.36",
    ggml_version="1.2 abc",
    system_info="",
    features=frozenset({"AVX", "AVX2"}),
    compiler="clang 22.1.8",
    cpu="",
    kernels=Kernels(),
    kernels_bytes=1_000_000,
    devices=(Device("CPU", "a processor", "cpu", 4 * GIB, 8 * GIB),),
    can_offload=False,
    can_mmap=True,
    can_mlock=True,
)
GPU_BUILD = replace(
    PLAIN_BUILD, can_offload=True, devices=(Device("CUDA0", "a GPU", "gpu", GIB, 2 * GIB), *PLAIN_BUILD.devices)
)


def install(target: Path, draft: Path | None = None) -> None:
    """Writes the user's models.toml: a default pair of two files, or one default model."""
    entries = [("target", target)] + ([("draft", draft)] if draft else [])
    lines = [f'default = "{"both" if draft else "target"}"']
    for name, path in entries:
        lines += [f"[models.{name}]", f'sources = [{{ kind = "path", path = {json.dumps(str(path))} }}]']
    if draft:
        lines += ["[pairs.both]", 'target = "target"', 'draft = "draft"']
    file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def found(**options: bool) -> dict[str, Check]:
    """All checks of the doctor by name."""
    return {check.name: check for check in diagnose(TERMINAL, **options)}
