"""A model hub on this machine's loopback: enough of the protocol for metadata, ranges, and refusals."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "a" * 40


@dataclass
class FakeHub:
    """What the hub has and how it behaves; `ranges` is what it was asked to resume from."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # owner/repo/file -> content
    status: int = 200
    error_code: str = ""  # the hub's X-Error-Code
    break_after: int | None = None  # bytes of a body after which the connection is cut, once
    ranges: list[int] = field(default_factory=list)
    revisions: dict[str, str] = field(default_factory=dict)  # owner/repo/file -> the revision last asked for

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[FakeHub]:
        hub = cls()

        class Handler(_Handler):
            fake = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def make_it_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        self.fake.revisions[f"{repo}/{file}"] = revision
        content = self.fake.files.get(f"{repo}/{file}")
        if self.fake.status != 200 or content is None:
            self.send_response(self.fake.status if self.fake.status != 200 else 404)
            if self.fake.status == 200:
                self.send_header("X-Error-Code", "EntryNotFound")
            elif self.fake.error_code:
                self.send_header("X-Error-Code", self.fake.error_code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        if with_body and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            self.fake.ranges.append(start)
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if with_body:
            self._send(content[start:])

    def _send(self, body: bytes) -> None:
        cut, self.fake.break_after = self.fake.break_after, None
        if cut is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[:cut])
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
