"""A run as the page and its figures need it, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vhl.experiment import Experiment, dotted
from vhl.files import read_json
from vhl.report.curves import Seed
from vhl.report.figure import Numbers
from vhl.report.looks import Look
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

Terms = Mapping[str, float]
Value = Callable[[Record, Terms], float | None]
"""What a curve shows of a round, from its record and the theorem's terms."""


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seeds alone."""

    label: str
    look: Look
    best: float


@dataclass(frozen=True)
class Shown:
    """A run that has something to show."""

    folder: RunFolder
    method: int
    """Its number among the methods."""
    experiment: Experiment
    records: Sequence[Record]

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in dotted(self.experiment).items() if value is not None}

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.folder.data()

    @cached_property
    def terms(self) -> Mapping[int, Terms]:
        """What `vhl theory` measured, by round, where it was called."""
        file = self.folder.path / "theory.json"
        return {row["round"]: row for row in read_json(file)["terms"]} if file.is_file() else {}

    @cached_property
    def places(self) -> Mapping[str, Numbers]:
        """Rounds; images and seconds are counted from the start."""
        columns = {
            "round": [record.round for record in self.records],
            "samples": np.cumsum([record.samples for record in self.records]),
            "seconds": np.cumsum([record.seconds for record in self.records]),
        }
        return {name: np.array(column, dtype=float) for name, column in columns.items()}

    def seed(self, value: Value, scale: float = 1, axes: Sequence[str] = ("round",)) -> Seed:
        found = [value(record, self.terms.get(record.round, {})) for record in self.records]
        scaled = [None if one is None else scale * one for one in found]
        return Seed.of(scaled, {name: self.places[name] for name in axes})

    def client(self, number: int) -> str:
        sites = self.data["sites"]
        return sites[number] if number < len(sites) else f"client {number}"

    @property
    def about(self) -> str:
        """Which data, and how they were divided."""
        own = {
            k.removeprefix("partition."): v for k, v in self.settings.items() if k.startswith("partition.")
        }
        told = ("name", "clients", "max_tries")  # or without a meaning for who looks at the result
        more = [f"{name} {value}" for name, value in own.items() if name not in told]
        return ", ".join([self.settings["data.name"], own["name"], *more])

    @property
    def problem(self) -> str:
        """Equal for runs on the same data with the same clients."""
        return str(
            [self.about, *(self.data[name] for name in ("classes", "sites", "counts", "test_samples"))]
        )
