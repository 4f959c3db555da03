"""A whole deployment on this machine: a server and its sites as processes that talk over TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import joblib
import tomli_w

from vhl.deploy.keys import make_authority, make_node_key
from vhl.errors import VHLError
from vhl.files import write_bytes

_PATIENCE = 60.0
"""Seconds for the server to answer, and for each of Flower's commands."""

_GRACE = 8.0
"""Seconds to end in; Flower's programs force themselves to after five."""

_BACK_OFF = 5.0
"""Seconds until a site that ended is started again; the server refuses it while it counts the old one."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^INFO\s*:\s*")


@dataclass
class Program:
    """One program and all that it starts: a process group of its own, whose output goes to ``log``."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we end them, and in order
            )

    @property
    def ended(self) -> bool:
        """Whether the program itself is gone; it may have left others of its group behind."""
        return self.process is None or self.process.poll() is not None

    def send(self, number: int) -> bool:
        """Signal the whole group; false where nothing of it is left."""
        if self.process is None:
            return False
        self.process.poll()  # reaped, the program does not count as a member of its group any more
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):  # the latter is macOS's word for nothing but zombies
            return False
        return True

    def kill(self) -> None:
        """As when the power goes: nothing of the group gets to say a word."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


@dataclass
class Node(Program):
    """A site's program; what ends by itself is started again, what was killed only by :meth:`start`."""

    wanted: bool = False
    ended_at: float = 0.0

    def start(self) -> None:
        self.wanted = True
        super().start()

    def kill(self) -> None:
        self.wanted = False
        super().kill()

    def tend(self) -> None:
        """Start it again if it should run and has ended a while ago."""
        if not self.wanted or not self.ended:
            self.ended_at = time.monotonic()
        elif time.monotonic() - self.ended_at > _BACK_OFF:
            self.kill()  # what it left behind would keep its port
            self.start()


class LocalDeployment:
    """A SuperLink and nodes on loopback, under TLS with a key for each node; nothing outlives the context.

    Everything lies in ``folder``: keys, Flower's own files, and a log of each program.
    ``sites`` maps each site's name to its settings. Without TLS (``insecure``) there are no keys either.
    """

    def __init__(
        self, folder: Path, sites: Mapping[str, Mapping[str, str]], *, insecure: bool = False
    ) -> None:
        self.folder, self.insecure = folder.resolve(), insecure
        self._sites = sites
        self._port, *self._ports = _free_ports(1 + len(sites))
        self.server: list[Program] = []
        self.nodes: list[Node] = []

    def __enter__(self) -> LocalDeployment:
        try:
            self._start_server()
            if not self.insecure:
                for name in self._sites:
                    make_node_key(self.folder / "sites", name)
                self.register([self.folder / "sites" / f"{name}.pub" for name in self._sites])
            for (name, settings), port in zip(self._sites.items(), self._ports, strict=True):
                self.nodes.append(self._node(name, settings, port))
                self.nodes[-1].start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what one does with it -----------------------------------------------------------------------------

    def run(self, app: Path, on_line: Callable[[str], None]) -> None:
        """Run the app to its end; ``on_line`` gets each line that the server prints, and may kill a node."""
        log, identity = self.folder / "run.log", ""
        words = ["run", str(app), "local", "--stream"]
        with log.open("a", encoding="utf-8") as file, contextlib.closing(self._lines(words)) as lines:
            for line in lines:
                file.write(line + "\n")
                file.flush()
                if started := re.search(r"Successfully started run (\d+)", line):
                    identity = started[1]
                if said := _LEVEL.sub("", line):
                    on_line(said)
        answer = json.loads(self._flwr("list", "local", "--run-id", identity, "--format", "json"))
        status = answer["runs"][0]["status"]
        if status != "finished:completed":
            raise VHLError(f"The run ended as {status}; see {log}.")

    def register(self, keys: Sequence[Path]) -> None:
        """Let the nodes with these public keys join."""
        for key in keys:
            self._flwr("supernode", "register", str(key), "local", "--name", key.stem)

    def start_node(self, index: int) -> None:
        """Start a killed node again; the server takes it after two missed heartbeats, in about a minute."""
        self.nodes[index].start()

    def stop(self) -> None:
        """End everything: first asked to, then killed.

        The server's app goes before the nodes: it would end a round without those that went before it.
        """
        link, app = self.server[:1], self.server[1:]
        for node in self.nodes:
            node.wanted = False
        try:
            for programs in (app, [*self.nodes, *link]):
                _end(programs)
        finally:
            for program in (*app, *self.nodes, *link):
                program.kill()

    # --- its parts -----------------------------------------------------------------------------------------

    def _start_server(self) -> None:
        keys, home = self.folder / "keys", self.folder / "server"
        address = f"127.0.0.1:{self._port}"
        connection: dict[str, str | bool] = {"address": address, "insecure": True}
        link, trust = ["--insecure"], ["--insecure"]
        if not self.insecure:
            make_authority(keys, [])
            connection = {"address": address, "root-certificates": str(keys / "ca.pem")}
            link = ["--ssl-certfile", f"{keys}/server.pem", "--ssl-keyfile", f"{keys}/server.key"]
            link += ["--ssl-ca-certfile", f"{keys}/ca.pem", "--enable-supernode-auth"]
            trust = ["--root-certificates", f"{keys}/ca.pem"]
        write_bytes(home / "config.toml", tomli_w.dumps({"superlink": {"local": connection}}).encode())
        # The SuperLink would start the SuperExec in a session of its own, out of our reach.
        link += ["--port", str(self._port), "--isolation", "process"]
        environment, log = _environment(home), self.folder / "superlink.log"
        self.server.append(Program(["flower-superlink", *link], environment, log))
        self.server[-1].start()
        self._wait_for_server()
        superexec = ["flower-superexec", *trust, "--runtime-api-address", address]
        self.server.append(Program(superexec, environment, self.folder / "superexec.log"))
        self.server[-1].start()

    def _wait_for_server(self) -> None:
        def answers() -> bool:
            self._check_server()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return True
            return False

        if not _wait(answers, _PATIENCE):
            raise VHLError(f"The server does not answer after {_PATIENCE:.0f} s; see {self.server[0].log}.")

    def _check_server(self) -> None:
        for program in self.server:
            if program.ended:
                raise VHLError(f"{program.command[0]} has ended; see {program.log}.")

    def _node(self, name: str, settings: Mapping[str, str], port: int) -> Node:
        place = self.folder / "sites"
        security = ["--insecure"]
        if not self.insecure:
            security = ["--root-certificates", f"{self.folder}/keys/ca.pem"]
            security += ["--auth-supernode-private-key", f"{place}/{name}.key"]
        config = place / f"{name}.toml"
        write_bytes(config, tomli_w.dumps({"name": name, **settings}).encode())
        command = ["flower-supernode", *security, "--superlink", f"127.0.0.1:{self._port}"]
        command += ["--port", str(port), "--node-config", str(config)]
        threads = str(max(1, joblib.cpu_count() // len(self._sites)))
        # A home of its own: nodes that unpack the app to the same place would read it half-written.
        environment = {"OMP_NUM_THREADS": threads, **_environment(place / name)}
        return Node(command, environment, place / f"{name}.log")

    # --- Flower's command line -----------------------------------------------------------------------------

    def _flwr(self, *words: str) -> str:
        return "\n".join(self._lines(words, _PATIENCE))

    def _lines(self, words: Sequence[str], patience: float = float("inf")) -> Generator[str]:
        """Lines of a `flwr` command as they come; meanwhile nodes that ended are started again."""
        log = self.folder / "flwr.log"
        queue: Queue[str | None] = Queue()
        until = time.monotonic() + patience
        with log.open("ab") as errors:
            process = subprocess.Popen(
                ["flwr", *words],
                env=_environment(self.folder / "server"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            Thread(target=_read, args=(process, queue), daemon=True).start()
            while (line := _next(queue)) is not None:
                if line:
                    yield line
                self._check_server()
                for node in self.nodes:
                    node.tend()
                if time.monotonic() > until:
                    raise VHLError(f"`flwr {words[0]}` does not end after {patience:.0f} s; see {log}.")
            if process.wait():
                raise VHLError(f"`flwr {' '.join(words[:2])}` failed; see {log}.")
        finally:
            process.kill()
            process.wait()


def _read(process: subprocess.Popen[str], queue: Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            queue.put(_COLOUR.sub("", line).rstrip())
    queue.put(None)


def _next(queue: Queue[str | None]) -> str | None:
    """The next line, '' where none came for a while, None at the end."""
    try:
        return queue.get(timeout=0.2)
    except Empty:
        return ""


def _wait(until: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _end(programs: Sequence[Program]) -> None:
    """Ask them to, and give them some time."""
    for program in programs:
        program.send(signal.SIGTERM)
    _wait(lambda: not any(program.send(0) for program in programs), _GRACE)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:  # all held at once, so that they differ
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _environment(home: Path) -> dict[str, str]:
    """Ours, but with Flower's files in ``home``, and no word to anyone outside."""
    scripts = sysconfig.get_path("scripts")  # Flower starts its programs by name
    return {
        **os.environ,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
