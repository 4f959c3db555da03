from __future__ import annotations

from pathlib import Path
from typing import Any

from vhl.experiment import Experiment


def files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_every_combination_once(vhl: Any, tiny: tuple[str, ...]) -> None:
    words = [*tiny, "rounds=1", "training.lr=0.01,0.1", 'algorithm=fedavg,{name="fedprox", mu=0.5}']
    answer = vhl("sweep", *words, "--name=try")
    assert answer.code == 0
    folder = Path("runs/try")
    found = [Experiment.read(run / "experiment.toml") for run in folder.iterdir() if run.is_dir()]
    assert {(e.training.lr, e.algorithm.name, getattr(e.algorithm, "mu", None), e.rounds) for e in found} == {
        (0.01, "fedavg", None, 1),
        (0.01, "fedprox", 0.5, 1),
        (0.1, "fedavg", None, 1),
        (0.1, "fedprox", 0.5, 1),
    }
    assert (folder / "training.lr=0.01,algorithm=fedavg").is_dir()
    for algorithm in ("fedavg", "fedprox"):
        for rate in ("0.01", "0.1"):
            assert f"{algorithm} + vhl training.lr={rate} " in answer.out  # a row of the table

    before = files(folder)
    again = vhl("sweep", *words, "--name=try")
    assert again.code == 0 and "round 1/1" not in again.out
    assert files(folder) == before


def test_an_interrupted_sweep_goes_on(vhl: Any, tiny: tuple[str, ...]) -> None:
    vhl("sweep", *tiny, "rounds=1", "training.lr=0.01", "--seeds=0", "--name=s")
    assert [folder.name for folder in Path("runs/s").iterdir()] == ["only-seed0"]
    vhl("sweep", *tiny, "rounds=1", "training.lr=0.01,0.1", "--name=t")
    (Path("runs/t/training.lr=0.1") / "experiment.toml").unlink()  # as if it had never begun
    answer = vhl("sweep", *tiny, "rounds=1", "training.lr=0.01,0.1", "--name=t")
    assert answer.code == 0 and answer.out.count("round 1/1") == 1


def test_seeds_of_every_point(vhl: Any, tiny: tuple[str, ...]) -> None:
    answer = vhl("sweep", *tiny, "rounds=1", "objective=plain,vhl", "--seeds=0,1")
    names = {folder.name for folder in Path("runs/sweep").iterdir() if folder.is_dir()}
    assert names == {f"objective={name}-seed{seed}" for name in ("plain", "vhl") for seed in (0, 1)}
    rows = [line for line in answer.out.splitlines() if "fedavg + " in line]
    assert len(rows) == 2 and all("±" in row for row in rows)
    assert answer.out.splitlines()[-1] == "report: runs/sweep/report.html"


def test_a_run_that_fails_does_not_cost_the_others(vhl: Any, tiny: tuple[str, ...]) -> None:
    answer = vhl("sweep", *tiny, "rounds=1", "training.lr=1e30,0.01")
    assert answer.code == 2 and "Traceback" not in answer.err
    assert "training.lr=1e+30: Round 1" in answer.err and "1 of 2 runs failed" in answer.err
    assert Path("runs/sweep/training.lr=0.01/state/manifest.json").is_file()
    assert "fedavg + vhl" in answer.out  # the table of what there is


def test_a_bad_value_is_refused_before_anything_runs(vhl: Any, tiny: tuple[str, ...]) -> None:
    vhl("sweep", *tiny, "training.lr=0.01,-1").complains("training.lr = -1")
    assert not Path("runs").exists()
