"""A run killed at any moment and resumed ends as if nothing had happened, to the bit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vhl.experiment import Experiment

Do = Callable[..., dict[str, Any]]
KILLS = 20


@pytest.fixture(scope="module")
def nursery(experiment: Experiment, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Do]:
    """Runs the experiment in a forked process that can be killed."""
    file = tmp_path_factory.mktemp("nursery") / "experiment.toml"
    file.write_text(experiment.toml(), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("nursery.py")), str(file), str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def do(runs: Path, resume: bool = True, **job: Any) -> dict[str, Any]:
            job |= {"experiment": str(file), "runs": str(runs), "data_dir": str(data_dir), "resume": resume}
            print(json.dumps(job), file=process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield do
        process.stdin.close()


@pytest.fixture(scope="module")
def straight(
    nursery: Do, content: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The uninterrupted run: its content, the moments of its writes and how long it took."""
    runs = tmp_path_factory.mktemp("straight")
    answer = nursery(runs, resume=False)
    assert answer["status"] == 0
    return {"content": content(runs / "tiny"), **answer}


def spare(moments: list[str]) -> list[int]:
    """One moment of each kind before the checkpoint of round 4, and when the last one replaces it."""
    wanted = (
        "after the rename of data.json",
        "half of experiment.toml.part",
        "after the rename of experiment.toml",
        "half of metrics.jsonl",
        "half of best-000003.safetensors.part",
        "after the rename of best-000003.safetensors",
        "half of round-000003.safetensors.part",
        "before the rename of server-000005.safetensors",
    )
    last_manifest = len(moments) - 1 - moments[::-1].index("after the rename of manifest.json")
    return [*(moments.index(what) for what in wanted), last_manifest]


def checkpoint(moments: list[str]) -> list[int]:
    """Every moment in the writing of the checkpoint of round 4, with the removal of what it replaces."""
    first = moments.index("half of server-000004.safetensors.part")
    return list(range(first, moments.index("half of round-000005.safetensors.part")))


def test_the_run_has_all_that_a_checkpoint_can_hold(straight: dict[str, Any]) -> None:
    """Else the tests below would prove less than they claim."""
    files, moments = straight["content"], straight["moments"]
    assert {"features/round-000003.safetensors", "models/round-000002.safetensors"} <= set(files)
    assert len([file for file in files if file.startswith("state/client-")]) == 4
    assert any(record["validation_accuracy"] for record in files["metrics.jsonl"])
    within = [moments[number] for number in checkpoint(moments)]
    assert "after the removal of best-000003.safetensors" in within  # round 4 is better
    assert "after the removal of server-000002.safetensors" in within
    assert sum("before the rename" in what for what in within) >= 4  # server, two clients, manifest


@pytest.mark.parametrize("choose", [spare, checkpoint])
def test_killed_at_a_write(
    nursery: Do,
    straight: dict[str, Any],
    content: Callable[[Path], Any],
    tmp_path: Path,
    choose: Callable[[list[str]], list[int]],
) -> None:
    for number in choose(straight["moments"]):
        runs = tmp_path / str(number)
        killed = nursery(runs, resume=False, kill_at=number)
        assert killed["status"] == signal.SIGKILL and len(killed["moments"]) == number + 1
        assert nursery(runs)["status"] == 0
        assert content(runs / "tiny") == straight["content"], straight["moments"][number]
        shutil.rmtree(runs)


@pytest.mark.parametrize("seed", range(KILLS // 2))
def test_killed_at_a_random_moment_and_again_while_resumed(
    nursery: Do, straight: dict[str, Any], content: Callable[[Path], Any], tmp_path: Path, seed: int
) -> None:
    first, second = straight["seconds"] * np.random.default_rng(seed).random(2)
    nursery(tmp_path, resume=False, kill_after=first)
    nursery(tmp_path, kill_after=second)
    assert nursery(tmp_path)["status"] == 0
    assert content(tmp_path / "tiny") == straight["content"]
