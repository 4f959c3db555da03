"""The page's curves against the records."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vhl.report.content import content
from vhl.report.figure import Figure, Series
from vhl.report.measures import files
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

Write = Callable[..., RunFolder]
Described = dict[str, Figure]


@pytest.fixture(scope="module")
def figures(compared: list[RunFolder], described: Callable[..., Described]) -> Described:
    return described(compared)


def expected(
    runs: Sequence[RunFolder], value: Callable[[Record], float | None], x: str, window: int, scale: float
) -> list[list[float]]:
    """From the records: place, mean, lowest and highest in each round."""
    seeds = []
    for run in runs:
        records = run.records()
        places: list[float] = [r.round for r in records]
        if x != "round":
            places = list(itertools.accumulate(getattr(r, x) for r in records))
        known = {r.round: scale * v for r in records if (v := value(r)) is not None}
        near = {r: [known[n] for n in known if abs(n - r) <= window // 2] for r in known}
        pairs = zip(records, places, strict=True)
        seeds.append({r.round: (p, statistics.mean(near[r.round])) for r, p in pairs if r.round in known})
    made = []
    for round_ in seeds[0]:
        places, values = zip(*(seed[round_] for seed in seeds), strict=True)
        made.append([statistics.mean(places), statistics.mean(values), min(values), max(values)])
    return made


def is_curve(own: Series, wanted: list[list[float]], x: str = "round", window: int = 1) -> bool:
    band = own.bands[window]
    low, high = (band.mean if edge is None else edge for edge in (band.low, band.high))
    assert (band.low is None) == (own.seeds == 1)
    found = np.column_stack([own.places[x], band.mean, low, high])
    return found.shape == np.shape(wanted) and np.allclose(found, wanted)


def methods(compared: list[RunFolder]) -> dict[str, list[RunFolder]]:
    labels = [row.label for row in compare(compared).rows]
    return dict(zip(labels, (compared[:3], compared[3:6], compared[6:]), strict=True))


def test_accuracy_on_every_axis_and_over_every_window(compared: list[RunFolder], figures: Described) -> None:
    """Thirty rounds, of which every third was not evaluated."""
    (panel,) = figures["accuracy"].panels
    assert list(panel.axes) == ["round", "samples", "seconds"] and panel.percent
    assert panel.windows == [1, 3, 5, 11] and panel.window == 3
    own = methods(compared)
    assert [series.label for series in panel.series] == list(own)
    for series, x, window in itertools.product(panel.series, panel.axes, panel.windows):
        wanted = expected(own[series.label], lambda r: r.accuracy, x, window, 100)
        assert is_curve(series, wanted, x, window)


COLUMNS = {
    "drift": ("drift", 1),
    "learning-rate": ("learning_rate", 1),
    "virtual-accuracy": ("virtual_accuracy", 100),
    "train-accuracy": ("train_accuracy", 100),
}


def test_what_happens_at_the_clients(compared: list[RunFolder], figures: Described) -> None:
    own = methods(compared)
    for name, (column, scale) in COLUMNS.items():
        (panel,) = figures[name].panels
        labels = [label for label in own if "plain" not in label or name != "virtual-accuracy"]
        assert [series.label for series in panel.series] == labels and panel.window == 1
        for series in panel.series:
            wanted = expected(own[series.label], lambda r, c=column: getattr(r, c), "round", 1, scale)
            assert is_curve(series, wanted)
    assert not {"validation-accuracy", "natural-accuracy", "theory"} & figures.keys()  # never measured
    natural, virtual = figures["loss"].panels
    assert (natural.title, virtual.title) == ("natural", "virtual")
    assert [len(natural.series), len(virtual.series)] == [3, 2]
    for term, series in [(own.title, series) for own in (natural, virtual) for series in own.series]:
        wanted = expected(own[series.label], lambda r, t=term: r.loss.get(t), "round", 1, 1)
        assert is_curve(series, wanted)


@pytest.mark.parametrize(
    ("rounds", "accuracy", "training"), [(19, 1, 1), (20, 3, 1), (40, 3, 3), (100, 5, 5)]
)
def test_windows_grow_with_the_longest_run(
    write: Write, described: Any, tmp_path: Path, rounds: int, accuracy: int, training: int
) -> None:
    runs = [write(tmp_path / name, [0.5] * n, objective=name) for name, n in (("plain", 1), ("vhl", rounds))]
    figures = described(runs)
    assert figures["accuracy"].panels[0].window == accuracy
    assert figures["drift"].panels[0].window == figures["loss"].panels[0].window == training


def test_windows_to_choose_from(write: Write, described: Any, tmp_path: Path) -> None:
    """No more than half of the rounds, and the usual one."""
    for rounds, windows in (
        (2, [1, 3]),
        (10, [1, 3, 5]),
        (60, [1, 3, 5, 11, 25]),
        (120, [1, 3, 5, 7, 11, 25, 51]),
    ):
        run = write(tmp_path / str(rounds), [0.5] * rounds)
        assert described([run])["accuracy"].panels[0].windows == windows


def test_seeds_that_are_not_equally_far(write: Write, record: Any, described: Any, tmp_path: Path) -> None:
    """A curve ends where the first of them does, and leaves out rounds in which one diverged."""
    nan = float("nan")
    short = [record(1, 0.5, drift=nan, loss={"natural": nan}), record(2, 0.1, drift=3.0)]
    runs = [write(tmp_path / "0", short), write(tmp_path / "1", [0.7, 0.3, 0.9], seeds={"batches": 1})]
    figures = described(runs)
    (accuracy,), (drift,) = (figures[name].panels[0].series for name in ("accuracy", "drift"))
    assert is_curve(accuracy, [[1, 60, 50, 70], [2, 20, 10, 30]]) and is_curve(drift, [[2, 2, 1, 3]])


def test_theory_where_it_was_measured(write: Write, described: Any, tmp_path: Path) -> None:
    runs = [write(tmp_path / kind, [0.1, 0.2, 0.3], objective=kind) for kind in ("plain", "vhl")]
    terms = [
        {"round": n, "margin_natural": n / 10, "normalised_distance": n / 100, "merged_accuracy": n / 4}
        for n in (1, 3)
    ]
    (runs[1].path / "theory.json").write_text(json.dumps({"terms": terms}), encoding="utf-8")
    panels = described(runs)["theory"].panels
    found = {
        (p.y, p.title): (s.label, [*s.places["round"]], [*s.bands[1].mean]) for p in panels for s in p.series
    }
    assert found == {
        ("margin", "natural images"): ("fedavg + vhl", [1, 3], [0.1, 0.3]),
        ("distance", "features of length 1"): ("fedavg + vhl", [1, 3], [0.01, 0.03]),
        ("accuracy (%)", "natural and virtual class merged"): ("fedavg + vhl", [1, 3], [25, 75]),
    }


# --- many runs -----------------------------------------------------------------------------------------


def test_of_many_methods_the_best_are_shown(write: Write, described: Any, tmp_path: Path) -> None:
    best = [number % 7 / 10 for number in range(23)]
    runs = [write(tmp_path / f"run{i}", [own], training={"lr": 0.01 * (i + 1)}) for i, own in enumerate(best)]
    figures = described(runs)
    shown = [number for number in range(23) if number not in (7, 14, 21)]  # the last three of those with 0
    own = figures["accuracy"].panels[0].series
    assert [series.bands[1].mean[0] for series in own] == pytest.approx([100 * best[n] for n in shown])
    assert [(series.look.turn, series.look.colour) for series in own] == [divmod(n, 10) for n in shown]
    assert figures["accuracy"].subtitle == "the best 20 of 23 methods"
    assert [series.label for series in figures["index"].panels[0].series] == [f"run{i}" for i in range(23)]
    written = list(files(figures.values()))
    assert [figure.name for figure in written] == ["accuracy-rounds", "accuracy-images", "accuracy-time"]
    assert written[0].subtitle == "the best 20 of 23 methods"


# --- files ---------------------------------------------------------------------------------------------


def test_names_of_files(compared: list[RunFolder]) -> None:
    found = list(files(content(compared)["figures"]))
    assert [figure.name for figure in found] == [
        *("accuracy-rounds", "accuracy-images", "accuracy-time", "loss", *COLUMNS),
        *("partition-1", "partition-2", "virtual-1", "virtual-2", "features-10", "features-30"),
        *("per-class", "run-4-ours-seed0", "run-5-ours-seed1"),
    ]
    for figure, axis in zip(found, ("round", "samples", "seconds"), strict=False):
        assert list(figure.panels[0].axes) == [axis]
        assert figure.subtitle.startswith(
            "bold: running mean over 3 rounds; faint: every round; mean of up to 3"
        )
