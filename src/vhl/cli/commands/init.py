"""`vhl init`: a commented experiment to start from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vhl.cli.arguments import Commands, add_command
from vhl.errors import VHLError

_INTRO = """\
# An experiment. Every line is optional: what is commented out is the default.
# Run it:  vhl run {file}        Change a setting on the way:  vhl run {file} rounds=20 algorithm=fedprox
"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "init", _init)
    parser.add_argument("file", nargs="?", type=Path, default=Path("experiment.toml"))


def _init(arguments: argparse.Namespace) -> None:
    """Write a commented experiment to start from."""
    from vhl.cli.display import say
    from vhl.files import write_bytes

    file = arguments.file
    if file.exists():
        raise VHLError(f"{file} exists already; name another file: vhl init FILE.toml.")
    write_bytes(file, template(str(file)).encode())
    say(f"{file}; run it with `vhl run {file}`.")


def template(file: str) -> str:
    """The default experiment as TOML, every setting commented out and explained."""
    from vhl.config.listing import available
    from vhl.experiment import PARTS, Experiment, options_of, settings

    default = Experiment()
    plain = {key: field for key, field in settings().items() if key not in PARTS}
    lines = [_INTRO.format(file=file)]
    for key, field in plain.items():
        if "." not in key:
            lines += _setting(key, field.description, field.default)
    for key, base in PARTS.items():
        part = getattr(default, key)
        lines += ["", f"# {Experiment.model_fields[key].description}: {', '.join(available(base.room))}"]
        lines += [f"[{key}]", f'# name = "{part.name}"']
        for option, field in options_of(type(part)).items():
            lines += _setting(option, field.description, getattr(part, option))
    for key, field in plain.items():
        section, _, option = key.partition(".")
        if option:
            lines += ["", f"[{section}]"] if f"[{section}]" not in lines else []
            lines += _setting(option, field.description, field.default)
    return "\n".join(lines) + "\n"


def _setting(key: str, description: str | None, default: Any) -> list[str]:
    return [f"# {description}", f"# {key} = {_inline(default)}"]


def _inline(value: Any) -> str:
    import tomli_w

    if value is None:
        return "..."
    if hasattr(value, "model_dump"):
        table = value.model_dump(mode="json", exclude_none=True)
        return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in table.items()) + "}"
    text = tomli_w.dumps({"v": list(value) if isinstance(value, tuple) else value})
    return " ".join(text.removeprefix("v = ").split())
