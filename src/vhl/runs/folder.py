"""A run folder: everything that came out of one run, as plain records.

experiment.toml     the experiment, complete
data.json           classes, image shape, normalisation, partition counts, heterogeneity
environment.json    versions and hardware
origin.json         where files of the user's own lie that parts come from, and their SHA-256
metrics.jsonl       one record a round
features/           features and client models at the rounds of ``features_at``
last.safetensors    confusion, and how clients' models do, after the last round
virtual.png         some of the virtual images, a row a class
models/             models of chosen rounds, and the best by validation
trackers.json       what tools that follow the run call it; tensorboard/ and wandb/ are theirs
state/              what the next round starts from; ``manifest.json`` says which files count
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from PIL.Image import Image
from pydantic import ValidationError
from torch import Tensor

from vhl.errors import VHLError
from vhl.experiment import Engine, Experiment
from vhl.files import cannot_write, read_json, write_bytes, write_json, write_tensors
from vhl.runs import checkpoint
from vhl.runs.checkpoint import State
from vhl.runs.dotted import dotted
from vhl.runs.origin import Origin
from vhl.runs.record import Record

_RESUMABLE = {
    "rounds",
    "name",
    "device",
    "checkpoint_every",
    "features_at",
    "keep_at",
    *(f"engine.{key}" for key in Engine.model_fields if key != "precision"),
}
"""Settings that may differ when a run is continued: they change no round that was already computed."""


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None

    # --- reading -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.path / "experiment.toml").is_file()

    def experiment(self) -> Experiment:
        if not self.exists:
            raise VHLError(f"{self.path} is no run folder: it holds no experiment.toml.")
        file = self.path / "experiment.toml"
        self.remember_files()
        try:
            return Experiment.read(file)
        except VHLError as error:
            raise VHLError(f"{file} does not describe a run: {error}") from None

    def remember_files(self) -> None:
        """Let files of the user's own be found that the run's parts come from."""
        if (origin := Origin.read(self.path / "origin.json")) is not None:
            origin.remember()

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.path / "data.json")
        return found

    def records(self) -> list[Record]:
        """The rounds so far; a line that a kill cut short is not one."""
        file = self.path / "metrics.jsonl"
        try:
            lines = file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VHLError(f"{file} cannot be read ({error.strerror}).") from None
        records = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(Record.model_validate_json(line))
            except ValidationError:
                raise VHLError(f"{file} is damaged: line {number} is no record of a round.") from None
        return records

    def manifest(self) -> dict[str, Any] | None:
        """What the last checkpoint consists of, or ``None`` before the first."""
        return checkpoint.read_manifest(self.path / "state")

    # --- taking possession ---------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Refuse to share the folder with another process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise VHLError(
                f"Another process is running in {self.path}; wait for it or choose another name."
            ) from None
        except OSError as error:
            raise cannot_write(self.path, error) from None
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            if not self.exists:  # nothing was begun: leave nothing behind
                with contextlib.suppress(OSError):
                    (self.path / ".lock").unlink()
                    self.path.rmdir()
            self._lock.release()
            self._lock = None

    def begin(self, experiment: Experiment, data: dict[str, Any], environment: dict[str, Any]) -> None:
        """Describe the run; ``experiment.toml`` comes last, so that what has one is complete."""
        write_json(self.path / "data.json", data)
        write_json(self.path / "environment.json", environment)
        Origin.of(experiment).write(self.path / "origin.json")
        write_bytes(self.path / "experiment.toml", experiment.toml().encode())

    def extend(self, experiment: Experiment) -> None:
        """Take over the settings that may change when a run is continued."""
        write_bytes(self.path / "experiment.toml", experiment.toml().encode())

    def check_same(self, experiment: Experiment) -> None:
        """Refuse to continue a run as something else."""
        old, new = dotted(self.experiment()), dotted(experiment)
        # Names first: another algorithm has other options, and those are not what the user changed.
        for key in sorted((old.keys() | new.keys()) - _RESUMABLE, key=lambda k: (not k.endswith(".name"), k)):
            if old.get(key) != new.get(key):
                raise VHLError(
                    f"{self.path} was begun with {key} = {_shown(old, key)}, not {_shown(new, key)}; choose "
                    f"another name, or go on with `vhl run {shlex.quote(str(self.path))} --resume`."
                )
        origin = Origin.read(self.path / "origin.json")
        if origin is not None and (place := origin.changed(Origin.of(experiment))) is not None:
            raise VHLError(
                f"{place} has changed since {self.path} was begun; put it back, or choose another name."
            )
        done = (self.manifest() or {"round": 0})["round"]
        if experiment.rounds < done:
            raise VHLError(
                f"{self.path} has done {done} rounds, more than rounds = {experiment.rounds}; "
                "choose another name."
            )

    # --- records -------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        file = self.path / "metrics.jsonl"
        try:
            with file.open("a", encoding="utf-8") as metrics:
                metrics.write(_line(record))
                metrics.flush()
                os.fsync(metrics.fileno())
        except OSError as error:
            raise cannot_write(file, error) from None

    def cut_back(self, round_: int) -> None:
        """Drop records of rounds after ``round_``: they will be computed again."""
        kept = [record for record in self.records() if record.round <= round_]
        write_bytes(self.path / "metrics.jsonl", "".join(map(_line, kept)).encode())

    def save_last(self, tensors: dict[str, Tensor]) -> None:
        """Of a run that gets more rounds later the new last round counts."""
        write_tensors(self.path / "last.safetensors", tensors)

    def save_features(self, round_: int, tensors: dict[str, Tensor]) -> None:
        write_tensors(self.path / "features" / f"round-{round_:06d}.safetensors", tensors)

    def save_picture(self, picture: Image) -> None:
        content = io.BytesIO()
        picture.save(content, "PNG")
        write_bytes(self.path / "virtual.png", content.getvalue())

    def save_model(self, name: str, tensors: dict[str, Tensor]) -> None:
        write_tensors(self.path / "models" / f"{name}.safetensors", tensors)

    # --- state ---------------------------------------------------------------------------------------------

    def save_state(self, state: State, best: dict[str, Any] | None) -> None:
        """Write a checkpoint, with what is known of the ``best`` model; then forget the one before."""
        self.forget_all_but(checkpoint.write_state(self.path / "state", state, best))

    def forget_all_but(self, manifest: dict[str, Any]) -> None:
        """Remove what older checkpoints, or one that a kill cut short, left behind."""
        checkpoint.forget_all_but(self.path / "state", manifest)
        for file in (self.path / "models").glob("best-*"):
            if manifest["best"] is None or file.name != manifest["best"]["file"]:
                file.unlink(missing_ok=True)

    def load_state(self, manifest: dict[str, Any]) -> State:
        return checkpoint.read_state(self.path / "state", manifest)


def _line(record: Record) -> str:
    """Unlike pydantic's JSON this keeps infinities: a diverging run must stay readable."""
    return json.dumps(record.model_dump(), separators=(",", ":")) + "\n"


def _shown(settings: dict[str, Any], key: str) -> str:
    value = settings.get(key)
    return "unset" if value is None else str(value)


def find_runs(paths: Iterable[Path]) -> list[RunFolder]:
    """The run folders among these paths, and those anywhere inside a path that is none itself.

    Of the latter those without virtual data come first: nobody put them in an order, and the first is what
    others are compared with.
    """
    found = []
    for path in paths:
        if path.suffix == ".html" and path.is_file():
            continue  # a page about runs, caught by a pattern as runs/*
        runs = sorted(_runs_in(path), key=lambda run: run.experiment().objective.name != "plain")
        if not runs:
            raise VHLError(f"{path} is no run folder and holds none; `vhl run` makes them under runs/.")
        found += runs
    return list({run.path.resolve(): run for run in found}.values())  # named twice is still one seed


def _runs_in(path: Path) -> Iterator[RunFolder]:
    """Nothing is searched inside a run, nor where a link leads unless that is a run."""
    if RunFolder(path).exists:
        yield RunFolder(path)
    elif path.is_dir():
        for inside in sorted(path.iterdir()):
            if not inside.is_symlink() or RunFolder(inside).exists:
                yield from _runs_in(inside)
