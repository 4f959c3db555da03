from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError

from vhl.algorithms.fedprox import FedProx
from vhl.config.component import Component
from vhl.data.sources.digits import Digits
from vhl.virtual.noise import Noise


class _Sample(Component):
    """A component with every kind of option that may be unset."""

    release: ClassVar = {"level": 2}

    level: int | None = Field(5, description="a number that can be unset, though it is not by default")
    other: int | None = Field(None, description="unset by default")
    word: str = Field("", description="never unset")


class _Holder(BaseModel):
    part: SerializeAsAny[Component]


def test_a_component_is_frozen_and_knows_its_options():
    with pytest.raises(ValidationError, match="frozen"):
        FedProx().mu = 3
    with pytest.raises(ValidationError, match="Extra inputs"):
        FedProx(nu=3)


def test_a_component_carries_the_name_it_is_found_by():
    assert FedProx().name == "fedprox"
    assert FedProx(name="something else").name == "fedprox"


def test_equal_options_make_equal_components():
    assert FedProx(mu=0.1) == FedProx()
    assert FedProx(mu=0.2) != FedProx()


def test_a_field_of_the_base_type_keeps_the_options():
    dumped = _Holder(part=FedProx(mu=0.7)).model_dump(mode="json")
    assert dumped == {"part": {"name": "fedprox", "weighting": "samples", "mu": 0.7}}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_numbers_are_finite(value):
    with pytest.raises(ValidationError, match="finite"):
        FedProx(mu=value)


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        ({}, {"level": 5, "word": ""}),
        ({"level": None}, {"level": "unset", "word": ""}),
        ({"level": 5, "other": 3}, {"level": 5, "other": 3, "word": ""}),
        ({"word": "unset"}, {"level": 5, "word": "unset"}),
    ],
)
def test_unset_is_a_word_where_it_is_not_the_default(given, saved):
    component = _Sample(**given)
    table = component.model_dump(mode="json", exclude_none=True)
    assert {key: value for key, value in table.items() if key != "name"} == saved
    assert _Sample(**table) == component


def test_built_in_options_can_be_unset_by_the_word():
    assert Digits(size="unset") == Digits(size=None) != Digits()
    assert Noise(mean="unset", std="unset").mean is None
