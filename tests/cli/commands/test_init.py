from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vhl.cli.commands.init import template
from vhl.config.sections import Engine, Seeds, Training
from vhl.experiment import PARTS, Experiment

_SETTING = re.compile(r"# (\w+) = (.*)")


def uncomment(text: str) -> str:
    """Every setting that has a value, no longer commented out."""
    lines = []
    for line in text.splitlines():
        match = _SETTING.fullmatch(line)
        lines.append(line[2:] if match and match[2] != "..." else line)
    return "\n".join(lines)


def test_as_written_it_is_the_default_experiment(vhl: Any) -> None:
    answer = vhl("init")
    assert answer.code == 0 and "vhl run experiment.toml" in answer.out
    assert Experiment.read(Path("experiment.toml")) == Experiment()


def test_with_every_comment_taken_away_it_still_is(vhl: Any) -> None:
    vhl("init", "mine.toml")
    table = tomllib.loads(uncomment(Path("mine.toml").read_text(encoding="utf-8")))
    assert Experiment(**table) == Experiment()
    assert table["training"]["lr"] == 0.01 and table["objective"]["tap"] == "last"  # it is no empty table
    assert table["objective"]["distance"] == {"name": "supcon", "temperature": 0.07}


def test_it_has_every_setting_with_its_help_text() -> None:
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in template("x.toml").splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
            sections[section] = []
        sections[section].append(line)
    default = Experiment()
    models: dict[str, Any] = {part: type(getattr(default, part)) for part in PARTS}
    models |= {"training": Training, "seeds": Seeds, "engine": Engine, "": Experiment}
    for section, model in models.items():
        for name, field in model.model_fields.items():
            if name in models or (section in PARTS and name == "name"):
                continue
            place = [line.startswith(f"# {name} = ") for line in sections[section]].index(True)
            assert sections[section][place - 1] == f"# {field.description}"


def test_it_overwrites_nothing(vhl: Any) -> None:
    Path("experiment.toml").write_text("rounds = 3\n", encoding="utf-8")
    vhl("init").complains("experiment.toml", "exists")
    assert Path("experiment.toml").read_text(encoding="utf-8") == "rounds = 3\n"


@pytest.mark.parametrize("name", ["a b.toml", "[red].toml"])
def test_odd_file_names(vhl: Any, name: str) -> None:
    assert name in vhl("init", name).out
    assert Experiment.read(Path(name)) == Experiment()
