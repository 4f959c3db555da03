"""`vhl init`: a commented experiment to start from."""

from __future__ import annotations

import argparse
from typing import Any

import tomli_w

from vhl.cli.display import console
from vhl.config.listing import available
from vhl.config.registry import build
from vhl.errors import VHLError
from vhl.experiment import PARTS, Experiment, Seeds, Training
from vhl.files import write_bytes

_INTRO = """\
# An experiment. Every line is optional: what is commented out is the default.
# Run it:  vhl run {file}        Change a setting on the way:  vhl run {file} rounds=20 algorithm=fedprox
"""


def main(arguments: argparse.Namespace) -> None:
    if arguments.file.exists():
        raise VHLError(f"{arguments.file} exists already; name another file: vhl init FILE.toml.")
    write_bytes(arguments.file, template(str(arguments.file)).encode())
    console.print(f"{arguments.file}; run it with `vhl run {arguments.file}`.", markup=False, soft_wrap=True)


def template(file: str) -> str:
    """The default experiment as TOML, every setting commented out and explained."""
    lines = [_INTRO.format(file=file)]
    for key, field in Experiment.model_fields.items():
        if key not in PARTS and key not in ("training", "seeds"):
            lines += _setting(key, field.description, field.default)
    for key, base in PARTS.items():
        default = Experiment.model_fields[key].default
        lines += ["", f"# {Experiment.model_fields[key].description}: {', '.join(available(base.room))}"]
        lines += [f"[{key}]", f'# name = "{default}"']
        component = build(base, key, default)
        for option, field in type(component).model_fields.items():
            if option != "name":
                lines += _setting(option, field.description, getattr(component, option))
    for key, section in (("training", Training), ("seeds", Seeds)):
        lines += ["", f"[{key}]"]
        for option, field in section.model_fields.items():
            lines += _setting(option, field.description, field.default)
    return "\n".join(lines) + "\n"


def _setting(key: str, description: str | None, default: Any) -> list[str]:
    if hasattr(default, "model_dump"):
        default = default.model_dump(mode="json", exclude_none=True)
    if isinstance(default, dict):
        value = "{" + ", ".join(f"{k} = {_inline(v)}" for k, v in default.items()) + "}"
    else:
        value = _inline(default)
    return [f"# {description}", f"# {key} = {value}"]


def _inline(value: Any) -> str:
    if value is None:
        return "..."
    text = tomli_w.dumps({"v": list(value) if isinstance(value, tuple) else value})
    return " ".join(text.removeprefix("v = ").split())
