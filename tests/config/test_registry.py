from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import vhl
from vhl.algorithms.base import Algorithm
from vhl.algorithms.fedprox import FedProx
from vhl.config import listing, registry
from vhl.config.component import Component
from vhl.config.listing import ROOMS, available, name_of
from vhl.config.registry import build, find, identify, suggest
from vhl.data.partitions.lda import LDA
from vhl.errors import VHLError
from vhl.experiment import PARTS, Experiment
from vhl.models.base import Model
from vhl.objectives.base import Objective
from vhl.objectives.distances.base import Distance

_BASES = {base.room: base for base in (*PARTS.values(), Distance)}
_EVERY = [(room, name) for room in ROOMS for name in available(room)]
_NEEDS = {"folder": "path", "npz": "path", "dataset": "source"}

_OWN = """
from pydantic import Field
from vhl.algorithms.fedavg import FedAvg

class Mine(FedAvg):
    \"\"\"A method of one's own.\"\"\"
    strength: float = Field(1.0, ge=0, description="how much")

number = 3
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_method.py"
    file.write_text(_OWN)
    return file


def test_every_component_of_the_paper_is_listed():
    assert set(available("objectives")) == {"plain", "naive", "vhl", "vhl-light", "vfa", "vftl"}
    assert set(available("models")) == {"cnn", "resnet8", "resnet10", "resnet18", "resnet34", "resnet50"}
    assert set(available("distances")) == {"supcon", "mmd", "means"}
    assert {"fedavg", "fedprox", "scaffold", "fednova"} <= set(available("algorithms"))
    assert {"noise", "stylegan", "decoder", "dataset"} <= set(available("generators"))
    assert {"cifar10", "cifar100", "svhn", "fmnist", "tiny-imagenet", "digits"} <= set(available("sources"))


def test_listing_does_not_wait_for_torch():
    program = """
import sys
import vhl
from vhl.config.listing import ROOMS, available
names = [name for room in ROOMS for name in available(room)]
print(len(names), "torch" in sys.modules, sorted(name for name in sys.modules if name == "vhl.models"))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(len(_EVERY)), "False", "[]"]


def test_the_packages_names_are_imported_on_first_use():
    from vhl.objectives.distances.supcon import supcon

    assert vhl.supcon is supcon
    assert {name: getattr(vhl, name).__name__ for name in vhl.__all__} == {name: name for name in vhl.__all__}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vhl.nothing  # noqa: B018


@pytest.mark.parametrize(("room", "name"), _EVERY)
def test_every_component_can_be_made_by_its_name(room, name):
    cls = find(_BASES[room], name)
    assert name_of(cls) == name
    required = [key for key, field in cls.model_fields.items() if field.is_required()]
    assert required == ([_NEEDS[name]] if name in _NEEDS else [])
    if required:
        assert cls.primary == required[0]
        with pytest.raises(VHLError, match=rf"^part\.{required[0]} must be set: .+\.$"):
            build(_BASES[room], "part", name)
        assert build(_BASES[room], "part", f"{name}:digits").name == name
    else:
        component = build(_BASES[room], "part", name)
        assert type(component) is cls and component.name == name


@pytest.mark.parametrize(("room", "name"), _EVERY)
def test_every_component_and_option_is_described(room, name):
    assert available(room)[name].summary.strip().endswith((".", "`."))
    for key, field in find(_BASES[room], name).model_fields.items():
        assert (field.description or "").strip(), f"{name}.{key}"
        nested = field.annotation
        if isinstance(nested, type) and hasattr(nested, "model_fields") and not issubclass(nested, Component):
            assert all((inner.description or "").strip() for inner in nested.model_fields.values())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lda", LDA()),
        ("lda:0.5", LDA(alpha=0.5)),
        ({"name": "lda", "clients": 3}, LDA(clients=3)),
        ({"name": "lda:0.5", "clients": 3}, LDA(alpha=0.5, clients=3)),
        ({"name": "lda:0.5", "alpha": 2}, LDA(alpha=2)),
        ({"clients": 3}, LDA(clients=3)),
        (LDA(clients=7), LDA(clients=7)),
    ],
)
def test_names_values_and_tables_make_components(given, expected):
    assert build(_BASES["partitions"], "partition", given, "lda") == expected


@pytest.mark.parametrize(
    ("room", "given", "message"),
    [
        ("algorithms", "fedpox", "There is no algorithm called 'fedpox'; did you mean 'fedprox'?"),
        ("distances", "nothing", "There is no distance called 'nothing'; choose from means, mmd, supcon."),
        ("algorithms", "fedprox:3", "fedprox takes no value after a colon; write fedprox alone"),
        ("algorithms", 3, "part must be a name or a table with a name, not 3."),
        ("algorithms", LDA(), "part must be a name or a table with a name, not LDA("),
        ("algorithms", {"mu": 3}, "part must be a name or a table with a name, not {'mu': 3}."),
        (
            "algorithms",
            {"name": "fedprox", "nu": 3},
            "part = fedprox has no option 'nu'; choose from mu, weighting.",
        ),
        ("partitions", {"name": "given", "nu": 3}, "part = given has no option 'nu'; it takes none."),
        (
            "algorithms",
            {"name": "fedprox", "mu": -1},
            "part.mu = -1: input should be greater than or equal to 0.",
        ),
        (
            "objectives",
            {"name": "vftl", "pretrain": {"lrr": 1}},
            "part.pretrain has no option 'lrr'; did you mean 'lr'?",
        ),
        (
            "objectives",
            {"name": "vftl", "pretrain": {"lr": 0}},
            "part.pretrain.lr = 0: input should be greater than 0.",
        ),
        (
            "objectives",
            {"name": "vhl", "distance": {"temperatur": 1}},
            "objective.distance = supcon has no option 'temperatur'; did you mean 'temperature'?",
        ),
        (
            "objectives",
            {"name": "vhl", "distance": {"temperature": 0}},
            "objective.distance.temperature = 0: input should be greater than 0.",
        ),
        ("generators", "dataset:cifr10", "There is no source called 'cifr10'; did you mean 'cifar10'?"),
        ("algorithms", "nowhere.py:Mine", "nowhere.py does not exist; give the path of your file"),
        (
            "algorithms",
            "mine.py",
            "'mine.py' is a file; add the class in it that you mean, as in mine.py:MyClass",
        ),
        ("algorithms", "no.such.module:Mine", "'no.such.module:Mine' names neither a component nor a module"),
        ("algorithms", ":Mine", "':Mine' names neither a component nor a module"),
        ("algorithms", ".relative:Mine", "'.relative:Mine' names neither a component nor a module"),
        ("algorithms", "os:path", "os:path is no algorithm; subclass vhl.algorithms.base.Algorithm."),
        (
            "models",
            "vhl.data.partitions.lda:LDA",
            "vhl.data.partitions.lda:LDA is no model; subclass vhl.models.base.Model.",
        ),
        (
            "algorithms",
            "vhl.data.partitions.lda:LDA",
            "vhl.data.partitions.lda:LDA is no algorithm; subclass vhl.algorithms.base.Algorithm.",
        ),
    ],
)
def test_what_cannot_be_made_is_explained(room, given, message):
    with pytest.raises(VHLError) as caught:
        build(_BASES[room], "part", given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_suggestions_name_the_nearest_or_all_or_where_to_look():
    assert suggest("rouns", ["rounds", "name"]) == "; did you mean 'rounds'?"
    assert suggest("xyz", ["rounds", "name"]) == "; choose from name, rounds."
    assert suggest("xyz", []) == "; it takes none."
    assert suggest("xyz", [f"option{n}" for n in range(50)]) == "; `vhl help` lists them."


def test_a_class_of_ones_own_is_found_by_file_and_name(own_file):
    component = build(Algorithm, "algorithm", {"name": f"{own_file}:Mine", "strength": 2})
    assert isinstance(component, Algorithm)
    assert (component.name, component.strength, component.weighting) == (f"{own_file}:Mine", 2, "samples")
    for given, message in [
        (f"{own_file}:Other", f"{own_file} defines no 'Other'"),
        (f"{own_file}:number", "is no algorithm"),
        ({"name": f"{own_file}:Mine", "strenght": 1}, "did you mean 'strength'?"),
    ]:
        with pytest.raises(VHLError) as caught:
            build(Algorithm, "algorithm", given)
        assert message in str(caught.value)
    with pytest.raises(VHLError, match="number is no model; subclass"):
        build(Model, "model", f"{own_file}:number")


_METHOD = """
    def {method}(self, *given):
        pass
"""


@pytest.mark.parametrize(
    ("method", "meant"), [("correct_gradients", "correct_gradient"), ("agregate", "aggregate")]
)
def test_a_mistyped_method_of_ones_own_is_refused(tmp_path, method, meant):
    """It would never be called: training would be FedAvg's under another name."""
    file = tmp_path / "mistyped.py"
    file.write_text(
        _OWN.replace("\nnumber = 3", _METHOD.format(method=method)) + "\nclass Child(Mine):\n    pass\n"
    )
    for own in ("Mine", "Child"):
        with pytest.raises(VHLError, match=f"'{method}', which vhl never calls; did you mean '{meant}'"):
            build(Algorithm, "algorithm", f"{file}:{own}")


@pytest.mark.parametrize("method", ["correct_gradient", "_correct_gradients", "strengthen"])
def test_other_methods_of_ones_own_are_ones_own_business(tmp_path, method):
    file = tmp_path / "helped.py"
    file.write_text(_OWN.replace("\nnumber = 3", _METHOD.format(method=method)))
    assert build(Algorithm, "algorithm", f"{file}:Mine").name.endswith("helped.py:Mine")


def test_a_class_of_ones_own_is_saved_and_read_again(own_file):
    experiment = Experiment(algorithm={"name": f"{own_file}:Mine", "strength": 2})
    assert Experiment(**experiment.table()) == experiment
    registry._load_own.cache_clear()  # as in another process
    file = own_file.with_name("experiment.toml")
    file.write_text(experiment.toml())
    again = Experiment.read(file)
    assert again.table() == experiment.table()
    assert again.algorithm.strength == 2


def test_a_class_of_an_installed_module_is_found_by_module_and_name():
    component = build(Algorithm, "algorithm", {"name": "vhl.algorithms.fedprox:FedProx", "mu": 3})
    assert component == FedProx(mu=3) and component.name == "fedprox"


def test_another_package_registers_its_components(tmp_path, monkeypatch):
    package = tmp_path / "other_package"
    package.mkdir()
    (package / "__init__.py").write_text("from other_package.method import Mine\n")
    (package / "method.py").write_text(_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", "other_package:Mine", "vhl.algorithms")
    monkeypatch.setattr(listing, "entry_points", lambda group: [point] if group == point.group else [])
    available.cache_clear()
    try:
        assert available("algorithms")["mine"].summary == "from other_package"
        assert "mine" not in available("partitions")
        experiment = Experiment(algorithm={"name": "mine", "strength": 2})
        assert (experiment.algorithm.name, experiment.algorithm.strength) == ("mine", 2)
        assert Experiment(**experiment.table()) == experiment
    finally:
        available.cache_clear()


def test_tables_are_identified_without_being_validated():
    cls, options = identify(Algorithm, {"name": "fedprox", "mu": "nonsense"})
    assert cls is FedProx and options == {"mu": "nonsense"}
    assert identify(_BASES["partitions"], {"name": "lda:0.5"}) == (LDA, {"alpha": "0.5"})


def test_a_component_of_no_file_is_named_by_its_module():
    class Local(Objective):
        """Defined in a function."""

    assert name_of(Local).endswith(f":{Local.__qualname__}")
