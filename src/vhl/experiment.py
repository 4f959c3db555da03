"""An experiment: the small frozen description of everything that a run depends on."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from vhl.algorithms.base import Algorithm
from vhl.config.component import Component, in_a_list
from vhl.config.listing import available
from vhl.config.registry import explain, identify, part, suggest
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


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
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
    lr_drops: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="rounds after each of which the learning rate falls to a tenth"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum m")
    keep_momentum: bool = Field(False, description="a client keeps its momentum between its rounds")
    weight_decay: float = Field(1e-4, ge=0, description="weight decay, on all parameters")
    freeze_batch_norm: int | None = Field(
        None,
        ge=0,
        description="rounds after which batch-norm statistics stay as they are; unset is never. Training "
        "may diverge then unless its learning rate drops",
    )

    _list = field_validator("lr_drops", mode="before")(in_a_list)

    def freezes(self, round_: int) -> bool:
        """Whether networks are trained with the server's batch-norm statistics in this round, counted from 0.

        After the first rounds, as FixBN does (Zhong et al., arXiv 2303.06530).
        """
        return self.freeze_batch_norm is not None and round_ >= self.freeze_batch_norm

    def not_reached(self, rounds: int) -> dict[str, int]:
        """Options that change training after a round, but not in so few rounds; with that round."""
        changes = {"freeze_batch_norm": self.freeze_batch_norm, "lr_drops": max(self.lr_drops, default=None)}
        return {name: after for name, after in changes.items() if after is not None and after >= rounds}


class Seeds(_Section):
    """One seed for each kind of chance; ``--seeds`` varies all but the data's."""

    data: int = Field(
        0, ge=0, lt=2**32, description="partition, splits, virtual set: another one is another problem"
    )
    model: int = Field(0, ge=0, lt=2**32, description="initial weights")
    sampling: int = Field(0, ge=0, lt=2**32, description="which clients take part in a round")
    batches: int = Field(0, ge=0, lt=2**32, description="order of samples, crops, flips")


Precision = Literal["fp64", "fp32", "tf32", "bf16"]


class Engine(_Section):
    """How a run is computed: its speed and memory, and of its numbers the rounding alone."""

    precision: Precision | None = Field(
        None, description="fp64, fp32, tf32 or bf16; unset is bf16 on a GPU that has it, fp32 elsewhere"
    )
    capture: bool | None = Field(
        None, description="replay whole training steps as CUDA graphs; unset does so on a GPU"
    )
    kernels: bool | None = Field(
        None, description="batch norm, input and optimiser as kernels of ours; unset does so on a GPU"
    )
    compile: bool | None = Field(
        None, description="PyTorch's compiler for the rest; unset does so for a network without our layers"
    )
    lanes: int | None = Field(
        None,
        ge=1,
        description="clients trained side by side; unset is 1, on a GPU up to 4 as memory allows",
    )
    deterministic: bool = Field(
        False, description="the same bits every time, whatever the number of lanes; slower on a GPU"
    )
    state_memory: float = Field(
        8.0,
        ge=0,
        description="GB of GPU memory for what clients keep between rounds; more lies on the host",
    )


class Experiment(_Section):
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
        """Apply the profile, and what a partition implies, where nothing else is said."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        training = _as_table(filled.get("training", {}))
        if _named(filled.get("partition")) == "centralized" and isinstance(training, Mapping):
            # All data in one place is one long optimisation: its momentum must not restart every round.
            filled["training"] = {"keep_momentum": True, **training}
        return _apply_release(filled) if filled.get("profile") == "release" else filled

    @classmethod
    def read(cls, *layers: Path | str | Mapping[str, Any]) -> Experiment:
        """An experiment from TOML files and tables of settings; later ones win."""
        merged: dict[str, Any] = {}
        for layer in layers:
            merged = merge(merged, layer if isinstance(layer, Mapping) else read_toml(Path(layer)))
        return cls(**merged)

    def __init__(self, **settings: Any) -> None:
        """What is wrong is told in a sentence, as on the command line."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _explain(error) from None

    def with_(self, **settings: Any) -> Experiment:
        """A copy with these settings laid over it, as on the command line."""
        return Experiment(**merge(self.table(), settings))

    def table(self) -> dict[str, Any]:
        """All settings as plain values; an unset one is left out."""
        table: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return table

    def toml(self) -> str:
        return tomli_w.dumps(self.table())


_SECTIONS: dict[str, type[_Section]] = {"training": Training, "seeds": Seeds, "engine": Engine}


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
    """Lay settings over others, table by table.

    Another component drops the options of the one it replaces, and so does an object, which is whole; another
    profile drops what the old one decided.
    """
    merged = _forget_profile(base) if "profile" in over else dict(base)
    for key, value in over.items():
        if isinstance(value, BaseModel):
            merged[key] = _as_table(value)
        elif key in PARTS:
            old = _spell_out(PARTS[key], merged.get(key, _default(key)))
            merged[key] = _lay(old, _spell_out(PARTS[key], value))
        else:
            merged[key] = _lay(merged.get(key), value)
    return merged


def _lay(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        old, new = _as_table(old), _as_table(new)
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    if "name" in new and "name" in old and new["name"] != old["name"]:
        return new
    return {**old, **{key: _lay(old.get(key), value) for key, value in new.items()}}


def _default(part: str) -> str:
    name: str = Experiment.model_fields[part].default
    return name


def _as_table(value: Any) -> Any:
    """A part or section as a table; of an object, what it was given: the rest is the profile's to decide."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, BaseModel):
        return value
    whole = value.model_dump(mode="json", exclude_none=True)
    return {key: own for key, own in whole.items() if key in value.model_fields_set | {"name"}}


def _spell_out(base: type[Component], value: Any) -> Any:
    """A component as a table; ``name:VALUE`` is the component ``name`` with an option set."""
    table = _as_table(value)
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str) or name.partition(":")[0] not in available(base.room):
        return table
    return {"name": name.partition(":")[0], **identify(base, table)[1]}


def _named(value: Any) -> str | None:
    table = _as_table(value)
    return table.get("name") if isinstance(table, Mapping) else None


def _profiled(settings: Mapping[str, Any]) -> Iterable[tuple[str, type[_Section] | type[Component]]]:
    """Each part or section that a profile reaches, with its class."""
    yield "training", Training
    for key, base in PARTS.items():
        table = _as_table(settings.get(key, _default(key)))
        name = table.get("name", _default(key)) if isinstance(table, Mapping) else None
        if isinstance(name, str):
            yield key, identify(base, {"name": name})[0]


def _apply_release(settings: dict[str, Any]) -> dict[str, Any]:
    filled = {**Experiment.release, **settings}
    for key, cls in _profiled(settings):
        table = _as_table(filled.get(key, {}))
        if cls.release and isinstance(table, Mapping):
            filled[key] = {**cls.release, **table}
    return filled


def _forget_profile(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the profile decided; where a value is not the profile's, someone chose it."""

    def chosen(table: Mapping[str, Any], cls: type[_Section] | type[Component]) -> dict[str, Any]:
        decided = cls.release
        if settings.get("profile") != "release":
            decided = {option: cls.model_fields[option].default for option in cls.release}
        return {option: value for option, value in table.items() if (option, value) not in decided.items()}

    kept = chosen(settings, Experiment)
    for key, cls in _profiled(settings):
        table = _as_table(kept.get(key))
        if isinstance(table, Mapping):
            kept[key] = chosen(table, cls)
    return kept


def _explain(error: ValidationError) -> VHLError:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return VHLError(f"There is no setting {key!r}{suggest_key(key)}")
    return explain(error, "", Experiment)


def settings() -> dict[str, tuple[str, Any]]:
    """Every setting that does not belong to one component: dotted key, its help text and its default."""
    found = {}
    for key, field in Experiment.model_fields.items():
        if key in _SECTIONS:
            for inner, inner_field in _SECTIONS[key].model_fields.items():
                found[f"{key}.{inner}"] = (inner_field.description or "", inner_field.default)
        else:
            found[key] = (field.description or "", field.default)
    return found


def options(base: type[Component]) -> dict[str, dict[str, tuple[str, Any]]]:
    """The options of every component of a room: component, option, help text and default."""
    return {name: options_of(entry.load()) for name, entry in available(base.room).items()}


def options_of(cls: type[Component]) -> dict[str, tuple[str, Any]]:
    """Option, help text and default."""
    fields = {option: field for option, field in cls.model_fields.items() if option != "name"}
    return {option: (field.description or "", _default_of(field)) for option, field in fields.items()}


def _default_of(field: FieldInfo) -> Any:
    return "must be set" if field.is_required() else field.get_default(call_default_factory=True)


def suggest_key(word: str) -> str:
    """The end of an error message about a key that does not exist: the one that was probably meant."""
    keys = list(settings())
    for key, base in PARTS.items():
        keys += sorted({f"{key}.{option}" for fields in options(base).values() for option in fields})
    ends = [key for key in keys if key.split(".")[-1] == word.split(".")[-1]]
    return f"; did you mean {ends[0]!r}?" if ends else suggest(word, keys)
