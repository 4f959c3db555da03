from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vhl
from vhl.cli import commands
from vhl.cli.main import build_parser

_LOADED = """
import sys
from vhl.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print("modules:", *sys.modules, file=sys.stderr)
sys.exit(code)
"""


def loaded(*words: object) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and every module that it loads."""
    program = [sys.executable, "-c", _LOADED, *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.rpartition("modules: ")[2].split())


@pytest.mark.parametrize(
    "words", [["--help"], *([command, "--help"] for command in ("run", "data", "paper"))]
)
def test_help_needs_nothing_heavy(words: list[str]) -> None:
    """PyTorch takes seconds to import, and help must answer at once."""
    text, modules = loaded(*words)
    assert text.startswith("usage: vhl")
    assert not {"torch", "numpy", "pydantic", "rich", "scipy", "sklearn", "PIL"} & modules


def test_every_command_is_listed_with_what_it_does(vhl_: Any) -> None:
    files = Path(commands.__path__[0]).glob("[!_]*.py")
    shown = dict(re.findall(r"^    (\w+)\s+(\w.*)$", vhl_("--help").out, re.MULTILINE))
    assert set(shown) == {file.stem for file in files}
    assert shown["compare"] == "compare runs: accuracy, cost to a target, drift, verdict"


def test_every_command_and_action_has_help() -> None:
    """A percent sign in a help text would be an error, but only when somebody asks for help."""
    found, parsers = [], [build_parser()]
    while parsers:
        parser = parsers.pop()
        found.append(parser.prog)
        assert parser.description and parser.format_help().startswith(f"usage: {parser.prog} ")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    assert {"vhl run", "vhl data get", "vhl paper figure", "vhl deploy keys site"} <= set(found)


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "vhl", "--version"], capture_output=True, text=True)
    assert done.stdout == f"vhl {vhl.__version__}\n"


@pytest.mark.parametrize("words", [["compare"], ["report", "-o", "page.html"]])
def test_looking_at_runs_loads_no_training(trained: Path, words: list[str]) -> None:
    _, modules = loaded(*words, trained)
    training = ("vhl.training", "vhl.rounds", "vhl.session", "vhl.deploy")
    assert not [module for module in modules if module.startswith(training)]


def test_version(vhl_: Any) -> None:
    assert vhl_("--version").out == f"vhl {vhl.__version__}\n"


@pytest.fixture
def vhl_(request: pytest.FixtureRequest) -> Any:
    """The fixture ``vhl``, where the package of that name is needed too."""
    return request.getfixturevalue("vhl")


# --- one sentence, exit code 2 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        # keys
        (["run", "rouns=3"], ["'rouns'", "'rounds'"]),
        (["run", "training.momentm=0.5"], ["training.momentm", "'training.momentum'"]),
        (["run", "lr=0.1"], ["'lr'", "'training.lr'"]),
        # components
        (["run", "algorithm=fedprx"], ["'fedprx'", "'fedprox'"]),
        (["run", "data=cifar-10"], ["'cifar-10'", "'cifar10'"]),
        # several values
        (["run", "seeds=0,1"], ["more than one value", "--seeds 0,1"]),
        (["run", "objective=plain,vhl"], ["more than one value", "`vhl sweep objective=plain,vhl`"]),
        (["run", "training.lr=0.1,0.2"], ["more than one value", "`vhl sweep training.lr=0.1,0.2`"]),
        (["run", "name=a,b", "rounds=0"], ["rounds = 0"]),
        # options
        (["run", "algorithm=fedprox", "algorithm.muh=1"], ["fedprox", "'muh'", "'mu'"]),
        # values
        (["run", "rounds=many"], ["rounds = 'many'"]),
        (["run", "device=tpu9"], ["tpu9", "cpu"]),
        (["run", "clients_per_round=99", "rounds=1"], ["99", "clients"]),
        # files
        (["run", "nothing.toml"], ["nothing.toml", "vhl init"]),
        (["run", "nothing"], ["'nothing'", "KEY=VALUE"]),
        (["run", "algorithm=nothing.py:Method"], ["nothing.py"]),
        (["run", "data=npz:nothing.npz"], ["nothing.npz"]),
        (["compare", "nothing"], ["nothing", "no run folder"]),
        (["predict", "nothing", "image.png"], ["nothing", "no run folder"]),
        (["export", "nothing"], ["nothing", "no run folder"]),
        (["partition", "partition=given"], ["given", "site"]),
        # help
        (["help", "rouns"], ["'rouns'", "'rounds'"]),
        (["help", "algorithm=fedprx"], ["'fedprx'", "'fedprox'"]),
        (["help", "algorithm.muh"], ["'muh'", "'mu'"]),
        # commands
        (["sweep", "rounds=1,2", "name=mine"], ["named after what differs", "--name"]),
        (["data", "check", "cifar11"], ["'cifar11'", "'cifar10'"]),
    ],
)
def test_a_mistake_is_one_sentence(vhl_: Any, tmp_path: Path, arguments: list[str], texts: list[str]) -> None:
    vhl_(*arguments).complains(*texts)
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "runs"])  # and nothing is left behind


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 3\nrounds = 4", "[training\n", "\x00", "rouns = 1"])
def test_a_bad_file_is_one_sentence(vhl_: Any, text: str) -> None:
    Path("bad.toml").write_text(text, encoding="utf-8")
    answer = vhl_("run", "bad.toml")
    answer.complains("'rounds'" if text == "rouns = 1" else "bad.toml")


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["rnu"], ["rnu", "run"]),
        (["run", "--resum", "--sede", "1"], ["--resum", "--sede"]),
        (["run", "--data", "folder:x"], ["unrecognized arguments: --data", "no dashes, as in data=digits"]),
        (["deploy", "local", "--site", "3"], ["--site"]),
        (["run", "--seeds", "0,x"], ["0,x", "0,1,2"]),
        (["run", "--seeds", "1,1"], ["1,1"]),
        (["compare", "a", "--target", "high"], ["high", "percent"]),
        (["compare", "a", "--target", "0"], ["--target", "percent"]),
        (["report", "a", "--target", "101"], ["--target", "percent"]),
        (["paper", "run", "cifar10", "--budget", "nan"], ["--budget", "nan", "minutes"]),
        (["virtual", "--samples", "0"], ["--samples", "0"]),
        (["compare", "a", "--target", "nan"], ["--target", "nan", "percent"]),
        (["compare", "a", "--last", "0"], ["--last", "percent"]),
        (["run", "--at-once", "0"], ["--at-once", "'0'"]),
        (["sweep", "rounds=1", "--at-once", "1.5"], ["--at-once", "'1.5'"]),
        (["paper", "run"], ["ROW"]),
        (["paper", "run", "cifar10", "--rounds", "0"], ["--rounds", "'0'"]),
        (["paper", "run", "cifar10", "--profile", "mine"], ["--profile", "mine"]),
        (["report"], ["RUN"]),
        (["data"], ["ACTION"]),
        (["compare", "a", "rounds=3", "--x"], ["--x"]),
        ([], ["COMMAND"]),
    ],
)
def test_a_mistake_in_the_grammar(vhl_: Any, arguments: list[str], texts: list[str]) -> None:
    answer = vhl_(*arguments)
    assert answer.code == 2 and answer.out == "" and answer.err.startswith("usage: vhl")
    for text in texts:
        assert text in answer.err.splitlines()[-1]


# --- being stopped -------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_run_that_can_be_resumed(
    vhl_: Any, tiny: tuple[str, ...], metrics: Callable[[Path], Any], ctrl_c: Any
) -> None:
    """In this process: it comes in the middle of round 2."""
    settings = [*tiny, "name=a b", "checkpoint_every=100"]  # a space, to see that the hint quotes it
    ctrl_c(2)
    answer = vhl_("run", *settings)
    assert answer.code == 130
    assert answer.err.strip() == "vhl: stopped. `vhl run 'runs/a b' --resume` continues."
    assert vhl_("run", "runs/a b", "--resume").out.startswith("a b: 1 round to go\nround 2/2")
    vhl_("run", *settings, "--runs-dir=straight")
    assert metrics(Path("runs/a b")) == metrics(Path("straight/a b"))


TWO_RUNS = """
import sys
from vhl.cli.main import main
for name in ("SIGINT", "SIGTERM"):
    print("code", main(["run", *sys.argv[1:], f"name={name}"]), flush=True)
"""


def test_signals_from_another_process(
    vhl_: Any, tiny: tuple[str, ...], metrics: Callable[[Path], Any]
) -> None:
    settings = [*tiny, "checkpoint_every=1000", "rounds=1000"]
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_RUNS, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            lines = iter(process.stdout.readline, "")
            # What the last run was printing when it was stopped may be printed once more.
            assert any(line == f"{number.name}: 1000 rounds to go\n" for line in lines)
            assert any(line.startswith("round 2/") for line in lines)
            process.send_signal(number)
            assert next(line for line in lines if line.startswith("code")) == "code 130\n"
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert [line for line in err.splitlines() if line] == [
        "vhl: stopped. `vhl run runs/SIGINT --resume` continues.",
        "vhl: stopped. `vhl run runs/SIGTERM --resume` continues.",
    ]
    for name in ("SIGINT", "SIGTERM"):
        folder = Path("runs") / name
        done = json.loads((folder / "state" / "manifest.json").read_text(encoding="utf-8"))["round"]
        assert done >= len(metrics(folder)) - 1  # the signal may come between a record and its state
        answer = vhl_("run", folder, f"rounds={done + 2}", "--resume")
        assert answer.out.startswith(f"{name}: 2 rounds to go\nround {done + 1}/{done + 2}")
        vhl_("run", *settings, f"rounds={done + 2}", f"name={name}", "--runs-dir=straight")
        assert metrics(folder) == metrics(Path("straight") / name)


def test_a_reader_that_went_away_is_no_error(vhl_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vhl help | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        from vhl.cli.main import main

        assert main(["help"]) == 0


# --- where settings may stand --------------------------------------------------------------------------


def test_settings_stand_before_and_after_options(vhl_: Any, tiny: tuple[str, ...]) -> None:
    first, *others = tiny
    answer = vhl_("run", first, "--runs-dir", "here", *others, "--seeds", "4", "name=x", "rounds=1")
    assert answer.code == 0, answer
    assert [folder.name for folder in Path("here").iterdir()] == ["x-seed4"]
