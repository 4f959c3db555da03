"""What this repository has measured: the records can be read, and the document is made from them."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from functools import cache
from pathlib import Path

import pytest

from vhl.cli.parser import build_parser
from vhl.experiment import Experiment
from vhl.paper.contrast import BEST, FINAL, Measure, contrast
from vhl.paper.document import renewed
from vhl.paper.evidence import Choice, Evidence, at, generator
from vhl.paper.lines import lines
from vhl.paper.queue import Request, queue, run_name, select
from vhl.paper.rows import rows
from vhl.paper.table import _cells
from vhl.runs.compare import result
from vhl.runs.digest import Digest
from vhl.text import points

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def measured(name: str, rounds: int) -> tuple[str, str, str]:
    """A row with the authors' settings and noise, as in the tables: best, last tenth and gain."""
    found = [line for line in lines(rows()[name], evidence()) if line.rounds == rounds]
    (line,) = [
        line
        for line in found
        if line.choice.profile == "release" and generator(line.experiment) in ("–", "noise")
    ]
    cells = _cells(line)
    return cells[6], cells[9], cells[10].split(" / ")[0]


@pytest.mark.parametrize(
    ("words", "setting", "rounds"),
    [("CIFAR-10", "cifar10", 300), ("Fashion-MNIST", "fmnist", 200), ("SVHN", "svhn", 200)],
)
def test_the_readme_shows_these_numbers(words: str, setting: str, rounds: int) -> None:
    alone = measured(f"{setting}/a0.1-e1-k10/fedavg", rounds)
    vhl = measured(f"{setting}/a0.1-e1-k10/fedavg-vhl", rounds)
    (row,) = re.findall(rf"^\| {words}, {rounds} rounds, .*$", README, re.MULTILINE)
    cells = row.split(" | ")
    assert cells[1:3] == [" · ".join(alone[:2]), " · ".join(vhl[:2])]
    assert cells[3].split(" · ")[0] == vhl[2]


def test_the_readme_says_what_ccvr_has() -> None:
    alone, vhl = (measured(f"methods/ccvr/{objective}", 200)[0] for objective in ("plain", "vhl"))
    assert f"has {alone} % alone and {vhl} % with VHL" in README


def seconds(name: str) -> float:
    """Wall time of nine rounds, measured alone on an H200."""
    file = ROOT / "benchmarks" / "results" / f"h200-vhl-light{name}.json"
    return float(json.loads(file.read_text(encoding="utf-8"))["seconds"])


def after(name: str, rounds: int) -> str:
    """Best and last tenth of three seeds so far."""
    choice = Choice.of(rows()[name].experiment("release", "noise"))
    runs = at(evidence().runs(rows()[name], choice), rounds)
    assert len(runs) == 3
    results = [result(run.records, 1.0) for run in runs.values()]
    pairs = ([100 * own.best for own in results], [100 * own.final for own in results])
    return " · ".join(f"{statistics.mean(own):.1f} ± {statistics.stdev(own):.1f}" for own in pairs)


def interval(more: str, less: str, measure: Measure) -> str:
    """Where three seeds leave the difference, at 95 %."""
    found = contrast(evidence(), "", more, less, measure)
    assert found is not None and found.difference.margin is not None and found.difference.seeds == 3
    ends = (100 * (found.difference.mean + sign * found.difference.margin) for sign in (-1, 1))
    return " to ".join(f"{end:+.1f}" for end in ends)


def _mean_of(share: float) -> Measure:
    """The mean over so much of the last rounds."""
    return Measure(f"last {share:.0%}", lambda run, target: result(run.records, target, share).final)


def over_most_rounds(more: str, less: str) -> str:
    """The difference in the mean of the last 75 %, with its standard error."""
    found = contrast(evidence(), "", more, less, _mean_of(0.75))
    assert found is not None and found.difference.seeds == 3
    return points(found.difference.mean, found.difference.error)


def test_what_vhl_light_has_for_the_same_cost() -> None:
    names = [f"cifar10/a0.1-e1-k10/{own}" for own in ("fedavg", "fedavg-vhl")] + ["light/vhl-light/fedavg"]
    text = (ROOT / "docs" / "light.md").read_text(encoding="utf-8")
    assert f"| 300 rounds | {' | '.join(after(name, 300) for name in names)} |" in text
    takes = [seconds("-fedavg") / seconds(own) for own in ("-vhl", "")]
    for words, shares in (("as many multiply-adds", (1 / 2, 1 / 1.25)), ("as long on an H200", takes)):
        rounds = [round(300 * share) for share in shares]
        cells = [f"in {cut}: {after(name, cut)}" for name, cut in zip(names[1:], rounds, strict=True)]
        assert f"| {words} as FedAvg's | in 300 rounds | {' | '.join(cells)} |" in text
    (best, final), *_ = re.findall(r"\| \*\*vhl-light − VHL\*\* \| (.*?) \| (.*?) \|", text)
    words = " ".join(text.split())
    assert f"{best} points at best and {final} in the last tenth of 300 rounds" in words
    at_best, at_end = (interval(names[2], names[1], own) for own in (BEST, FINAL))
    assert f"they leave {at_best} points open at best and {at_end} in the last tenth" in words
    assert f"over the last 75 % `vhl-light` is {over_most_rounds(names[2], names[1])} points ahead" in words
    readme = " ".join(README.split())  # wherever its lines break
    assert f"{after(names[2], 300)} on CIFAR-10 with three seeds" in readme
    best, final = (own.split(" ± ")[0] for own in after(names[2], 240).split(" · "))
    assert f"{best} · {final} with no more compute than FedAvg's 300 rounds" in readme


def first_seed(name: str, rounds: int = 300) -> str:
    """Best and last tenth of so many rounds with seed 0, or a dash where there are none."""
    choice = Choice.of(rows()[name].experiment("release", "noise"))
    runs = at(evidence().runs(rows()[name], choice), rounds)
    if 0 not in runs:
        return "–"
    found = result(runs[0].records, 1.0)
    return f"{100 * found.best:.1f} · {100 * found.final:.1f}"


_STOPPED = {"light/lower-rate/vhl-light": 296}
"""Runs that did not come to their end, with the rounds that they have."""


def test_what_the_readme_says_of_a_lower_rate() -> None:
    (name, rounds), *_ = _STOPPED.items()
    light, plain = first_seed(name, rounds), first_seed("light/lower-rate/plain")
    fixed = first_seed("light/fixed-statistics/plain")
    said = (
        f"brings its last tenth to {light.split(' · ')[1]} (one seed, {rounds} rounds), but FedAvg's only to "
        f"{plain.split(' · ')[1]}; with `training.freeze_batch_norm=150` as well FedAvg has {fixed}."
    )
    assert said in " ".join(README.split())


def _cell(name: str) -> str:
    rounds = _STOPPED.get(name)
    return first_seed(name) if rounds is None else f"{first_seed(name, rounds)} ({rounds})"


def test_what_is_left_of_the_gain_with_other_normalisation() -> None:
    usual = [f"cifar10/a0.1-e1-k10/{own}" for own in ("fedavg", "fedavg-vhl")] + ["light/vhl-light/fedavg"]
    named = {"batch norm": [usual[0], "further/naive/fedavg", *usual[1:]]}
    for words, kind in {
        "group norm": "group-norm",
        "batch norm, statistics fixed after round 150": "fixed-usual-rate",
        "batch norm, a tenth of the rate after round 150": "lower-rate",
        "the same, and a tenth of the rate from then on": "fixed-statistics",
    }.items():
        named[words] = [f"light/{kind}/{own}" for own in ("plain", "naive", "vhl", "vhl-light")]
    text = (ROOT / "docs" / "light.md").read_text(encoding="utf-8")
    for words, names in named.items():
        cells = [_cell(name) for name in names]
        assert (f"| {words} | {' | '.join(cells)} |" in text) == (set(cells) != {"–"}), words


_USUAL = "cifar10/a0.1-e1-k10"


@pytest.mark.parametrize(
    ("words", "plain", "light", "rounds"),
    [
        ("FedProx", f"{_USUAL}/fedprox", "light/vhl-light/fedprox", 300),
        ("SCAFFOLD", f"{_USUAL}/scaffold", "light/vhl-light/scaffold", 300),
        ("FedNova", f"{_USUAL}/fednova", "light/vhl-light/fednova", 300),
        ("α = 0.05", "cifar10/a0.05-e1-k10/fedavg", "light/cifar10-a0.05-e1-k10/fedavg", 300),
        ("100 clients, 10 a round", "cifar10/a0.1-e1-k100/fedavg", "light/cifar10-a0.1-e1-k100/fedavg", 300),
        ("Fashion-MNIST", "fmnist/a0.1-e1-k10/fedavg", "light/fmnist-a0.1-e1-k10/fedavg", 200),
        ("SVHN", "svhn/a0.1-e1-k10/fedavg", "light/svhn-a0.1-e1-k10/fedavg", 200),
    ],
)
def test_where_else_vhl_light_was_measured(words: str, plain: str, light: str, rounds: int) -> None:
    """In as many rounds as the row says, and in those that compute as much as the first column."""
    vhl = f"{plain}-vhl"
    cells = [first_seed(name, rounds) for name in (plain, vhl, light)]
    cells += [first_seed(vhl, rounds // 2), first_seed(light, rounds * 4 // 5)]
    text = (ROOT / "docs" / "light.md").read_text(encoding="utf-8")
    assert (f"| {words}, {rounds} rounds | {' | '.join(cells)} |" in text) == ("–" not in cells)


_LIGHT = "light/vhl-light"
_SINGLE = {
    "1.8 ± 0.7 points at best, 4.3 ± 1.1 over the last 75 %; the last tenth alone, 1.7 ± 0.9": (
        ("light/share-0.75/fedavg", f"{_LIGHT}/fedavg"),
        (0.0, 0.75, 0.1),
    ),
    "2.8 ± 0.9 points in the last tenth, 3.8 ± 1.1 over the last 75 %": (
        ("light/same-class/fedavg", f"{_LIGHT}/fedavg"),
        (0.1, 0.75),
    ),
    "The last tenth, 3.3 ± 0.9 points behind VHL, is more than chance; at best it is 1.3 ± 0.7, over the "
    "last 75 % 2.3 ± 1.1": ((f"{_LIGHT}/scaffold", f"{_USUAL}/scaffold-vhl"), (0.1, 0.0, 0.75)),
    "That is 7.1 ± 0.7 and 9.3 ± 0.9 points": (
        (f"{_USUAL}/fedavg", "light/statistics-alone/fedavg"),
        (0.0, 0.1),
    ),
    "`naive` has as much at best and 1.9 ± 0.9 more in the last tenth": (
        ("light/statistics-alone/fedavg", "further/naive/fedavg"),
        (0.1,),
    ),
    "without cross-entropy, 1.6 ± 0.7 and 4.9 ± 0.9": (
        ("light/statistics-alone/fedavg", "light/no-virtual-loss/fedavg"),
        (0.0, 0.1),
    ),
    "ends 0.4 ± 0.7 points behind at best and 2.8 ± 0.9 in the last tenth": (
        ("light/lower-rate/plain", f"{_USUAL}/fedavg"),
        (0.0, 0.1),
    ),
    "Fixed statistics on top of it bring 5.1 ± 0.7 and 15.1 ± 0.9": (
        ("light/lower-rate/plain", "light/fixed-statistics/plain"),
        (0.0, 0.1),
    ),
    "`vhl-light` gains 6.2 ± 0.9 points in the last tenth by the lower rate": (
        (f"{_LIGHT}/fedavg", "light/lower-rate/vhl-light"),
        (0.1,),
    ),
    "loses 0.5 ± 0.7 and 1.7 ± 0.9 by fixed statistics on top": (
        ("light/fixed-statistics/vhl-light", "light/lower-rate/vhl-light"),
        (0.0, 0.1),
    ),
    "0.2 ± 0.7 points behind at best": (("light/share-alone/fedavg", f"{_LIGHT}/fedavg"), (0.0,)),
    "1.9 ± 0.9 ahead in the last tenth": ((f"{_LIGHT}/fedavg", "light/share-alone/fedavg"), (0.1,)),
    "Mosaics counted by number are 2.1 ± 0.7 and 6.3 ± 0.9 behind": (
        ("light/mosaic-alone/fedavg", f"{_LIGHT}/fedavg"),
        (0.0, 0.1),
    ),
    "2.8 ± 1.1 over the last 75 %; in the last tenth no more than chance may be": (
        ("light/no-supcon/fedavg", f"{_LIGHT}/fedavg"),
        (0.75,),
    ),
    "0.1 ± 0.7 points ahead of `vhl-light` at best, 1.4 ± 0.9 in the last tenth and over the last 75 % "
    "1.4 ± 1.1": ((f"{_LIGHT}/fedavg", "light/half-no-virtual-loss/fedavg"), (0.0, 0.1, 0.75)),
}


@pytest.mark.parametrize("words", _SINGLE)
def test_single_seeds_are_told_with_a_borrowed_error(words: str) -> None:
    """How far the first row is behind the second: at best (0), or in the mean of so much of the rounds."""
    (behind, ahead), shares = _SINGLE[words]
    found = []
    for share in shares:
        contrasted = contrast(evidence(), "", ahead, behind, _mean_of(share) if share else BEST)
        assert contrasted is not None and contrasted.difference.seeds == 1
        found.append(points(contrasted.difference.mean, contrasted.difference.error))
    assert re.findall(r"[\d.]+ ± [\d.]+", words) == found
    assert words in " ".join((ROOT / "docs" / "light.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedProx", "SCAFFOLD", "FedNova"])
def test_the_readme_compares_algorithms_by_these_numbers(algorithm: str) -> None:
    name = f"cifar10/a0.1-e1-k10/{algorithm.lower()}"
    (alone, *_), (vhl, _, gain) = measured(name, 300), measured(f"{name}-vhl", 300)
    published = [rows()[name].accuracy, rows()[f"{name}-vhl"].accuracy]
    difference = published[1] - published[0]
    cells = [alone, vhl, gain.split(" ± ")[0], *(f"{own:.2f}" for own in published), f"{difference:+.2f}"]
    assert f"| {algorithm} | {' | '.join(cells)} |" in README
