"""Real processes and TLS, with an app that does next to nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from vhl.deploy.local import LocalDeployment, Node, Program

PROJECT = """\
[project]
name = "dummy"
version = "1.0"
description = "Says who answers"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "dummy:server"
clientapp = "dummy:client"

[tool.flwr.app.config]
sites = """

SITES = """\
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    return Message(RecordDict({"config": ConfigRecord(dict(context.node_config))}), reply_to=message)


def ask(grid, timeout):
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    answers = [reply.content["config"] for reply in grid.send_and_receive(messages, timeout=timeout)
               if reply.has_content()]
    return sorted(f"{answer['name']} {answer['data']}" for answer in answers)


@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < context.run_config["sites"]:
        time.sleep(0.1)
"""

ONE_ROUND = '    print("answers:", ask(grid, 60))\n'

UNTIL_ALL_ARE_BACK = """\
    complete = False
    for attempt in range(40):
        answers = ask(grid, 8)
        print("answers:", answers)
        if complete and len(answers) < 2:
            complete = None
        elif complete is None and len(answers) == 2:
            return
        elif complete is False:
            complete = len(answers) == 2
"""


@pytest.fixture
def dummy(tmp_path: Path) -> Callable[..., Path]:
    """An app that waits for its sites, and then does as ``body`` says."""

    def write(body: str, sites: int = 2) -> Path:
        folder = tmp_path / "dummy app"
        folder.mkdir()
        (folder / "pyproject.toml").write_text(f"{PROJECT}{sites}\n", encoding="utf-8")
        (folder / "dummy.py").write_text(SITES + body, encoding="utf-8")
        return folder

    return write


def left_behind(*marks: object) -> list[str]:
    """Command lines of processes that mention one of these; those of a deployment mention a port of it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if re.search("|".join(rf"\b{re.escape(str(mark))}\b" for mark in marks), line):
            found.append(line)
    return found


def await_processes(count: int, *marks: object) -> None:
    """Until so many are seen: a test that sees nothing start proves nothing when it sees nothing left."""
    for _ in range(300):
        if len(left_behind(*marks)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(left_behind(*marks))


def ports(deployment: LocalDeployment) -> list[int]:
    return [deployment._port, *deployment._ports]


class OneKeyOnly(LocalDeployment):
    """Registers its first site alone."""

    def register(self, keys: Sequence[Path]) -> None:
        super().register(keys[:1])


def test_registered_sites_answer_and_strangers_do_not(tmp_path, dummy):
    """One stranger has a key that nobody registered, the other none: Flower then makes one up."""
    sites = {"north": {"data": 'a "b" c'}, "stranger": {"data": "d"}, "nobody": {"data": "e"}}
    lines: list[str] = []
    with OneKeyOnly(tmp_path / "work", sites) as deployment:
        _, *strangers = deployment.nodes
        strangers[1].kill()
        option = strangers[1].command.index("--auth-supernode-private-key")
        del strangers[1].command[option : option + 2]
        strangers[1].start()
        deployment.run(dummy(ONE_ROUND, sites=1), lines.append)
        for node in strangers:
            assert node.process is not None and node.process.wait(120) == 1
            assert "Exit Code: 305" in node.log.read_text(encoding="utf-8")
            assert "--insecure" not in node.command
    assert """answers: ['north a "b" c']""" in lines
    assert left_behind(*ports(deployment), tmp_path) == []


def test_an_error_ends_everything(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        LocalDeployment(tmp_path / "work", {"north": {"data": "a"}}, insecure=True) as deployment,
    ):
        await_processes(4, *ports(deployment))  # the node has started one of its own
        raise ZeroDivisionError
    assert left_behind(*ports(deployment), tmp_path) == []


def test_a_server_that_does_not_start(tmp_path, monkeypatch, complains):
    """Here because its certificate is none; the log that the error names says so."""
    monkeypatch.setattr(
        "vhl.deploy.local.make_authority",
        lambda folder, hosts: [
            (folder.mkdir(parents=True, exist_ok=True), (folder / name).write_text("nothing"))
            for name in ("ca.pem", "server.pem", "server.key")
        ],
    )
    log = tmp_path / "work" / "superlink.log"
    deployment = LocalDeployment(tmp_path / "work", {})
    with complains("flower-superlink", log), deployment:
        pass
    assert "SSL" in log.read_text(encoding="utf-8")
    assert left_behind(*ports(deployment), tmp_path) == []


STOPPED = """
import sys
from pathlib import Path
from vhl.deploy.local import LocalDeployment, Node, Program
with LocalDeployment(Path(sys.argv[1]), {"north": {"data": "a"}}, insecure=True) as deployment:
    print(deployment._port, *deployment._ports, flush=True)
    deployment.run(Path(sys.argv[2]), print)  # waits for a second site
"""


def test_ctrl_c_ends_everything(tmp_path, dummy):
    words = [sys.executable, "-c", STOPPED, str(tmp_path / "work"), str(dummy(ONE_ROUND))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        used = process.stdout.readline().split()
        await_processes(5, *used)  # with `flwr-serverapp`, which waits
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert left_behind(*used, tmp_path) == []


@pytest.mark.slow
def test_a_run_that_fails_names_its_log(tmp_path, dummy, complains):
    sites = {"north": {"data": "a"}, "south": {"data": "b"}}
    log = tmp_path / "work" / "run.log"
    with (
        complains("finished:failed", log),
        LocalDeployment(tmp_path / "work", sites, insecure=True) as deployment,
    ):
        deployment.run(dummy("    raise ValueError('of the app')\n"), lambda line: None)
    assert "ValueError: of the app" in log.read_text(encoding="utf-8")
    assert left_behind(*ports(deployment), tmp_path) == []


@pytest.mark.slow
def test_a_site_that_died_comes_back(tmp_path, dummy):
    """Killed in mid-run, and started again when the others have noticed; the app ends when all were back."""
    seen: list[str] = []

    def on_line(line: str) -> None:
        if not line.startswith("answers:"):
            return
        seen.append(line)
        if len(seen) == 1:
            deployment.nodes[0].kill()
        if len(seen) == 2:
            deployment.start_node(0)

    sites = {"north": {"data": "a"}, "south": {"data": "b"}}
    with LocalDeployment(tmp_path / "work", sites) as deployment:
        deployment.run(dummy(UNTIL_ALL_ARE_BACK), on_line)
    assert seen[0] == seen[-1] == "answers: ['north a', 'south b']"
    assert "answers: ['south b']" in seen
    assert left_behind(*ports(deployment), tmp_path) == []


def test_the_server_s_app_ends_before_the_sites(tmp_path):
    """It takes its time; a site that went meanwhile would count as left out of a round."""
    ended = tmp_path / "ended"

    def program(kind: type[Program], name: str, seconds: float) -> Any:
        wait = (
            f"trap 'sleep {seconds}; echo {name} >> {ended}; exit' TERM; echo; while :; do sleep 0.05; done"
        )
        made = kind(["bash", "-c", wait], dict(os.environ), tmp_path / f"{name}.log")
        made.start()
        return made

    deployment = LocalDeployment(tmp_path, {})
    deployment.server = [program(Program, "link", 0), program(Program, "app", 0.5)]
    deployment.nodes = [program(Node, "site", 0)]
    while not all((tmp_path / f"{name}.log").read_text() for name in ("link", "app", "site")):
        time.sleep(0.01)  # until each has set its trap
    deployment.stop()
    assert ended.read_text().split()[0] == "app" and len(ended.read_text().split()) == 3
    assert all(one.ended for one in (*deployment.server, *deployment.nodes))
