"""A real terminal to look at: tmux draws it, the tests read its screen."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROMPT = "ready> "
WAIT_S = 30
_numbers = itertools.count()


class Terminal:
    def __init__(self, folder: Path, *, columns: int = 80, rows: int = 24) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self._tmux = ["tmux", "-L", f"specllm-test-{os.getpid()}-{next(_numbers)}", "-f", "/dev/null"]
        shell = folder / "shell.sh"
        shell.write_text(
            f'specllm() {{ {shlex.quote(sys.executable)} -m specllm "$@"; }}\nPS1={PROMPT!r}\n', encoding="utf-8"
        )
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
        environment.pop("TMUX", None)
        command = f"exec bash --noprofile --rcfile {shlex.quote(str(shell))} -i"
        self._call("new-session", "-d", "-x", str(columns), "-y", str(rows), command, environment=environment)
        self._call("set", "-g", "status", "off")
        self.resize(columns, rows)
        self.wait_for(lambda: self.rows()[0].startswith(PROMPT.strip()))

    def type(self, text: str) -> None:
        """A line and Enter."""
        self._call("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self._call("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    def rows(self) -> list[str]:
        """What is on the screen, row by row."""
        return self._call("capture-pane", "-p").split("\n")[:-1]

    def everything(self) -> str:
        """The screen and all that was scrolled out of it, wrapped lines in one."""
        return self._call("capture-pane", "-p", "-J", "-S", "-")

    def scroll_region(self) -> tuple[int, int]:
        first, last = self._call("display", "-p", "#{scroll_region_upper} #{scroll_region_lower}").split()
        return int(first), int(last)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end:
                pytest.fail("the screen is\n" + "\n".join(self.rows()))
            time.sleep(0.02)

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in "\n".join(self.rows()))

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _call(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, encoding="utf-8", check=True,
                              env=environment)  # fmt: skip
        return done.stdout
