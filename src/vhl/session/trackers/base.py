"""Tools that follow runs: what they are told, under which names, and what happens when one fails.

The record of a run is its folder; a tool holds a copy. So whatever a tool has missed, because it was asked
for late or because it failed, it is told when the run is continued.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from vhl.config.registry import suggest
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import read_json, write_json
from vhl.runs.dotted import dotted
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Wandb"}
"""The trackers that ``--track`` knows: each one's module, which is also its extra, and its class."""


class Tracker(ABC):
    """Copies one run into a tool; every session needs a tracker of its own."""

    @abstractmethod
    def begin(self, run: RunFolder, experiment: Experiment) -> int:
        """Open the run in the tool, or continue it there; the last round that the tool holds, 0 for none."""

    @abstractmethod
    def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
        """Take a round's numbers, known since ``when`` (Unix time); rounds come in order, and none twice."""

    @abstractmethod
    def end(self, finished: bool) -> None:
        """The run is through (``finished``), or was stopped and may be continued.

        Called after a failure too, also one of :meth:`begin`; what goes wrong then is nobody's concern.
        """


def named(names: Iterable[str]) -> list[Tracker]:
    """Trackers by name, if there are such and their packages are installed."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in TRACKERS:
            raise VHLError(f"There is no tracker called {name!r}{suggest(name, TRACKERS)}")
    return [
        getattr(importlib.import_module(f"vhl.session.trackers.{name}"), TRACKERS[name])() for name in names
    ]


def need(extra: str, *packages: str) -> None:
    """Refuse before anything runs, rather than fail when it does."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise VHLError(
            f"Tracking with {extra} needs the package {' and '.join(missing)}; "
            f"install it with pip install 'vhl[{extra}]'."
        )


# --- names ---------------------------------------------------------------------------------------------


def metrics(record: Record, classes: Sequence[str]) -> dict[str, float]:
    """A round's numbers by name, as in the record; of clients left out the number, of terms and classes each.

    What was not measured in this round is not there.
    """
    other = {"round", "clients", "loss", "per_class", "server", "side_by_side"}
    found: dict[str, float | None] = record.model_dump(exclude=other)
    found["left_out"] = len(record.left_out)
    found |= {f"loss/{_plain(term)}": value for term, value in record.loss.items()}
    found |= {f"server/{_plain(name)}": value for name, value in (record.server or {}).items()}
    if record.per_class is not None:
        found |= {f"per_class/{name}": value for name, value in zip(classes, record.per_class, strict=True)}
    return {name: value for name, value in found.items() if value is not None}


def class_names(classes: Sequence[str]) -> list[str]:
    """Names of classes that every tool takes; numbers, where these could not be told apart.

    >>> class_names(["cat", "dog/wolf"]), class_names(["🐱", "🐶"])
    (['cat', 'dog_wolf'], ['0', '1'])
    """
    names = [_plain(name) for name in classes]
    return names if len(set(names)) == len(names) else [str(number) for number in range(len(names))]


def _plain(name: str) -> str:
    """MLflow is the strictest: words, spaces and hyphens, 250 letters with all that comes before them."""
    return re.sub(r"[^\w -]", "_", name)[:200] or "_"


def parameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """The settings by their dotted keys; a list as text, and none that is unset."""
    return {
        key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for key, value in dotted(experiment).items()
        if value is not None
    }


# --- a run's name in a tool ----------------------------------------------------------------------------


def remembered(run: RunFolder, tool: str) -> str | None:
    """What the tool called this run when it was first told of it."""
    file = run.path / "trackers.json"
    found: str | None = read_json(file).get(tool) if file.is_file() else None
    return found


def remember(run: RunFolder, tool: str, identity: str) -> None:
    file = run.path / "trackers.json"
    known = read_json(file) if file.is_file() else {}
    write_json(file, {**known, tool: identity})


# --- following -----------------------------------------------------------------------------------------


class Follower:
    """Tells a tracker of a run, every round once; one that fails is told no more, and training goes on."""

    def __init__(self, tracker: Tracker, on_note: Callable[[str], None]) -> None:
        self._tracker, self._on_note = tracker, on_note
        self._follows = False
        self._held = 0
        self._name = ""
        self._classes: list[str] = []

    def begin(self, run: RunFolder, experiment: Experiment) -> None:
        """Open the run in the tool and tell it of the rounds that it lacks."""
        self._name = experiment.name
        with self._excused():
            self._classes = class_names(run.data()["classes"])
            self._held = self._tracker.begin(run, experiment)
            self._follows = True
            records = run.records()
            when = time.time() - sum(record.seconds for record in records)
            for record in records:
                when += record.seconds  # as if they had just been computed, without a break
                self._log(record, when)

    def record(self, record: Record) -> None:
        if self._follows:
            with self._excused():
                self._log(record, time.time())

    def end(self, finished: bool) -> None:
        if self._follows:
            self._follows = False
            with self._excused():
                self._tracker.end(finished)

    def _log(self, record: Record, when: float) -> None:
        if record.round > self._held:  # one after the checkpoint may be computed a second time
            self._tracker.log(record.round, metrics(record, self._classes), when)

    @contextmanager
    def _excused(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is: a tool's failure must not cost the training
            self._follows = False
            with suppress(Exception):
                self._tracker.end(finished=False)
            reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
            self._on_note(
                f"{type(self._tracker).__name__} failed and follows {self._name} no more ({reason}); "
                "the run itself goes on, and what is missing there comes when it is continued with --resume."
            )
