"""Settings from the command line: EXPERIMENT.toml, a run folder, and KEY=VALUE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vhl.config.layers import nest, parse_value, read_toml
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import exists
from vhl.runs.folder import RunFolder


def split_values(text: str) -> list[str]:
    """Split at commas that stand outside brackets, braces and quotes.

    >>> split_values('fedavg,{name="fedprox", mu=0.1},[1,2]')
    ['fedavg', '{name="fedprox", mu=0.1}', '[1,2]']
    """
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{") - (character in "]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def split(arguments: Sequence[str]) -> tuple[list[Mapping[str, Any]], list[tuple[str, str]]]:
    """The settings in files first, a layer each; then KEY=VALUE pairs."""
    files: list[Mapping[str, Any]] = []
    pairs = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        there = exists(argument)
        if equals and not there:
            pairs.append((key.strip(), value.strip()))
        elif argument.endswith(".toml") or there:
            files.append(_read(Path(argument)))
        else:
            raise VHLError(
                f"{argument!r} is neither a file or run folder that exists nor KEY=VALUE; try rounds=50, or "
                "`vhl help` for the keys."
            )
    return files, pairs


def _read(path: Path) -> dict[str, Any]:
    """A file's settings, or a run folder's: its name is what the folder is called now."""
    if not path.is_dir():
        return read_toml(path)
    RunFolder(path).remember_files()
    return {**read_toml(path / "experiment.toml"), "name": _named(path).name}


def _named(path: Path) -> Path:
    """The path with the folder's own name at its end, where it was given as ``.`` or ``..``."""
    return path.resolve() if path.name in ("", "..") else path


def run_folder(arguments: Sequence[str]) -> Path | None:
    """The last run folder among the arguments."""
    found = [argument for argument in arguments if exists(argument) and RunFolder(argument).exists]
    return _named(Path(found[-1])) if found else None


def sets(key: str, arguments: Sequence[str]) -> bool:
    """Whether files or settings say something of a part, a section or a setting."""
    files, pairs = split(arguments)
    return any(key in layer for layer in (*files, *(nest(word, value) for word, value in pairs)))


def read(arguments: Sequence[str], usual: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment that files and settings describe; later ones win, all over the usual ones."""
    files, pairs = split(arguments)
    try:
        return Experiment.read(usual or {}, *files, *[nest(key, parse_value(value)) for key, value in pairs])
    except VHLError as error:
        for key, value in pairs:
            if "," in value and repr(value) in str(error):
                how = f"--seeds {value}" if key == "seeds" else f"`vhl sweep {key}={value}`"
                raise VHLError(f"{key}={value} is more than one value; {how} runs each of them.") from None
        raise
