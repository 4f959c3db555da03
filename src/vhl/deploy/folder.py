"""The app folder: an experiment as what `flwr run` sends to the server and to every site."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from vhl.config.registry import suggest
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import write_bytes
from vhl.version import __version__

SETTINGS: dict[str, tuple[str | int | bool, str]] = {
    "sites": (2, "sites to wait for at the start"),
    "test": (
        "",
        "'' sums the sites' held-out images; or 'experiment', 'folder:PATH', 'npz:PATH' at the server",
    ),
    "classes": ("", "names of the classes, 'a, b, c'; '' lets the sites' folders say them"),
    "runs-dir": ("runs", "where the run folder goes, on the server"),
    "resume": (False, "continue a run that was cut off, or give it more rounds"),
    "round-timeout": (600, "seconds until a round goes on without the sites that have not answered"),
    "wait": (600, "seconds to wait for the sites to come"),
    "min-sites": (0, "sites without which a round does not count; 0 is half of the round's, at least 1"),
    "data-dir": ("", "where datasets lie, on the server; '' is $VHL_DATA, else the user's cache"),
}
"""Settings of a run, each with its default and meaning; `flwr run --run-config` changes one for once."""

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
    for key in settings:
        if key not in SETTINGS:
            raise VHLError(f"A deployment has no setting {key!r}{suggest(key, SETTINGS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise VHLError(f"{folder} exists already and is not empty; choose another folder.")
    chosen = {key: settings.get(key, default) for key, (default, _) in SETTINGS.items()}
    lines = [f"# {SETTINGS[key][1]}\n{tomli_w.dumps({key: value})}" for key, value in chosen.items()]
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
