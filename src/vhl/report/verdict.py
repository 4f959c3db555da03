"""What a comparison says in plain words, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vhl import text as words
from vhl.runs.compare import LAST, Comparison, Row, best_accuracy, final_mean
from vhl.runs.record import Record
from vhl.runs.statistics import Difference, paired

_SAME = 1.05
"""Numbers of images that differ by less count as the same."""


@dataclass(frozen=True)
class Verdict:
    """One row against the one it is to be compared with."""

    row: Row
    against: Row
    best: Difference
    final: Difference
    """Mean of the last rounds: what decides, for the best depends on luck."""
    text: str


@dataclass(frozen=True)
class _Pair:
    """A seed's run of one row and its run of the other, as far as both have come."""

    own: tuple[Record, ...]
    other: tuple[Record, ...]
    last: float
    """Share of the rounds that decide."""

    @property
    def finals(self) -> tuple[float, float]:
        return final_mean(self.own, self.last), final_mean(self.other, self.last)

    @property
    def at_equal_images(self) -> tuple[float, float, int] | None:
        """Final accuracies, had both stopped where the cheaper one ended, and the images until there."""
        images = min(sum(record.samples for record in records) for records in (self.own, self.other))
        first, second = (_within(records, images) for records in (self.own, self.other))
        return (*_Pair(first, second, self.last).finals, images) if first and second else None


def verdicts(comparison: Comparison) -> Iterator[Verdict]:
    """Each row against its partner: the same without virtual data where that was run, else the baseline."""
    partners = comparison.partners()
    for row, partner in zip(comparison.rows, partners, strict=True):
        baseline = comparison.baseline(row)
        against = partner or baseline
        told_already = partner is None and partners[comparison.rows.index(baseline)] is row
        if against is row or told_already:
            continue
        if pairs := _pairs(row, against, comparison.last):
            images = int(against.runs[0].data()["test_samples"])
            best = Difference.of([best_accuracy(p.own) - best_accuracy(p.other) for p in pairs], images)
            final = Difference.of([own - other for own, other in (pair.finals for pair in pairs)], images)
            text = _sentence(row, against, pairs, best, final)
            yield Verdict(row, against, best, final, text)


def _pairs(row: Row, against: Row, last: float) -> list[_Pair]:
    """Of the seeds that both have, over the rounds that all their runs have done."""
    common = paired(_by_seed(row), _by_seed(against))
    rounds = min((records[-1].round for pair in common for records in pair), default=0)
    pairs = [_Pair(_until(one, rounds), _until(two, rounds), last) for one, two in common]
    return [pair for pair in pairs if _is_evaluated(pair.own) and _is_evaluated(pair.other)]


def _by_seed(row: Row) -> Mapping[int, tuple[Record, ...]]:
    seeds = (run.experiment().seeds.batches for run in row.runs)
    return dict(zip(seeds, row.records, strict=True))


def _until(records: Sequence[Record], rounds: int) -> tuple[Record, ...]:
    return tuple(record for record in records if record.round <= rounds)


def _within(records: Sequence[Record], images: int) -> tuple[Record, ...]:
    """The rounds that so many images are enough for; nothing where none of them was evaluated."""
    spent = accumulate(record.samples for record in records)
    kept = tuple(record for record, sum_ in zip(records, spent, strict=True) if sum_ <= images)
    return kept if _is_evaluated(kept) else ()


def _is_evaluated(records: Sequence[Record]) -> bool:
    return any(record.accuracy is not None for record in records)


def _sentence(row: Row, against: Row, pairs: Sequence[_Pair], best: Difference, final: Difference) -> str:
    parts = [_result(row, against, pairs, best, final), _sureness(final), _cost(row, against)]
    return " ".join([*parts, *_at_equal_images(pairs)])


def _result(row: Row, against: Row, pairs: Sequence[_Pair], best: Difference, final: Difference) -> str:
    compared = "is better than" if final.mean > 0 else "is worse than"
    verdict = compared if final.told else "cannot be told from"
    own, other = map(statistics.mean, zip(*(pair.finals for pair in pairs), strict=True))
    last = "tenth" if pairs[0].last == LAST else f"{100 * pairs[0].last:g} %"
    rounds = pairs[0].own[-1].round
    asked = max(run.experiment().rounds for run in (*row.runs, *against.runs))
    so_far = f" of the {rounds} that both have done so far" if rounds < asked else ""
    return (
        f"{row.label} {verdict} {against.label}: {100 * own:.1f} % instead of {100 * other:.1f} % over the "
        f"last {last} of the rounds{so_far} ({100 * final.mean:+.1f} points), {100 * best.mean:+.1f} in the "
        "best one."
    )


def _sureness(gain: Difference) -> str:
    if gain.margin is None:
        return "That is one seed: an indication, no proof; `--seeds 0,1,2` tells how much is chance."
    low, high = 100 * (gain.mean - gain.margin), 100 * (gain.mean + gain.margin)
    rests_on = f"{gain.seeds} paired seeds and {gain.images:,} test images"
    interval = f"The 95 % interval over {rests_on} is {low:+.1f} to {high:+.1f} points"
    return f"{interval}." if gain.decided else f"{interval}: it may be chance."


def _cost(row: Row, against: Row) -> str:
    compute = _mean(row, "compute") / _mean(against, "compute")
    step = f"A step costs {compute:.2f} times the compute"
    own, other = row.over_seeds("rounds"), against.over_all_seeds("rounds")
    target = f"{100 * row.target:.3g} %"
    if own is None:
        return f"{step}, and it did not reach {target}."
    if own.count < len(row.results):
        return f"{step}, and {own.count} of {len(row.results)} seeds reached {target}."
    if other is None:
        rest = "never did" if against.over_seeds("rounds") is None else "did not always"
        return f"{step}; it reached {target} after {words.rounds(own.mean)}, which the other {rest}."
    images = _mean(row, "samples") / _mean(against, "samples")
    rounds = f"{words.rounds(own.mean)} instead of {other.mean:.0f}"
    return f"{step}; it reached {target} after {rounds}, with {images:.2f} times the images."


def _at_equal_images(pairs: Sequence[_Pair]) -> Iterator[str]:
    """What the same number of images bought, where one of the two had more."""
    found = [pair.at_equal_images for pair in pairs]
    totals = [[sum(r.samples for r in records) for records in (pair.own, pair.other)] for pair in pairs]
    if all(max(pair) <= _SAME * min(pair) for pair in totals) or None in found:
        return
    own, other, images = (statistics.mean(numbers) for numbers in zip(*filter(None, found), strict=True))
    yield (
        f"With the same number of images ({words.count(images)}) it is at {100 * own:.1f} % and the other at "
        f"{100 * other:.1f} %."
    )


def _mean(row: Row, measure: str) -> float:
    found: Any = row.over_seeds(measure)
    return float(found.mean)
