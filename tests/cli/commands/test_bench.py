from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

SMALL = ("data=digits", "data.size=8", "model=cnn", "model.width=4", "device=cpu", "--rounds=3")


def test_prints_and_writes_what_was_measured(vhl: Any) -> None:
    answer = vhl(
        "bench", *SMALL, "objective=vhl", "virtual.per_class=3", "--seeds=0,1", "-o", "out/speed.json"
    )
    assert answer.code == 0, answer
    found = json.loads(Path("out/speed.json").read_text(encoding="utf-8"))
    assert found["experiment"]["objective"]["name"] == "vhl" and found["side_by_side"] == 2
    assert found["images_per_second"] == found["images"] / found["seconds"]
    assert f"{found['images_per_second']:,.0f}" in answer.out
    assert f"{100 * found['share_of_ceiling']:.1f} %" in answer.out
    assert found["share_of_ceiling"] > 0 and 0 <= found["share_outside_training"] < 1
    assert found["precision"] == "fp32" and found["environment"]["packages"]["torch"]
    assert "peers" not in found


def test_against_a_loop_by_hand(vhl: Any) -> None:
    answer = vhl("bench", *SMALL, "--against=plain", "--peer-rounds=3")
    assert answer.code == 0, answer
    (file,) = Path("benchmarks/results").iterdir()
    assert re.fullmatch(r"[a-z0-9-]+digits-cnn-fedavg-plain-fp32-\d{4}-\d\d-\d\d\.json", file.name)
    found = json.loads(file.read_text(encoding="utf-8"))
    rates = found["peers"]["plain fp32"]
    assert 0 < rates["images_per_second"] < rates["training_images_per_second"]
    ratio = found["images_per_second"] / rates["images_per_second"]
    assert f"×{ratio:.2f}" in answer.out


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["--against=plain", "objective=vhl"], ["objective=plain"]),
        (["--against=nobody"], ["'nobody'", "plain, pfl, flower"]),
        (["--rounds=1"], ["rounds"]),
    ],
)
def test_refused_before_anything_is_written(vhl: Any, words: list[str], texts: list[str]) -> None:
    vhl("bench", *SMALL, "virtual.per_class=3", *words).complains(*texts)
    assert not Path("benchmarks").exists()
