"""`vhl theory` as a user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


def test_what_is_missing_is_said(vhl: Any) -> None:
    vhl("theory", "nowhere").complains("nowhere", "no run folder")
    vhl("run", *SETTINGS, "objective=plain", "name=it")
    vhl("theory", "runs/it").complains("--virtual noise")
    vhl("theory", "runs/it", "--virtual=nothing").complains("'nothing'", "stylegan")
