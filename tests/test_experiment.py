from __future__ import annotations

import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import annotated_types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vhl.algorithms.base import Algorithm
from vhl.algorithms.fedprox import FedProx
from vhl.config.component import Component
from vhl.config.layers import nest, read_toml
from vhl.config.listing import available
from vhl.config.registry import find
from vhl.config.sections import Engine, Seeds, Training
from vhl.data.partitions.base import Partition
from vhl.data.sources.base import Source
from vhl.errors import VHLError
from vhl.experiment import PARTS, Experiment, dotted, merge, options, options_of, suggest_key
from vhl.experiment import settings as all_settings
from vhl.objectives.distances.base import Distance
from vhl.objectives.vhl import VHL
from vhl.virtual.base import Generator

# --- any valid experiment --------------------------------------------------------------------------------


def _numbers(kind: type, bounds: dict[type, Any]) -> st.SearchStrategy[Any]:
    low = bounds.get(annotated_types.Ge, bounds.get(annotated_types.Gt, -1000))
    high = bounds.get(annotated_types.Le, bounds.get(annotated_types.Lt, 1000))
    if kind is int:
        return st.integers(int(low) + (annotated_types.Gt in bounds), int(min(high, 10**6)))
    return st.floats(
        low, high, exclude_min=annotated_types.Gt in bounds, exclude_max=annotated_types.Lt in bounds
    )


def _values(key: str, field: FieldInfo) -> st.SearchStrategy[Any]:
    """What an option may be, from its type and bounds."""
    bounds = {type(m): getattr(m, type(m).__name__.lower(), None) for m in field.metadata}

    def of(kind: Any) -> st.SearchStrategy[Any]:
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            return st.one_of(*map(of, typing.get_args(kind)))
        if typing.get_origin(kind) is typing.Literal:
            return st.sampled_from(typing.get_args(kind))
        if typing.get_origin(kind) is typing.Annotated:  # an element with bounds of its own
            return _values(key, FieldInfo.from_annotation(kind))
        if typing.get_origin(kind) is tuple:
            inner = st.floats(0.01, 10) if key == "std" else of(typing.get_args(kind)[0])
            return st.lists(inner, max_size=4).map(tuple)
        if kind is str:
            letters = st.characters(exclude_characters="/" if key == "name" else "")  # a folder's name
            return st.text(letters, min_size=1, max_size=20).filter(lambda text: text not in ("unset", ".."))
        if kind in (int, float):
            return _numbers(kind, bounds)
        if kind in (Source, Distance, Generator):
            return _component(kind)
        return _fields(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else st.from_type(kind)

    return of(field.annotation)


def _fields(cls: type[BaseModel], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    strategies = {key: _values(key, field) for key, field in cls.model_fields.items() if key != "name"}
    required = {key: strategies.pop(key) for key, field in cls.model_fields.items() if field.is_required()}
    return st.fixed_dictionaries({**required, **fixed}, optional=strategies)


def _component(base: type[Component]) -> st.SearchStrategy[dict[str, Any]]:
    return st.deferred(
        lambda: st.one_of(*[_fields(find(base, name), name=st.just(name)) for name in available(base.room)])
    )


def _experiments() -> st.SearchStrategy[dict[str, Any]]:
    fields = Experiment.model_fields
    plain = {key: _values(key, fields[key]) for key in fields if key not in PARTS}
    parts = {key: _component(base) for key, base in PARTS.items()}
    return st.fixed_dictionaries({}, optional=plain | parts).filter(_is_allowed)


def _is_allowed(given_settings: dict[str, Any]) -> bool:
    """λ_v is SupCon's: with another distance it has to be 0, whatever the profile says."""
    objective = given_settings.get("objective", {})
    other = objective.get("distance", {"name": "supcon"})["name"] != "supcon"
    usual = 0.1 if given_settings.get("profile") == "release" else 0.0
    is_vhl = objective.get("name") in ("vhl", "vhl-light")
    return not (is_vhl and other and objective.get("virtual_calibration", usual))


_ANY = _experiments()


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(given_settings=_ANY)
def test_every_experiment_is_read_again_as_it_was_written(given_settings):
    experiment = Experiment(**given_settings)
    again = Experiment(**tomllib.loads(experiment.toml()))
    assert again == experiment
    assert again.toml() == experiment.toml()
    assert experiment.with_() == experiment
    assert Experiment.read({}, experiment.table(), {}) == experiment


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(given_settings=_ANY)
def test_what_is_set_is_what_the_experiment_says(given_settings):
    experiment = Experiment(**given_settings)
    for key, value in given_settings.items():
        if key not in (*PARTS, "training", "seeds", "engine"):
            assert getattr(experiment, key) == value
    for key in ("partition", "algorithm", "model", "training", "seeds"):
        for option, value in given_settings.get(key, {}).items():
            assert _says(getattr(getattr(experiment, key), option), value)


def _says(found: Any, value: Any) -> bool:
    """A component says what its table does, as far as that goes."""
    if isinstance(value, dict):
        return all(_says(getattr(found, key), own) for key, own in value.items())
    return bool(found == value)


# --- defaults and profiles -------------------------------------------------------------------------------

_ROWS: list[tuple[dict[str, Any], str, Any, Any]] = [
    ({}, "training.decay_per", "round", "participation"),
    ({}, "training.keep_momentum", False, True),
    ({"objective": "vhl"}, "objective.virtual_calibration", 0.0, 0.1),
    ({"algorithm": "fedprox"}, "algorithm.mu", 0.1, 1.0),
    ({"algorithm": "scaffold"}, "algorithm.server_step", "participation", "full"),
    ({"virtual": "stylegan"}, "virtual.noise_strength", 0.1, 0.0),
    ({"virtual": "stylegan"}, "virtual.standardise", True, False),  # the authors save the raw output
    ({}, "sampling", "uniform", "legacy"),
]
"""What profiles decide: with which settings, the option, its value in ``paper`` and in ``release``."""


@pytest.mark.parametrize(("base", "key", "paper", "release"), _ROWS)
def test_profiles_choose_as_the_text_or_as_the_code(base, key, paper, release):
    assert dotted(Experiment(**base))[key] == paper
    assert dotted(Experiment(profile="paper", **base))[key] == paper
    assert dotted(Experiment(profile="release", **base))[key] == release


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "fednova"])
@pytest.mark.parametrize("objective", ["vhl", "naive", "plain"])
@pytest.mark.parametrize("virtual", ["stylegan", "noise"])
def test_profiles_decide_nothing_else(algorithm, objective, virtual):
    parts = {"algorithm": algorithm, "objective": objective, "virtual": virtual}
    paper, release = (dotted(Experiment(profile=p, **parts)) for p in ("paper", "release"))
    differences = {key for key in paper if paper[key] != release[key]} - {"profile"}
    assert paper.keys() == release.keys()
    assert differences == {key for base, key, *_ in _ROWS if base.items() <= parts.items()}


@pytest.mark.parametrize(("base", "key", "paper", "release"), _ROWS)
def test_what_is_said_wins_over_the_profile(base, key, paper, release):
    explicit = merge(base, nest(key, paper))
    assert dotted(Experiment(**{**explicit, "profile": "release"}))[key] == paper
    for layers in ([{"profile": "release"}, explicit], [explicit, {"profile": "release"}]):
        assert dotted(Experiment.read(*layers))[key] == paper


@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold"])
def test_switching_the_profile_of_a_saved_experiment_decides_again(algorithm):
    settings = {
        "algorithm": {"name": algorithm, "weighting": "uniform"},
        "virtual": {"name": "stylegan", "width": 8},
        "objective": {"name": "vhl", "calibration": 0.5},
        "training": {"lr": 0.3, "epochs": 5},
        "rounds": 7,
    }
    paper, release = (Experiment(**settings, profile=profile) for profile in ("paper", "release"))
    assert Experiment(**tomllib.loads(paper.toml())).with_(profile="release") == release
    assert Experiment(**tomllib.loads(release.toml())).with_(profile="paper") == paper
    assert paper.with_(profile="paper") == paper and release.with_(profile="release") == release
    assert Experiment.read(paper.table(), {"profile": "release", "training": {"keep_momentum": False}}) == (
        release.with_(training={"keep_momentum": False})
    )


def test_what_a_file_says_without_a_profile_wins_over_one_that_is_named_later():
    """Only what a complete file's own profile decided is decided again."""
    said = {"training": {"keep_momentum": False}}
    assert not Experiment.read(said, {"profile": "release"}).training.keep_momentum
    assert Experiment.read({**said, "profile": "paper"}, {"profile": "release"}).training.keep_momentum
    again = Experiment.read({**said, "profile": "paper"}, {"profile": "release"}, {"profile": "paper"})
    assert again == Experiment(**said)


@pytest.mark.parametrize("old", ["paper", "release"])
@pytest.mark.parametrize("new", ["paper", "release"])
def test_a_value_of_neither_profile_survives_a_switch(old, new):
    chosen = {"algorithm": {"name": "fedprox", "mu": 0.5}, "objective": {"virtual_calibration": 0.7}}
    experiment = Experiment.read({**chosen, "profile": old}, {"profile": new})
    assert (experiment.algorithm.mu, experiment.objective.virtual_calibration) == (0.5, 0.7)
    assert experiment.training.keep_momentum == (new == "release")


def test_the_papers_optimiser_is_the_default():
    assert Training() == Training(
        epochs=1, batch_size=128, lr=0.01, lr_decay=0.992, decay_per="round", momentum=0.9, weight_decay=1e-4
    )
    assert VHL() == VHL(virtual_batch=None, calibration=1.0, virtual_calibration=0, tap="last", detach=True)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"partition": "centralized"}, True),
        ({"partition": {"name": "centralized"}, "training": {"lr": 0.1}}, True),
        ({"partition": "centralized", "training": {"keep_momentum": False}}, False),
        ({"partition": "centralized", "training": Training(lr=0.1)}, True),
        ({"partition": "centralized", "training": Training(keep_momentum=False)}, False),
        ({"partition": "centralized", "training": {"keep_momentum": False}, "profile": "release"}, False),
        ({"partition": "iid"}, False),
        ({}, False),
    ],
)
def test_centralised_training_keeps_its_momentum_unless_told(settings, kept):
    assert Experiment(**settings).training.keep_momentum is kept


def test_centralised_training_leaves_the_rest_to_the_profile():
    training = Experiment(partition="centralized", profile="release").training
    assert (training.decay_per, training.keep_momentum) == ("participation", True)


def test_a_profile_decides_what_an_object_was_not_given():
    made = Experiment(profile="release", objective=VHL(tap="stage3"), training=Training(lr=0.1))
    assert (made.objective.virtual_calibration, made.objective.tap) == (0.1, "stage3")
    assert (made.training.decay_per, made.training.lr) == ("participation", 0.1)
    assert made == Experiment(profile="release", objective={"tap": "stage3"}, training={"lr": 0.1})
    assert Experiment(profile="release").with_(objective=VHL(tap="stage3")).objective == made.objective
    assert Experiment(profile="release", objective=VHL(virtual_calibration=0)).objective == VHL()


# --- laying settings over others -------------------------------------------------------------------------


_SUPCON = {"name": "supcon", "temperature": 0.5}


@pytest.mark.parametrize(
    ("key", "old", "new", "expected"),
    [
        ("rounds", 5, 6, 6),
        ("features_at", [1, 2], [3], [3]),
        ("training", {"lr": 1.0, "epochs": 2}, {"lr": 3.0}, {"lr": 3.0, "epochs": 2}),
        ("training", Training(lr=0.5), {"epochs": 3}, {"lr": 0.5, "epochs": 3}),
        # an object is whole
        ("training", {"lr": 1.0, "epochs": 2}, Training(lr=0.5), {"lr": 0.5}),
        ("objective", {"name": "vhl", "tap": "deep"}, VHL(), {"name": "vhl"}),
        # a table without a name is one of the component that is there, or of the default
        ("algorithm", "fedprox", {"mu": 2}, {"name": "fedprox", "mu": 2}),
        ("partition", {}, {"clients": 3}, {"name": "lda", "clients": 3}),
        # the same component keeps its options, another one drops them
        ("algorithm", {"name": "fedprox", "mu": 2}, "fedprox", {"name": "fedprox", "mu": 2}),
        ("algorithm", {"name": "fedprox", "mu": 2}, "scaffold", {"name": "scaffold"}),
        ("partition", {"clients": 3}, "lda", {"name": "lda", "clients": 3}),
        ("partition", {"clients": 3}, {"name": "iid"}, {"name": "iid"}),
        # NAME:VALUE is NAME with an option set
        ("partition", {"clients": 3}, "lda:0.3", {"name": "lda", "clients": 3, "alpha": "0.3"}),
        ("partition", "lda:0.3", "lda:0.5", {"name": "lda", "alpha": "0.5"}),
        ("partition", "lda:0.3", {"alpha": 0.5}, {"name": "lda", "alpha": 0.5}),
        ("data", "folder:a", "npz:b", {"name": "npz", "path": "b"}),
        ("data", {"name": "folder:a", "size": 8}, "folder:b", {"name": "folder", "path": "b", "size": 8}),
        # a component inside a component
        (
            "objective",
            {"name": "vhl", "distance": _SUPCON, "tap": "deep"},
            {"distance": {"temperature": 0.1}},
            {"name": "vhl", "distance": {"name": "supcon", "temperature": 0.1}, "tap": "deep"},
        ),
        ("objective", {"distance": _SUPCON}, {"distance": "supcon"}, {"name": "vhl", "distance": _SUPCON}),
        (
            "objective",
            {"distance": _SUPCON},
            {"distance": "a:B"},
            {"name": "vhl", "distance": {"name": "a:B"}},
        ),
        (
            "virtual",
            "dataset:digits",
            {"source": {"size": 8}},
            {"name": "dataset", "source": {"name": "digits", "size": 8}},
        ),
    ],
)
def test_later_settings_are_laid_over_earlier_ones(key, old, new, expected):
    merged = merge(merge({}, {key: old, "name": "kept"}), {key: new})
    assert merged == {key: expected, "name": "kept"}


def test_merging_leaves_its_arguments_alone():
    base = {"training": {"lr": 1.0}, "algorithm": {"name": "fedprox", "mu": 2}, "profile": "release"}
    over = {"training": {"lr": 2.0}, "algorithm": {"mu": 3}, "profile": "paper"}
    merge(base, over)
    assert base == {"training": {"lr": 1.0}, "algorithm": {"name": "fedprox", "mu": 2}, "profile": "release"}
    assert over == {"training": {"lr": 2.0}, "algorithm": {"mu": 3}, "profile": "paper"}


def test_a_copy_takes_names_tables_and_objects():
    experiment = Experiment(algorithm={"name": "fedprox", "mu": 2}, training={"lr": 0.5})
    assert experiment.with_(algorithm={"weighting": "uniform"}).algorithm == FedProx(
        mu=2, weighting="uniform"
    )
    assert experiment.with_(algorithm="fedavg").algorithm.name == "fedavg"
    assert experiment.with_(algorithm=FedProx()).algorithm == FedProx()
    assert experiment.with_(training={"epochs": 4}).training == Training(lr=0.5, epochs=4)
    assert experiment.algorithm.mu == 2


def test_files_and_tables_are_read_in_order(tmp_path: Path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('rounds = 3\nalgorithm = "fedprox"\n[training]\nlr = 0.5\nepochs = 2\n')
    second.write_text("[training]\nlr = 0.25\n[algorithm]\nmu = 4\n")
    experiment = Experiment.read(first, second, {"rounds": 9})
    assert experiment == Experiment(
        rounds=9, algorithm={"name": "fedprox", "mu": 4}, training={"lr": 0.25, "epochs": 2}
    )


# --- refusing --------------------------------------------------------------------------------------------


def test_python_is_told_in_sentences_too():
    with pytest.raises(VHLError, match="There is no setting 'algoritm'; did you mean 'algorithm'"):
        Experiment(algoritm="fedavg")
    with pytest.raises(VHLError, match="no such file does not exist; `vhl init"):
        Experiment.read("no such file")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rouns": 3}, "There is no setting 'rouns'; did you mean 'rounds'?"),
        ({"lr": 3}, "There is no setting 'lr'; did you mean 'training.lr'?"),
        ({"alpha": 3}, "There is no setting 'alpha'; did you mean 'partition.alpha'?"),
        ({"training": {"epoch": 3}}, "There is no setting 'training.epoch'; did you mean 'training.epochs'?"),
        ({"training": {"mu": 3}}, "There is no setting 'training.mu'; did you mean 'algorithm.mu'?"),
        ({"seeds": {"modle": 3}}, "There is no setting 'seeds.modle'; did you mean 'seeds.model'?"),
        ({"xyzzy": 3}, "There is no setting 'xyzzy'; `vhl help` lists them."),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1."),
        ({"rounds": "ten"}, "rounds = 'ten': input should be a valid integer"),
        ({"clients_per_round": "x"}, "clients_per_round = 'x': input should be a valid"),
        ({"clients_per_round": 0}, "clients_per_round = 0: input should be greater than 0."),
        ({"name": "../other"}, "name = '../other': a run's folder lies inside the folder of runs"),
        ({"name": "/tmp/run"}, "name = '/tmp/run': a run's folder lies inside the folder of runs"),
        ({"profile": "relase"}, "profile = 'relase': input should be 'paper' or 'release'."),
        ({"training": {"lr": -1}}, "training.lr = -1: input should be greater than 0."),
        ({"training": {"momentum": 1.0}}, "training.momentum = 1.0: input should be less than 1."),
        ({"training": {"lr": float("inf")}}, "training.lr = inf: input should be a finite number."),
        ({"training": 3}, "training = 3: input should be a valid dictionary"),
        ({"seeds": {"data": 2**32}}, "seeds.data = 4294967296: input should be less than 4294967296."),
        ({"keep_at": [0]}, "keep_at.0 = 0: input should be greater than or equal to 1"),
        ({"features_at": [1, "x"]}, "features_at.1 = 'x': input should be a valid integer"),
        ({"keep_at": "x"}, "keep_at.0 = 'x': input should be a valid integer"),
        ({"algorithm": "fedpox"}, "There is no algorithm called 'fedpox'; did you mean 'fedprox'?"),
        ({"algorithm": "fedpox", "profile": "release"}, "There is no algorithm called 'fedpox'"),
        ({"algorithm": {"name": "fedprox", "mu": -1}}, "algorithm.mu = -1: input should be greater than"),
        ({"partition": {"alpa": 1}}, "partition = lda has no option 'alpa'; did you mean 'alpha'?"),
        ({"data": "folder"}, "data.path must be set: the folder"),
        ({"model": 3}, "model must be a name or a table with a name, not 3."),
    ],
)
def test_what_is_wrong_is_said_with_its_key(settings, message):
    with pytest.raises(VHLError) as caught:
        Experiment(**settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value) and str(caught.value)[-1] in ".?"


def test_one_value_may_stand_for_a_list_of_one():
    virtual = {"mean": 0.4, "std": 0.2}
    found = Experiment(keep_at=3, features_at=2, training={"lr_drops": 4}, virtual=virtual)
    assert (found.keep_at, found.features_at, found.training.lr_drops) == ((3,), (2,), (4,))
    assert (found.virtual.mean, found.virtual.std) == ((0.4,), (0.2,))
    assert Experiment(virtual={"mean": "unset"}).virtual.mean is None


def test_a_key_that_ends_like_another_is_suggested():
    assert suggest_key("momentum") == "; did you mean 'training.momentum'?"
    assert suggest_key("training.momentums") == "; did you mean 'training.momentum'?"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; `vhl init"),
        (b"rounds = = 3", "is not valid TOML"),
        (b"name = '\xff'", "cannot be read"),
        ("folder", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, message):
    file = tmp_path / "experiment.toml"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(VHLError, match=message) as caught:
        read_toml(file)
    assert str(file) in str(caught.value)


# --- by dotted keys --------------------------------------------------------------------------------------


def test_keys_are_those_of_the_command_line():
    found = dotted(Experiment(algorithm={"name": "fedprox", "mu": 0.3}, keep_at=[1, 2]))
    assert found["algorithm.name"] == "fedprox" and found["algorithm.mu"] == 0.3
    assert found["training.lr"] == 0.01 and found["keep_at"] == [1, 2]
    assert found["objective.distance.temperature"] == 0.07
    assert "data.mean" in found and found["data.mean"] is None


def test_what_is_no_default_alone():
    experiment = Experiment(data="digits", objective={"name": "vhl", "calibration": 0.5})
    found = dotted(experiment, defaults=False)
    assert found["objective.calibration"] == 0.5 and found["objective.name"] == "vhl"
    assert "training.lr" not in found and "objective.tap" not in found


# --- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [Experiment, Training, Seeds, Engine])
def test_every_setting_is_described(section):
    for key, field in section.model_fields.items():
        assert (field.description or "").strip(), key


def test_settings_are_listed_with_their_defaults():
    found = all_settings()
    assert (found["rounds"].description, found["rounds"].default) == ("communication rounds R", 100)
    assert found["training.lr"].default == 0.01 and found["seeds.model"].default == 0
    assert found["data"].default == "digits"
    assert not {"training", "seeds", "engine"} & found.keys()


def test_options_are_listed_for_every_component():
    assert options(Algorithm)["fedprox"] == options_of(FedProx) and options_of(FedProx)["mu"].default == 0.1
    assert set(options(Partition)) == set(available("partitions"))
    assert options(Source)["folder"]["path"].is_required()
    assert all("name" not in fields for base in PARTS.values() for fields in options(base).values())
