"""Which files an answer may not be about, if it is to be kept in a store."""

from __future__ import annotations

import os
from pathlib import Path

from specllm.app.store.files import Rules
from specllm.app.store.secrets import has_secret, has_secret_name
from specllm.app.text_file import read_text_file
from specllm.errors import ConfigError


def why_private(path: Path) -> str | None:
    """Why nothing about the file belongs into a store; None where it may be there.

    What `store add` passes over for its name, its text or for git's sake, and links to such files.
    """
    for place in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        if has_secret_name(place):
            return f"{path} has the name of a secret"
        if Rules.ignore(place):
            return f"{path} is ignored by git"
    try:
        text = read_text_file(path).text
    except ConfigError:  # then it was not read for an answer either, or says so
        return None
    return f"something in {path} looks like a secret" if has_secret(text) else None
