"""What each tracker's tool holds of a run, read back by other means than those that wrote it.

The tools are imported where they are used, for none of them need be installed.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import Tracker, named, remembered

Numbers = dict[str, dict[int, float]]
"""By name and round."""


class Tool:
    """A tool, and how to look into it."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """What must be installed."""
    stopped: ClassVar[Any]
    """What :meth:`state` says of a run that was stopped, and of one that was finished."""
    finished: ClassVar[Any]
    keeps_first: ClassVar[bool] = False
    """Whether it holds the first numbers of a round that was computed twice."""
    survives: ClassVar[bool] = True
    """Whether it can be read when the process that wrote was killed."""

    def tracker(self) -> Tracker:
        (tracker,) = named([self.name])
        return tracker

    def numbers(self, run: RunFolder) -> Numbers:
        raise NotImplementedError

    def state(self, run: RunFolder) -> Any:
        raise NotImplementedError

    def keeps(self, numbers: Numbers) -> Numbers:
        """What is left of numbers in the tool's precision."""
        return numbers


class TensorBoardTool(Tool):
    """Its state is how many of its files hold anything: who reads them one by one finds no round twice."""

    name, packages, stopped, finished = "tensorboard", ("tensorboard",), 1, 1

    def read(self, run: RunFolder) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
        accumulator.Reload()
        return accumulator

    def numbers(self, run: RunFolder) -> Numbers:
        accumulator = self.read(run)
        found = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
        for events in found.values():
            assert len({event.step for event in events}) == len(events), "a round appears twice"
        return {tag: {event.step: event.value for event in events} for tag, events in found.items()}

    def state(self, run: RunFolder) -> int:
        return sum(file.stat().st_size > 0 for file in (run.path / "tensorboard").iterdir())

    def keeps(self, numbers: Numbers) -> Numbers:
        return {
            name: {round_: float(np.float32(value)) for round_, value in of_round.items()}
            for name, of_round in numbers.items()
        }


class MLflowTool(Tool):
    """Read back with MLflow's own client; its state is the status of each run in the store."""

    name, packages = "mlflow", ("mlflow", "sqlalchemy", "alembic")
    stopped, finished = ["KILLED"], ["FINISHED"]
    keeps_first = True

    def client(self, folder: Path) -> Any:
        from mlflow import MlflowClient

        from vhl.session.trackers.mlflow import _store

        return MlflowClient(_store(folder))

    def runs_in(self, folder: Path, group: str = "vhl") -> list[Any]:
        found = self.client(folder).get_experiment_by_name(group)
        assert found is not None
        return list(self.client(folder).search_runs([found.experiment_id]))

    def numbers(self, run: RunFolder, folder: Path | None = None) -> Numbers:
        client, identity, found = self.client(folder or run.path.parent), remembered(run, "mlflow"), {}
        for name in client.get_run(identity).data.metrics:
            history = client.get_metric_history(identity, name)
            assert len({metric.step for metric in history}) == len(history), "a round appears twice"
            found[name] = {metric.step: metric.value for metric in history}
        return found

    def state(self, run: RunFolder) -> list[str]:
        return [found.info.status for found in self.runs_in(run.path.parent)]


class WandbTool(Tool):
    """Read back from the file that `wandb sync` would send; its state is its exit codes.

    The package has no reader of it in Python. It is a log as LevelDB writes them: blocks of 32 KiB, in them
    pieces of records, each with a checksum (4 bytes), its length (2) and whether it is a whole, a first, a
    middle or a last piece (1); the first block begins with 7 bytes that name the format.
    """

    name, packages, stopped, finished = "wandb", ("wandb",), [1], [0]
    survives = False
    block, whole, last = 32_768, 1, 4

    def lines(self, run: RunFolder) -> list[Any]:
        """All of the file; its service may write the end of it after it said that it has."""
        (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
        for _ in range(200):
            found = list(self._read(file.read_bytes()))
            if found and found[-1].WhichOneof("record_type") == "exit":
                return found
            time.sleep(0.05)
        raise AssertionError(f"{file} has no end")

    def _read(self, content: bytes) -> Iterator[Any]:
        from wandb.proto.wandb_internal_pb2 import Record

        assert content[:4] in (b":W&B", b"")
        position, record = 7, b""
        while position + 7 <= len(content):
            left = self.block - position % self.block
            if left < 7:  # too little for another piece
                position += left
                continue
            _, size, kind = struct.unpack_from("<IHB", content, position)
            if position + 7 + size > len(content):
                return
            record += content[position + 7 : position + 7 + size]
            position += 7 + size
            if kind in (self.whole, self.last):
                yield Record.FromString(record)
                record = b""

    def of_type(self, run: RunFolder, kind: str) -> list[Any]:
        return [getattr(line, kind) for line in self.lines(run) if line.WhichOneof("record_type") == kind]

    def numbers(self, run: RunFolder) -> Numbers:
        found: Numbers = {}
        for line in self.of_type(run, "history"):
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in line.item}
            for name, value in row.items():
                if not name.startswith("_"):
                    rounds = found.setdefault(name, {})
                    assert row["_step"] not in rounds, "a round appears twice"
                    rounds[row["_step"]] = float(value)
        return found

    def state(self, run: RunFolder) -> list[int]:
        (description,) = self.of_type(run, "run")
        assert description.run_id == remembered(run, "wandb")
        return [line.exit_code for line in self.of_type(run, "exit")]


TOOLS: list[Tool] = [TensorBoardTool(), MLflowTool(), WandbTool()]
