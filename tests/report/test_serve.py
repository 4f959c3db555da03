from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vhl.report.content import content
from vhl.report.serve import LiveServer, serving
from vhl.runs.folder import RunFolder


def ask(server: LiveServer, path: str = "/", host: str | None = None) -> http.client.HTTPResponse:
    """What the server answers to a request that calls it ``host``; its body is in ``text``."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


SMALL = {"title": "small", "number": 0.5}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(lambda: SMALL) as server:
        yield server


def test_the_page_and_its_data(server: LiveServer) -> None:
    whole, data = ask(server), ask(server, "/data.json")
    assert (whole.status, data.status) == (200, 200)
    assert whole.getheader("Content-Type") == "text/html; charset=utf-8"
    assert data.getheader("Content-Type") == "application/json; charset=utf-8"
    assert whole.getheader("Cache-Control") == data.getheader("Cache-Control") == "no-store"
    assert json.loads(data.text) == SMALL
    (found,) = re.findall(r'id="data">(.*?)</script>', whole.text)
    assert json.loads(found) == {**SMALL, "live": True}


def test_every_request_reads_the_runs_anew(write: Any, record: Any, tmp_path: Path) -> None:
    run: RunFolder = write(tmp_path / "run", [0.25])
    with serving(lambda: content([run])) as server:
        for best in (0.25, 0.5):
            assert json.loads(ask(server, "/data.json").text)["runs"][0]["best"] == best
            run.append(record(2, 0.5))


@pytest.mark.parametrize("path", ["/other", "/data.json/", "/../etc/passwd", "/report.css"])
def test_there_is_nothing_else(server: LiveServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 404 and "one page" in answer.text


def test_before_the_first_round_the_page_tries_again(write: Any, record: Any, tmp_path: Path) -> None:
    run: RunFolder = write(tmp_path / "run", [])
    with serving(lambda: content([run])) as server:
        for path in ("/", "/data.json"):
            answer = ask(server, path)
            assert answer.status == 503 and "evaluated round yet" in answer.text
            assert answer.getheader("Refresh") == "3"
        run.append(record(1, 0.5))
        answer = ask(server)
        assert answer.status == 200 and answer.getheader("Refresh") is None


# --- who may look --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("port", ["", ":80"])
def test_this_machine_by_its_own_names(server: LiveServer, name: str, port: str) -> None:
    assert ask(server, host=name + port).status == 200


@pytest.mark.parametrize(
    "name",
    ["example.org", "localhost.example.org", "127.0.0.1.example.org:80", "192.168.0.7:80", "x:localhost"],
)
@pytest.mark.parametrize("path", ["/", "/data.json"])
def test_a_name_of_the_open_web_gets_nothing(server: LiveServer, name: str, path: str) -> None:
    """A page elsewhere whose name was made to lead here must not read what is served."""
    answer = ask(server, path, host=name)
    assert answer.status == 403 and "small" not in answer.text


def test_a_request_without_a_host(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(100).split()[1] == b"403"


def test_who_opened_the_server_meant_others() -> None:
    with serving(lambda: SMALL, "0.0.0.0") as server:
        assert ask(server, host="lab-machine:80").status == 200


def test_it_listens_where_it_was_told(server: LiveServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.server_port}/" and server.server_port > 0
    assert server.socket.getsockname()[0] == "127.0.0.1"
    with serving(lambda: SMALL, "127.0.0.2") as other:
        assert other.url.startswith("http://127.0.0.2:") and other.trusts("127.0.0.2:80")
        assert not other.trusts("127.0.0.1:80")


# --- what goes wrong -----------------------------------------------------------------------------------


def test_a_port_that_is_taken(server: LiveServer, complains: Any) -> None:
    with (
        complains(f"127.0.0.1:{server.server_port}", "--port"),
        serving(lambda: SMALL, port=server.server_port),
    ):
        pass


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist(complains: Any, port: int) -> None:
    with complains(str(port), "--port"), serving(lambda: SMALL, port=port):
        pass


def test_an_address_that_is_not_this_machines(complains: Any) -> None:
    with complains("203.0.113.7"), serving(lambda: SMALL, "203.0.113.7"):
        pass


def test_a_browser_that_goes_away_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    """It would stand between the lines of a run."""
    asked, gone = threading.Event(), threading.Event()

    def wait() -> dict[str, Any]:
        asked.set()
        gone.wait(10)
        return {"title": "x" * 10_000_000}

    with serving(wait) as server:
        connection = socket.create_connection(("127.0.0.1", server.server_port))
        connection.sendall(b"GET /data.json HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert asked.wait(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not farewell
        connection.close()
        gone.set()
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(10)
    assert capfd.readouterr() == ("", "")


def test_the_server_ends_with_its_block() -> None:
    before = threading.active_count()
    with serving(lambda: SMALL) as server:
        port = server.server_port
        assert ask(server).status == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert threading.active_count() <= before


def test_requests_wait_for_one_another() -> None:
    """Else each would do again what takes long."""
    inside, most, guard = [0], [0], threading.Lock()

    def slow() -> dict[str, Any]:
        with guard:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        with guard:
            inside[0] -= 1
        return SMALL

    with serving(slow) as server:
        threads = [threading.Thread(target=ask, args=(server, "/data.json")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1]
