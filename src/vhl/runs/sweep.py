"""Sweeps: one experiment, several values of some settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any


def grid(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the choices.

    >>> grid({"a": [1, 2], "b": ["x"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def name_of(settings: Mapping[str, Any]) -> str:
    """A folder name for one point of a sweep, the same whenever the sweep is started.

    >>> name_of({"algorithm.mu": 0.1, "data": "folder:a/b"})
    'algorithm.mu=0.1,data=folder_a_b'
    """
    text = ",".join(f"{key}={value}" for key, value in settings.items())
    return re.sub(r"[^\w.,=+-]", "_", text)[:150]
