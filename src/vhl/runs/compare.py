"""Comparing runs: what each reached, how soon, and at what cost; over seeds where there are several."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import read_json
from vhl.runs.folder import RunFolder
from vhl.runs.identity import LOSS, REPEATED, key, labels, problem
from vhl.runs.record import Record
from vhl.runs.statistics import Mean

LAST = 0.1
"""Share of the rounds that count as the last ones."""


@dataclass(frozen=True)
class Result:
    """What one run reached."""

    best: float
    """Best test accuracy over the run: the paper's measure; it depends on how often one looks."""
    final: float
    """Mean test accuracy over the last 10 % of rounds, or the share asked for."""
    rounds: int | None
    """First round at or above the target."""
    samples: int | None
    """Images trained on until then, natural and virtual."""
    bytes: int | None
    """Sent until then, down and up."""
    drift: float
    """Client drift, mean over rounds."""
    compute: float
    """Multiply-adds of a step relative to plain FedAvg."""
    seconds: float | None = None
    """Median wall time of the rounds that had the machine to themselves."""


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seeds alone."""

    label: str
    seeds: int
    results: tuple[Result, ...]
    runs: tuple[RunFolder, ...] = ()
    """In the order of their results."""
    records: tuple[tuple[Record, ...], ...] = ()
    """Of each run."""
    problem: str = ""
    """What it was trained on, in words that are equal for equal data and partitions."""
    target: float = 0.0
    """What counts as reached on this problem."""

    def over_seeds(self, measure: str) -> Mean | None:
        """Mean ± std of a measure over the seeds that have it."""
        values = [getattr(r, measure) for r in self.results if getattr(r, measure) is not None]
        return Mean.of([value for value in values if math.isfinite(value)])

    def over_all_seeds(self, measure: str) -> Mean | None:
        """The same, but none unless every seed has it: a mean over those that do would flatter."""
        found = self.over_seeds(measure)
        return found if found is not None and found.count == len(self.results) else None


@dataclass(frozen=True)
class Comparison:
    """Rows in the order the runs were named; the first of a problem is its baseline."""

    rows: tuple[Row, ...]
    last: float = LAST
    """Share of the rounds that ``Result.final`` is over."""

    @property
    def target(self) -> float:
        """Of the first problem; most comparisons have but one."""
        return self.rows[0].target

    def baseline(self, row: Row) -> Row:
        """The first row on the same problem."""
        return next(other for other in self.rows if other.problem == row.problem)

    def partners(self) -> list[Row | None]:
        """For each row the one that differs in being trained plainly alone."""
        experiments = [row.runs[0].experiment() for row in self.rows]
        settings = [key(experiment, REPEATED | LOSS) for experiment in experiments]
        plain: dict[str, Row] = {}
        for row, experiment, setting in zip(self.rows, experiments, settings, strict=True):
            if experiment.objective.name == "plain":
                plain.setdefault(setting, row)
        found = (plain.get(setting) for setting in settings)
        return [None if other is row else other for row, other in zip(self.rows, found, strict=True)]

    def speed_up(self, row: Row) -> float | None:
        """The baseline's rounds to the target over its own; none where a seed of either never got there."""
        first, own = (one.over_all_seeds("rounds") for one in (self.baseline(row), row))
        return None if first is None or own is None else first.mean / own.mean

    def time(self, row: Row) -> float | None:
        """Wall time of a round relative to the baseline's, where both had the same machine to themselves."""
        baseline = self.baseline(row)
        first, own = baseline.over_seeds("seconds"), row.over_seeds("seconds")
        if first is None or own is None:
            return None
        machines = {_machine(run) for run in (*baseline.runs, *row.runs)}
        return own.mean / first.mean if len(machines) == 1 else None


def _machine(run: RunFolder) -> str:
    found = read_json(run.path / "environment.json")
    return json.dumps([found[key] for key in ("processor", "cores", "threads", "gpu")])


def final_mean(records: Sequence[Record], last: float = LAST) -> float:
    """Mean accuracy of the evaluations in the last rounds, by default 10 % of them."""
    start = round(records[-1].round * (1 - last), 6)  # 10 × (1 − 0.9) falls short of 1, and would add a round
    evaluated = [r.accuracy for r in records if r.accuracy is not None]
    return statistics.mean(
        [r.accuracy for r in records if r.accuracy is not None and r.round > start] or evaluated[-1:]
    )


def best_accuracy(records: Sequence[Record]) -> float:
    """The paper's measure; some round must have been evaluated."""
    return max(record.accuracy for record in records if record.accuracy is not None)


def judged(experiment: Experiment, records: Sequence[Record]) -> tuple[Record, ...]:
    """What a method is judged by: all rounds, or the last alone where what comes after it changes the model.

    What such a run shows on the way is the accuracy of training without that.
    """
    if not experiment.algorithm.ends or records[-1].round < experiment.rounds:
        return tuple(records)
    return (*(record.model_copy(update={"accuracy": None}) for record in records[:-1]), records[-1])


def own_target(reached: float) -> float:
    """The largest whole percentage up to ``reached``: the paper's way to set a target from FedAvg.

    >>> own_target(0.8049)
    0.8
    """
    return math.floor(100 * reached + 1e-9) / 100


def result(records: Sequence[Record], target: float | None = None, last: float = LAST) -> Result:
    """What a run reached, and at what cost a target, where there is one."""
    sought = math.inf if target is None else target
    there = (n for n, r in enumerate(records, 1) if r.accuracy is not None and r.accuracy >= sought)
    until = None if (reached := next(there, None)) is None else records[:reached]
    alone = [record.seconds for record in records if record.side_by_side == 1]
    return Result(
        best=best_accuracy(records),
        final=final_mean(records, last),
        rounds=None if until is None else until[-1].round,
        samples=None if until is None else sum(r.samples for r in until),
        bytes=None if until is None else sum(r.bytes for r in until),
        drift=statistics.mean(r.drift for r in records),
        compute=records[-1].compute,
        seconds=statistics.median(alone) if alone else None,
    )


def compare(runs: Sequence[RunFolder], target: float | None = None, last: float = LAST) -> Comparison:
    """Compare runs; the target is by default what every seed of a problem's first method reached."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(key(run.experiment(), REPEATED), []).append(run)
    names = labels([members[0].experiment() for members in groups.values()])
    targets: dict[str, float] = {}
    rows = []
    for name, members in zip(names, groups.values(), strict=True):
        experiments = [run.experiment() for run in members]
        records = [judged(of, _evaluated(run)) for of, run in zip(experiments, members, strict=True)]
        learnt = problem(experiments[0])
        if learnt not in targets:
            reached = min(map(best_accuracy, records))
            targets[learnt] = own_target(reached) if target is None else target
        results = tuple(result(own, targets[learnt], last) for own in records)
        seeds = len({experiment.seeds for experiment in experiments})
        rows.append(Row(name, seeds, results, tuple(members), tuple(records), learnt, targets[learnt]))
    return Comparison(tuple(rows), last)


def _evaluated(run: RunFolder) -> list[Record]:
    records = run.records()
    if not any(r.accuracy is not None for r in records):
        raise VHLError(f"{run.path} has no evaluated round yet; `vhl run --resume` continues it.")
    return records
