"""An experiment as the command that runs it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from vhl.config.component import Component
from vhl.config.layers import parse_value
from vhl.experiment import PARTS, Experiment, dotted


def command_of(experiment: Experiment) -> str:
    """`vhl run` with the name of every part, and each setting that is not the default there.

    >>> command_of(Experiment(model={"name": "cnn", "width": 8})).removeprefix("vhl run ")
    'data=digits partition=lda virtual=noise model=cnn objective=vhl algorithm=fedavg model.width=8'
    """
    words: dict[str, str] = {"profile": experiment.profile} if experiment.profile != "paper" else {}
    parts: dict[str, Component] = {part: getattr(experiment, part) for part in PARTS}
    usual = dotted(Experiment(**words, **{part: _least(own) for part, own in parts.items()}))
    words |= {part: _named(own) for part, own in parts.items()}
    named = {"name", "profile", *(f"{part}.name" for part in PARTS)}
    required = {f"{part}.{option}" for part, own in parts.items() for option in _required(own)}
    for key, value in dotted(experiment).items():
        if key not in named and (key in required or value != usual.get(key)):
            words[key] = _written(value)
    return shlex.join(["vhl", "run", *(f"{key}={value}" for key, value in words.items())])


def _required(component: Component) -> list[str]:
    """Options that it must have, but for the one after a colon."""
    fields = type(component).model_fields
    return [name for name in fields if fields[name].is_required() and name != type(component).primary]


def _least(component: Component) -> dict[str, Any]:
    """What it cannot be made without."""
    table = component.model_dump(mode="json")
    return {"name": _named(component), **{name: table[name] for name in _required(component)}}


def _named(component: Component) -> str:
    """Its name, with the option after a colon that it must have."""
    primary = type(component).primary
    if primary is None or not type(component).model_fields[primary].is_required():
        return component.name
    value = getattr(component, primary)
    return f"{component.name}:{_named(value) if isinstance(value, Component) else value}"


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value if parse_value(value) == value else json.dumps(value)
    return "unset" if value is None else json.dumps(value)  # of numbers and lists the same as TOML
