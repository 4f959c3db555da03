"""The app folder: an experiment as what `flwr run` sends to the server and to every site."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from vhl.config.registry import suggest
from vhl.deploy.settings import RunSettings
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import write_bytes
from vhl.version import __version__

_APP = '''\
"""What Flower loads on the server and at every site."""

from pathlib import Path

from vhl.deploy.client_app import app as client
from vhl.deploy.server_app import make_server_app

__all__ = ["client", "server"]

server = make_server_app(Path(__file__).with_name("experiment.toml"))
'''

_PROJECT = """\
[project]
name = "vhl-experiment"
version = "{version}"
description = "An experiment of vhl"
license = "Apache-2.0"
dependencies = ["vhl[flower]"]

[tool.flwr.app]
publisher = "vhl"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
{settings}
"""


def write_app(folder: Path, experiment: Experiment, settings: Mapping[str, str | int | bool]) -> None:
    """Write the folder; what ``settings`` leaves out has its default."""
    known = {str(field.alias): field for field in RunSettings.model_fields.values()}
    for key in settings:
        if key not in known:
            raise VHLError(f"A deployment has no setting {key!r}{suggest(key, known)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise VHLError(f"{folder} exists already and is not empty; choose another folder.")
    lines = [
        f"# {field.description}\n{tomli_w.dumps({key: settings.get(key, field.default)})}"
        for key, field in known.items()
    ]
    project = _PROJECT.format(version=__version__, settings="".join(lines).rstrip())
    write_bytes(folder / "experiment.toml", experiment.toml().encode())
    write_bytes(folder / "app.py", _APP.encode())
    write_bytes(folder / "pyproject.toml", project.encode())  # the last, so that what has one is complete


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of an app folder, as they stand there now."""
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
        return dict(project["tool"]["flwr"]["app"]["config"])
    except FileNotFoundError:
        raise VHLError(f"{folder} is no app folder; `vhl deploy init {folder}` writes one.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VHLError(f"{file} does not describe an app ({error!r}).") from None
