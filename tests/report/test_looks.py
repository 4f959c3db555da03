"""Colours measured: contrast by WCAG 2.2, differences in OKLab as people with two kinds of cones see them."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest
from numpy.typing import NDArray

from vhl.report.looks import DARK, LIGHT, STROKES, Look, look

Values = NDArray[np.float64]
SEEN = {
    "all colours": np.eye(3),
    "no red": np.array(  # protanopia
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(  # deuteranopia
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""Machado, Oliveira and Fernandes, 2009, for linear RGB."""


def linear(colour: str) -> Values:
    values = np.array(list(bytes.fromhex(colour[1:]))) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Values) -> Values:
    """Ottosson, 2020."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponents = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return opponents @ np.cbrt(cones @ np.clip(rgb, 0, 1))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def of_page(theme: str, name: str) -> str:
    css = resources.files("vhl.report").joinpath("static", "report.css").read_text(encoding="utf-8")
    start = ":root {" if theme == "light" else ':root[data-theme="dark"] {'
    found = re.search(rf"--{name}: (#\w{{6}})", css[css.index(start) :])
    assert found
    return found[1]


@pytest.mark.parametrize(("theme", "shades"), [("light", LIGHT), ("dark", DARK)])
def test_curves_stand_out_from_the_page(theme: str, shades: tuple[str, ...]) -> None:
    assert min(contrast(shade, of_page(theme, "card")) for shade in shades) >= 3
    assert contrast(of_page(theme, "soft"), of_page(theme, "card")) >= 4.5  # letters, of what is hidden too


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("shades", [LIGHT, DARK])
def test_curves_differ(eyes: str, shades: tuple[str, ...]) -> None:
    places = np.array([oklab(SEEN[eyes] @ linear(shade)) for shade in shades])
    apart = np.linalg.norm(places[:, None] - places, axis=-1)[np.triu_indices(len(shades), 1)]
    assert len(apart) == 45 and apart.min() >= 0.08


def test_as_many_looks_as_methods_in_a_figure() -> None:
    looks = [look(number, plain) for plain in (True, False) for number in range(3 * len(LIGHT))]
    assert len({(own.colour, tuple(own.strokes)) for own in looks}) == len(looks)
    assert all(len(own.strokes) % 2 == 0 for own in looks)
    assert looks[len(LIGHT)] == Look(0, STROKES[1][1], 1) and look(3 * len(LIGHT)) == look(0)
