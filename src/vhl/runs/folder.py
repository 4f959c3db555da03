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
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from PIL.Image import Image
from torch import Tensor

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import cannot_write, read_json, write_bytes, write_json, write_tensors
from vhl.runs import checkpoint
from vhl.runs.checkpoint import State
from vhl.runs.origin import Origin
from vhl.runs.record import METRICS, Record, append_record, read_records, write_records


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
        return read_records(self.path / METRICS)

    def manifest(self) -> dict[str, Any] | None:
        """What the last checkpoint consists of, or ``None`` before the first."""
        return checkpoint.read_manifest(self.path / "state")

    @property
    def rounds(self) -> int:
        """Rounds done, as far as they were saved."""
        return int((self.manifest() or {"round": 0})["round"])

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

    # --- records -------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        append_record(self.path / METRICS, record)

    def cut_back(self, round_: int) -> None:
        """Drop records of rounds after ``round_``: they will be computed again."""
        kept = [record for record in self.records() if record.round <= round_]
        write_records(self.path / METRICS, kept)

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
