"""What the kernels declare of ggml's interface is what the installed version's own headers say."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from specllm.kernels import build

HEADERS = Path(sysconfig.get_path("platlib"), "include")  # where llama-cpp-python installs ggml's
OURS = build.NATIVE / "ggml_interface.h"
# ggml's headers first, so that the names without a namespace are theirs
PROGRAM = """\
#include "ggml-backend.h"
#include "ggml.h"
#include "{ours}"
#include <type_traits>
{assertions}
int main() {{ return 0; }}
"""


def assertions() -> list[str]:
    """One per declared number and member."""
    text = OURS.read_text(encoding="utf-8")
    numbers = re.findall(r"(GGML_[A-Z0-9_]+) = \d+", text)
    tensor = re.search(r"struct ggml_tensor \{(.*?)\n\};", text, re.DOTALL)
    assert tensor is not None
    members = re.findall(r"(\w+)(?:\[\d+\])?;", tensor[1])
    assert len(numbers) > 8
    assert len(members) == 14
    ours = "specllm::ggml_tensor"
    return [
        f"static_assert(sizeof(ggml_tensor) == sizeof({ours}), \"size\");",
        *(f'static_assert((int){name} == (int)specllm::{name}, "{name}");' for name in numbers),
        *(f'static_assert(offsetof(ggml_tensor, {name}) == offsetof({ours}, {name}), "{name}");' for name in members),
        *(f'static_assert(sizeof(ggml_tensor::{name}) == sizeof({ours}::{name}), "{name}");' for name in members),
        *(f'static_assert(sizeof({name}) == 4, "{name}");' for name in ("ggml_type", "ggml_op", "ggml_status")),
    ]  # fmt: skip


def compile_with(lines: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = build.find_compiler()
    if not build.IS_SUPPORTED or compiler is None:
        pytest.skip("x86-64 Linux with a C++ compiler")
    source = folder / "interface.cpp"
    source.write_text(PROGRAM.format(ours=OURS, assertions="\n".join(lines)), encoding="utf-8")
    command = [*compiler.compile, "-std=c++17", f"-I{HEADERS}", "-c", source, "-o", folder / "interface.o"]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def test_declarations_are_those_of_the_installed_headers(tmp_path: Path) -> None:
    done = compile_with(assertions(), tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_difference_would_be_seen(tmp_path: Path) -> None:
    lines = [line.replace("ggml_tensor, data)", "ggml_tensor, extra)", 1) for line in assertions()]
    done = compile_with(lines, tmp_path)
    assert done.returncode != 0
    assert "data" in done.stderr
