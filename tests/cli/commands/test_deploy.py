from __future__ import annotations

import importlib.util
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vhl.deploy import local
from vhl.deploy.folder import read_settings
from vhl.errors import VHLError
from vhl.experiment import Experiment


def test_init(vhl: Any) -> None:
    Path("mine.toml").write_text("rounds = 5\n", encoding="utf-8")
    Path("here").mkdir()
    words = [
        "mine.toml",
        "algorithm=scaffold",
        "--test",
        "folder:here",
        "--runs-dir",
        "out",
        "--data-dir",
        "d",
    ]
    answer = vhl("deploy", "init", "app", "--sites", "3", *words)
    assert answer.code == 0 and "vhl deploy commands app" in answer.out
    expected = Experiment(rounds=5, algorithm="scaffold", partition="given")
    assert Experiment.read(Path("app/experiment.toml")) == expected
    settings = read_settings(Path("app"))
    assert (settings["sites"], settings["test"]) == (3, f"folder:{Path('here').absolute()}")
    assert settings["runs-dir"] == str(Path("out").absolute())
    assert settings["data-dir"] == str(Path("d").absolute())
    vhl("deploy", "init", "app", "--sites", "3").complains("app", "exists")


@pytest.mark.parametrize(
    ("words", "partition"),
    [
        ([], "given"),
        (["data=folder:-", "data.size=64"], "given"),
        (["partition=iid"], "iid"),
        (["partition.clients=5"], "lda"),
        (["dealt.toml"], "classes"),
        (["--test", "experiment"], "lda"),
    ],
    ids=str,
)
def test_what_sites_bring_is_not_dealt_out(vhl: Any, words: list[str], partition: str) -> None:
    """Unless somebody says how, or each site has a part of the experiment's own data."""
    Path("dealt.toml").write_text("partition = 'classes'\n", encoding="utf-8")
    assert vhl("deploy", "init", "app", "--sites", "2", *words).code == 0
    assert Experiment.read(Path("app/experiment.toml")).partition.name == partition


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_test_images_that_are_not_there(vhl: Any, kind: str) -> None:
    words = ["--test", f"{kind}:nowhere"]
    vhl("deploy", "init", "app", "--sites", "2", *words).complains(Path("nowhere").absolute(), "--test")
    assert not Path("app").exists()


def test_init_without_more(vhl: Any) -> None:
    vhl("deploy", "init", "app", "--sites", "2")
    settings = read_settings(Path("app"))
    assert (settings["test"], settings["data-dir"]) == ("", "")
    assert settings["runs-dir"] == str(Path("runs").absolute())


def test_keys_and_commands(vhl: Any) -> None:
    vhl("deploy", "init", "app", "--sites", "2")
    assert (
        vhl("deploy", "keys", "server", "keys", "--host", "fl.example.org", "--host", "192.0.2.7").code == 0
    )
    assert "north.pub is for the server" in vhl("deploy", "keys", "site", "keys", "north").out
    assert stat.S_IMODE(Path("keys/north.key").stat().st_mode) == 0o600
    vhl("deploy", "keys", "site", "keys", "north").complains("north.key", "exists")
    words = ["--host", "fl.example.org", "--site", "north", "--site", "south"]
    answer = vhl("deploy", "commands", "app", *words)
    assert answer.code == 0 and "--superlink fl.example.org:9092" in answer.out
    vhl("deploy", "commands", "nowhere", *words).complains("nowhere", "vhl deploy init")


@pytest.mark.parametrize(
    "words", [["init", "app", "--sites", "2"], ["local", "2"], ["keys", "site", "k", "a"]]
)
def test_without_flower(vhl: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else find(name))
    vhl("deploy", *words).complains("flwr", "pip install 'vhl[flower]'")


class Recorded:
    """In place of a deployment: says what it was to do, and fails if it shall."""

    def __init__(self, folder: Path, sites: Mapping[str, Mapping[str, str]], *, insecure: bool) -> None:
        self.folder, self.sites, self.insecure = folder, sites, insecure
        Recorded.last = self

    last: Recorded
    error: BaseException | None = None

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, app: Path, on_line: Callable[[str], None]) -> None:
        self.experiment, self.settings = Experiment.read(app / "experiment.toml"), read_settings(app)
        on_line("[bold] of the server")
        if self.error is not None:
            raise self.error


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Recorded]:
    monkeypatch.setattr(local, "LocalDeployment", Recorded)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Recorded, "error", None)
    return Recorded


def test_local(vhl: Any, recorded: type[Recorded]) -> None:
    answer = vhl("deploy", "local", "3", "rounds=2", "partition.alpha=0.5", "name=try", "--runs-dir", "out")
    assert answer.code == 0 and "[bold] of the server\n" in answer.out and "out/try" in answer.out
    asked = recorded.last
    wanted = {"rounds": 2, "name": "try", "partition": {"alpha": 0.5, "clients": 3}}
    assert asked.experiment == Experiment(**wanted) and not asked.insecure
    assert (asked.settings["sites"], asked.settings["test"], asked.settings["resume"]) == (
        3,
        "experiment",
        False,
    )
    assert asked.settings["runs-dir"] == str(Path("out").absolute())
    assert [site["data"] for site in asked.sites.values()] == ["part:0", "part:1", "part:2"]
    assert len({site["store"] for site in asked.sites.values()}) == 3
    assert not asked.folder.exists()


def test_local_as_asked_for(vhl: Any, recorded: type[Recorded]) -> None:
    vhl("deploy", "local", "2", "--insecure", "--resume")
    assert recorded.last.insecure and recorded.last.settings["resume"]
    assert recorded.last.experiment.name == "digits-lda-fedavg-vhl-seed0"


@pytest.fixture
def clinics(write_digits: Callable[..., Path]) -> str:
    """Images of two clinics."""
    write_digits(Path("clinics.npz"), 40, sites=np.array(["north", "south"] * 20))
    return "data=npz:clinics.npz"


def test_local_with_data_that_name_their_sites(vhl: Any, recorded: type[Recorded], clinics: str) -> None:
    assert vhl("deploy", "local", "2", clinics, "partition=given").code == 0
    assert recorded.last.experiment.partition.name == "given" and len(recorded.last.sites) == 2
    answer = vhl("deploy", "local", "3", clinics, "partition=given", "name=three")
    answer.complains("partition = given", "the number of sites is 2, not 3", "vhl deploy local 2")
    vhl("deploy", "local", "2", "partition=centralized").complains("is 1, not 2", "vhl deploy local 1")


@pytest.mark.parametrize(
    ("words", "text"),
    [(["data=folder:nowhere"], "nowhere"), (["partition=given"], "partition = given needs data")],
    ids=str,
)
def test_local_starts_nothing_where_the_data_are_missing(
    vhl: Any, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.setattr(local, "LocalDeployment", lambda *_, **__: pytest.fail("it was started"))
    vhl("deploy", "local", "2", *words).complains(text)


def test_logs_stay_where_something_went_wrong(vhl: Any, recorded: type[Recorded]) -> None:
    recorded.error = VHLError("It failed.")
    vhl("deploy", "local", "2").complains("It failed.")
    assert recorded.last.folder.is_dir()


def test_stopped(vhl: Any, recorded: type[Recorded]) -> None:
    recorded.error = KeyboardInterrupt()
    answer = vhl("deploy", "local", "2", "name=try")
    assert answer.code == 130 and answer.err.strip() == "vhl: stopped."
    assert not recorded.last.folder.exists()
    Path("runs/try").mkdir(parents=True)
    Path("runs/try/experiment.toml").touch()
    answer = vhl("deploy", "local", "2", "name=try", "--resume")
    assert answer.err.strip() == "vhl: stopped. The same command with --resume continues."
    vhl("deploy", "local", "2", "name=try").complains("runs/try", "--resume")


@pytest.mark.slow
def test_sites_that_are_stopped_and_continue_do_as_a_simulation(
    vhl: Any, tiny: tuple[str, ...], metrics: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """Real processes; SCAFFOLD, for there sites must have kept their control variates."""
    words = [
        *tiny,
        "partition.clients=2",
        "clients_per_round=1.0",
        "algorithm=scaffold",
        "rounds=3",
        "name=x",
    ]
    command = [sys.executable, "-m", "vhl", "deploy", "local", "2", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        assert any(re.match("round 1/3", line) for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    finally:
        process.kill()
    done = len(metrics(Path("runs/x")))
    assert 1 <= done < 3
    answer = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer
    assert f"round {done + 1}/3" in answer.stdout
    assert vhl("run", *words, "--runs-dir=simulated").code == 0
    for theirs, ours in zip(metrics(Path("runs/x")), metrics(Path("simulated/x")), strict=True):
        for key in ("round", "clients", "left_out", "samples", "accuracy", "drift"):
            assert theirs[key] == pytest.approx(ours[key], rel=1e-6), key
