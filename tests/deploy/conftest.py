from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from vhl.data.images import ImageSet
from vhl.deploy.client_app import app as client_app
from vhl.deploy.own_data import describe
from vhl.deploy.server_app import serve
from vhl.deploy.settings import NodeSettings, RunSettings
from vhl.deploy.terms import Terms, agree
from vhl.experiment import Experiment
from vhl.rounds.simulation import Simulation
from vhl.runs.checkpoint import State
from vhl.runs.folder import RunFolder
from vhl.virtual.sets import virtual_set

Answer = Callable[[Message, Context], Message | None]
Change = Callable[[Message, Message], Message | None]
"""Of a message and the true reply to it."""


class LocalGrid(Grid):
    """Nodes are calls; a test may take one away, or put its own answer in place of the app's."""

    def __init__(self, configurations: Iterable[dict[str, Any]], app: ClientApp = client_app) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in a process of Flower's
        self.contexts = {
            1000 + number: Context(
                run_id=1, node_id=1000 + number, node_config=config, state=RecordDict(), run_config={}
            )
            for number, config in enumerate(configurations)
        }
        self.present = set(self.contexts)
        self.look: Callable[[], Iterable[int]] = lambda: sorted(self.present)
        self.answers: dict[int, Answer] = dict.fromkeys(self.contexts, app)
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count()

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = send_and_receive = _unused
    run = property(_unused)

    def get_node_ids(self) -> Iterable[int]:
        return self.look()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            node = message.metadata.dst_node_id
            gone = Message(Error(5, "node unavailable"), reply_to=message)
            reply = self.answers[node](message, self.contexts[node]) if node in self.present else gone
            if reply is not None:
                self._replies[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(number) for number in message_ids if number in self._replies]
        if any("unreadable" in reply.content for reply in found if reply.has_content()):
            raise ValueError("no such object")  # as when Flower itself fails over the bytes of a reply
        return found


class Deployment:
    """A server and its sites, in a folder; site I is node 1000 + I."""

    def __init__(self, folder: Path, sites: Iterable[dict[str, Any]]) -> None:
        self.folder, self.notes = folder, list[str]()
        self.grid = LocalGrid([{"store": str(folder / own["name"]), **own} for own in sites])

    def run(self, experiment: Experiment, **settings: Any) -> RunFolder:
        own = {key.replace("_", "-"): value for key, value in settings.items()}
        defaults = {
            "sites": len(self.grid.present),
            "test": "experiment",
            "round-timeout": 1,
            "wait": 2,
            "runs-dir": str(self.folder / "runs"),
            "data-dir": str(self.folder / "server"),
        }
        return serve(self.grid, experiment, RunSettings.read({**defaults, **own}), self.notes.append)

    def simulated(self, experiment: Experiment) -> tuple[State, list[Any]]:
        """What the simulator makes of the same experiment."""
        simulation = Simulation(experiment, self.folder / "server")
        records = list(simulation)
        return simulation.state, records

    def change(self, site: int, change: Change, kind: str = "train") -> None:
        """Let a site's answers of a kind be changed."""

        def answer(message: Message, context: Context) -> Message | None:
            reply = client_app(message, context)
            return change(message, reply) if message.metadata.message_type == kind else reply

        self.grid.answers[1000 + site] = answer

    def spoil(self, site: int, spoil: Callable[[RecordDict], object], kind: str = "train") -> None:
        """Let the content of a site's answers of a kind be changed."""

        def changed(message: Message, reply: Message) -> Message:
            content = RecordDict(dict(reply.content))
            spoil(content)
            return Message(content, reply_to=message)

        self.change(site, changed, kind)

    def mend(self, *sites: int) -> None:
        self.grid.answers |= {1000 + site: client_app for site in sites}

    def asked(self, site: int | None = None) -> list[str]:
        """The kinds of messages to a site, or to all."""
        nodes = self.grid.contexts if site is None else [1000 + site]
        return [m.metadata.message_type for m in self.grid.sent if m.metadata.dst_node_id in nodes]


@pytest.fixture(scope="session")
def round_of() -> Callable[[Message], int]:
    """Rounds done before this order."""
    return lambda message: int(json.loads(message.content["order"]["json"])["round"])


@pytest.fixture(scope="session")
def state_of() -> Callable[[RunFolder], State]:
    """What a run folder's checkpoint holds."""
    return lambda folder: folder.load_state(folder.manifest())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """All of these: to the bit needs one order of sums."""


@pytest.fixture
def deploy(tmp_path: Path) -> Callable[[Iterable[dict[str, Any]]], Deployment]:
    """A deployment over sites of these configurations."""
    return lambda sites: Deployment(tmp_path, sites)


@pytest.fixture
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Three sites, each with a part of the experiment's own data."""
    return deploy([{"name": f"s{part}", "data": f"part:{part}"} for part in range(3)])


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory, write_digits: Callable[..., Path]) -> Experiment:
    """300 digits at three clients, all of which take part; a round takes a tenth of a second."""
    file = write_digits(tmp_path_factory.mktemp("digits") / "digits.npz", 300)
    return Experiment.read(
        {
            "name": "run",
            "data": f"npz:{file}",
            "partition": {"name": "lda", "clients": 3, "alpha": 0.5},
            "virtual": {"name": "noise", "per_class": 20},
            "model": {"name": "cnn", "width": 4},
            "objective": "vhl",
            "algorithm": "scaffold",
            "training": {"lr": 0.05, "batch_size": 64},
            "rounds": 3,
            "clients_per_round": 1.0,
        }
    )


# --- one site ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def plain() -> Experiment:
    """An experiment for a site with a few images of 8×8 pixels; everything that a client can keep is kept."""
    return Experiment.read(
        {
            "data": {"name": "digits", "size": 8, "crop": 0},
            "partition": {"name": "lda", "clients": 3, "alpha": 0.5},
            "virtual": {"name": "noise", "per_class": 4},
            "model": {"name": "cnn", "width": 4},
            "objective": "plain",
            "algorithm": "scaffold",
            "training": {"batch_size": 8, "keep_momentum": True},
            "device": "cpu",
        }
    )


def _pictures(count: int, channels: int = 1, size: int = 8) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, size, size, channels), np.uint8)


@pytest.fixture(scope="session")
def npz() -> Callable[..., str]:
    """Writes random images with these labels to a file; what a node calls it."""

    def write(file: Path, labels: list[int], size: int = 8, **arrays: Any) -> str:
        options = {"images": _pictures(len(labels), size=size), "labels": np.array(labels), **arrays}
        np.savez(file, **options)
        return f"npz:{file}"

    return write


@pytest.fixture(scope="session")
def pictures() -> Callable[..., str]:
    """Writes a folder a class with so many random images; what a node calls it."""

    def write(root: Path, counts: dict[str, int], size: int = 8) -> str:
        for name, count in counts.items():
            (root / name).mkdir(parents=True)
            for number, image in enumerate(_pictures(count, size=size)):
                Image.fromarray(image.squeeze()).save(root / name / f"{number}.png")
        return f"folder:{root}"

    return write


@pytest.fixture
def node(tmp_path: Path, npz: Callable[..., str]) -> Callable[..., NodeSettings]:
    """Settings of a site; by default it has twenty images in two classes."""

    def settings(name: str = "here", data: str = "", **config: Any) -> NodeSettings:
        given = data or npz(tmp_path / f"{name}.npz", [0, 1] * 10)
        store = str(tmp_path / "store" / name)
        return NodeSettings.read({"name": name, "data": given, "store": store, **config})

    return settings


@pytest.fixture
def terms_of(plain: Experiment, virtual_of: Callable[[Terms], ImageSet]) -> Callable[..., Terms]:
    """What a server would make of these sites, its virtual set too."""

    def make(*nodes: NodeSettings, run: str = "run", **changes: Any) -> Terms:
        experiment = plain.with_(**changes)
        terms, _ = agree(run, experiment, [describe(own, experiment) for own in nodes])
        if not experiment.objective.uses_virtual:
            return terms
        return replace(terms, virtual=virtual_of(terms).fingerprint())

    return make


@pytest.fixture
def virtual_of(tmp_path: Path) -> Callable[[Terms], ImageSet]:
    """The virtual set as a server makes it."""

    def make(terms: Terms) -> ImageSet:
        own = terms.experiment
        return virtual_set(own.virtual, len(terms.classes), terms.shape, own.seeds.data, tmp_path / "server")

    return make
