"""A Flower app before and after VHL: both learn, and little is changed."""

from __future__ import annotations

import difflib
import importlib
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
NODES, ROUNDS = 3, 3


class App:
    """An app's two halves, found as its pyproject.toml says, and what it is configured with."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        table = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        self.config = {**table["config"], "num-server-rounds": ROUNDS}
        self.client: ClientApp = self._load(table["components"]["clientapp"])
        self.server: ServerApp = self._load(table["components"]["serverapp"])

    def _load(self, component: str) -> Any:
        module, _, attribute = component.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def context(self, node: int) -> Context:
        place = {"partition-id": node - 1, "num-partitions": NODES}
        return Context(1, node, place, RecordDict(), self.config)


class LocalGrid(Grid):
    """Nodes 1 to 3 in this process: the app's client is called for each."""

    run = property(lambda self: None)

    def __init__(self, app: App) -> None:
        self.app = app
        self.replies: list[list[RecordDict]] = []
        """By turn: training and evaluation of the first round, of the second, ..."""

    def get_node_ids(self) -> Iterable[int]:
        return range(1, NODES + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self.app.client(m, self.app.context(m.metadata.dst_node_id)) for m in messages]
        self.replies.append([reply.content for reply in replies])
        return replies

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


@pytest.fixture(params=["before", "after"])
def app(request: pytest.FixtureRequest, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("VHL_DATA", str(data_dir))
    for identity in ("_task_id", "_run_id", "_node_id"):  # of this process, which Flower's own would set
        monkeypatch.setattr(TaskIdentity, identity, 1)
    monkeypatch.syspath_prepend(EXAMPLES / request.param)
    yield App(EXAMPLES / request.param)
    for module in [name for name in sys.modules if name.partition(".")[0] == "digits_app"]:
        del sys.modules[module]  # the other app's is called the same


def test_the_app_learns_what_no_node_has_alone(app):
    torch.manual_seed(0)
    grid = LocalGrid(app)
    app.server(grid, app.context(NODES))

    assert [len(replies) for replies in grid.replies] == [NODES] * 2 * ROUNDS
    trained = [[reply["metrics"] for reply in turn] for turn in grid.replies[::2]]
    evaluated = [[reply["metrics"] for reply in turn] for turn in grid.replies[1::2]]
    assert sum(metrics["num-examples"] for metrics in trained[0]) == 1438  # four fifths of all digits
    for node in range(NODES):
        assert trained[-1][node]["train_loss"] < 0.9 * trained[0][node]["train_loss"]
        assert evaluated[-1][node]["loss"] < evaluated[0][node]["loss"]
        # A node has four of the ten classes at most: no model of its own could get here.
        assert evaluated[-1][node]["accuracy"] > 0.5
    head = grid.replies[-2][0]["arrays"].to_torch_state_dict()["fc.weight"]
    assert len(head) == (20 if app.name == "after" else 10)


def test_about_ten_lines_are_changed():
    def files(folder: Path) -> dict[str, list[str]]:
        found = [*folder.rglob("*.py"), *folder.rglob("*.toml")]
        return {str(f.relative_to(folder)): f.read_text(encoding="utf-8").splitlines() for f in found}

    before, after = files(EXAMPLES / "before"), files(EXAMPLES / "after")
    assert before.keys() == after.keys()
    compared = [line for name in before for line in difflib.ndiff(before[name], after[name])]
    changed = [line for line in compared if line.startswith(("+ ", "- "))]  # a replaced line counts twice
    assert 6 < len(changed) <= 12
