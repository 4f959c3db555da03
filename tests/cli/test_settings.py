from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vhl.cli import settings
from vhl.config.layers import parse_value
from vhl.config.listing import available
from vhl.config.sections import Engine, Seeds, Training
from vhl.errors import VHLError
from vhl.experiment import PARTS, Experiment

REQUIRED = {"folder": "folder:pictures", "npz": "npz:file.npz", "dataset": "dataset:digits"}
"""How to name a component that cannot do without one of its options."""

BY_NAME: dict[str, Any] = {
    "profile": "release",
    "device": "cpu",
    "tap": "stage2",
    "start": "model.safetensors",
    "path": "elsewhere",
    "source": {"name": "digits", "size": 8},
    "images": {"name": "noise", "grid": 4},
    "pretrain": {"epochs": 3},
    "distance": {"name": "supcon", "temperature": 0.5},
    "name": "my-run",
}
"""Values of options whose type does not tell what they may be."""


def another_value(name: str, field: FieldInfo) -> Any:
    """A valid value that is not the default."""
    if name in BY_NAME:
        return BY_NAME[name]
    kinds = [field.annotation]
    if get_origin(field.annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != field.default)
    if get_origin(kind) is tuple:
        return [0.75] if get_args(kind)[0] is float else [2, 3]
    if kind is bool:
        return not field.default
    return 5 if kind is int and field.default != 5 else 0.375 if kind is float else 6


def sections() -> Iterator[tuple[str, str, FieldInfo]]:
    """Dotted key, name and field of each setting that belongs to no component."""
    for name, field in Experiment.model_fields.items():
        if name in ("training", "seeds", "engine"):
            model: type[BaseModel] = {"training": Training, "seeds": Seeds, "engine": Engine}[name]
            for inner, inner_field in model.model_fields.items():
                yield f"{name}.{inner}", inner, inner_field
        elif name not in PARTS:
            yield name, name, field


def components() -> Iterator[tuple[str, str, str, FieldInfo]]:
    """Part, component, option and field of each option of each component."""
    for part, base in PARTS.items():
        for component, entry in available(base.room).items():
            for option, field in entry.load().model_fields.items():
                if option != "name":
                    yield part, component, option, field


def as_words(key: str, value: Any) -> list[str]:
    """KEY=VALUE words as a user types them; a table becomes several."""
    if isinstance(value, dict):
        return [word for inner, v in value.items() for word in as_words(f"{key}.{inner}", v)]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [f"{key}={text}"]


def look_up(experiment: Experiment, key: str) -> Any:
    found: Any = experiment
    for step in key.split("."):
        found = getattr(found, step)
    return found


@pytest.mark.parametrize(("key", "name", "field"), [pytest.param(*s, id=s[0]) for s in sections()])
def test_every_setting_from_both_sides(tmp_path: Path, key: str, name: str, field: FieldInfo) -> None:
    value = another_value(name, field)
    (tmp_path / "file.toml").write_text(tomli_w.dumps(settings.nest(key, value)), encoding="utf-8")
    typed, written = settings.read([f"{key}={value}".lower()]), settings.read([str(tmp_path / "file.toml")])
    assert typed == written
    expected = tuple(value) if isinstance(value, list) else value
    assert look_up(typed, key) == expected != field.default


@pytest.mark.parametrize(
    ("part", "component", "option", "field"),
    [pytest.param(*c, id=f"{c[0]}={c[1]}.{c[2]}") for c in components()],
)
def test_every_option_from_both_sides(
    tmp_path: Path, part: str, component: str, option: str, field: FieldInfo
) -> None:
    value, needed = another_value(option, field), REQUIRED.get(component, component)
    table = {"name": needed, option: value}
    (tmp_path / "file.toml").write_text(tomli_w.dumps({part: table}), encoding="utf-8")
    words = as_words(f"{part}.{option}", value)
    if option in ("source", "images"):  # a table must be named before its options are set
        inner = ", ".join(f"{key}={json.dumps(inner)}" for key, inner in value.items())
        words = [f"{part}.{option}={{{inner}}}"]
    typed, written = settings.read([f"{part}={needed}", *words]), settings.read([str(tmp_path / "file.toml")])
    assert typed == written
    found = getattr(look_up(typed, part), option)
    if isinstance(value, dict):
        assert all(getattr(found, key) == inner for key, inner in value.items())
    else:
        assert found == (tuple(value) if isinstance(value, list) else value) != field.default


def test_later_words_win_over_files_and_earlier_words(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("rounds = 1\n[training]\nlr = 0.1\nmomentum = 0.1\n", encoding="utf-8")
    (tmp_path / "b.toml").write_text("rounds = 2\n[training]\nlr = 0.2\n", encoding="utf-8")
    words = ["training.lr=0.3", str(tmp_path / "a.toml"), str(tmp_path / "b.toml"), "training.lr=0.4"]
    experiment = settings.read(words)
    assert (experiment.rounds, experiment.training.lr, experiment.training.momentum) == (2, 0.4, 0.1)


def test_a_run_folder_stands_for_its_experiment_under_its_present_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "renamed=now"
    folder.mkdir()
    (folder / "experiment.toml").write_text('name = "once"\nrounds = 7\n', encoding="utf-8")
    assert settings.run_folder(["rounds=3", str(folder)]) == folder
    monkeypatch.chdir(folder)
    for word in (str(folder), "../renamed=now", "."):
        experiment = settings.read([word])
        assert (experiment.name, experiment.rounds) == ("renamed=now", 7)
    assert settings.run_folder(["."]) == folder.resolve()
    assert settings.run_folder(["rounds=3", str(tmp_path)]) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 0.001),
        ("true", True),
        ("True", "True"),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("fedprox", "fedprox"),
        ("folder:C:/my images", "folder:C:/my images"),
        ("2022-07-17", "2022-07-17"),
        ("12:30:00", "12:30:00"),
        ("2022-07-17T12:30:00", "2022-07-17T12:30:00"),
        ("3\nrounds = 4", "3\nrounds = 4"),
        ("", ""),
    ],
)
def test_a_value_is_toml_or_text(text: str, value: Any) -> None:
    found = parse_value(text)
    assert found == value and type(found) is type(value)


def test_a_name_that_looks_like_a_date() -> None:
    assert settings.read(["name=2022-07-17"]).name == "2022-07-17"


def test_a_word_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(VHLError, match="KEY=VALUE"):
        settings.read([str(tmp_path / "nothing")])


def test_a_profile_gives_way_to_what_is_set_beside_it_in_any_order() -> None:
    for words in (["profile=release", "algorithm.mu=0.3"], ["algorithm.mu=0.3", "profile=release"]):
        experiment = settings.read(["algorithm=fedprox", *words])
        assert experiment.table()["algorithm"]["mu"] == 0.3
        assert experiment.training.keep_momentum


def test_a_setting_may_be_longer_than_any_file_name() -> None:
    rounds = list(range(1, 200))
    argument = f"keep_at={rounds}"
    assert settings.read([argument]).keep_at == tuple(rounds)
    assert settings.run_folder([argument]) is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2, 3", ["1", "2", "3"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("[[1,2],[3,4]],5", ["[[1,2],[3,4]]", "5"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a,[b',c", ["'a,[b'", "c"]),
        ("", [""]),
    ],
)
def test_commas_outside_brackets_and_quotes_separate(text: str, values: list[str]) -> None:
    assert settings.split_values(text) == values
