"""The command line called as a user calls it, in a folder of its own; trained, stopped and failing runs."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from vhl.cli import display, running
from vhl.cli.main import main
from vhl.errors import VHLError
from vhl.rounds.simulation import Simulation

TINY = (
    "data.size=8",
    "partition.clients=3",
    "partition.alpha=1.0",
    "clients_per_round=1",
    "model.width=4",
    "virtual.per_class=3",
    "objective.virtual_batch=8",
    "rounds=2",
)
"""Settings of a run that takes tenths of a second."""


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    return TINY


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    def complains(self, *texts: object) -> None:
        """One sentence on standard error that contains every text, and exit code 2."""
        assert self.code == 2, self
        assert self.err.startswith("vhl: ") and self.err.count("\n") == 1
        assert self.err.rstrip().endswith((".", "?"))
        for text in texts:
            assert str(text) in self.err


Vhl = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _quiet_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """An empty current folder, no data of the user's, no line that is folded, one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VHL_DATA", str(tmp_path_factory.getbasetemp() / "vhl-data"))
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(display.console, "width", 1_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def vhl(capsys: pytest.CaptureFixture[str]) -> Vhl:
    """Run a command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 80 columns."""
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    for module in (display, running):
        monkeypatch.setattr(module, "console", console)
    return file


InRound = Callable[[Callable[[Simulation], None]], None]


@pytest.fixture
def in_round(monkeypatch: pytest.MonkeyPatch) -> InRound:
    """Do something as the aggregation of each round begins, of whichever run."""
    land = Simulation._land

    def arrange(action: Callable[[Simulation], None]) -> None:
        def interrupted(simulation: Simulation, *what: Any) -> Any:
            action(simulation)
            return land(simulation, *what)

        monkeypatch.setattr(Simulation, "_land", interrupted)

    return arrange


@pytest.fixture
def ctrl_c(in_round: InRound) -> Callable[[int], None]:
    """It comes once, in this round from now on, counted over all runs."""

    def arrange(call: int) -> None:
        calls = iter(range(1, 1_000))
        in_round(lambda _: signal.raise_signal(signal.SIGINT) if next(calls) == call else None)

    return arrange


@pytest.fixture
def unlucky(in_round: InRound) -> Callable[[Callable[[Simulation], bool]], None]:
    """A run fails in the round that a condition says."""

    def arrange(condition: Callable[[Simulation], bool]) -> None:
        def fail(simulation: Simulation) -> None:
            if condition(simulation):
                raise VHLError("It is unlucky.")

        in_round(fail)

    return arrange


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, Any]]]:
    """The records of a run folder without their wall time."""

    def read(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [{**json.loads(line), "seconds": 0, "side_by_side": 0} for line in lines]

    return read


def draw(path: Path, level: int, rng: np.random.Generator) -> None:
    """A noisy grey picture of about this brightness."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(level + rng.normal(0, 10, (20, 24, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, a folder a site: in the north 16 dark and 4 light ones, in the south 8 and 12."""
    root, rng = tmp_path_factory.mktemp("pictures") / "sites", np.random.default_rng(0)
    for site, (dark, light) in {"north": (16, 4), "south": (8, 12)}.items():
        for number in range(dark):
            draw(root / site / "dark" / f"{number}.jpg", 60, rng)
        for number in range(light):
            draw(root / site / "light" / f"{number}.jpg", 190, rng)
    return root


@pytest.fixture(scope="session")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the pictures, by the one command a user needs; not to be changed."""
    runs = tmp_path_factory.mktemp("trained")
    settings = (
        f"data=folder:{pictures}",
        "partition=given",
        "objective=vhl",
        "data.size=8",
        "model.width=4",
        "virtual.per_class=20",
        "objective.virtual_batch=16",
        "training.batch_size=8",
        "clients_per_round=2",
        "rounds=6",
        "keep_at=[2]",
        "name=pictures",
        f"--runs-dir={runs}",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VHL_DATA", str(runs / "data"))
        assert main(["run", *settings]) == 0
    return runs / "pictures"
