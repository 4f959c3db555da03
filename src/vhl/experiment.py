"""An experiment: the small frozen description of everything that a run depends on."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from vhl.algorithms.base import Algorithm
from vhl.data.partitions.base import Partition
from vhl.data.sources.base import Source
from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.objectives.base import Objective
from vhl.registry import ROOMS, available, explain, identify, part
from vhl.virtual.base import Generator

PARTS = {
    "data": "sources",
    "partition": "partitions",
    "virtual": "generators",
    "model": "models",
    "objective": "objectives",
    "algorithm": "algorithms",
}
"""The components of an experiment and the rooms they come from."""

Profile = Literal["paper", "release"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    release: ClassVar[dict[str, Any]] = {}


class Training(_Section):
    """Local training: stochastic gradient descent at each client."""

    release = {"decay_per": "participation", "keep_momentum": True}

    epochs: int = Field(1, ge=1, description="E: passes over the client's data a round")
    batch_size: int = Field(128, ge=1, description="B_d: natural images in each batch")
    lr: float = Field(0.01, gt=0, description="learning rate η of the first round")
    lr_decay: float = Field(0.992, gt=0, le=1, description="factor on the learning rate")
    decay_per: Literal["round", "participation"] = Field(
        "round", description="apply it each round, or each time that client took part"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum m")
    keep_momentum: bool = Field(False, description="a client keeps its momentum between its rounds")
    weight_decay: float = Field(1e-4, ge=0, description="weight decay, on all parameters")


class Seeds(_Section):
    """One seed for each kind of chance; ``--seeds`` varies all but the data's."""

    data: int = Field(0, ge=0, description="partition, splits, virtual set: another one is another problem")
    model: int = Field(0, ge=0, description="initial weights")
    sampling: int = Field(0, ge=0, description="which clients take part in a round")
    batches: int = Field(0, ge=0, description="order of samples, crops, flips")


class Experiment(_Section):
    """Everything that decides what a run computes; equal experiments give equal runs."""

    release = {"sampling": "legacy"}

    name: str = Field("", max_length=200, description="name of the run folder; unset is made from the parts")
    profile: Profile = Field(
        "paper", description="choices the paper leaves open: as its text says, or as the authors' code does"
    )
    data: Annotated[SerializeAsAny[Source], part("sources", "data")] = Field(
        "digits", validate_default=True, description="natural data"
    )
    partition: Annotated[SerializeAsAny[Partition], part("partitions", "partition")] = Field(
        "lda", validate_default=True, description="how the data are dealt out to clients"
    )
    virtual: Annotated[SerializeAsAny[Generator], part("generators", "virtual")] = Field(
        "noise", validate_default=True, description="virtual data, for objectives that use them"
    )
    model: Annotated[SerializeAsAny[Model], part("models", "model")] = Field(
        "cnn", validate_default=True, description="network"
    )
    objective: Annotated[SerializeAsAny[Objective], part("objectives", "objective")] = Field(
        "vhl", validate_default=True, description="loss that clients minimise"
    )
    algorithm: Annotated[SerializeAsAny[Algorithm], part("algorithms", "algorithm")] = Field(
        "fedavg", validate_default=True, description="federated algorithm"
    )
    training: Training = Field(Training(), description="local training")
    seeds: Seeds = Field(Seeds(), description="sources of chance")
    rounds: int = Field(100, ge=1, description="communication rounds R")
    clients_per_round: int | float = Field(
        0.5, gt=0, description="clients that take part in a round: a number (5) or a share of all (0.5)"
    )
    sampling: Literal["uniform", "legacy"] = Field(
        "uniform", description="draw clients by seed and round, or as the authors' code: by round alone"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last is always evaluated")
    features_at: tuple[int, ...] = Field((), description="rounds whose features and client models are looked at")
    keep_at: tuple[int, ...] = Field((), description="rounds whose model is kept")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")
    device: str = Field("auto", description="auto, cpu or cuda")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Apply the profile, and what a partition implies, where nothing else is said."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        training = filled.get("training", {})
        if _named(filled.get("partition")) == "centralized" and isinstance(training, Mapping):
            # All data in one place is one long optimisation: its momentum must not restart every round.
            filled["training"] = {"keep_momentum": True, **training}
        return _apply_release(filled) if filled.get("profile") == "release" else filled

    @classmethod
    def read(cls, *layers: Path | Mapping[str, Any]) -> Experiment:
        """An experiment from TOML files and tables of settings; later ones win."""
        merged: dict[str, Any] = {}
        for layer in layers:
            merged = merge(merged, read_toml(layer) if isinstance(layer, Path) else layer)
        return cls.make(merged)

    @classmethod
    def make(cls, settings: Mapping[str, Any]) -> Experiment:
        """An experiment from one table of settings, with errors as sentences."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise _explain(error) from None

    def with_(self, **settings: Any) -> Experiment:
        """A copy with these settings laid over it, as on the command line."""
        return Experiment.make(merge(self.table(), settings))

    def table(self) -> dict[str, Any]:
        """All settings as plain values; an unset one is left out."""
        table: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return table

    def toml(self) -> str:
        return tomli_w.dumps(self.table())


def read_toml(file: Path) -> dict[str, Any]:
    """Read an experiment file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VHLError(f"{file} does not exist; `vhl init {file}` writes one to start from.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise VHLError(f"{file} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise VHLError(f"{file} is not valid TOML: {error}.") from None


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over others. Another component drops the options of the one it replaces; another profile
    drops what the old one decided."""
    merged = _forget_profile(base) if "profile" in over else dict(base)
    for key, value in over.items():
        old, new = merged.get(key), value
        if key in PARTS:
            old, new = _as_table(old), _as_table(value)
            if isinstance(old, dict) and isinstance(new, dict) and new.get("name", old.get("name")) != old.get("name"):
                old = None
        merged[key] = {**old, **new} if isinstance(old, Mapping) and isinstance(new, Mapping) else new
    return merged


def _as_table(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value


def _named(value: Any) -> str | None:
    table = _as_table(value)
    return table.get("name") if isinstance(table, Mapping) else None


def _profiled(settings: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each part or section that a profile reaches, with the values of profile ``release``."""
    yield "training", Training.release
    for key, room in PARTS.items():
        default = Experiment.model_fields[key].default
        table = _as_table(settings.get(key, default))
        if isinstance(table, Mapping) and isinstance(table.get("name", default), str):
            yield key, identify(room, {"name": table.get("name", default)})[0].release


def _apply_release(settings: dict[str, Any]) -> dict[str, Any]:
    filled = {**Experiment.release, **settings}
    for key, values in _profiled(settings):
        table = _as_table(filled.get(key, {} if key == "training" else Experiment.model_fields[key].default))
        if values and isinstance(table, Mapping):
            filled[key] = {**values, **table}
    return filled


def _forget_profile(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in settings.items() if key not in Experiment.release}
    for key, values in _profiled(settings):
        table = _as_table(kept.get(key))
        if isinstance(table, Mapping):
            kept[key] = {option: value for option, value in table.items() if option not in values}
    return kept


def _explain(error: ValidationError) -> VHLError:
    first = error.errors()[0]
    section = {"training": Training, "seeds": Seeds}.get(str(first["loc"][0])) if first["loc"] else None
    if first["type"] == "extra_forbidden" and (section is None or len(first["loc"]) == 1):
        return VHLError(f"There is no setting {first['loc'][-1]!r}{_suggest_key(str(first['loc'][-1]))}")
    if first["type"] == "extra_forbidden" and section is not None:
        return VHLError(
            f"There is no setting {'.'.join(map(str, first['loc']))!r}{_suggest_key('.'.join(map(str, first['loc'])))}"
        )
    return explain(error, "", Experiment)


def settings() -> dict[str, tuple[str, Any]]:
    """Every setting that does not belong to one component: dotted key, its help text and its default."""
    found = {}
    for key, field in Experiment.model_fields.items():
        if key in ("training", "seeds"):
            for inner, inner_field in (Training if key == "training" else Seeds).model_fields.items():
                found[f"{key}.{inner}"] = (inner_field.description or "", inner_field.default)
        else:
            found[key] = (field.description or "", field.default)
    return found


def options(key: str) -> dict[str, dict[str, tuple[str, Any]]]:
    """The options of every component that ``key`` can name: component, option, help text and default."""
    return {
        name: {
            option: (field.description or "", field.get_default(call_default_factory=True))
            for option, field in entry.load().model_fields.items()
            if option != "name"
        }
        for name, entry in available(PARTS[key]).items()
    }


def _suggest_key(word: str) -> str:
    from vhl.registry import suggest

    keys = list(settings())
    for key in PARTS:
        keys += sorted({f"{key}.{option}" for fields in options(key).values() for option in fields})
    ends = [key for key in keys if key.split(".")[-1] == word.split(".")[-1]]
    return f"; did you mean {ends[0]!r}?" if ends else suggest(word, keys)


assert set(PARTS.values()) <= set(ROOMS)
