from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from vhl.session.sweep import grid, name_of

values = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=200))
points = st.dictionaries(st.sampled_from(["training.lr", "algorithm", "data"]), values, min_size=1)


def test_a_grid_has_every_combination_in_order() -> None:
    found = grid({"a": [1, 2], "b": ["x", "y", "z"]})
    assert [(point["a"], point["b"]) for point in found] == [
        (1, "x"),
        (1, "y"),
        (1, "z"),
        (2, "x"),
        (2, "y"),
        (2, "z"),
    ]


def test_a_grid_without_choices_is_one_point() -> None:
    assert grid({}) == [{}]


@given(points)
def test_a_name_is_one_folder_that_every_system_takes(point: dict[str, object]) -> None:
    name = name_of(point)
    assert re.fullmatch(r"[\w.,=+-]+", name) and len(name) <= 150


def test_long_values_that_differ_at_their_end_get_names_of_their_own() -> None:
    names = {name_of({"data": f"folder:/{'long/' * 40}{site}"}) for site in ("one", "two", "three")}
    assert len(names) == 3
