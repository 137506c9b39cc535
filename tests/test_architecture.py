"""The house of design section 2: who may import whom, and how big things get."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specllm"
FILES = sorted(PACKAGE.rglob("*.py"))

GROUND = {"config", "errors", "units", "__version__"}
ROOMS = {  # room -> the rooms it may use
    "__main__": {"cli"},
    "cli": {"cli", "ui", "app"} | GROUND,
    "ui": {"ui", "decoding"} | GROUND,
    "app": {"app", "models", "drafters", "runtime", "decoding"} | GROUND,
    "models": {"models"} | GROUND,
    "drafters": {"drafters", "decoding"} | GROUND,
    "runtime": {"runtime", "kernels", "decoding"} | GROUND,
    "kernels": {"kernels"} | GROUND,
    "decoding": {"decoding"} | GROUND,
    "config": {"errors"},
    "errors": set(),
    "units": set(),
    "__init__": set(),
}
FENCED = {  # library -> the only places that may import it
    "llama_cpp": ("runtime/",),
    "rich": ("ui/",),
    "prompt_toolkit": ("ui/chat_input.py",),
    "typer": ("cli/",),
    "gguf": ("runtime/trim_vocab.py", "runtime/trimmed_vocab.py"),
    "llguidance": ("runtime/grammar.py", "runtime/compiler.py"),
    "huggingface_hub": ("models/hub.py",),
    "pathspec": ("app/store/files.py",),
    "platformdirs": (
        "models/store.py",
        "app/calibration.py",
        "app/state.py",
        "app/store/stores.py",
        "kernels/loader.py",
    ),
    "jinja2": ("app/chat/sandbox.py",),
    "matplotlib": ("ui/charts.py",),
    "jsonschema": ("app/bench/validation.py",),
    "jsonschema_specifications": ("app/bench/validation.py",),
    "referencing": ("app/bench/validation.py",),
    "numpy": ("decoding/", "drafters/", "runtime/", "kernels/selftest.py"),
}

MAX_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room(file: Path) -> str:
    return place(file).partition("/")[0].removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    """Every module that `file` imports when it runs, at the top or inside a function, by its full name."""
    yield from _imports(ast.parse(file.read_text(encoding="utf-8")))


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for child in node.orelse:
            yield from _imports(child)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        whole = node.module or ""
        # `from specllm.app import generate` is the module app.generate, `from specllm.errors import X` is errors.
        is_package = whole.count(".") <= 1 and (PACKAGE.parent / whole.replace(".", "/")).is_dir()
        yield from (f"{whole}.{alias.name}" for alias in node.names) if is_package else (whole,)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def n_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_imports_go_downward_only() -> None:
    wrong = [
        (place(file), name.removeprefix("specllm."))
        for file in FILES
        for name in imports(file)
        if name.startswith("specllm.") and name.split(".")[1] not in ROOMS[room(file)]
    ]
    assert wrong == []


def test_every_library_has_one_room() -> None:
    allowed_anywhere = sys.stdlib_module_names | {"specllm"}
    wrong = [
        (place(file), name)
        for file in FILES
        for name in imports(file)
        if (library := name.partition(".")[0]) not in allowed_anywhere
        if not place(file).startswith(FENCED.get(library, ()))
    ]
    assert wrong == []


def test_runtime_and_drafters_meet_in_one_place() -> None:
    meeting = {
        place(file)
        for file in FILES
        if room(file) not in ("drafters", "runtime")
        if {"specllm.drafters.lookup", "specllm.drafters.model"} & set(imports(file))
    }
    assert meeting == {"app/drafting.py"}


def test_nothing_catches_everything_but_the_command_edge() -> None:
    catching = {
        place(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler) and ast.unparse(node.body[-1]) != "raise"
        if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
    }
    assert catching == {"cli/main.py"}


@pytest.mark.parametrize("file", FILES, ids=place)
def test_files_and_functions_are_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    for function in functions(file):
        assert (function.end_lineno or 0) - function.lineno < MAX_FUNCTION_LINES, function.name
        if room(file) != "cli":
            assert n_parameters(function) <= MAX_PARAMETERS, function.name
