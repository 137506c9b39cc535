"""Which files a store takes: what git would not ignore."""

from __future__ import annotations

import subprocess
from pathlib import Path

from specllm.app.store.files import files_below


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
