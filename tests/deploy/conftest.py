"""Sites and a server in one process: messages go through Flower's own types, but over no network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from vhl.deploy.client_app import app as client_app
from vhl.deploy.server_app import serve
from vhl.deploy.settings import RunSettings
from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder

Answer = Callable[[Message, Context], Message | None]


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
        self.answers: dict[int, Answer] = dict.fromkeys(self.contexts, app)
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return sorted(self.present)

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
        return [self._replies.pop(number) for number in message_ids if number in self._replies]


class Deployment:
    """A server and its sites, in a folder."""

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


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """All of these: to the bit needs one order of sums."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhl.deploy.fleet._PAUSE", 0.01)
    monkeypatch.setattr("vhl.deploy.exchange._PAUSE", 0.01)


@pytest.fixture
def deploy(tmp_path: Path) -> Callable[[Iterable[dict[str, Any]]], Deployment]:
    """A deployment over sites of these configurations."""
    return lambda sites: Deployment(tmp_path, sites)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Three sites, each with a part of the experiment's own data."""
    return Deployment(tmp_path, [{"name": f"s{part}", "data": f"part:{part}"} for part in range(3)])


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
