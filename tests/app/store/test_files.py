"""Which files a store takes: what git would not ignore, and no secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specllm.app.store.files import files_below, has_secret, has_secret_name


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    return root


def ignoring(folder: Path, *patterns: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("\n".join(patterns) + "\n")


def below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in files_below(root) if path.name != ".gitignore"}


def test_all_files_of_a_plain_folder_are_found_but_no_version_control(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "b/c.txt", ".git/config", "b/__pycache__/a.pyc", "node_modules/x/y.js", ".github/ci.yml")
    assert below(tmp_path) == {"a.py", "b/c.txt", ".github/ci.yml"}


def test_a_repository_gives_what_git_itself_lists(tmp_path: Path) -> None:
    tree(
        tmp_path, "a.py", "a.log", "keep.log", "build/x.py", "src/build/y.py", "src/deep/z.tmp", "src/deep/w.py", "doc/a.md",
        "doc/secret/b.md", "only/root.txt", "src/only/root.txt", "out/1.txt", "out/keep/2.txt", "space name.py",
    )  # fmt: skip
    ignoring(
        tmp_path,
        "*.log",
        "!keep.log",
        "build/",
        "/only",
        "out/*",
        "!out/keep",
        "# a comment",
        "",
        "!",
        "\\",
        "keep\\",
        "[z-a]",
    )
    ignoring(tmp_path / "src", "*.tmp", "!build/")
    ignoring(tmp_path / "doc", "secret")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git" / "info").mkdir(exist_ok=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("doc/a.md\n")
    listed = subprocess.run(
        ["git", "-c", "core.excludesFile=", "-C", str(tmp_path), "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    assert below(tmp_path) == {name for name in listed if name and not name.endswith(".gitignore")}


def test_rules_above_the_folder_hold_inside_it_up_to_the_top_of_the_repository(tmp_path: Path) -> None:
    ignoring(tmp_path, "*.py")  # above the repository: not its business
    repository = tree(tmp_path / "repository", "src/a.py", "src/a.log", ".git/HEAD")
    ignoring(repository, "*.log")
    assert below(repository / "src") == {"a.py"}


def test_an_ignored_folder_that_is_named_is_wanted(tmp_path: Path) -> None:
    repository = tree(tmp_path, ".venv/lib/a.py", ".venv/lib/b.log", ".git/HEAD")
    ignoring(repository, ".venv", "*.log")
    assert below(repository) == set()
    assert below(repository / ".venv" / "lib") == {"a.py", "b.log"}
    assert list(files_below(repository / ".venv" / "lib" / "a.py")) == [repository / ".venv" / "lib" / "a.py"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    tree(tmp_path, "outside/a.py", "inside/b.py")
    (tmp_path / "inside" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "inside" / "file.py").symlink_to(tmp_path / "outside" / "a.py")
    (tmp_path / "inside" / "loop").symlink_to(tmp_path / "inside")
    assert below(tmp_path / "inside") == {"b.py"}


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
