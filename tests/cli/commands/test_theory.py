"""`vhl theory` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vhl.analysis.theory import Terms

SETTINGS = ["data=digits", "model=cnn", "model.width=4", "rounds=2", "keep_at=[1]", "virtual.per_class=9"]


@pytest.mark.parametrize("objective", ["vhl", "plain"])
def test_every_term_of_every_kept_round(vhl: Any, objective: str) -> None:
    vhl("run", *SETTINGS, f"objective={objective}", "name=it")
    words = [] if objective == "vhl" else ["--virtual=noise"]
    answer = vhl("theory", "runs/it", *words)
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    rounds = [line for line in lines if line and line[0] in ("1", "2")]
    assert [line[0] for line in rounds] == ["1", "2"] and all(len(line) == 11 for line in rounds)
    assert "lower bound" in answer.out and Path("runs/it/theory.json").is_file()
    (only,) = [x for x in vhl("theory", "runs/it", *words, "--round=2").out.splitlines() if "%" in x]
    assert only.split() == rounds[1]


def test_terms_add_up_are_kept_and_may_be_against_another_run_s_virtual_data(vhl: Any) -> None:
    vhl("run", *SETTINGS, "objective=vhl", "virtual.deviation=0.25", "name=other")
    vhl("run", *SETTINGS, "objective=plain", "name=it")
    for round_ in ("2", "1"):
        answer = vhl("theory", "runs/it", "--virtual=runs/other", f"--round={round_}", "--results=kept")
        assert answer.code == 0, answer.err
    found = json.loads(Path("runs/it/theory.json").read_text(encoding="utf-8"))
    assert [terms["round"] for terms in found["terms"]] == [1, 2] and found["virtual"]["deviation"] == 0.25
    record = json.loads(Path("kept/it.json").read_text(encoding="utf-8"))
    assert [terms["round"] for terms in record["theory"]["terms"]] == [1, 2]
    vhl("theory", "runs/it", "--virtual=runs/it").complains("--virtual runs/it", "without virtual data")
    vhl("theory", "runs/it", "--virtual=noise", "--round=2")  # other virtual data begin anew
    found = json.loads(Path("runs/it/theory.json").read_text(encoding="utf-8"))
    assert [terms["round"] for terms in found["terms"]] == [2] and found["virtual"]["deviation"] == 0.5


def test_what_is_missing_is_said(vhl: Any) -> None:
    vhl("theory", "nowhere").complains("nowhere", "no run folder")
    vhl("run", *SETTINGS, "objective=plain", "name=it")
    vhl("theory", "runs/it").complains("--virtual noise")
    vhl("theory", "runs/it", "--virtual=nothing").complains("'nothing'", "stylegan")
    vhl("theory", "runs/it", "--virtual=runs/other").complains("runs/other is no run folder")


def test_another_run_s_virtual_data_are_its_own_seed_s_and_size_s(vhl: Any) -> None:
    vhl("run", *SETTINGS, "objective=plain", "name=it")
    found = []
    for name, words in {"a": ["objective=vhl"], "b": ["objective=vhl", "seeds.data=5"]}.items():
        vhl("run", *SETTINGS, *words, "rounds=1", f"name={name}")
        found.append(vhl("theory", "runs/it", f"--virtual=runs/{name}", "--round=2").out)
    vhl("run", *SETTINGS, "objective=vhl-light", "rounds=1", "name=c")
    found.append(vhl("theory", "runs/it", "--virtual=runs/c", "--round=2").out)
    assert json.loads(Path("runs/it/theory.json").read_text(encoding="utf-8"))["tiles"] == 2
    named = vhl("theory", "runs/it", "--virtual=noise", "--round=2").out
    assert len(set(found)) == 3 and "%" in named
    assert json.loads(Path("runs/it/theory.json").read_text(encoding="utf-8"))["tiles"] == 1


def test_a_longer_record_is_not_replaced(vhl: Any) -> None:
    vhl("run", *SETTINGS, "objective=vhl", "rounds=3", "name=it")
    vhl("theory", "runs/it", "--round=1", "--results=kept")
    vhl("run", *SETTINGS, "objective=vhl", "name=it", "--runs-dir=elsewhere")
    vhl("theory", "elsewhere/it", "--round=1", "--results=kept").complains("longer record")


@pytest.mark.parametrize(
    ("distances", "bounds", "verdict"),
    [
        ((3, 5), ("4.5", "2.5"), "nowhere vacuous"),
        ((3, 9), ("4.5", "-1.5"), "vacuous in part"),
        ((9, 10), ("-1.5", "-2.5"), "vacuous"),
    ],
)
def test_each_term_has_its_column_and_the_bound_its_verdict(
    vhl: Any, monkeypatch: Any, distances: tuple[int, int], bounds: tuple[str, str], verdict: str
) -> None:
    """Lower bounds by hand: 8 − |7.5 − 8| − distance."""
    found = {
        round_: Terms(
            accuracy=0.125,
            merged_accuracy=0.25,
            margin_natural=6,
            margin_virtual=7.5,
            margin_virtual_train=8,
            distance=distance,
            distance_floor=2,
            normalised_distance=0.5,
            normalised_floor=0.25,
        )
        for round_, distance in zip((1, 4), distances, strict=True)
    }
    monkeypatch.setattr("vhl.analysis.runs.measure_run", lambda *_: found)
    printed = vhl("theory", "runs/it").out
    assert [line.split() for line in printed.splitlines() if "%" in line] == [
        [round_, "12.5%", "25.0%", "6", "7.5", "8", str(distance), "(2)", "0.500", "(0.250)", bound]
        for round_, distance, bound in zip("14", distances, bounds, strict=True)
    ]
    assert f"it is {verdict}. " in " ".join(printed.split())
