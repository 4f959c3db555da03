"""What this repository has measured: the records can be read, and the document is made from them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from vhl.cli.main import build_parser
from vhl.experiment import Experiment
from vhl.paper.contrast import BEST, Measure, contrast
from vhl.paper.document import renewed
from vhl.paper.evidence import Choice, Evidence, Runs, at, generator
from vhl.paper.lines import lines
from vhl.paper.own import light_elsewhere
from vhl.paper.queue import Request, queue, run_name, select
from vhl.paper.rows import rows
from vhl.paper.table import _cells
from vhl.runs.compare import result
from vhl.runs.digest import Digest
from vhl.runs.statistics import Difference, Mean
from vhl.text import points

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").glob("**/*.json"))


@cache
def evidence() -> Evidence:
    return Evidence.read(ROOT / "results")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_record_can_be_read(file: Path) -> None:
    digest = Digest.read(file)
    assert digest.records and Experiment(**digest.experiment.table()) == digest.experiment
    assert all(record.accuracy is None or 0 <= record.accuracy <= 1 for record in digest.records)
    alone = Evidence([digest])
    assert any(alone.choices(row) for row in rows().values())  # or no table would show it
    assert run_name(digest.experiment) == file.stem  # or a longer run would not find the shorter one


@pytest.mark.parametrize(("name", "part"), [("results", "claims"), ("theory", "theory"), ("light", "light")])
def test_a_document_has_the_numbers_of_the_records(name: str, part: str) -> None:
    """`vhl paper table --into docs/results.md` renews it."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert renewed(text, evidence()) == text
    assert f"<!-- vhl paper {part} -->" in text


def test_every_command_of_the_document_makes_a_record() -> None:
    """But for two, which draw the figures of features."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    kept = {file.stem for file in RESULTS}
    lines = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
    asked = [build_parser().parse_args(shlex.split(line)[1:]) for line in lines]
    runs = [line for line in asked if line.action == "run"]
    assert len(asked) - len(runs) == 2
    for run in runs:
        made = queue(Request(select(run.rows), run.profile, run.virtual, run.rounds, run.seeds), Evidence([]))
        assert {experiment.name for experiment in made} <= kept, run


# --- numbers that people wrote down --------------------------------------------------------------------
# As numbers, in the order of the document: in which words it says them is the document's own.

MAIN, LIGHT = "cifar10/a0.1-e1-k10", "light/vhl-light/fedavg"
PLAIN, VHL = f"{MAIN}/fedavg", f"{MAIN}/fedavg-vhl"
NORMS = ["group-norm", "lower-rate", "fixed-usual-rate", "fixed-statistics"]
STOPPED = {"light/lower-rate/vhl-light": 296}
"""Runs that did not come to their end, with the rounds that they have."""


def written(name: str) -> tuple[str, list[list[list[str]]]]:
    """A document's sentences in one line, and the cells of its tables but for headings and the first column.

    What `vhl paper table` wrote is left out.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"<!-- vhl paper.*?<!-- end -->|^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = [[line.strip("| ").split(" | ")[1:] for line in table.splitlines()[2:]] for table in tables]
    return " ".join(re.sub(r"^\|.*$", "", text, flags=re.MULTILINE).split()), lines


def assert_in_order(text: str, numbers: Sequence[str]) -> None:
    """All of them are there, as whole numbers, one after the other."""
    pattern = ".*?".join(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)" for number in numbers)
    assert re.search(pattern, text), numbers


def runs_of(name: str, rounds: int) -> Runs:
    """A row with the authors' settings and noise, as it was after some rounds."""
    return at(evidence().runs(rows()[name], Choice.of(rows()[name].experiment("release", "noise"))), rounds)


def reached(name: str, rounds: int, seeds: int = 3) -> str:
    """Best and last tenth over so many seeds; of one the first, and a dash where it did not get so far."""
    runs = runs_of(name, rounds)
    if seeds == 1 and 0 not in runs:
        return "–"
    results = [result(run.records) for run in (list(runs.values()) if seeds > 1 else [runs[0]])]
    assert len(results) == seeds
    both = [Mean.of([getattr(own, measure) for own in results]) for measure in ("best", "final")]
    return " · ".join(points(own.mean, own.std if seeds > 1 else None) for own in both if own is not None)


def ahead(more: str, less: str, share: float, seeds: int = 1) -> Difference:
    """At best (0), or in the mean of so much of the last rounds."""
    last = Measure(lambda run, _: result(run.records, None, share).final)
    found = contrast(evidence(), "", more, less, last if share else BEST)
    assert found is not None and found.difference.seeds == seeds
    return found.difference


def measured(name: str, rounds: int) -> tuple[str, str, str]:
    """As in the tables: best, last tenth and gain."""
    found = [line for line in lines(rows()[name], evidence()) if line.rounds == rounds]
    (line,) = [
        line
        for line in found
        if line.choice.profile == "release" and generator(line.experiment) in ("–", "noise")
    ]
    cells = _cells(line)
    return cells[6], cells[9], cells[10].split(" / ")[0]


def of_paper(name: str) -> float:
    """The gain that the paper has, in points."""
    alone, vhl = (rows()[own].accuracy for own in (name, f"{name}-vhl"))
    assert alone is not None and vhl is not None
    return vhl - alone


def test_the_readmes_tables() -> None:
    tables = written("README.md")[1]
    settings = {"cifar10": 300, "fmnist": 200, "svhn": 200}
    gains, algorithms = (next(t for t in tables if len(t[0]) == columns) for columns in (3, 6))
    for (setting, rounds), cells in zip(settings.items(), gains, strict=True):
        alone, vhl = (measured(f"{setting}/a0.1-e1-k10/fedavg{kind}", rounds) for kind in ("", "-vhl"))
        assert cells[:2] == [" · ".join(alone[:2]), " · ".join(vhl[:2])]
        assert cells[2] == f"{vhl[2]} · {of_paper(f'{setting}/a0.1-e1-k10/fedavg'):+.1f}"
    for algorithm, cells in zip(("fedavg", "fedprox", "scaffold", "fednova"), algorithms, strict=True):
        name = f"{MAIN}/{algorithm}"
        (alone, *_), (vhl, _, gain) = measured(name, 300), measured(f"{name}-vhl", 300)
        paper = [*(f"{rows()[own].accuracy:.2f}" for own in (name, f"{name}-vhl")), f"{of_paper(name):+.2f}"]
        assert cells == [alone, vhl, gain.split(" ± ")[0], *paper]


def test_the_readmes_sentences() -> None:
    text = written("README.md")[0]
    equal = " · ".join(own.split(" ± ")[0] for own in reached(LIGHT, 240).split(" · "))
    (stopped, rounds), *_ = STOPPED.items()
    lower = [
        reached(name, n, 1).split(" · ")[1]
        for name, n in ((stopped, rounds), ("light/lower-rate/plain", 300))
    ]
    fixed = reached("light/fixed-statistics/plain", 300, 1)
    assert_in_order(text, [reached(LIGHT, 300), equal, lower[0], str(rounds), lower[1], fixed])
    assert_in_order(text, [measured(f"methods/ccvr/{objective}", 200)[0] for objective in ("plain", "vhl")])


def test_what_vhl_light_has_for_the_same_cost() -> None:
    """In 300 rounds, in as many as compute the same, and in as many as take as long on an H200."""

    def seconds(name: str) -> float:
        file = ROOT / "benchmarks" / "results" / f"h200-vhl-light{name}.json"
        return float(json.loads(file.read_text(encoding="utf-8"))["seconds"])

    table = written("docs/light.md")[1][0]
    assert table[0] == [reached(name, 300) for name in (PLAIN, VHL, LIGHT)]
    takes = [seconds("-fedavg") / seconds(own) for own in ("-vhl", "")]
    for cells, shares in zip(table[1:], ((1 / 2, 1 / 1.25), takes), strict=True):
        for name, share, cell in zip((VHL, LIGHT), shares, cells[1:], strict=True):
            assert_in_order(cell, [str(round(300 * share)), reached(name, round(300 * share))])


def test_what_is_left_of_the_gain_with_other_normalisation() -> None:
    named = [[PLAIN, "further/naive/fedavg", VHL, LIGHT]]
    named += [[f"light/{kind}/{own}" for own in ("plain", "naive", "vhl", "vhl-light")] for kind in NORMS]

    def cell(name: str) -> str:
        rounds = STOPPED.get(name)
        return reached(name, 300, 1) if rounds is None else f"{reached(name, rounds, 1)} ({rounds})"

    assert written("docs/light.md")[1][1] == [[cell(name) for name in names] for names in named]


def test_where_else_vhl_light_was_measured() -> None:
    """In as many rounds as the row says, and in those that compute as much as the first column."""
    names = {f"{MAIN}/{own}": (f"light/vhl-light/{own}", 300) for own in ("fedprox", "scaffold", "fednova")}
    for setting, rounds in {
        "cifar10/a0.05-e1-k10": 300,
        "cifar10/a0.1-e1-k100": 300,
        "fmnist/a0.1-e1-k10": 200,
        "svhn/a0.1-e1-k10": 200,
    }.items():
        names[f"{setting}/fedavg"] = light_elsewhere(setting), rounds
    expected = []
    for plain, (light, rounds) in names.items():
        vhl = f"{plain}-vhl"
        whole = [reached(name, rounds, 1) for name in (plain, vhl, light)]
        expected.append([*whole, reached(vhl, rounds // 2, 1), reached(light, rounds * 4 // 5, 1)])
    assert written("docs/light.md")[1][2] == expected


SCAFFOLD = f"{MAIN}/scaffold-vhl", "light/vhl-light/scaffold"
ALONE, LOWER, FIXED = (
    f"light/{name}" for name in ("statistics-alone/fedavg", "lower-rate", "fixed-statistics")
)
SPOKEN: list[tuple[str, str, list[float]]] = [
    (ALONE, PLAIN, [0]),
    (*SCAFFOLD, [0.1]),
    (ALONE, PLAIN, [0, 0.1]),
    ("further/naive/fedavg", ALONE, [0.1]),
    ("light/no-virtual-loss/fedavg", ALONE, [0, 0.1]),
    (PLAIN, f"{LOWER}/plain", [0, 0.1]),
    (f"{FIXED}/plain", f"{LOWER}/plain", [0, 0.1]),
    (f"{LOWER}/vhl-light", LIGHT, [0.1]),
    (f"{LOWER}/vhl-light", f"{FIXED}/vhl-light", [0, 0.1]),
    (LIGHT, "light/share-alone/fedavg", [0]),
    ("light/share-alone/fedavg", LIGHT, [0.1]),
    (LIGHT, "light/share-alone/fedavg", [0.75]),
    (LIGHT, "light/mosaic-alone/fedavg", [0, 0.1]),
    (LIGHT, "light/share-0.75/fedavg", [0, 0.75, 0.1]),
    (LIGHT, "light/same-class/fedavg", [0.1, 0.75]),
    ("light/half-no-virtual-loss/fedavg", LIGHT, [0, 0.1, 0.75]),
    (LIGHT, "light/no-supcon/fedavg", [0.75]),
    (*SCAFFOLD, [0.1, 0, 0.75]),
]
"""What ``docs/light.md`` says of one seed, in its order: which row is ahead of which, and in what."""


def test_differences_that_are_told() -> None:
    """Of three seeds with their interval, of one with a borrowed error."""
    text = written("docs/light.md")[0]
    best, last = (ahead(LIGHT, VHL, share, 3) for share in (0, 0.1))
    ends = [100 * (own.mean + sign * own.margin) for own in (best, last) for sign in (-1, 1)]
    intervals = [f"{low:+.1f} to {high:+.1f}" for low, high in (ends[:2], ends[2:])]
    assert re.findall(r"[+-][\d.]+ to [+-][\d.]+", text) == intervals
    single = [ahead(more, less, share) for more, less, shares in SPOKEN for share in shares]
    expected = [points(own.mean, own.error) for own in single]
    expected[2:2] = [points(own.mean, own.error) for own in [ahead(LIGHT, VHL, 0.75, 3)]]
    told = re.findall(r"[+-]?\d+\.\d ± \d+\.\d", text)
    assert told[:2] == [points(own.mean, own.error, signed=True) for own in (best, last)]
    assert told[2:-1] == expected
