from __future__ import annotations

import errno
import hashlib
import io
import os
import resource
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from official_forms import write
from vhl.data.download import get
from vhl.data.sources._official import Fingerprint, OfficialFile
from vhl.data.sources.cifar10 import CIFAR10
from vhl.data.sources.fmnist import FMNIST
from vhl.errors import VHLError

BODY = np.random.default_rng(0).bytes(400_000)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour, self.requests, self.body, self.released = "good", [], BODY, threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        if server.behaviour == "not found":
            self.send_error(404)
            return
        if server.behaviour == "silent":
            server.released.wait(20)
            return
        body = server.body
        promised = len(body) + {"promises more": 100, "promises less": -100}.get(server.behaviour, 0)
        if server.behaviour == "corrupt":
            body = body[:200_000] + bytes([body[200_000] ^ 1]) + body[200_001:]
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        if server.behaviour in ("stalls", "cut off"):
            self.wfile.write(body[: len(body) // 2])
            if server.behaviour == "stalls":
                server.released.wait(20)
            return
        self.wfile.write(body)

    def log_message(self, *ignored):
        pass


@pytest.fixture
def server():
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def official(server, monkeypatch):
    """Let Fashion-MNIST consist of two files on the local server."""
    digest = hashlib.sha256(BODY).hexdigest()
    files = tuple(
        OfficialFile(f"{server.address}/{n}.gz", f"fashion-mnist/{n}.gz", digest) for n in ("one", "two")
    )
    monkeypatch.setattr(FMNIST, "official", files)
    return files


@pytest.fixture
def quiet():
    return Console(file=io.StringIO(), width=200)


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_good_files_are_saved_where_they_belong(server, official, tmp_path, quiet):
    target = tmp_path / "new" / "data"
    assert get("fmnist", target, console=quiet) == [target / file.path for file in official]
    assert files_in(target) == ["fashion-mnist", "fashion-mnist/one.gz", "fashion-mnist/two.gz"]
    assert all((target / file.path).read_bytes() == BODY for file in official)
    assert all((target / file.path).stat().st_mode & 0o777 == 0o644 for file in official)
    assert server.requests == ["/one.gz", "/two.gz"]


def test_files_that_are_there_are_not_fetched_again(server, official, tmp_path, quiet):
    get("fmnist", tmp_path, console=quiet)
    before = [(tmp_path / file.path).stat().st_mtime_ns for file in official]
    assert get("fmnist", tmp_path, console=quiet) == []
    assert len(server.requests) == 2
    assert [(tmp_path / file.path).stat().st_mtime_ns for file in official] == before


def test_only_what_is_wrong_is_fetched(server, official, tmp_path, quiet):
    get("fmnist", tmp_path, console=quiet)
    (tmp_path / official[1].path).write_bytes(BODY[:-1])
    assert get("fmnist", tmp_path, console=quiet) == [tmp_path / official[1].path]
    assert (tmp_path / official[1].path).read_bytes() == BODY
    assert server.requests == ["/one.gz", "/two.gz", "/two.gz"]


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("silent", "stayed silent for 0.3 seconds"),
        ("stalls", "stayed silent for 0.3 seconds"),
        ("cut off", "broke off in mid-file"),
        ("promises more", "broke off in mid-file"),
        ("promises less", "is not the official file"),
        ("corrupt", "is not the official file"),
        ("not found", "answered 404 Not Found"),
    ],
)
@pytest.mark.parametrize("present", [False, True])
def test_a_failed_download_leaves_nothing_and_says_why(
    server, official, tmp_path, quiet, behaviour, text, present
):
    server.behaviour = behaviour
    data_dir = tmp_path / "data"
    if present:  # a wrong file is not made worse
        (data_dir / "fashion-mnist").mkdir(parents=True)
        (data_dir / official[0].path).write_bytes(b"old")
    started = time.monotonic()
    with pytest.raises(VHLError) as caught:
        get("fmnist", data_dir, console=quiet, timeout=0.3)
    assert time.monotonic() - started < 4
    message = str(caught.value)
    assert text in message and official[0].url in message and "\n" not in message
    assert f"vhl data get fmnist --data-dir {data_dir}" in message
    if present:
        assert files_in(data_dir) == ["fashion-mnist", official[0].path]
        assert (data_dir / official[0].path).read_bytes() == b"old"
    else:
        assert not data_dir.exists()
    server.behaviour = "good"
    get("fmnist", data_dir, console=quiet)
    assert (data_dir / official[0].path).read_bytes() == BODY


def test_files_fetched_before_a_failure_are_kept(server, official, tmp_path, quiet, monkeypatch):
    wrong = OfficialFile(official[1].url, official[1].path, "0" * 64)
    monkeypatch.setattr(FMNIST, "official", (official[0], wrong))
    with pytest.raises(VHLError, match=r"two\.gz sent is not the official file"):
        get("fmnist", tmp_path, console=quiet)
    assert files_in(tmp_path) == ["fashion-mnist", official[0].path]


def test_a_server_that_is_not_there(official, tmp_path, quiet, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/one.gz"
        monkeypatch.setattr(FMNIST, "official", (OfficialFile(address, "fashion-mnist/one.gz", "0" * 64),))
        with pytest.raises(VHLError, match="cannot be reached; check the network"):
            get("fmnist", tmp_path, console=quiet)
    assert files_in(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(server, official, tmp_path):
    class Interrupting(Console):
        def print(self, text, **options):
            if text.startswith("50 %"):
                written = [path for path in tmp_path.rglob("*") if path.is_file()]
                assert written[0].stat().st_size >= len(BODY) // 2 - (1 << 16)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"Nothing of \S+ was kept; run `vhl data get fmnist"):
        get("fmnist", tmp_path, console=Interrupting(file=io.StringIO()))
    assert files_in(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing(server, official, tmp_path, quiet):
    """A limit on the size of files stands in for a full disk: both fail in the middle of writing."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(VHLError) as caught:
            get("fmnist", tmp_path, console=quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reason = os.strerror(errno.EFBIG)
    assert f"{tmp_path / official[0].path} cannot be written ({reason}); make room" in str(caught.value)
    assert files_in(tmp_path) == []


def test_a_place_that_cannot_be_written(server, official, tmp_path, quiet, monkeypatch):
    (tmp_path / "fashion-mnist").write_text("a file where the folder should be")
    with pytest.raises(
        VHLError, match=r"one\.gz cannot be written \(.*\); make room for it, or set --data-dir\."
    ):
        get("fmnist", tmp_path, console=quiet)

    def refuse(*ignored, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(VHLError, match=r"cannot be written \(Read-only file system\)"):
        get("fmnist", tmp_path / "else", console=quiet)
    assert files_in(tmp_path) == ["fashion-mnist"] and server.requests == []


def test_progress_is_plain_lines_where_there_is_no_terminal(official, tmp_path, monkeypatch):
    monkeypatch.setattr(FMNIST, "official", official[:1])
    console = Console(file=io.StringIO(), width=40)
    get("fmnist", tmp_path, console=console)
    assert console.file.getvalue().splitlines() == [
        f"Fetching {official[0].url}",
        "25 % of 400.0 kB",
        "50 % of 400.0 kB",
        "75 % of 400.0 kB",
        "100 % of 400.0 kB",
    ]


def test_progress_is_a_bar_on_a_terminal(official, tmp_path, monkeypatch):
    monkeypatch.setattr(FMNIST, "official", official[:1])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    get("fmnist", tmp_path, console=console)
    shown = console.file.getvalue()
    assert "one.gz" in shown and "━" in shown and "400.0/400.0 kB" in shown


def test_sources_with_nothing_to_fetch(tmp_path, quiet):
    assert get("digits", tmp_path, console=quiet) == []
    with pytest.raises(VHLError, match="your own images"):
        get("folder:somewhere", tmp_path, console=quiet)
    with pytest.raises(VHLError, match="did you mean 'fmnist'"):
        get("fmnis", tmp_path, console=quiet)
    assert files_in(tmp_path) == []


@pytest.fixture
def cifar(tmp_path, server, monkeypatch):
    """A tiny official CIFAR-10: its archive on the server, its folder in the data directory."""
    (archive,) = write("cifar10 binary archive", tmp_path).files
    server.body = archive.read_bytes()
    archive.unlink()
    written = write("cifar10 binary folder", tmp_path)
    digest = hashlib.sha256(server.body).hexdigest()
    file = OfficialFile(f"{server.address}/cifar-10-binary.tar.gz", CIFAR10.official[0].path, digest)
    monkeypatch.setattr(CIFAR10, "official", (file,))
    monkeypatch.setattr(CIFAR10, "fingerprint", Fingerprint.of(written.read()))
    return written


def test_the_right_images_in_another_form_are_enough(cifar, server, tmp_path, quiet):
    assert get("cifar10", tmp_path, console=quiet) == [] and server.requests == []


def test_the_command_mends_a_damaged_folder(cifar, server, tmp_path, quiet):
    cifar.files[0].write_bytes(b"damaged")
    with pytest.raises(VHLError, match="run `vhl data get cifar10"):
        cifar.read()
    assert get("cifar10", tmp_path, console=quiet) == [tmp_path / "cifar-10-binary.tar.gz"]
    assert (cifar.read().train.images == cifar.images[:10]).all()
