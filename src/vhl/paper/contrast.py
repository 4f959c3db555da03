"""How much two rows differ, and how sure that is.

Differences are paired by seed. With several seeds the standard error is theirs; with one it is borrowed: the
deviation over seeds, pooled over all rows that have several, times √2 for two runs. The standard error of few
seeds is itself unsure, so that Student's t says how many of them are chance: 4.3 of three seeds, and at least
two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from vhl.paper.evidence import Choice, Evidence, at, generator, lengths
from vhl.paper.lines import OUT_OF_REACH, reached_by_all
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.runs.compare import result
from vhl.runs.digest import Digest

USUAL = ("stylegan", "noise")
"""Virtual data that the paper's main claims may be tested with."""


@dataclass(frozen=True)
class Measure:
    """A number of a run; ``relative`` ones are compared by their ratio."""

    name: str
    of: Callable[[Digest, float], float]
    """Of a run and its target."""
    relative: bool = False
    needs_target: bool = False

    def __call__(self, run: Digest, target: float) -> float:
        value = self.of(run, target)
        return math.log(value) if self.relative else value


def _rounds(run: Digest, target: float) -> float:
    """A run that did not reach the target counts as if the next round had."""
    return float(result(run.records, target).rounds or len(run.records) + 1)


def _start(run: Digest, target: float) -> float:
    early = run.records[: max(1, len(run.records) // 10)]
    return statistics.mean(record.accuracy for record in early if record.accuracy is not None)


BEST = Measure("best accuracy", lambda run, target: result(run.records, target).best)
FINAL = Measure("mean of the last tenth", lambda run, target: result(run.records, target).final)
START = Measure("mean accuracy of the first tenth of rounds", _start)
ROUNDS = Measure("rounds to FedAvg's best", _rounds, relative=True, needs_target=True)
DRIFT = Measure("client drift", lambda run, target: result(run.records, target).drift, relative=True)


@dataclass(frozen=True)
class Contrast:
    """One row minus another; of relative measures the logarithms."""

    label: str
    measure: Measure
    value: float
    error: float | None
    """Standard error; unknown where no row at all has several seeds."""
    seeds: int
    rounds: int
    setting: str
    """Profile and virtual data."""
    compute: tuple[float, float] = (1.0, 1.0)
    """Multiply-adds of a step relative to plain FedAvg, in the one row and the other."""
    freedom: float = math.inf
    """Degrees of freedom that the standard error rests on."""
    censored: bool = False
    """Whether a run that did not reach the target counts as if the next round had."""

    @property
    def doubt(self) -> float | None:
        """What the value must exceed to be more than chance, at 95 %."""
        from scipy.stats import t  # half a second, which most commands need not spend

        return None if self.error is None else max(2.0, float(t.ppf(0.975, self.freedom))) * self.error

    @property
    def extent(self) -> str:
        """What it rests on, in words."""
        words = f"{self.setting}, {self.seeds} seed{'s' if self.seeds > 1 else ''}, {self.rounds} rounds"
        return f"{words}; never counts as {self.rounds + 1}" if self.censored else words

    def __str__(self) -> str:
        if self.measure.relative:
            value, unit = math.expm1(self.value), "%"
            error = None if self.error is None else (1 + value) * self.error
        else:
            value, unit, error = self.value, "points", self.error
        doubt = "" if error is None else f" ± {100 * error:.1f}"
        return f"{self.label}: {100 * value:+.1f}{doubt} {unit} ({self.extent})"

    def minus(self, other: Contrast, label: str) -> Contrast:
        """A difference of differences."""
        error = None
        if self.error is not None and other.error is not None:
            error = math.hypot(self.error, other.error)
        seeds, rounds = min(self.seeds, other.seeds), min(self.rounds, other.rounds)
        return replace(
            self,
            label=label,
            value=self.value - other.value,
            error=error,
            seeds=seeds,
            rounds=rounds,
            freedom=min(self.freedom, other.freedom),
        )


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
    seeds, rounds, choice = max(found, key=lambda entry: _weight(entry[0], entry[1], longest))
    first, second = (at(evidence.runs(row, choice), rounds) for row in (one, other))
    target = _target(evidence, one, choice, rounds) or OUT_OF_REACH
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    values = [measure(a, target) - measure(b, target) for a, b in pairs]
    error, freedom = _error(values) if len(values) > 1 else _borrowed_error(evidence, measure)
    (a, b), runs = pairs[0], [run for pair in pairs for run in pair]
    return Contrast(
        label,
        measure,
        statistics.mean(values),
        error,
        seeds,
        rounds,
        _setting(one, choice),
        compute=(a.records[-1].compute, b.records[-1].compute),
        freedom=freedom,
        censored=measure.needs_target and any(result(run.records, target).rounds is None for run in runs),
    )


def _error(values: Sequence[float]) -> tuple[float | None, float]:
    """Standard error of a mean, and its degrees of freedom."""
    return statistics.stdev(values) / len(values) ** 0.5, len(values) - 1


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


def _borrowed_error(evidence: Evidence, measure: Measure) -> tuple[float | None, float]:
    """From all experiments that were repeated; not from one that has no clients to drift apart."""
    found: dict[int, tuple[float, int]] = {}
    for row in rows().values():
        if row.table == "centralized":
            continue
        for choice, runs in evidence.choices(row).items():
            repeated = next((at(runs, n) for n in lengths(runs) if len(at(runs, n)) > 1), None)
            if repeated and id(runs) not in found:  # an experiment may be several rows
                rounds = len(next(iter(repeated.values())).records)
                target = _target(evidence, row, choice, rounds) or OUT_OF_REACH
                values = [measure(run, target) for run in repeated.values()]
                found[id(runs)] = statistics.variance(values), len(values) - 1
    freedom = sum(own for _, own in found.values())
    if not freedom:
        return None, math.inf
    pooled = sum(variance * own for variance, own in found.values()) / freedom
    return (2 * pooled) ** 0.5, freedom
