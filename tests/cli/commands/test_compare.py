from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder


def test_a_run_and_a_folder_of_runs_give_the_same(vhl: Any, trained: Path) -> None:
    shutil.copytree(trained, "runs/one")
    alone, inside = vhl("compare", "runs/one"), vhl("compare", "runs")
    assert alone.code == 0 and alone.out == inside.out
    assert "fedavg + vhl" in alone.out and " 100.0 " in alone.out


@pytest.mark.parametrize("percentage", [50, 99.5])
def test_the_target_is_in_percent(vhl: Any, trained: Path, percentage: float) -> None:
    reached = compare([RunFolder(trained)], target=percentage / 100).rows[0].results[0]
    row = next(
        line for line in vhl("compare", trained, "--target", percentage).out.splitlines() if "vhl" in line
    )
    assert row.split()[5] == str(reached.rounds)  # fedavg + vhl, best, last tenth, rounds
    assert f"{percentage:.1f}%" in vhl("compare", trained, "--target", percentage).out


def test_a_run_that_another_process_is_writing(vhl: Any, trained: Path) -> None:
    folder = shutil.copytree(trained, "running")
    with (Path(folder) / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 7, "acc')
    assert vhl("compare", folder).out == vhl("compare", trained).out


def test_what_the_numbers_say(vhl: Any, tiny: tuple[str, ...]) -> None:
    vhl("sweep", *tiny, "rounds=2", "objective=plain,vhl", "--seeds=0,1")
    measured = {"plain-seed0": 0.2, "plain-seed1": 0.4, "vhl-seed0": 0.5, "vhl-seed1": 0.9}
    for run, accuracy in measured.items():
        file = Path(f"runs/sweep/objective={run}/metrics.jsonl")
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        told = [json.dumps({**records[0], "accuracy": 0.0}), json.dumps({**records[1], "accuracy": accuracy})]
        file.write_text("\n".join(told) + "\n", encoding="utf-8")
    said = " ".join(vhl("compare", "runs/sweep").out.split())
    assert "vhl cannot be told from fedavg + plain: 70.0 % instead of 30.0 % over the last tenth" in said
    interval = "The 95 % interval over 2 paired seeds and 359 test images is -87.2 to +167.2 points"
    assert f"{interval}: it may be chance." in said, said
    table, _, said = vhl("compare", "runs/sweep", "--last", "100").out.partition("fedavg + vhl cannot")
    assert "100 %" in table and "15.0 ± 7.1" in table and "35.0 ± 14.1" in table
    said = " ".join(said.split())
    assert said.startswith("be told from fedavg + plain: 35.0 % instead of 15.0 % over the last 100 %")
    assert "is -43.7 to +83.7 points" in said  # 12.706 × 5, and 1.96 √(.2/359)
