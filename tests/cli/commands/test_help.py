from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vhl.config.listing import available
from vhl.experiment import PARTS, options, settings


def words(text: str) -> str:
    return " ".join(text.split())


def test_everything_at_a_glance(vhl: Any) -> None:
    out = words(vhl("help").out)
    for key, field in settings().items():
        assert key in out and (field.description or "?") in out
    for base in PARTS.values():
        for name, entry in available(base.room).items():
            assert f"{name} {words(entry.summary)}" in out


@pytest.mark.parametrize("key", [key for key in settings() if key not in PARTS])
def test_every_setting_has_help(vhl: Any, key: str) -> None:
    field = settings()[key]
    answer = vhl("help", key)
    assert answer.code == 0
    shown = "unset" if field.default is None else field.default
    assert words(f"{key} {shown} {field.description}") in words(answer.out)


@pytest.mark.parametrize("part", list(PARTS))
def test_every_option_of_every_component_has_help(vhl: Any, part: str) -> None:
    for component, fields in options(PARTS[part]).items():
        alone = words(vhl("help", f"{part}={component}").out)
        assert alone.startswith(f"{part}={component} ")
        for option, field in fields.items():
            description = words(field.description or "?")
            assert f"{part}.{option} " in alone and description in alone
            by_option = words(vhl("help", f"{part}.{option}").out)
            assert f"{part}={component}" in by_option and description in by_option


def test_a_part_shows_all_its_components(vhl: Any) -> None:
    out = vhl("help", "algorithm").out
    for name in available("algorithms"):
        assert f"algorithm={name} " in out


def test_a_section_and_a_last_word(vhl: Any) -> None:
    out = vhl("help", "seeds").out
    assert "seeds.data" in out and "seeds.batches" in out and "training.lr" not in out
    assert "training.lr " in vhl("help", "lr").out
    out = vhl("help", "mu").out
    assert "algorithm=fedprox" in out and "algorithm.mu" in out


def test_an_option_without_a_default_must_be_set(vhl: Any) -> None:
    out = words(vhl("help", "data=folder").out)
    assert "data.path must be set" in out and "data.mean unset" in out and "Undefined" not in out


def test_distances_are_a_part_inside_a_part(vhl: Any) -> None:
    everything, inside = words(vhl("help").out), words(vhl("help", "objective.distance").out)
    for name, entry in available("distances").items():
        assert f"{name} {words(entry.summary)}" in everything
        assert f"objective.distance={name} {words(entry.summary)}" in inside
    assert "objective.distance.temperature 0.07" in words(vhl("help", "objective.distance=supcon").out)
    assert "objective.distance.temperature 0.07" in words(vhl("help", "objective.distance.temperature").out)
    assert "objective.distance has no option 'temprature'" in vhl("help", "objective.distance.temprature").err


def test_a_part_of_ones_own(vhl: Any) -> None:
    source = (
        "from pydantic import Field\nfrom vhl.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n"
        '    """Mine."""\n\n    bound: float = Field(gt=0, description="largest step")\n'
    )
    Path("helped.py").write_text(source)
    out = words(vhl("help", "algorithm=helped.py:Mine").out)
    assert "algorithm=helped.py:Mine Mine." in out and "algorithm.bound must be set largest step" in out


def test_one_component_is_explained_with_its_formula(vhl: Any) -> None:
    out = words(vhl("help", "objective=vhl").out)
    assert "λ_v · SupCon(virtual), where natural class c" in out
    assert "`test_images` and `test_labels`" in vhl("help", "data=npz").out
    assert "SupCon(virtual)" not in vhl("help", "objective").out
