"""The lines of a table: what was measured for a row, beside what the paper says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vhl.experiment import Experiment
from vhl.paper.evidence import Choice, Evidence, at, lengths
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.runs.compare import Result, own_target, result
from vhl.runs.digest import Digest

OUT_OF_REACH = 2.0
"""Stands for a target where there is none."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, its standard deviation (none for one seed), and how many there are."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate | None:
        if not values:
            return None
        return cls(
            statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
        )

    @property
    def error(self) -> float | None:
        """Standard error of the mean."""
        return None if self.std is None else self.std / self.count**0.5


@dataclass(frozen=True)
class Line:
    """Runs of one row that had a number of rounds; all seeds that got so far."""

    row: Row
    choice: Choice
    experiment: Experiment
    rounds: int
    runs: Mapping[int, Digest]
    """By seed, cut to ``rounds``."""
    target: float | None
    """A target of our own: what every seed of FedAvg without virtual data reached in as many rounds."""
    baseline: Mapping[int, Digest]
    """The runs that set it."""
    without: Mapping[int, Digest]
    """The same algorithm without virtual data, in as many rounds."""

    @property
    def truncated(self) -> bool:
        return self.rounds < int(self.row.settings["rounds"])

    def results(self, target: float | None) -> list[Result]:
        sought = OUT_OF_REACH if target is None else target
        return [result(run.records, sought) for run in self.runs.values()]

    def over_seeds(self, measure: str) -> Estimate | None:
        return Estimate.of([getattr(found, measure) for found in self.results(None)])

    def to_target(self, measure: str, target: float | None) -> Estimate | None:
        """``rounds`` or ``samples`` to a target; nothing unless every seed reached it."""
        found = [getattr(one, measure) for one in self.results(target)]
        return None if target is None or None in found else Estimate.of(found)

    @property
    def gain(self) -> Estimate | None:
        """Best accuracy over that of the same algorithm without virtual data, paired by seed."""
        pairs = [(self.runs[seed], self.without[seed]) for seed in self.runs if seed in self.without]
        return Estimate.of([_best(one) - _best(other) for one, other in pairs])

    @property
    def speed_up(self) -> float | None:
        """Rounds to our own target: FedAvg's without virtual data over this line's, of the seeds of both."""
        both = self.runs.keys() & self.baseline.keys()
        if self.target is None or not both or self.to_target("rounds", self.target) is None:
            return None

        def needed(runs: Mapping[int, Digest], target: float) -> float:
            return statistics.mean(result(runs[seed].records, target).rounds or self.rounds for seed in both)

        return needed(self.baseline, self.target) / needed(self.runs, self.target)


def lines(row: Row, evidence: Evidence) -> Iterator[Line]:
    """One line for each choice of profile and virtual data, and for each number of rounds that a seed had.

    A run may go on for another row's sake; what it did beyond this one's rounds does not count here.
    """
    most = int(row.settings["rounds"])
    for choice, runs in evidence.choices(row).items():
        for rounds in dict.fromkeys(min(length, most) for length in lengths(runs)):
            baseline = at(evidence.runs(rows()[row.baseline], choice), rounds)
            without = at(evidence.runs(rows()[row.without], choice), rounds) if row.without else {}
            yield Line(
                row,
                choice,
                choice.experiment(row),
                rounds,
                at(runs, rounds),
                reached_by_all(baseline.values()),
                baseline,
                without,
            )


def reached_by_all(runs: Iterable[Digest]) -> float | None:
    """The largest whole percentage that all runs reached."""
    best = [_best(run) for run in runs]
    return own_target(min(best)) if best else None


def _best(run: Digest) -> float:
    return max(record.accuracy for record in run.records if record.accuracy is not None)
