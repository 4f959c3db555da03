"""An experiment's settings by their dotted keys, as a user writes them."""

from __future__ import annotations

from typing import Any

from vhl.experiment import Experiment


def dotted(experiment: Experiment, *, defaults: bool = True) -> dict[str, Any]:
    """Settings as ``{"training.lr": 0.01, ...}``; an unset one is ``None``. All, or without ``defaults``."""
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}{key}.", inner)
        else:
            found[prefix[:-1]] = value

    walk("", experiment.model_dump(mode="json", exclude_defaults=not defaults))
    return found
