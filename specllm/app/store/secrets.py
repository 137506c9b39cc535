"""What looks like a secret and stays out of stores, in files and in answers.

A short list of names and forms, no promise: whoever keeps secrets elsewhere should not add them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

_SECRET_NAMES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.tfstate",
    "*.tfvars", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass",
    ".htpasswd", ".git-credentials", "credentials", "credentials.json", "credentials.ini", "secrets.json", "secrets.ini",
    "secrets.toml", "secrets.yml", "secrets.yaml", "service[-_]account*.json",
)  # fmt: skip
_HARMLESS_NAMES = ("*.example", "*.sample", "*.template")
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[opsur]_\w{36}"
    r"|\bgithub_pat_\w{22}|\bglpat-[\w-]{20}|\bxox[abeoprs]-[\w-]{10}|\bAIza[\w-]{35}|\bsk-[\w-]{32}|\bsk_live_\w{16}"
    r"|\bhf_[A-Za-z]{34}\b|\beyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]{16}"
)
_ASSIGNED = re.compile(
    # Bounded, so that a file of nothing but such words is not searched for minutes.
    r"""(?:secret|token|passw(?:or)?d|api_?key|access_?key|private_?key)\w{0,40}["']?\s{0,9}[:=]\s{0,9}["']?"""
    r"""([\w+/=-]{16,999})(?=["'\s,;]|$)""",
    re.IGNORECASE,
)
_RANDOM_BITS, _RANDOM_DIGITS = 3.0, 4  # a character, and in all: 16 random hexadecimal digits have about 3.2, and 10


def has_secret_name(path: Path) -> bool:
    """Whether files of that name usually hold keys or passwords."""
    name = path.name.lower()
    is_secret = any(fnmatchcase(name, pattern) for pattern in _SECRET_NAMES)
    return is_secret and not any(fnmatchcase(name, pattern) for pattern in _HARMLESS_NAMES)


def has_secret(text: str) -> bool:
    """Whether something in the text has the form of a key, or a name like `password` is given a random value."""
    return bool(_SECRET_TEXT.search(text)) or any(_is_random(match[1]) for match in _ASSIGNED.finditer(text))


def _is_random(value: str) -> bool:
    """Names have few digits and words few different letters."""
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return bits > _RANDOM_BITS and len(re.findall(r"\d", value)) >= _RANDOM_DIGITS and not value.isdigit()
