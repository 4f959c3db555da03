"""The page's curves: accuracy, what happens at the clients, and the theorem's terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vhl.report.curves import ROUNDS, how_to_read, series
from vhl.report.figure import Curves, Figure
from vhl.report.looks import look
from vhl.report.shown import Method, Shown, Value

MOST = 20
"""Methods in a figure: of more the best are shown."""
_AXES = {**ROUNDS, "samples": "images trained on, natural and virtual", "seconds": "wall time (seconds)"}
_FILES = {"round": "accuracy-rounds", "samples": "accuracy-images", "seconds": "accuracy-time"}
_WINDOWS = (1, 3, 5, 11, 25, 51)
"""Numbers of rounds to average over."""


@dataclass(frozen=True)
class Measure:
    """What a panel shows of every round."""

    y: str
    value: Value
    title: str = ""
    axes: Mapping[str, str] = field(default_factory=lambda: ROUNDS)

    @property
    def percent(self) -> bool:
        return self.y.endswith("(%)")


def _column(name: str) -> Value:
    return lambda record, terms: getattr(record, name)


def _loss(term: str) -> Value:
    return lambda record, terms: record.loss.get(term)


def _term(name: str) -> Value:
    return lambda record, terms: terms.get(name)


_ACCURACY = Measure("test accuracy (%)", _column("accuracy"), axes=_AXES)
_TRAINING = {
    "drift": ("Drift of the clients' models in a round", "distance from their average", "drift"),
    "learning-rate": ("Learning rate, mean over the clients", "learning rate", "learning_rate"),
    "virtual-accuracy": ("Training accuracy on the virtual data", "accuracy (%)", "virtual_accuracy"),
    "train-accuracy": ("Training accuracy on the clients' own data", "accuracy (%)", "train_accuracy"),
    "validation-accuracy": ("Accuracy on the validation set", "accuracy (%)", "validation_accuracy"),
    "natural-accuracy": ("Test accuracy, natural outputs alone", "accuracy (%)", "natural_accuracy"),
}
"""Figures: title, axis, and what of a record they show."""
_THEORY = (
    ("natural images", "margin", "margin_natural"),
    ("virtual images, held out", "margin", "margin_virtual"),
    ("features of length 1", "distance", "normalised_distance"),
    ("virtual images, trained on", "margin", "margin_virtual_train"),
    ("natural images at least, by the theorem", "margin", "lower_bound"),
    ("halves of one kind, of length 1", "distance", "normalised_floor"),
    ("features as they are", "distance", "distance"),
    ("halves of one kind, as they are", "distance", "distance_floor"),
    ("natural and virtual class merged", "accuracy (%)", "merged_accuracy"),
    ("classes as they are", "accuracy (%)", "accuracy"),
)
"""Panels: title, axis and term."""


def accuracy(runs: Sequence[Shown], methods: Sequence[Method]) -> Iterator[Figure]:
    """Of the server's model, against rounds, images trained on and time."""
    window = _window(runs, least=20)
    longest = max(len(run.records) for run in runs)
    offered = sorted(own for own in {*_WINDOWS, window} if own <= max(3, longest / 2))
    best = sorted(range(len(methods)), key=lambda number: methods[number].best, reverse=True)[:MOST]
    panel = _panel(_ACCURACY, runs, {number: methods[number] for number in sorted(best)}, window, offered)
    more = f"the best {MOST} of {len(methods)} methods" if len(methods) > MOST else ""
    yield Figure(name="accuracy", title="Test accuracy of the server's model", subtitle=more, panels=[panel])


def each_run(runs: Sequence[Shown]) -> Iterator[Figure]:
    """A curve for each of many runs, as it was measured."""
    own = [series(run.name, look(i), [run.seed(_ACCURACY.value, 100)]) for i, run in enumerate(runs)]
    panel = Curves(y=_ACCURACY.y, axes=ROUNDS, series=[one for one in own if one], percent=True)
    yield Figure(name="index", title="Test accuracy of the ticked runs", panels=[panel])


def training(runs: Sequence[Shown], methods: Sequence[Method]) -> Iterator[Figure]:
    """What happens at the clients, and what `vhl theory` measured, where it was called."""
    terms = dict.fromkeys(term for run in runs for record in run.records for term in record.loss)
    window, all_methods = _window(runs, least=40), dict(enumerate(methods))

    def figure(name: str, title: str, measures: Iterable[Measure], window: int) -> Iterator[Figure]:
        panels = [_panel(measure, runs, all_methods, window, [window]) for measure in measures]
        if found := [panel for panel in panels if panel.series]:
            yield Figure(name=name, title=title, subtitle=how_to_read(found), panels=found)

    losses = [Measure("loss", _loss(term), term) for term in terms]
    yield from figure("loss", "Terms of the loss, mean over the clients' steps", losses, window)
    for name, (title, y, column) in _TRAINING.items():
        yield from figure(name, title, [Measure(y, _column(column))], window)
    theory = [Measure(y, _term(term), title) for title, y, term in _THEORY]
    yield from figure("theory", "Margins, and distance of natural and virtual features", theory, 1)


def _window(runs: Sequence[Shown], least: int) -> int:
    """Rounds to average over: a twentieth of the longest run; one where it is shorter than ``least``."""
    rounds = max(len(run.records) for run in runs)
    return max(3, rounds // 40 * 2 + 1) if rounds >= least else 1


def _panel(
    measure: Measure,
    runs: Sequence[Shown],
    methods: Mapping[int, Method],
    window: int,
    windows: Sequence[int],
) -> Curves:
    """A curve for each of these methods that has a value."""
    found = []
    for number, method in methods.items():
        scale, own = 100 if measure.percent else 1, [run for run in runs if run.method == number]
        seeds = [run.seed(measure.value, scale, list(measure.axes)) for run in own]
        found.append(series(method.label, method.look, seeds, windows))
    return Curves(
        title=measure.title,
        y=measure.y,
        axes=measure.axes,
        series=[one for one in found if one],
        window=window,
        windows=windows,
        percent=measure.percent,
    )


def files(figures: Iterable[Figure]) -> Iterator[Figure]:
    """As they are written to files: accuracy for each axis that the page lets choose from."""
    for figure in figures:
        (first, *_) = figure.panels
        if figure.name == "accuracy" and isinstance(first, Curves):
            about = "; ".join(filter(None, [how_to_read([first]), figure.subtitle]))
            for axis, name in _FILES.items():
                panel = replace(first, axes={axis: _AXES[axis]})
                yield replace(figure, name=name, subtitle=about, panels=[panel])
        elif figure.name != "index":
            yield figure
