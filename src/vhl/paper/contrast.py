"""How much two rows differ, and how sure that is.

Differences are paired by seed. With several seeds the standard error is theirs; with one it is borrowed from
all rows that have several.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from vhl.paper.evidence import Choice, Evidence, at, generator, lengths
from vhl.paper.lines import reached_by_all
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.runs.compare import result
from vhl.runs.digest import Digest
from vhl.runs.statistics import Difference, paired
from vhl.text import points

USUAL = ("stylegan", "noise")
"""Virtual data that the paper's main claims may be tested with."""


@dataclass(frozen=True)
class Measure:
    """A number of a run; ``relative`` ones are compared by their ratio."""

    name: str
    of: Callable[[Digest, float | None], float]
    """Of a run and its target."""
    relative: bool = False
    needs_target: bool = False

    def __call__(self, run: Digest, target: float | None) -> float:
        value = self.of(run, target)
        return math.log(value) if self.relative else value


def _rounds(run: Digest, target: float | None) -> float:
    """A run that did not reach the target counts as if the next round had."""
    return float(result(run.records, target).rounds or len(run.records) + 1)


def _start(run: Digest, target: float | None) -> float:
    early = run.records[: max(1, len(run.records) // 10)]
    return statistics.mean(record.accuracy for record in early if record.accuracy is not None)


BEST = Measure("best accuracy", lambda run, _: result(run.records).best)
FINAL = Measure("mean of the last tenth", lambda run, _: result(run.records).final)
START = Measure("mean accuracy of the first tenth of rounds", _start)
ROUNDS = Measure("rounds to FedAvg's best", _rounds, relative=True, needs_target=True)
DRIFT = Measure("client drift", lambda run, _: result(run.records).drift, relative=True)


@dataclass(frozen=True)
class Contrast:
    """One row minus another."""

    label: str
    measure: Measure
    difference: Difference
    """Of relative measures that of the logarithms."""
    rounds: int
    setting: str
    """Profile and virtual data."""
    compute: tuple[float, float] = (1.0, 1.0)
    """Multiply-adds of a step relative to plain FedAvg, in the one row and the other."""
    censored: bool = False
    """Whether a run that did not reach the target counts as if the next round had."""

    @property
    def extent(self) -> str:
        """What it rests on, in words."""
        seeds = self.difference.seeds
        words = f"{self.setting}, {seeds} seed{'s' if seeds > 1 else ''}, {self.rounds} rounds"
        return f"{words}; never counts as {self.rounds + 1}" if self.censored else words

    def __str__(self) -> str:
        value, error, unit = self.difference.mean, self.difference.error, "points"
        if self.measure.relative:
            value, unit = math.expm1(value), "%"
            error = None if error is None else (1 + value) * error
        return f"{self.label}: {points(value, error, signed=True)} {unit} ({self.extent})"

    def minus(self, other: Contrast, label: str) -> Contrast:
        """A difference of differences."""
        difference = self.difference.minus(other.difference)
        return replace(self, label=label, difference=difference, rounds=min(self.rounds, other.rounds))


def contrast(
    evidence: Evidence,
    label: str,
    more: str,
    less: str,
    measure: Measure = BEST,
    virtual: Sequence[str] = USUAL,
    like: Contrast | None = None,
) -> Contrast | None:
    """Row ``more`` minus row ``less`` with the same profile, where :func:`_weight` finds most evidence.

    ``virtual`` names the virtual data that may be used where a row leaves them open. ``like`` is a contrast
    whose setting and rounds this one must have.
    """
    one, other = rows()[more], rows()[less]
    found = [
        (len(seeds), rounds, choice)
        for choice, rounds, seeds in _common(evidence, one, other, () if like is None else (like.rounds,))
        if not one.uses_generator or generator(choice.experiment(one)) in virtual
        if like is None or (_setting(one, choice), rounds) == (like.setting, like.rounds)
        if not measure.needs_target or _target(evidence, one, choice, rounds) is not None
    ]
    if not found:
        return None
    longest = max(rounds for _, rounds, _ in found)
    _, rounds, choice = max(found, key=lambda entry: _weight(entry[0], entry[1], longest))
    target = _target(evidence, one, choice, rounds)
    pairs = paired(*(at(evidence.runs(row, choice), rounds) for row in (one, other)))
    difference = Difference.of([measure(a, target) - measure(b, target) for a, b in pairs])
    if difference.error is None:
        difference = difference.with_error_of(_repetitions(evidence, measure))
    (a, b), runs = pairs[0], [run for pair in pairs for run in pair]
    return Contrast(
        label,
        measure,
        difference,
        rounds,
        _setting(one, choice),
        compute=(a.records[-1].compute, b.records[-1].compute),
        censored=measure.needs_target and any(result(run.records, target).rounds is None for run in runs),
    )


def _weight(seeds: int, rounds: int, longest: int) -> tuple[bool, bool, int]:
    """What a comparison over some seeds at some length counts.

    A run that was stopped early says little, several seeds say more than one, and then rounds in all decide:
    a seed that was just begun must not replace what three long ones showed.
    """
    return 4 * rounds >= longest, seeds > 1, seeds * rounds


def _setting(row: Row, choice: Choice) -> str:
    """Profile and virtual data, in words."""
    return f"{choice.profile}, {generator(choice.experiment(row))}".removesuffix(", –")


def _common(
    evidence: Evidence, one: Row, other: Row, also: Sequence[int]
) -> Iterator[tuple[Choice, int, set[int]]]:
    """For each choice with runs of both rows: numbers of rounds, and the seeds that both had so far."""
    for choice, runs in evidence.choices(one).items():
        partners = evidence.runs(other, choice)
        for rounds in {*lengths(runs), *lengths(partners), *also}:
            seeds = at(runs, rounds).keys() & at(partners, rounds).keys()
            if seeds:
                yield choice, rounds, seeds


def _target(evidence: Evidence, row: Row, choice: Choice, rounds: int) -> float | None:
    """What every seed of FedAvg without virtual data reached in as many rounds, if it was run."""
    return reached_by_all(at(evidence.runs(rows()[row.baseline], choice), rounds).values())


def _repetitions(evidence: Evidence, measure: Measure) -> list[list[float]]:
    """Of all experiments that were repeated; not of one that has no clients to drift apart."""
    found: dict[int, list[float]] = {}
    for row in rows().values():
        if row.table == "centralized":
            continue
        for choice, runs in evidence.choices(row).items():
            repeated = next((at(runs, n) for n in lengths(runs) if len(at(runs, n)) > 1), None)
            if repeated and id(runs) not in found:  # an experiment may be several rows
                rounds = len(next(iter(repeated.values())).records)
                target = _target(evidence, row, choice, rounds)
                found[id(runs)] = [measure(run, target) for run in repeated.values()]
    return list(found.values())
