"""What a person sees while an experiment runs, and the tables at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from vhl import text as words
from vhl.runs.compare import Comparison, Row
from vhl.runs.record import Record
from vhl.runs.statistics import Mean


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Rich would exit with an error; `vhl ... | head` is none."""
        raise BrokenPipeError


console = _Console(highlight=False)
errors = _Console(stderr=True, highlight=False)
if not console.is_terminal:
    console.width = 140  # a log file has no edge: keep tables whole


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


_NAME = 24  # columns for the name of one of several runs


class Board:
    """Shows runs from their start: a live bar each on a terminal, a plain line a round elsewhere."""

    def __init__(self, at_once: int) -> None:
        """``at_once`` runs go side by side: then each line or bar says whose it is."""
        self._several = at_once > 1
        self._bars = Progress(*_columns(self._several), console=console, disable=not console.is_terminal)
        self._shown: dict[str, _Shown] = {}

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, title: str, rounds: int, done: int) -> None:
        """A run starts, or goes on: its first round may take minutes."""
        if not console.is_terminal:
            console.print(f"{title}: {words.rounds(rounds - done)} to go", markup=False, soft_wrap=True)
        elif not self._several:
            console.print(title, markup=False, soft_wrap=True)  # above the bar: 80 columns do not hold both
        self._bars.start()
        # Of a long name the end: there stands what tells runs apart.
        name = title if len(title) <= _NAME else f"…{title[1 - _NAME :]}"
        bar = self._bars.add_task(name, total=rounds, completed=done, accuracy="", speed="")
        self._shown[title] = _Shown(bar, rounds)

    def show(self, title: str, record: Record) -> None:
        shown = self._shown[title]
        shown.add(record)
        if not console.is_terminal:
            console.print(
                f"{escape(title) + ': ' if self._several else ''}round {record.round}/{shown.rounds}  "
                f"accuracy {percent(record.accuracy)}  {record.samples / record.seconds:,.0f} images/s",
                soft_wrap=True,
            )
            return
        accuracy = f"accuracy {percent(record.accuracy)} (best {percent(shown.best)})"
        speed = f"{shown.images / shown.seconds:,.0f} images/s"
        self._bars.update(shown.bar, completed=record.round, accuracy=accuracy, speed=speed)

    def end(self, title: str) -> None:
        """This run is over; where it was the only one, its bar stays as it is."""
        shown = self._shown.pop(title, None)
        if not self._several:
            self._bars.stop()
            self._bars = Progress(*_columns(False), console=console, disable=not console.is_terminal)
        elif shown is not None:
            self._bars.remove_task(shown.bar)

    def note(self, text: str) -> None:
        """What a person should know of a run; above the bars where there are any."""
        above = self._bars.live.is_started and errors.is_terminal  # what goes past the bars they paint over
        (console if above else errors).print(f"[yellow]note:[/] {escape(text)}", soft_wrap=True)


@dataclass
class _Shown:
    """What a bar has been told so far."""

    bar: TaskID
    rounds: int
    best: float = 0.0
    images: int = 0
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        self.best = max(self.best, record.accuracy or 0.0)
        self.images += record.samples
        self.seconds += record.seconds


def _columns(several: bool) -> list[ProgressColumn]:
    """What fits 80 columns: of several runs the name instead of the speed."""
    round_ = TextColumn("round {task.completed}/{task.total}  {task.fields[accuracy]}")
    if several:
        name = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        return [name, BarColumn(8), round_, TimeRemainingColumn()]
    return [BarColumn(), round_, TextColumn(" {task.fields[speed]}"), TimeRemainingColumn()]


def making_images() -> Callable[[int, int], None]:
    """A bar for the making of a virtual set, gone when it is done; nothing where there is no terminal."""
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("making virtual images", start=False)

    def show(done: int, total: int) -> None:
        bar.start()
        bar.start_task(task)
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()

    return show


def comparison_table(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # On a narrow terminal these fold, so that no column is lost.
    targets = {row.target for row in comparison.rows}
    target = percent(comparison.target) if len(targets) == 1 else "target"
    for heading in ("", "best\n%", f"last\n{100 * comparison.last:g} %", f"rounds\nto {target}"):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    costs = ("images\nto it", "traffic\nto it", "client\ndrift", "compute\n(time)")
    for heading in ("speed-\nup", *costs):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    for row in comparison.rows:
        table.add_row(escape(row.label), *_cells(comparison, row, len(targets) > 1), str(row.seeds))
    return table


def _cells(comparison: Comparison, row: Row, with_target: bool) -> list[str]:
    target = f" ({percent(row.target)})" if with_target else ""
    speed_up = comparison.speed_up(row)
    rounds, samples, traffic = (row.over_seeds(measure) for measure in ("rounds", "samples", "bytes"))
    drift, compute, time = row.over_seeds("drift"), row.over_seeds("compute"), comparison.time(row)
    return [
        _accuracy(row.over_seeds("best")),
        _accuracy(row.over_seeds("final")),
        _rounds(rounds, row) + target,
        "–" if speed_up is None else f"×{speed_up:.1f}",
        _until_target(samples, row, ""),
        _until_target(traffic, row, "B"),
        "–" if drift is None else f"{drift.mean:.2f}",
        _cost(compute, time),
    ]


def _cost(compute: Mean | None, time: float | None) -> str:
    """Multiply-adds of a step, and wall time of a round where it is known."""
    if compute is None:
        return "–"
    return f"×{compute.mean:.2f}" + ("" if time is None else f"\n(×{time:.2f})")


def _accuracy(value: Mean | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value.mean:.1f}" + (f" ± {100 * value.std:.1f}" if value.count > 1 else "")


def _rounds(value: Mean | None, row: Row) -> str:
    """Mean over the runs that reached the target, and how many did where not all."""
    if value is None:
        return "never"
    all_did = value.count == len(row.results)
    return f"{value.mean:.0f}" + ("" if all_did else f" ({value.count} of {len(row.results)})")


def _until_target(value: Mean | None, row: Row, unit: str) -> str:
    """A mean over the lucky seeds would flatter."""
    return "–" if value is None or value.count < len(row.results) else short(value.mean, unit)


def short(number: float, unit: str) -> str:
    """Three digits and a prefix.

    >>> short(1234567, "B")
    '1.23 MB'
    """
    for prefix in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:.3g} T{unit}"
