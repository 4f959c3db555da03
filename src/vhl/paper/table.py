"""The paper's tables with our numbers beside the published ones, as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vhl.paper.evidence import Evidence, generator, identity
from vhl.paper.lines import Line, lines
from vhl.paper.markdown import markdown_table, not_run
from vhl.paper.row import GENERATOR, Row
from vhl.paper.rows import TABLES, rows
from vhl.runs.statistics import Mean
from vhl.text import points

HEADINGS = (
    "row",
    "virtual data",
    "profile",
    "lr",
    "rounds",
    "seeds",
    "best",
    "paper",
    "Δ",
    "last 10 %",
    "gain / paper's",
    "rounds to paper's target / paper's",
    "rounds to our target",
    "speed-up / paper's",
    "images to our target",
)
_WORDS = HEADINGS[:3]  # the other columns are numbers
_NOTHING = "–"
_PAPERS, _NOT_PAPERS = " / paper's", f" / {_NOTHING}"


@dataclass(frozen=True)
class Table:
    """What was measured, as text, and what was not."""

    name: str
    cells: tuple[tuple[str, ...], ...]
    """Headings, then a line each; none where nothing was measured."""
    missing: dict[str, float | None]
    """The rows that were not, with the paper's best accuracy."""
    commands: tuple[str, ...]
    """How to measure the lines again."""

    def markdown(self) -> str:
        lines = markdown_table(self.cells[0], self.cells[1:], _WORDS) if self.cells else ""
        commands = ["```bash", *self.commands, "```"] if self.commands else []
        parts = (lines.rstrip(), *("\n".join(part) for part in (not_run(self.missing), commands)))
        return "\n\n".join(part for part in parts if part) + "\n"

    def latex(self) -> str:
        comments = [f"% {line}" for line in (TABLES[self.name], *not_run(self.missing))]
        if not self.cells:
            return "\n".join(comments) + "\n"
        headings, *lines = (" & ".join(map(_latex, cells)) + r" \\" for cells in self.cells)
        layout = "".join("l" if heading in _WORDS else "r" for heading in self.cells[0])
        parts = [*comments, rf"\begin{{tabular}}{{{layout}}}", r"\toprule", headings]
        return "\n".join([*parts, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def table(name: str, evidence: Evidence) -> Table:
    """One of the paper's tables; rows that were not run are named too."""
    cells: list[tuple[str, ...]] = []
    missing: dict[str, float | None] = {}
    commands: list[str] = []
    for row in rows().values():
        if row.table == name:
            measured = [line for line in lines(row, evidence) if not _has_own_row(line)]
            cells += [_cells(line) for line in measured]
            commands += [_command(line) for line in measured]
            missing |= {} if measured else {_label(row): row.accuracy}
    return Table(name, _telling(cells), missing, tuple(commands))


def _telling(cells: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Headings and lines, without the columns, and without the paper's part of them, that are empty."""
    columns = [_ours(column) for column in zip(HEADINGS, *cells, strict=True)]
    return tuple(zip(*(column for column in columns if set(column[1:]) - {_NOTHING}), strict=True))


def _ours(column: tuple[str, ...]) -> tuple[str, ...]:
    heading, *cells = column
    if not all(cell == _NOTHING or cell.endswith(_NOT_PAPERS) for cell in cells):
        return column
    return (heading.removesuffix(_PAPERS), *(cell.removesuffix(_NOT_PAPERS) for cell in cells))


def _has_own_row(line: Line) -> bool:
    """Whether another row is about this line's virtual data; noise stands in for the paper's everywhere."""
    if not line.row.uses_generator or generator(line.experiment) in (GENERATOR, "noise"):
        return False
    named = (row for row in rows().values() if row.table == "further" and "virtual" in row.settings)
    return identity(line.experiment) in {identity(row.experiment(line.choice.profile)) for row in named}


def _cells(line: Line) -> tuple[str, ...]:
    row, best = line.row, line.over_seeds("best")
    assert best is not None
    paper_target = None if row.target is None else row.target / 100
    return (
        _label(row),
        generator(line.experiment),
        line.choice.profile,
        f"{line.experiment.training.lr:g}",
        f"{line.rounds} of {row.settings['rounds']}" if line.truncated else f"{line.rounds}",
        str(len(line.runs)),
        _points(best),
        _number(row.accuracy, "{:.2f}"),
        _NOTHING if row.accuracy is None else f"{100 * best.mean - row.accuracy:+.1f}",
        _points(line.over_seeds("final")),
        f"{_gain(line)} / {_published_gain(row)}" if row.without else _NOTHING,
        f"{_reached(line, paper_target)} / {_published_rounds(row)}" if paper_target else _NOTHING,
        _reached(line, line.target),
        f"{_number(line.speed_up, '×{:.1f}')} / {_published_speed_up(row)}",
        _images(line.to_target("samples", line.target)),
    )


def _label(row: Row) -> str:
    return row.name.split("/", 1)[1]


def _command(line: Line) -> str:
    words = [f"vhl paper run {line.row.name} --profile {line.choice.profile}"]
    if line.row.uses_generator:
        name, found = line.experiment.virtual.name, generator(line.experiment)
        words.append(f"--virtual {name if name == found else f'{name}:{found}'}")
    seeds = ",".join(str(seed) for seed in line.runs)
    return " ".join([*words, f"--rounds {line.rounds} --seeds {seeds}"])


def _published_gain(row: Row) -> str:
    plain = rows()[row.without].accuracy if row.without else None
    return _number(None if plain is None or row.accuracy is None else row.accuracy - plain, "{:+.2f}")


def _published_rounds(row: Row) -> str:
    return f"{'never' if row.rounds is None else row.rounds} ({row.target:.0f} %)"


def _published_speed_up(row: Row) -> str:
    slow = rows()[row.baseline].rounds
    return _number(slow / row.rounds if slow and row.rounds else None, "×{:.1f}")


def _points(value: Mean | None, *, signed: bool = False) -> str:
    """Percentage points, with the deviation over seeds where there are several."""
    if value is None:
        return _NOTHING
    return points(value.mean, value.std if value.count > 1 else None, signed=signed)


def _gain(line: Line) -> str:
    """Over how many pairs, where that is not all seeds."""
    gain, seeds = line.gain, len(line.runs)
    some = "" if gain is None or gain.count == seeds else f" ({gain.count} of {seeds} seeds)"
    return _points(gain, signed=True) + some


def _reached(line: Line, target: float | None) -> str:
    """Mean rounds to a target, and the target; how many seeds reached it where not all did."""
    if target is None:
        return _NOTHING
    found = [one.rounds for one in line.results(target) if one.rounds is not None]
    mean = Mean.of(found)
    if mean is None:
        return f"never ({100 * target:.0f} %)"
    some = "" if mean.count == len(line.runs) else f", {mean.count} of {len(line.runs)} seeds"
    return f"{mean.mean:.0f} ({100 * target:.0f} %{some})"


def _images(value: Mean | None) -> str:
    return _NOTHING if value is None else f"{value.mean / 1e6:.1f} M"


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else form.format(value)


_SPECIAL = {"±": r"$\pm$", "×": r"$\times$", "–": "--", "%": r"\%", "Δ": r"$\Delta$", "_": r"\_"}


def _latex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def every_table(evidence: Evidence, names: Sequence[str] = ()) -> Iterator[Table]:
    for name in names or TABLES:
        yield table(name, evidence)
