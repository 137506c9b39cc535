"""The model hub and its cache: the only module that imports huggingface_hub, and it lets none of its exceptions out.

Bytes go straight into the unfinished pull's folder under the file's own etag, so an interrupted download
goes on where it stopped, also in another process, and a file that changed on the hub starts over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlparse

from specllm.errors import DownloadError
from specllm.models.disk import require_space, storage_errors
from specllm.models.entries import HubSource
from specllm.models.progress import Progress

LOGIN_HINT = "accept the model's terms on its hub page, then: hf auth login"


_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """A complete file, not yet verified. `sha256` is what the hub promises, None where it does not."""

    path: Path
    commit: str
    sha256: str | None


def cache_dir() -> Path:
    """Where the hub's own client, and every tool that uses it, keeps its files; may not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(cache) / "huggingface"
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub"
    return Path(chosen).expanduser()


def cached(source: HubSource) -> tuple[HubFile, ...]:
    """The file of `source`, or every part of a split one, out of one snapshot in the hub's cache; empty where it is not
    whole there. Nothing is read or asked of the network."""
    repository = cache_dir() / f"models--{source.repo.replace('/', '--')}"
    if not repository.is_dir():  # spares the import
        return ()
    from huggingface_hub import try_to_load_from_cache

    revisions = [source.revision]
    if source.revision == "main":  # a file that was fetched by its commit has left no note of the branch it is from
        snapshots = (repository / "snapshots").glob("*")
        revisions += [path.name for path in sorted(snapshots, key=lambda path: -path.stat().st_mtime)]
    for revision in revisions:
        found = [
            try_to_load_from_cache(source.repo, file, cache_dir=repository.parent, revision=revision)
            for file in source.files()
        ]
        paths = [Path(path) for path in found if isinstance(path, str)]
        if len(paths) == len(found):
            return tuple(_of_cache(path, source) for path in paths)
    return ()


def _of_cache(path: Path, source: HubSource) -> HubFile:
    """snapshots/COMMIT/FILE is a link to blobs/ETAG; the etag of a large file is its digest."""
    blob = path.resolve().name
    commit = path.parents[source.file.count("/")].name
    return HubFile(path=path, commit=commit, sha256=blob if _SHA256.fullmatch(blob) else None)


def fetch(source: HubSource, folder: Path, progress: Progress) -> HubFile:
    """The file of `source` lies complete in `folder`.

    DownloadError says why not; what came so far is kept for the next try.
    """
    from huggingface_hub import constants, file_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars, logging  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        raise DownloadError("offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE")
    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its retry warnings would run through the progress bar
    url = hf_hub_url(source.repo, source.file, revision=source.revision)
    with _hub_errors(source):
        metadata = file_download.get_hf_file_metadata(url)
    etag = "".join(letter for letter in metadata.etag or "" if letter.isalnum())[:64]
    part = folder / f"hub-{etag or 'unnamed'}.part"
    done_bytes = _prepare(part, metadata.size)
    require_space(folder, (metadata.size or 0) - done_bytes)
    progress.begin("downloading", metadata.size, done_bytes)
    headers = build_hf_headers()
    if urlparse(metadata.location).netloc != urlparse(url).netloc:
        headers.pop("authorization", None)  # the token is for the hub, not for its file servers
    with storage_errors(part), part.open("ab") as file, _hub_errors(source):
        watched = cast(BinaryIO, _Watched(file, part, progress))
        file_download.http_get(
            metadata.location, watched, resume_size=done_bytes, headers=headers, expected_size=metadata.size
        )
    return HubFile(path=part, commit=metadata.commit_hash or "", sha256=etag if _SHA256.fullmatch(etag) else None)


def _prepare(part: Path, n_bytes: int | None) -> int:
    """Bytes of `part` that can be kept; parts of another version of the file are gone."""
    with storage_errors(part):
        for other in part.parent.glob("hub-*.part"):
            if other != part:
                other.unlink()
        if not part.exists():
            return 0
        done_bytes = part.stat().st_size
        if n_bytes is None or done_bytes > n_bytes or part.name == "hub-unnamed.part":
            part.unlink()
            return 0
    return done_bytes


class _Watched:
    """A file that reports what is written to it, and whose write errors are not the network's."""

    def __init__(self, file: BinaryIO, path: Path, progress: Progress) -> None:
        self.file = file
        self.path = path
        self.progress = progress

    def write(self, chunk: bytes) -> int:
        with storage_errors(self.path):
            self.file.write(chunk)
        self.progress.advance(len(chunk))
        return len(chunk)

    def tell(self) -> int:
        return self.file.tell()

    def seek(self, position: int) -> int:
        return self.file.seek(position)

    def truncate(self) -> int:
        """The server sends the file from its beginning, whatever was asked for: what came before is void."""
        return self.file.truncate()


@contextmanager
def _hub_errors(source: HubSource) -> Iterator[None]:
    """Exceptions of huggingface_hub, and of the HTTP library below it, leave as DownloadError."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    where = f"{source.file} in {source.repo}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(f"{source.repo} is gated: its makers want you to ask first", LOGIN_HINT) from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError("offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE") from error
    except errors.RevisionNotFoundError as error:
        raise DownloadError(
            f"{source.repo} has no revision {source.revision}", "check revision in models.toml"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no {source.repo}, or it is private",
            "check the name; for a private one: hf auth login",
        ) from error
    except errors.EntryNotFoundError as error:
        raise DownloadError(f"{source.repo} has no file {source.file}", "check the file's name") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise DownloadError(f"the hub refuses {where} (status {status})", LOGIN_HINT) from error
        raise DownloadError(f"the hub failed on {where} (status {status})", "try again later") from error
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DownloadError(
            f"no network, or the hub does not answer: {reason}", "check the network, then pull again"
        ) from error
