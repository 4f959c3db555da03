from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vhl.cli.commands import watch
from vhl.cli.display import console
from vhl.report.serve import serving


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do something while the command waits, then press Ctrl-C."""

    def arrange(action: Callable[[], None]) -> None:
        class Event:
            def wait(self) -> None:
                action()
                raise KeyboardInterrupt

        monkeypatch.setattr(watch, "threading", SimpleNamespace(Event=Event))

    return arrange


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every address that is printed."""
    found: list[str] = []
    say = console.print

    def listen(text: str, **options: Any) -> None:
        found.extend(re.findall(r"http://\S+", text))
        say(text, **options)

    monkeypatch.setattr(console, "print", listen)
    return found


def rounds(url: str) -> list[int]:
    with urllib.request.urlopen(f"{url}data.json", timeout=10) as answer:
        return [run["done"] for run in json.load(answer)["runs"]]


def test_runs_are_followed_until_ctrl_c(
    vhl: Any, trained: Path, meanwhile: Any, addresses: list[str]
) -> None:
    """What is there when the page is asked for counts: new rounds, and new runs in a folder."""
    run = Path(shutil.copytree(trained, "runs/one"))
    seen = []

    def look() -> None:
        seen.append(rounds(addresses[0]))
        with (run / "metrics.jsonl").open("a+", encoding="utf-8") as metrics:
            metrics.seek(0)
            metrics.write(json.dumps({**json.loads(metrics.readline()), "round": 7}) + "\n")
        seen.append(rounds(addresses[0]))
        shutil.copytree(trained, "runs/two")
        seen.append(rounds(addresses[0]))

    meanwhile(look)
    answer = vhl("watch", "runs")
    assert seen == [[6], [7], [7, 6]]
    assert answer.out == f"Open {addresses[0]} in a browser; Ctrl-C ends it.\n"
    assert answer.code == 130 and answer.err == "\nvhl: stopped.\n"
    with pytest.raises(OSError, match="refused"):
        rounds(addresses[0])


def test_a_port_and_a_host_of_ones_own(vhl: Any, trained: Path, meanwhile: Any) -> None:
    meanwhile(lambda: None)
    with serving(dict) as taken:
        port = taken.server_port
        vhl("watch", trained, f"--port={port}").complains(f"127.0.0.1:{port}", "--port")
    answer = vhl("watch", trained, f"--port={port}", "--host=127.0.0.2")
    assert answer.out.startswith(f"Open http://127.0.0.2:{port}/ in")


def test_nothing_is_served_where_there_is_no_run(vhl: Any, addresses: list[str]) -> None:
    Path("empty").mkdir()
    vhl("watch", "empty").complains("empty is no run folder")
    assert addresses == []
