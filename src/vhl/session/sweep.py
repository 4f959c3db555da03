"""Sweeps: one experiment, several values of some settings."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST = 150  # letters of a folder name


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
    name = re.sub(r"[^\w.,=+-]", "_", text)
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # cut, yet not confused
