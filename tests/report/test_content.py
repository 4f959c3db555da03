"""What is on a page against the run folders it was made from."""

from __future__ import annotations

import base64
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vhl.report.content import COMPARED, POINTS, content
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
    assert [group["plain"] for group in found["groups"]] == [True, False, False]


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


def test_columns_are_the_records(compared: list[RunFolder], found: dict[str, Any]) -> None:
    """Samples and seconds are summed up; a round that was not evaluated has no accuracy."""
    for run, shown in zip(compared, found["runs"], strict=True):
        records, columns = run.records(), shown["columns"]
        assert columns["round"] == [record.round for record in records]
        assert columns["samples"] == list(itertools.accumulate(record.samples for record in records))
        seconds = list(itertools.accumulate(record.seconds for record in records))
        assert columns["seconds"] == pytest.approx(seconds, rel=1e-5)
        for name in ("accuracy", "virtual_accuracy", "drift", "learning_rate", "train_accuracy"):
            for value, record in zip(columns[name], records, strict=True):
                measured = getattr(record, name)
                assert value is None if measured is None else value == pytest.approx(measured, rel=1e-5)
        for term, values in columns["loss"].items():
            assert values == pytest.approx([record.loss[term] for record in records], rel=1e-5)
    assert list(found["runs"][0]["columns"]["loss"]) == ["natural"]
    assert list(found["runs"][3]["columns"]["loss"]) == ["natural", "virtual"]


def test_a_term_that_only_some_rounds_have(write: Write, record: Any, tmp_path: Path) -> None:
    rounds = [record(1, 0.1, loss={"a": 1.0}), record(2, 0.2, loss={"a": 2.0, "b": 3.0})]
    (run,) = content([write(tmp_path / "run", rounds)])["runs"]
    assert run["columns"]["loss"] == {"a": [1.0, 2.0], "b": [None, 3.0]}


def test_classes_are_those_of_the_last_evaluated_round(write: Write, record: Any, tmp_path: Path) -> None:
    rounds = [
        record(1, 0.1, per_class=[0.1, 0.1, 0.1]),
        record(2, 0.2, per_class=[0.5, None, 0.25]),
        record(3, None),
    ]
    (run,) = content([write(tmp_path / "run", rounds)])["runs"]
    assert run["per_class"] == [0.5, None, 0.25]
    (without,) = content([write(tmp_path / "without", [0.1])])["runs"]
    assert without["per_class"] is None


def test_what_runs_have_in_common_is_there_once(compared: list[RunFolder], found: dict[str, Any]) -> None:
    assert [run["problem"] for run in found["runs"]] == [0, 0, 0, 0, 0, 0, 1]
    assert [run["picture"] for run in found["runs"]] == [None, None, None, 0, 0, 1, None]
    assert [problem["counts"] for problem in found["problems"]] == [[[30, 0, 4], [1, 20, 5]], [[7, 8, 9]]]
    assert [problem["sites"] for problem in found["problems"]] == [[], ["Rome"]]
    for number, run in ((0, compared[3]), (0, compared[4]), (1, compared[5])):
        kind, _, written = found["pictures"][number].partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(written) == (run.path / "virtual.png").read_bytes()


def test_a_problem_says_what_it_is_of(write: Write, tmp_path: Path) -> None:
    """The same counts of other data are another problem."""
    settings: list[dict[str, Any]] = [
        {"partition": {"alpha": 0.1}},
        {"partition": {"alpha": 1.0}},
        {"data": "svhn", "partition": "iid"},
    ]
    runs = [write(tmp_path / str(number), [0.5], **own) for number, own in enumerate(settings)]
    abouts = [problem["about"] for problem in content(runs)["problems"]]
    assert abouts == ["digits, lda, alpha 0.1", "digits, lda, alpha 1.0", "svhn, iid"]


def test_the_look_at_the_last_round(found: dict[str, Any]) -> None:
    assert found["runs"][3]["last"] == {
        "confusion": [[9, 1, 0, 0, 2], [2, 7, 1, 1, 0], [0, 3, 6, 0, 0]],
        "clients": [1, 0],
        "client_accuracy": [0.25, 0.625],
    }
    assert all(run["last"] is None for run in found["runs"][:3])


def test_what_is_needed_to_run_it_again(compared: list[RunFolder], found: dict[str, Any]) -> None:
    for run, shown in zip(compared, found["runs"], strict=True):
        assert shown["toml"] == run.experiment().toml()
        assert shown["rounds"] == 30 and shown["settings"]["seeds.batches"] == shown["seed"]
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


# --- features ------------------------------------------------------------------------------------------


def test_each_saved_round_has_a_picture(compared: list[RunFolder], found: dict[str, Any]) -> None:
    pictures = found["runs"][3]["features"]
    assert [picture["round"] for picture in pictures] == [10, 30]
    assert all(run["features"] == [] for run in found["runs"][:3])
    counts = Counter((label, model, kind) for _, _, label, model, kind in pictures[0]["points"])
    test = {(label, model, "test"): 3 for label in (0, 1, 2) for model in ("server", "client1")}
    virtual = {(label, model, "virtual"): 2 for label in (3, 4) for model in ("server", "client1")}
    assert counts == {**test, **virtual}
    assert pictures[0]["points"] != pictures[1]["points"]


def test_points_that_belong_together_lie_together(found: dict[str, Any]) -> None:
    """The labels are those of the points: in the files a class is a cluster."""
    points = found["runs"][3]["features"][0]["points"]
    for x, y, label, _, _ in points:
        others = sorted((math.hypot(x - a, y - b), other) for a, b, other, _, _ in points)
        assert others[1][1] == label  # the first is the point itself


def save_features(run: RunFolder, samples: int, change: Callable[[torch.Tensor], None]) -> None:
    """Features of as many test images in two models; the label is the place in the file."""
    rng = torch.Generator().manual_seed(0)
    tensors = {}
    for model in ("client3", "server"):
        tensors[f"{model}.test.features"] = torch.randn(samples, 3, generator=rng)
        tensors[f"{model}.test.labels"] = torch.arange(samples)
    change(tensors["server.test.features"])
    run.save_features(1, tensors)


def test_what_diverged_has_no_place(write: Write, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [0.5])

    def break_two(values: torch.Tensor) -> None:
        values[3, 1], values[5, 0] = math.nan, math.inf

    save_features(run, 8, break_two)
    points = content([run])["runs"][0]["features"][0]["points"]
    labels = {m: sorted(p[2] for p in points if p[3] == m) for m in ("client3", "server")}
    assert labels == {"client3": list(range(8)), "server": [0, 1, 2, 4, 6, 7]}


@pytest.mark.parametrize("left", [0, 1])
def test_nearly_everything_diverged(write: Write, tmp_path: Path, left: int) -> None:
    run = write(tmp_path / "run", [0.5])
    run.save_features(
        1,
        {
            "server.test.features": torch.tensor([[1.0], [math.nan]])[1 - left :],
            "server.test.labels": torch.tensor([4, 5])[1 - left :],
        },
    )
    assert content([run])["runs"][0]["features"][0]["points"] == [[0.0, 0.0, 4, "server", "test"]][:left]


def test_the_same_samples_of_every_model(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture holds so many points in all; which samples they are is the same for each model."""
    run = write(tmp_path / "run", [0.5])
    save_features(run, POINTS, lambda values: None)
    monkeypatch.setattr("vhl.report.content.embed", lambda values: values[:, :2])  # t-SNE takes seconds here
    points = content([run])["runs"][0]["features"][0]["points"]
    server, client = ([p[2] for p in points if p[3] == model] for model in ("server", "client3"))
    assert server == client and len(server) == len(set(server)) == POINTS // 2
    assert server != sorted(server)  # drawn, not the first ones
    stored = load_file(run.path / "features" / "round-000001.safetensors")["server.test.features"]
    own = {p[2]: p[:2] for p in points if p[3] == "server"}
    assert own[server[0]] == pytest.approx(stored[server[0], :2].tolist(), abs=0.006)


def test_a_picture_is_made_once_until_its_file_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", [0.5])
    save_features(run, 4, lambda values: None)
    calls = []
    monkeypatch.setattr("vhl.report.content.embed", lambda values: calls.append(1) or values[:, :2])
    content([run]), content([run])
    assert len(calls) == 1
    time.sleep(0.02)  # a file system's clock may be coarse
    file = run.path / "features" / "round-000001.safetensors"
    save_file(load_file(file), file)
    content([run])
    assert len(calls) == 2


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
    columns = found["runs"][0]["columns"]
    assert columns["loss"]["a"] == [1.0, None] and columns["drift"] == [1.0, None]
    assert "NaN" not in json.dumps(found) and "Infinity" not in json.dumps(found)
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
    assert whole["whole"] and "toml" in whole["runs"][0] and "drift" in whole["runs"][0]["columns"]
    assert not index["whole"] and index["verdicts"] == [] and index["problems"] == []
    assert set(index["runs"][0]["columns"]) == {"accuracy", "round", "samples", "seconds"}
    assert index["runs"][7]["columns"]["accuracy"] == [0.1, 0.207]
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


def test_theory_where_it_was_measured(write: Any, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [0.1, 0.2, 0.3])
    assert content([run])["runs"][0]["columns"]["theory"] == {}
    terms = [{"round": 1, "distance": 0.123456789}, {"round": 3, "distance": 2.0, "margin_natural": 0.5}]
    (run.path / "theory.json").write_text(json.dumps({"terms": terms}), encoding="utf-8")
    found = content([run])["runs"][0]["columns"]["theory"]
    assert found["distance"] == [pytest.approx(0.123456789, rel=1e-4), None, 2.0]
    assert found["margin_natural"] == [None, None, 0.5]
