"""What is on a page against the run folders it was made from."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vhl.report.content import COMPARED, content
from vhl.report.figure import as_json
from vhl.report.looks import look
from vhl.report.page import page
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]
MEASURES = ("best", "final", "rounds", "samples", "bytes", "drift", "compute")


@pytest.fixture(scope="module")
def found(compared: list[RunFolder]) -> dict[str, Any]:
    return content(compared)


def test_groups_are_the_rows_of_the_comparison(compared: list[RunFolder], found: dict[str, Any]) -> None:
    comparison = compare(compared)
    assert len(found["groups"]) == len(comparison.rows) == 3
    for group, row in zip(found["groups"], comparison.rows, strict=True):
        assert group["label"] == row.label and group["seeds"] == row.seeds and group["target"] == row.target
        assert group["speed_up"] == comparison.speed_up(row)
        assert group["time"] == comparison.time(row)
        for measure in MEASURES:
            over_seeds = row.over_seeds(measure)
            assert over_seeds is not None
            assert group[measure] == vars(over_seeds)
    assert [group["look"] for group in found["groups"]] == [look(0, plain=True), look(1), look(2)]


def test_the_gain_is_over_the_same_without_virtual_data(found: dict[str, Any]) -> None:
    """Paired by seed; FedProx has no partner here."""
    plain, ours, prox = found["groups"]
    assert plain["gain"] is None and prox["gain"] is None
    assert ours["gain"]["mean"] == pytest.approx(ours["final"]["mean"] - plain["final"]["mean"])
    assert ours["gain"]["seeds"] == 3 and ours["gain"]["margin"] > 0


def test_a_gain_does_not_depend_on_which_run_was_named_first(write: Write, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", [0.5], objective="plain")
    ours = write(tmp_path / "ours", [0.75], objective="vhl")
    for order in ([plain, ours], [ours, plain]):
        gains = {group["label"]: group["gain"] for group in content(order)["groups"]}
        assert gains["fedavg + plain"] is None
        assert gains["fedavg + vhl"] == {"mean": 0.25, "margin": None, "seeds": 1}


def test_a_run_knows_its_group_seed_and_result(compared: list[RunFolder], found: dict[str, Any]) -> None:
    runs = found["runs"]
    assert [run["name"] for run in runs] == [run.path.name for run in compared]
    assert [run["group"] for run in runs] == [0, 0, 0, 1, 1, 1, 2]
    assert [run["seed"] for run in runs] == [0, 1, 2, 0, 1, 2, 0]
    results = [result for row in compare(compared).rows for result in row.results]
    assert [(run["best"], run["final"]) for run in runs] == [(r.best, r.final) for r in results]


def test_what_runs_have_in_common_is_there_once(compared: list[RunFolder], found: dict[str, Any]) -> None:
    figures = {figure.name: figure for figure in found["figures"]}
    assert [name for name in figures if name[:-1] in ("partition-", "virtual-")] == [
        "partition-1",
        "partition-2",
        "virtual-1",
        "virtual-2",
    ]
    for name, run in (("virtual-1", compared[3]), ("virtual-2", compared[5])):
        kind, _, written = figures[name].panels[0].address.partition(",")
        assert kind == "data:image/png;base64" and figures[name].title == "Virtual images (noise)"
        assert base64.b64decode(written) == (run.path / "virtual.png").read_bytes()


def test_a_problem_says_what_it_is_of(write: Write, tmp_path: Path) -> None:
    """The same counts of other data are another problem."""
    settings: list[dict[str, Any]] = [
        {"partition": {"alpha": 0.1}},
        {"partition": {"alpha": 1.0}},
        {"data": "svhn", "partition": "iid"},
    ]
    runs = [write(tmp_path / str(number), [0.5], **own) for number, own in enumerate(settings)]
    abouts = [f.panels[0].title for f in content(runs)["figures"] if f.name.startswith("partition")]
    assert abouts == ["digits, lda, alpha 0.1", "digits, lda, alpha 1.0", "svhn, iid"]


def test_what_is_needed_to_run_it_again(compared: list[RunFolder], found: dict[str, Any]) -> None:
    for run, shown in zip(compared, found["runs"], strict=True):
        assert shown["toml"] == run.experiment().toml()
        assert shown["rounds"] == shown["done"] == 30 and shown["settings"]["seeds.batches"] == shown["seed"]
        assert "engine.lanes" not in shown["settings"]  # unset
        assert shown["environment"]["processor"] == "Abacus"
    assert found["runs"][6]["command"].startswith("vhl run data=digits ")
    assert " algorithm=fedprox rounds=30" in found["runs"][6]["command"]


def test_the_title(compared: list[RunFolder], write: Write, tmp_path: Path) -> None:
    """The folder that the runs share, where they share one."""
    assert content(compared)["title"] == compared[0].path.parent.name
    assert content(compared[:1])["title"] == "plain-seed0"
    assert content(compared, title="Mine")["title"] == "Mine"
    elsewhere = write(tmp_path / "run", [0.5])
    assert content([*compared[:2], elsewhere])["title"] == "3 runs"


def test_a_run_that_is_named_by_a_dot(compared: list[RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(compared[0].path)
    found = content([RunFolder(".")])
    assert found["title"] == found["runs"][0]["name"] == "plain-seed0"


def test_a_target_of_ones_own(compared: list[RunFolder]) -> None:
    found = content(compared, target=0.3)
    assert {group["target"] for group in found["groups"]} == {0.3}
    assert found["groups"][0]["rounds"]["mean"] == compare(compared, 0.3).rows[0].over_seeds("rounds").mean


def test_rounds_that_were_tested_on_a_part_are_counted(write: Write, record: Any, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [record(1, 0.5), record(2, 0.9, tested=4), record(3, 0.6)])
    assert [group["partly_tested"] for group in content([run])["groups"]] == [1]


# --- runs that are not as they should be ---------------------------------------------------------------


def test_runs_without_an_evaluated_round_are_left_out(write: Write, tmp_path: Path) -> None:
    begun = write(tmp_path / "begun", [None, 0.5])
    waiting = [write(tmp_path / "empty", []), write(tmp_path / "blind", [None, None])]
    found = content([waiting[0], begun, waiting[1]])
    assert [run["name"] for run in found["runs"]] == ["begun"] and len(found["groups"]) == 1


def test_nothing_to_show_yet(write: Write, tmp_path: Path, complains: Any) -> None:
    with complains("evaluated round yet"):
        content([write(tmp_path / "empty", [])])
    with complains("evaluated round yet"):
        content([])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_run_still_has_a_page(write: Write, record: Any, tmp_path: Path, value: float) -> None:
    rounds = [record(1, 0.5, loss={"a": 1.0}), record(2, 0.1, loss={"a": value}, drift=value)]
    runs = [
        write(tmp_path / "run", rounds),
        write(tmp_path / "again", [0.5], seeds={"batches": 1}),
        write(tmp_path / "other", [0.5], algorithm="fedprox"),
    ]
    found = content(runs)
    drift = next(figure for figure in found["figures"] if figure.name == "drift").panels[0].series[0]
    assert list(drift.bands[1].mean) == [1.0]  # the first round's alone
    assert "NaN" not in as_json(found) and "Infinity" not in as_json(found)
    assert page(found)


# --- many runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(write: Write, tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    root = tmp_path_factory.mktemp("many")
    return [
        write(root / f"run{i:03}", [0.1, 0.2 + i / 1000], training={"lr": 0.001 * (i + 1)})
        for i in range(COMPARED + 1)
    ]


def test_with_many_runs_a_page_is_an_index(many: list[RunFolder]) -> None:
    whole, index = content(many[:COMPARED]), content(many)
    assert whole["whole"] and "toml" in whole["runs"][0] and len(whole["figures"]) > 2
    assert not index["whole"] and index["verdicts"] == [] and "toml" not in index["runs"][0]
    accuracy, each = index["figures"]
    assert (accuracy.name, each.name) == ("accuracy", "index")
    own = each.panels[0].series[7]
    assert own.label == "run007" and list(own.bands[1].mean) == pytest.approx([10, 20.7])
    assert index["runs"][7]["settings"]["training.lr"] == 0.008


def test_the_work_grows_with_the_runs(many: list[RunFolder]) -> None:
    """A live page is made anew every few seconds: twice the runs take twice as many calls, not four times."""

    def calls(runs: list[RunFolder]) -> int:
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            content(runs)
        finally:
            sys.setprofile(None)
        return counted

    content(many[:10])  # what is imported and compiled but once
    assert calls(many[:20]) == pytest.approx(2 * calls(many[:10]), rel=0.2)
