"""An experiment: the small frozen description of everything that a run depends on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from vhl.algorithms.base import Algorithm
from vhl.config.component import Component, in_a_list
from vhl.config.layers import as_table, lay, name_in, read_toml, spell_out, without
from vhl.config.listing import available
from vhl.config.registry import explain, identify, part, suggest
from vhl.config.sections import Engine, Section, Seeds, Training
from vhl.data.partitions.base import Partition
from vhl.data.sources.base import Source
from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.objectives.base import Objective
from vhl.virtual.base import Generator

PARTS: dict[str, type[Component]] = {
    "data": Source,
    "partition": Partition,
    "virtual": Generator,
    "model": Model,
    "objective": Objective,
    "algorithm": Algorithm,
}
"""The components of an experiment and what each inherits from."""

Profile = Literal["paper", "release"]


class Experiment(Section):
    """Everything that decides what a run computes; equal experiments give equal runs."""

    release = {"sampling": "legacy"}

    name: str = Field(
        "",
        max_length=200,
        coerce_numbers_to_str=True,
        description="name of the run folder; unset is made from the parts",
    )
    profile: Profile = Field(
        "paper", description="choices the paper leaves open: as its text says, or as the authors' code does"
    )
    data: Annotated[SerializeAsAny[Source], part(Source, "data", "digits")] = Field(
        "digits", validate_default=True, description="natural data"
    )
    partition: Annotated[SerializeAsAny[Partition], part(Partition, "partition", "lda")] = Field(
        "lda", validate_default=True, description="how the data are dealt out to clients"
    )
    virtual: Annotated[SerializeAsAny[Generator], part(Generator, "virtual", "noise")] = Field(
        "noise", validate_default=True, description="virtual data, for objectives that use them"
    )
    model: Annotated[SerializeAsAny[Model], part(Model, "model", "cnn")] = Field(
        "cnn", validate_default=True, description="network"
    )
    objective: Annotated[SerializeAsAny[Objective], part(Objective, "objective", "vhl")] = Field(
        "vhl", validate_default=True, description="loss that clients minimise"
    )
    algorithm: Annotated[SerializeAsAny[Algorithm], part(Algorithm, "algorithm", "fedavg")] = Field(
        "fedavg", validate_default=True, description="federated algorithm"
    )
    training: Training = Field(Training(), description="local training")
    seeds: Seeds = Field(Seeds(), description="sources of chance")
    engine: Engine = Field(Engine(), description="how it is computed")
    rounds: int = Field(100, ge=1, description="communication rounds R")
    clients_per_round: int | float = Field(
        0.5, gt=0, description="clients that take part in a round: a number (5) or a share of all (0.5)"
    )
    sampling: Literal["uniform", "legacy"] = Field(
        "uniform", description="draw clients by seed and round, or as the authors' code: by round alone"
    )
    evaluate_every: int = Field(
        1, ge=1, description="rounds between evaluations; the last is always evaluated"
    )
    features_at: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="rounds whose features and client models are looked at"
    )
    keep_at: tuple[Annotated[int, Field(ge=1)], ...] = Field((), description="rounds whose model is kept")
    checkpoint_every: int | None = Field(
        None, ge=1, description="rounds between checkpoints; unset is as often as takes 3 % of the time"
    )
    device: str = Field("auto", description="auto, cpu or cuda")

    _lists = field_validator("features_at", "keep_at", mode="before")(in_a_list)

    @field_validator("name")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError("a run's folder lies inside the folder of runs, which --runs-dir says")
        return name

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Lay what is said over what the profile and the partition imply."""
        if not isinstance(given, dict):
            return given
        implied = _decided("release", given) if given.get("profile") == "release" else {}
        if name_in(given.get("partition")) == "centralized":
            # All data in one place is one long optimisation: its momentum must not restart every round.
            implied["training"] = {**implied.get("training", {}), "keep_momentum": True}
        return lay(implied, given)

    def __init__(self, **settings: Any) -> None:
        """What is wrong is told in a sentence, as on the command line."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _explain(error) from None

    @classmethod
    def read(cls, *layers: Path | str | Mapping[str, Any]) -> Experiment:
        """An experiment from TOML files and tables of settings; later ones win."""
        tables = [layer if isinstance(layer, Mapping) else read_toml(Path(layer)) for layer in layers]
        profile = next((table["profile"] for table in reversed(tables) if "profile" in table), None)
        merged: dict[str, Any] = {}
        for table in tables:
            # A complete file holds what its own profile decided: another profile decides that again.
            old = table.get("profile", profile)
            merged = merge(merged, table if old == profile else without(table, _decided(old, table)))
        return cls(**merged)

    def with_(self, **settings: Any) -> Experiment:
        """A copy with these settings laid over it, as on the command line."""
        return Experiment.read(self.table(), settings)

    def table(self) -> dict[str, Any]:
        """All settings as plain values; an unset one is left out."""
        table: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return table

    def toml(self) -> str:
        return tomli_w.dumps(self.table())


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over others; an object is whole, so it replaces what was there."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, BaseModel):
            merged[key] = as_table(value)
        elif key in PARTS:
            old = merged.get(key, Experiment.model_fields[key].default)
            merged[key] = lay(spell_out(PARTS[key], old), spell_out(PARTS[key], value))
        else:
            merged[key] = lay(merged.get(key), value)
    return merged


def _decided(profile: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile decides for the components of these settings, as a layer of its own."""

    def by(cls: type[Section] | type[Component]) -> dict[str, Any]:
        return {
            option: value if profile == "release" else cls.model_fields[option].default
            for option, value in cls.release.items()
        }

    layer = {**by(Experiment), "training": by(Training)}
    for key, base in PARTS.items():
        if name := name_in(lay(Experiment.model_fields[key].default, settings.get(key, {}))):
            layer[key] = by(identify(base, {"name": name})[0])
    return layer


def _explain(error: ValidationError) -> VHLError:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return VHLError(f"There is no setting {key!r}{suggest_key(key)}")
    return explain(error, "", Experiment)


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


def settings() -> dict[str, FieldInfo]:
    """Every setting that does not belong to one component, by its dotted key."""
    found: dict[str, FieldInfo] = {}
    for key, field in Experiment.model_fields.items():
        section = type(field.default)
        if issubclass(section, Section):
            found |= {f"{key}.{inner}": own for inner, own in section.model_fields.items()}
        else:
            found[key] = field
    return found


def options(base: type[Component]) -> dict[str, dict[str, FieldInfo]]:
    """The options of every component of a room, by the component's name."""
    return {name: options_of(entry.load()) for name, entry in available(base.room).items()}


def options_of(cls: type[Component]) -> dict[str, FieldInfo]:
    return {option: field for option, field in cls.model_fields.items() if option != "name"}


def suggest_key(word: str) -> str:
    """The end of an error message about a key that does not exist: the one that was probably meant."""
    keys = list(settings())
    for key, base in PARTS.items():
        keys += sorted({f"{key}.{option}" for fields in options(base).values() for option in fields})
    ends = [key for key in keys if key.split(".")[-1] == word.split(".")[-1]]
    return f"; did you mean {ends[0]!r}?" if ends else suggest(word, keys)
