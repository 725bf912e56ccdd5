"""Downloads arrive whole and right, or leave nothing behind; tried on a server of our own."""

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.data import download, find
from sordino.data.sets.base import File, FileLayout
from support.errors import one_line_error

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """/whole serves all; /breaks half the rest each time; /stuck half of it and never more; /other ignores ranges."""

    seen: ClassVar[list[tuple[str, str | None]]] = []
    files: ClassVar[dict[str, bytes]] = {}

    def log_message(self, *args):
        pass

    def do_GET(self):
        asked = self.headers.get("Range")
        self.seen.append((self.path, asked))
        content = self.files.get(self.path, CONTENT)
        if self.path == "/missing":
            self.send_error(404)
            return
        start = int(asked.split("=")[1].rstrip("-")) if asked and self.path != "/other" else 0
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        first = self.path == "/other" and len([s for s in self.seen if s[0] == "/other"]) == 1
        if (self.path == "/breaks" and not start) or self.path == "/stuck" or first:
            rest = rest[: len(rest) // 2] if start < len(content) // 2 else b""
        self.wfile.write(rest)


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _directly(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    Handler.seen.clear()
    Handler.files.clear()


def refused(match, *args):
    with one_line_error(DataError, match):
        download.fetch(*args)


def test_a_good_file_arrives(site, tmp_path):
    target = tmp_path / "a" / "b" / "file"
    download.fetch(f"{site}/whole", target, SHA256)
    assert target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]


def test_a_wrong_checksum_leaves_nothing(site, tmp_path):
    refused("has sha256", f"{site}/whole", tmp_path / "file", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(site, tmp_path):
    download.fetch(f"{site}/breaks", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert Handler.seen == [("/breaks", None), ("/breaks", f"bytes={len(CONTENT) // 2}-")]


def test_a_server_that_knows_no_ranges_starts_anew(site, tmp_path):
    download.fetch(f"{site}/other", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT and len(Handler.seen) == 2


def test_a_transfer_that_never_ends_is_an_error_and_leaves_nothing(site, tmp_path):
    refused("cannot download", f"{site}/stuck", tmp_path / "file")
    assert list(tmp_path.iterdir()) == [] and len(Handler.seen) == download.TRIES


def test_what_is_not_there_is_told_once(site, tmp_path):
    refused("answered 404", f"{site}/missing", tmp_path / "file")
    assert list(tmp_path.iterdir()) == [] and len(Handler.seen) == 1


def test_no_network_is_told(tmp_path):
    refused("cannot download http://127.0.0.1:9/file: .*refused", "http://127.0.0.1:9/file", tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_told(site, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    refused("cannot write", f"{site}/whole", tmp_path / "file" / "below")


def small_source(site, path="/set.npz", **changed):
    """A benchmark of two records at our site, by omniglot's reader."""
    source = plugin.load("data.sets", "omniglot")
    read = changed.pop("read", source.layouts[0].read)
    return replace(source, layouts=(FileLayout((File("small/set.npz", url=f"{site}{path}", **changed),), read),))


def npz(tmp_path):
    x = np.zeros((2, 4, 4), np.uint8)
    both = np.array([0, 1], np.uint8)
    np.savez(tmp_path / "it.npz", x=x, y=both, client=both, drawer=np.array([1, 17], np.uint8), class_names=["a", "b"])
    return (tmp_path / "it.npz").read_bytes()


def test_a_dataset_is_fetched_into_the_cache_once(site, tmp_path):
    Handler.files["/set.npz"] = npz(tmp_path)
    source = small_source(site, sha256=hashlib.sha256(Handler.files["/set.npz"]).hexdigest())
    for _ in range(2):
        data = find.obtain(source)
        assert torch.equal(data.y_train, torch.tensor([0])) and len(Handler.seen) == 1
    assert find.locate(source).where == "cache"


def test_a_dataset_that_cannot_be_fetched_says_which_file_to_put_where(site, tmp_path):
    with pytest.raises(DataError) as error:
        find.obtain(small_source(site, "/missing"), str(tmp_path / "mine"))
    text = str(error.value)
    assert "\n" not in text and "answered 404" in text and f"Put set.npz into {tmp_path / 'mine' / 'small'}" in text
    assert str(find.cache() / "small") in find.how(small_source(site))


def test_content_that_is_not_the_dataset_is_not_kept(site, tmp_path):
    def read(paths):
        raise DataError("the records are not those of it")

    Handler.files["/set.npz"] = npz(tmp_path)
    with pytest.raises(DataError, match="not those"):
        find.obtain(small_source(site, read=read))
    assert not list(find.cache().rglob("*.npz"))
