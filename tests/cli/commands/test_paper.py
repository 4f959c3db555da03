"""`vhl paper` on a paper of two rows that take a second to run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vhl.cli import display
from vhl.paper import queue
from vhl.paper.document import renewed
from vhl.paper.evidence import Evidence
from vhl.paper.row import Row
from vhl.paper.rows import TABLES
from vhl.paper.rows import rows as rows_of_the_paper
from vhl.runs.compare import final_mean
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder

PLAIN, VHL = "cifar10/little/fedavg", "cifar10/little/fedavg-vhl"
RUN = ["paper", "run", "cifar10", "--virtual=dataset:digits"]
NAMES = {"plain": "digits-lda-cnn-fedavg-plain", "vhl": "digits-lda-cnn-fedavg-vhl-digits"}
Metrics = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """FedAvg with and without VHL on digits in place of the paper's rows; may be changed."""
    settings = {
        "data": "digits",
        "partition": {"name": "lda", "alpha": 1.0, "clients": 3},
        "model": "cnn",
        "algorithm": "fedavg",
        "training": {"epochs": 1, "lr": 0.01},
        "rounds": 3,
        "clients_per_round": 1,
    }
    plain = Row(PLAIN, {**settings, "objective": "plain"}, 80.0, rounds=3, target=79.0, baseline=PLAIN)
    vhl = Row(VHL, {**settings, "objective": "vhl"}, 88.0, target=79.0, baseline=PLAIN, without=PLAIN)
    found = {PLAIN: plain, VHL: vhl}
    for module in ("rows", "lines", "table", "contrast", "queue"):
        monkeypatch.setattr(import_module(f"vhl.paper.{module}"), "rows", lambda: found)
    monkeypatch.setitem(queue._IMAGES, "digits", 1_438)
    monkeypatch.setitem(queue._MODELS, "cnn", 0.01)
    return found


def folder(objective: str, seed: int = 0, runs: str = "runs/paper") -> Path:
    """The run folder of one of the two rows."""
    (found,) = Path(runs).glob(f"{NAMES[objective]}-paper-*-seed{seed}")
    return found


def records() -> dict[tuple[str, int], int]:
    """What lies in the folder of results: how many rounds of which objective and seed."""
    digests = [Digest.read(file) for file in Path("results").iterdir()]
    return {(d.experiment.objective.name, d.experiment.seeds.batches): len(d.records) for d in digests}


# --- running -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("little")
def test_rows_are_run_once_and_kept(vhl: Any) -> None:
    answer = vhl(*RUN, "--seeds=0,1", "--rounds=2")
    assert answer.code == 0 and answer.err == ""
    assert records() == {(objective, seed): 2 for objective in ("plain", "vhl") for seed in (0, 1)}
    ended = [line.split("-paper-")[0] for line in answer.out.splitlines() if ": best " in line]
    assert ended == [NAMES["plain"], NAMES["vhl"]] * 2  # a seed after the other
    for objective in ("plain", "vhl"):
        run = RunFolder(folder(objective, 1))
        digest = Digest.read(Path("results") / f"{run.path.name}.json")
        assert digest == Digest.of(run) and digest.experiment.seeds.model == 1
        assert final_mean(digest.records) == pytest.approx(final_mean(run.records()), rel=1e-5)
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    again = vhl(*RUN, "--seeds=0,1", "--rounds=2")
    assert again.code == 0 and again.out.count("\n") == 1 and "results" in again.out
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


@pytest.mark.usefixtures("little")
def test_more_rounds_continue_a_run(vhl: Any, metrics: Metrics) -> None:
    assert vhl("paper", "run", PLAIN, "--rounds=1").code == 0
    answer = vhl("paper", "run", PLAIN)  # as many as the paper had: 3
    assert answer.code == 0 and "round 1/3" not in answer.out and answer.out.count("round ") == 2
    assert records() == {("plain", 0): 3}
    assert vhl("paper", "run", PLAIN, "--runs-dir=straight", "--results=elsewhere").code == 0
    assert metrics(folder("plain")) == metrics(folder("plain", runs="straight"))
    assert len(list(Path("elsewhere").iterdir())) == 1


@pytest.mark.usefixtures("little")
def test_a_budget_stops_with_everything_saved(vhl: Any, metrics: Metrics) -> None:
    for number in (1, 2):
        answer = vhl(*RUN, "--budget=0")
        assert answer.code == 0 and re.findall(r"round \d+/\d+", answer.out) == [f"round {number}/3"]
        assert "2 of 2 runs are left" in answer.out
        assert records() == {("plain", 0): number}
        assert RunFolder(folder("plain")).manifest()["round"] == number  # type: ignore[index]
    answer = vhl(*RUN, "--budget=60")
    assert answer.code == 0 and "left" not in answer.out
    assert len(re.findall(r"round \d+/3", answer.out)) == 1 + 3
    assert records() == {("plain", 0): 3, ("vhl", 0): 3}
    vhl("paper", "run", PLAIN, "--runs-dir=straight", "--results=elsewhere")
    assert metrics(folder("plain")) == metrics(folder("plain", runs="straight"))


@pytest.mark.usefixtures("little")
def test_side_by_side_a_budget_saves_them_all(vhl: Any) -> None:
    assert vhl(*RUN, "--rounds=1", "--at-once=2").code == 0
    answer = vhl(*RUN, "--budget=0", "--at-once=2")
    assert "2 of 2 runs are left" in answer.out
    assert sum(records().values()) == 3  # the one that was through first has one more


@pytest.mark.usefixtures("little")
def test_what_a_person_stops_is_kept_too(vhl: Any, ctrl_c: Any) -> None:
    ctrl_c(5)  # in the second round of the second run
    answer = vhl(*RUN)
    assert answer.code == 130 and answer.err.strip() == "vhl: stopped. The same command continues."
    assert records() == {("plain", 0): 3, ("vhl", 0): 1}


@pytest.mark.usefixtures("little")
def test_a_run_that_fails_does_not_cost_the_others(vhl: Any, unlucky: Any) -> None:
    unlucky(lambda run: run.experiment.objective.name == "plain" and run.state.round == 1)
    answer = vhl(*RUN, "--rounds=2")
    assert answer.code == 2 and "Traceback" not in answer.err
    first, last = answer.err.splitlines()
    assert first == f"{folder('plain').name}: It is unlucky."
    assert last == f"vhl: 1 of 2 runs failed: {folder('plain').name}."
    assert records() == {("plain", 0): 1, ("vhl", 0): 2} and "left" not in answer.out


@pytest.mark.usefixtures("little")
def test_the_authors_choices(vhl: Any) -> None:
    assert vhl("paper", "run", PLAIN, "--rounds=1", "--profile=release").code == 0
    (file,) = Path("results").iterdir()
    experiment = Digest.read(file).experiment
    assert experiment.profile == "release" and experiment.sampling == "legacy" and "-release-" in file.name


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["cifr10"], ["'cifr10'"]),
        (["cifar10/a0.1-e1-k10/fedavgg"], ["'cifar10/a0.1-e1-k10/fedavg'"]),
        (["cifar10", "--virtual=stylegun"], ["'stylegun'", "stylegan"]),
    ],
)
def test_refused_before_anything_is_run(vhl: Any, tmp_path: Path, words: list[str], texts: list[str]) -> None:
    vhl("paper", "run", *words).complains(*texts)
    assert list(tmp_path.iterdir()) == []


# --- looking -------------------------------------------------------------------------------------------


def test_all_rows_are_listed(vhl: Any) -> None:
    lines = vhl("paper", "list").out.splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines if "/" in line}
    assert list(found) == list(rows_of_the_paper())
    assert found["cifar10/a0.05-e1-k10/scaffold"][:3] == ["38.55", "0.001", "1000"]
    assert found["feddf/a0.1/feddf-noise"][0] == "–"
    some = vhl("paper", "list", "further/naive", "feddf").out
    assert sum("/" in line for line in some.splitlines()) == 4 + 12
    vhl("paper", "list", "nothing-like-it").complains("'nothing-like-it'")


@pytest.mark.usefixtures("little")
def test_what_was_measured_is_listed(vhl: Any) -> None:
    vhl(*RUN, "--rounds=1", "--seeds=0,1")
    vhl("paper", "run", PLAIN, "--rounds=2", "--seeds=1")
    rows = {line.split()[0]: line for line in vhl("paper", "list", "cifar10").out.splitlines() if "/" in line}
    assert rows[PLAIN].rstrip().endswith(" 2 rounds, 1 seed (paper); 1 rounds, 2 seeds (paper)")
    assert rows[VHL].rstrip().endswith(" 1 rounds, 2 seeds (paper, digits)")


@pytest.mark.usefixtures("little")
def test_tables(vhl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display.console, "width", 40)  # no line is folded, whatever the terminal
    vhl("paper", "run", PLAIN, "--rounds=1")
    best = Digest.read(next(Path("results").iterdir())).records[0].accuracy
    assert best is not None
    answer = vhl("paper", "table", "cifar10")
    title, _, *lines = answer.out.splitlines()
    assert title == "## CIFAR-10" and len([line for line in lines if line.startswith("|")]) == 3
    assert lines[2].startswith(f"| little/fedavg | paper | 0.01 | 1 of 3 | 1 | {100 * best:.1f} | 80.00 |")
    assert "Not run, with the paper's best: `little/fedavg-vhl` (88.00)." in lines
    assert f"vhl paper run {PLAIN} --profile paper --rounds 1 --seeds 0" in lines
    latex = vhl("paper", "table", "cifar10", "--latex")
    assert latex.out.count(r"\begin{tabular}") == 1 and "##" not in latex.out
    everything = vhl("paper", "table").out
    assert [line[3:] for line in everything.splitlines() if line.startswith("## ")] == list(TABLES.values())
    vhl("paper", "table", "cifar11").complains("'cifar11'", "'cifar10'")


def test_tables_of_nothing_say_so(vhl: Any) -> None:
    answer = vhl("paper", "table", "svhn", "--results=mine")
    assert answer.code == 0 and answer.out.startswith("## SVHN\n\nNot run")
    assert answer.err == "note: there are no records in mine; --results names another folder.\n"


def test_tables_in_a_document(vhl: Any) -> None:
    text = "before\n<!-- vhl paper table feddf -->\nold\n<!-- end -->\nafter\n"
    Path("mine.md").write_text(text, encoding="utf-8")
    answer = vhl("paper", "table", "--into", "mine.md")
    assert answer.code == 0
    found = Path("mine.md").read_text(encoding="utf-8")
    assert found == renewed(text, Evidence([])) and "feddf-real" in found and "old" not in found
    vhl("paper", "table", "--into", "absent.md").complains("absent.md", "cannot be read")


def test_a_record_that_cannot_be_read(vhl: Any) -> None:
    Path("results").mkdir()
    Path("results/x.json").write_text("{}", encoding="utf-8")
    for words in (["list"], ["table"], ["run", PLAIN.replace("little", "a0.1-e1-k10")]):
        vhl("paper", *words).complains("results/x.json")


@pytest.mark.usefixtures("little")
def test_a_shorter_run_does_not_replace_a_longer_record(vhl: Any) -> None:
    """As on another machine: the records are there, the run folder is not."""
    vhl("paper", "run", PLAIN, "--rounds=2")
    answer = vhl("paper", "run", PLAIN, "--rounds=3", "--runs-dir=elsewhere", "--budget=0")
    assert answer.code == 0 and "left" in answer.out
    assert records() == {("plain", 0): 2}


@pytest.mark.usefixtures("little")
def test_a_run_folder_that_has_more_than_is_asked(vhl: Any) -> None:
    vhl("paper", "run", PLAIN, "--rounds=2", "--results=lost")
    answer = vhl("paper", "run", PLAIN, "--rounds=1")
    assert answer.code == 0 and records() == {("plain", 0): 2}


@pytest.mark.usefixtures("little")
def test_a_budget_that_ends_with_a_run(vhl: Any) -> None:
    answer = vhl(*RUN, "--rounds=1", "--budget=0")
    assert "1 of 2 runs are left" in answer.out


def test_a_row_of_the_same_experiment_with_features(vhl: Any, little: dict[str, Row]) -> None:
    vhl("paper", "run", PLAIN, "--rounds=1")
    little[PLAIN] = replace(little[PLAIN], settings={**little[PLAIN].settings, "features_at": (2,)})
    answer = vhl("paper", "run", PLAIN, "--rounds=2")
    assert answer.code == 0, answer.err
