"""Settings from the command line: EXPERIMENT.toml, a run folder, and KEY=VALUE."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vhl.errors import VHLError
from vhl.experiment import Experiment


def parse_value(text: str) -> Any:
    """A TOML value where the text is one, else the text itself.

    >>> [parse_value(text) for text in ("3", "0.5", "true", "[1, 2]", "fedprox", "folder:my images")]
    [3, 0.5, True, [1, 2], 'fedprox', 'folder:my images']
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def nest(key: str, value: Any) -> dict[str, Any]:
    """``a.b.c`` and a value as nested tables.

    >>> nest("algorithm.mu", 0.1)
    {'algorithm': {'mu': 0.1}}
    """
    head, _, rest = key.partition(".")
    return {head: nest(rest, value) if rest else value}


def split(arguments: Sequence[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """Files first, then KEY=VALUE pairs."""
    files, pairs = [], []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and not Path(argument).exists():
            pairs.append((key.strip(), value.strip()))
        elif argument.endswith(".toml") or Path(argument).exists():
            files.append(_experiment_file(Path(argument)))
        else:
            raise VHLError(
                f"{argument!r} is neither a file nor KEY=VALUE; try rounds=50, or `vhl help` for the keys."
            )
    return files, pairs


def _experiment_file(path: Path) -> Path:
    return path / "experiment.toml" if path.is_dir() else path


def read(arguments: Sequence[str]) -> Experiment:
    """The experiment that files and settings describe; later ones win."""
    files, pairs = split(arguments)
    return Experiment.read(*files, *[nest(key, parse_value(value)) for key, value in pairs])
