"""`vhl deploy`: an experiment as a Flower app, on machines that keep their images to themselves."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vhl.cli.arguments import (
    Commands,
    add_command,
    add_data_dir,
    add_group,
    add_runs_dir,
    add_settings,
    count,
)
from vhl.errors import VHLError

if TYPE_CHECKING:
    from vhl.experiment import Experiment


def add(commands: Commands) -> None:
    actions = add_group(commands, "deploy", "train where the data are: the experiment as a Flower app")
    init = add_command(actions, "init", _init)
    init.add_argument("folder", type=Path, metavar="FOLDER")
    add_settings(init)
    init.add_argument("--sites", type=count, required=True, metavar="N", help="sites that take part")
    init.add_argument(
        "--test",
        default="",
        metavar="folder:PATH",
        help="the server's own test images (default: what the sites hold out counts)",
    )
    add_runs_dir(init)
    add_data_dir(init)
    _add_keys(add_group(actions, "keys", "make certificates and keys", "whose"))
    local = add_command(actions, "local", _local)
    local.add_argument("sites", type=count, metavar="N", help="sites; each has a part of the data")
    add_settings(local)
    add_runs_dir(local)
    local.add_argument("--resume", action="store_true", help="continue a run that was cut off")
    local.add_argument("--insecure", action="store_true", help="without TLS, and without keys")
    text = add_command(actions, "commands", _commands)
    text.add_argument("app", type=Path, metavar="FOLDER", help="what `vhl deploy init` wrote")
    text.add_argument("--host", required=True, metavar="NAME", help="the server's name or address")
    text.add_argument(
        "--site", action="append", required=True, metavar="NAME", help="a site's name; again for each"
    )


def _add_keys(whose: Commands) -> None:
    server = add_command(whose, "server", _server_keys)
    server.add_argument("folder", type=Path, metavar="FOLDER")
    server.add_argument(
        "--host", action="append", required=True, metavar="NAME", help="its name or address; again for more"
    )
    site = add_command(whose, "site", _site_key)
    site.add_argument("folder", type=Path, metavar="FOLDER")
    site.add_argument("name", metavar="NAME", help="the site's name")


def _check_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise VHLError("Deployment needs the package flwr; install it with pip install 'vhl[flower]'.")


def _init(arguments: argparse.Namespace) -> None:
    """Write the app folder, ready for `flwr run`."""
    _check_flower()
    from vhl.cli import settings
    from vhl.cli.display import say
    from vhl.deploy.folder import write_app

    experiment = settings.read(arguments.settings)
    if arguments.test != "experiment" and not settings.sets("partition", arguments.settings):
        experiment = experiment.with_(partition="given")  # sites bring their own: nothing is dealt out
    chosen = {
        "sites": arguments.sites,
        "test": _on_this_machine(arguments.test),
        "runs-dir": str(arguments.runs_dir.absolute()),
        "data-dir": "" if arguments.data_dir is None else str(arguments.data_dir.absolute()),
    }
    write_app(arguments.folder, experiment, chosen)
    say(
        f"{arguments.folder}; its pyproject.toml explains the settings of a run, and `vhl deploy commands "
        f"{arguments.folder} --host NAME --site NAME ...` says what to type where."
    )


def _on_this_machine(test: str) -> str:
    """The server's test images by a path that holds from any folder, for Flower runs in one of its own."""
    kind, _, path = test.partition(":")
    if kind not in ("folder", "npz"):
        return test
    place = Path(path).expanduser().absolute()
    if not place.exists():
        raise VHLError(f"--test {test}: {place} does not exist; write the app where these images are.")
    return f"{kind}:{place}"


def _server_keys(arguments: argparse.Namespace) -> None:
    """On the server: an authority and the server's certificate."""
    _check_flower()
    from vhl.cli.display import say
    from vhl.deploy.keys import make_authority

    folder = arguments.folder
    make_authority(folder, arguments.host)
    say(f"{folder / 'ca.pem'} is for every site; the other files in {folder} stay on the server.")


def _site_key(arguments: argparse.Namespace) -> None:
    """At a site: its node's key."""
    _check_flower()
    from vhl.cli.display import say
    from vhl.deploy.keys import make_node_key

    folder = arguments.folder
    make_node_key(folder, arguments.name)
    say(f"{folder / arguments.name}.pub is for the server; {folder / arguments.name}.key stays here.")


def _commands(arguments: argparse.Namespace) -> None:
    """Print what to type on the server and at each site."""
    _check_flower()
    from vhl.deploy.commands import commands

    print(commands(arguments.app, arguments.host, arguments.site))  # noqa: T201 - as it is: rich would fold lines


def _local(arguments: argparse.Namespace) -> None:
    """Try it on this machine: a server and N sites, with TLS.

    Site I has part I of the partition; logs are kept only where something went wrong.
    """
    _check_flower()
    from vhl.cli import settings
    from vhl.cli.display import say
    from vhl.runs.folder import RunFolder
    from vhl.session.session import default_name

    experiment = settings.read(arguments.settings)
    if "clients" in type(experiment.partition).model_fields:
        experiment = experiment.with_(partition={"clients": arguments.sites})
    experiment = experiment.with_(name=experiment.name or default_name(experiment))
    run = RunFolder(arguments.runs_dir / experiment.name)
    if run.exists and not arguments.resume:
        raise VHLError(f"{run.path} exists already; --resume continues it, name=NAME begins another.")
    _check_parts(experiment, arguments.sites)
    folder = Path(tempfile.mkdtemp(prefix="vhl-deploy-"))
    try:
        _run(experiment, arguments, folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise KeyboardInterrupt("The same command with --resume continues." if run.exists else "") from None
    shutil.rmtree(folder)
    say(f"The run is in {run.path}.")


def _check_parts(experiment: Experiment, sites: int) -> None:
    """Refuse at once what each site would find out by itself, and say in its own log."""
    from vhl.data.sources.base import data_directory

    dataset = experiment.data.load(data_directory(), experiment.seeds.data)
    parts = len(experiment.partition.assign(dataset, experiment.seeds.data))
    if parts != sites:
        raise VHLError(
            f"With partition = {experiment.partition.name} and these data the number of sites is {parts}, "
            f"not {sites}; use `vhl deploy local {parts}`, or another partition."
        )


def _run(experiment: Experiment, arguments: argparse.Namespace, folder: Path) -> None:
    from vhl.cli.display import say
    from vhl.deploy.folder import write_app
    from vhl.deploy.local import LocalDeployment

    runs = arguments.runs_dir.absolute()
    chosen = {"sites": arguments.sites, "test": "experiment", "runs-dir": str(runs), "wait": 120}
    write_app(folder / "app", experiment, {**chosen, "resume": arguments.resume})
    digits = len(str(arguments.sites))
    names = [f"site-{index + 1:0{digits}d}" for index in range(arguments.sites)]  # in order as words too
    sites = {
        name: {"data": f"part:{index}", "store": str(runs / experiment.name / "sites" / name)}
        for index, name in enumerate(names)
    }
    with LocalDeployment(folder, sites, insecure=arguments.insecure) as deployment:
        deployment.run(folder / "app", say)
