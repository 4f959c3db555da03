from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from vhl.deploy.folder import read_settings, write_app
from vhl.deploy.settings import RunSettings
from vhl.experiment import Experiment


@pytest.fixture
def experiment() -> Experiment:
    return Experiment(algorithm="scaffold", rounds=7, name="of 'mine' \"ü\"")


def test_what_flower_sends_holds_the_experiment(tmp_path, experiment):
    write_app(tmp_path / "app", experiment, {"sites": 3})
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "app"))) as sent:
        names = {name for name in sent.namelist() if not name.startswith(".info/")}
        assert names == {"pyproject.toml", "app.py", "experiment.toml"}
        sent.extract("experiment.toml", tmp_path)
    assert Experiment.read(tmp_path / "experiment.toml") == experiment


def test_flower_has_nothing_to_say_about_it(tmp_path, experiment):
    write_app(tmp_path / "app", experiment, {"sites": 3})
    config, warnings = load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "app:server",
        "clientapp": "app:client",
    }


def test_flower_loads_both_halves(tmp_path, experiment):
    write_app(tmp_path / "app", experiment, {"sites": 3})
    for reference, half in {"app:server": ServerApp, "app:client": ClientApp}.items():
        found = load_app(reference, ValueError, tmp_path / "app")
        assert isinstance(found, half)


def test_settings(tmp_path, experiment):
    chosen: dict[str, Any] = {"sites": 3, "test": 'folder:/a "b"\\c', "resume": True, "wait": 5}
    write_app(tmp_path / "app", experiment, chosen)
    defaults = {field.alias: field.default for field in RunSettings.model_fields.values()}
    assert read_settings(tmp_path / "app") == {**defaults, **chosen}


def test_a_setting_that_does_not_exist(tmp_path, experiment, complains):
    with complains("'min_sites'", "'min-sites'"):
        write_app(tmp_path / "app", experiment, {"min_sites": 3})
    assert not (tmp_path / "app").exists()


def test_nothing_is_overwritten(tmp_path, experiment, complains):
    (tmp_path / "notes.txt").touch()
    for place in (tmp_path, tmp_path / "notes.txt"):
        with complains(place, "exists"):
            write_app(place, experiment, {"sites": 3})
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("text", [None, "", "[tool", "[tool.flwr.app]\nconfig = 3\n[tool.flwr]"])
def test_what_is_no_app(tmp_path, complains, text):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    with complains(tmp_path, "vhl deploy init" if text is None else "pyproject.toml"):
        read_settings(tmp_path)
