"""A run's digest: its experiment, its rounds and its machine in one small file, worth keeping for good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import read_json, write_bytes
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

_COLUMNS = (
    "accuracy",
    "natural_accuracy",
    "train_accuracy",
    "virtual_accuracy",
    "drift",
    "learning_rate",
    "samples",
    "compute",
    "bytes",
    "left_out",
    "seconds",
    "side_by_side",
)
"""What is kept of every round; left out are the clients, the classes' accuracies and the loss's terms."""
_DIGITS = 6


@dataclass(frozen=True)
class Digest:
    """What a run computed, on what, and what came out round by round."""

    experiment: Experiment
    records: tuple[Record, ...]
    environment: dict[str, Any]
    heterogeneity: float
    theory: dict[str, Any] | None = None
    """What `vhl theory` measured: the virtual data, and terms by round."""

    @classmethod
    def of(cls, run: RunFolder) -> Digest:
        records = tuple(_slim(record) for record in run.records())
        if not records:
            raise VHLError(f"{run.path} has no finished round; `vhl run --resume` continues it.")
        environment = read_json(run.path / "environment.json")
        heterogeneity = _round(run.data()["heterogeneity"])
        theory = run.path / "theory.json"
        found = _rounded(read_json(theory)) if theory.is_file() else None
        return cls(run.experiment(), records, environment, heterogeneity, found)

    @classmethod
    def read(cls, file: Path) -> Digest:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            columns = {name: _unfold(column, found["rounds"]) for name, column in found["columns"].items()}
            rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
            records = tuple(_record(number, row) for number, row in enumerate(rows, 1))
            if len(records) != found["rounds"] or not records:
                raise ValueError(f"it has {len(records)} rounds, not {found['rounds']}")
            experiment = Experiment(**found["experiment"])
            known = (found["environment"], found["heterogeneity"], found.get("theory"))
            return cls(experiment, records, *known)
        except VHLError as error:
            raise VHLError(f"{file} describes no experiment of this version: {error}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split()[:20])
            raise VHLError(f"{file} is no digest of a run ({type(error).__name__}: {reason}).") from None

    def write(self, file: Path) -> None:
        """One line for each column: a later version of a file can be compared with an earlier one."""
        columns = {name: _fold([getattr(r, name) for r in self.records]) for name in _COLUMNS}
        parts: dict[str, Any] = {
            "experiment": self.experiment.table(),
            "environment": self.environment,
            "heterogeneity": self.heterogeneity,
            "rounds": len(self.records),
            **({} if self.theory is None else {"theory": self.theory}),
        }
        lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()]
        kept = (f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items())
        lines.append('"columns": {\n' + ",\n".join(kept) + "\n }")
        write_bytes(file, ("{\n " + ",\n ".join(lines) + "\n}\n").encode())

    def first(self, rounds: int) -> Digest:
        """The run as it was after so many rounds."""
        return replace(self, records=self.records[:rounds])


def _slim(record: Record) -> Record:
    return _record(record.round, {name: _round(getattr(record, name)) for name in _COLUMNS})


def _record(number: int, row: dict[str, Any]) -> Record:
    return Record(round=number, loss={}, clients=[], **row)


def _round(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _rounded(found: Any) -> Any:
    """All numbers in it."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return [_rounded(value) for value in found] if isinstance(found, list) else _round(found)


def _fold(values: Sequence[Any]) -> Any:
    """A list, or where all rounds have the same value that value alone under ``every``."""
    return {"every": values[0]} if all(value == values[0] for value in values) else list(values)


def _unfold(column: Any, rounds: int) -> list[Any]:
    return [column["every"]] * rounds if isinstance(column, dict) else list(column)
