"""No secrets in a store: what is taken for one, by its name, in a file, in an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app.store.secrets import has_secret, has_secret_name
from specllm.runtime.vocab import Vocab
from tests.app.store.stores import Add, opened, tokens_of


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "prod.env", "server.pem", "tls.KEY", "id_rsa", "id_ed25519.pub", ".netrc", "credentials",
     "secrets.yaml", "service-account-prod.json", "terraform.tfstate", ".git-credentials"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert has_secret_name(Path("folder") / name)


@pytest.mark.parametrize(
    "name", [".env.example", "environment.py", "secrets.py", "keys.py", "credentials.ts", "key.md", "pem.go"]
)
def test_names_of_code_are_not_taken_for_secrets(name: str) -> None:
    assert not has_secret_name(Path(".env") / name)


# Put together here, so that nobody who looks for secrets finds one in this file.
KEYS = [
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow",
    '"key": "-----BEGIN ' + 'PRIVATE KEY-----\\nMIIEow"',
    "AK" + "IAQ3EGRZ7VJ2HQWXYZ",
    "aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/bPxRfi2Y8Q1zkLm3n4",
    'GITHUB = "gh' + 'p_0123456789abcdefghijABCDEFGHIJ456789"',
    "API_KEY: " + "9f86d081884c7d659a2feaa0c55ad015",
    "export SLACK_TOKEN=" + "xoxb-123456789012-abcdefghijkl",
    "password='" + "tR4x9-kQ2m8Zp5vLw7b1'",
    "Bearer eyJ" + "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
]


@pytest.mark.parametrize("text", KEYS)
def test_keys_and_random_passwords_are_found_in_a_text(text: str) -> None:
    assert has_secret(f"first line\n{text}\nlast line\n")


def test_an_answer_with_a_secret_is_not_kept_and_that_is_said(
    add: Add, project: Path, vocab: Vocab, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Path(add(project).path).with_suffix(".answers")
    for n, key in enumerate(KEYS, 1):
        opened(vocab).remember(tokens_of(vocab, f"first line\n{key}\nlast line\n"))
        assert len(caplog.messages) == n
        assert caplog.messages[-1] == "the answer is not in the store: something in it looks like a secret"
        assert not answers.exists()
    opened(vocab).remember(tokens_of(vocab, "password = os.environ['PASSWORD']\n"))
    assert answers.exists()


@pytest.mark.parametrize(
    "text",
    [
        "token = tokenizer.convert_tokens_to_ids(tokens)",
        'password = os.environ["DATABASE_PASSWORD_FOR_TESTS"]',
        "access_token: str = get_access_token_from_environment_v2",
        "secret = 11111111111111111111",
        'if line == "-----BEGIN ' + 'PRIVATE KEY-----":',
        "sha256 = 9f86d081884c7d659a2feaa0c55ad015",
        "api_key=YOUR_API_KEY_GOES_HERE_PLEASE",
    ],
)
def test_code_about_secrets_is_none(text: str) -> None:
    assert not has_secret(text)


@pytest.mark.parametrize("text", ["token" * 20_000, "token=" * 20_000 + "."])
def test_words_of_secrets_without_end_are_read_once(text: str) -> None:
    """Each of them was a place to begin from, and the end of the file as far as it had to be looked at: minutes."""
    assert not has_secret(text)
