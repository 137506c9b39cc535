"""Where specllm keeps what a user would not want to lose and would not look for: histories, edits to undo."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def state_dir() -> Path:
    """SPECLLM_STATE_DIR, else the platform's place for state; may not exist yet."""
    chosen = os.environ.get("SPECLLM_STATE_DIR")
    return (
        Path(chosen).expanduser().absolute()
        if chosen
        else Path(platformdirs.user_state_dir("specllm", appauthor=False))
    )
