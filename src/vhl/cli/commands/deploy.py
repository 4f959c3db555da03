"""`vhl deploy`: an experiment as a Flower app, on machines that keep their images to themselves."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vhl.cli import settings
from vhl.cli.display import console
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.experiment import Experiment, read_toml
from vhl.runs.folder import RunFolder
from vhl.session.session import default_name


def main(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("flwr") is None:
        raise VHLError("Deployment needs the package flwr; install it with pip install 'vhl[flower]'.")
    actions = {"init": _init, "keys": _keys, "local": _local, "commands": _commands}
    actions[arguments.action](arguments)


def _init(arguments: argparse.Namespace) -> None:
    from vhl.deploy.folder import write_app

    experiment = settings.read(arguments.settings)
    if arguments.test != "experiment" and not _sets_partition(arguments.settings):
        experiment = experiment.with_(partition="given")  # sites bring their own: nothing is dealt out
    chosen = {
        "sites": arguments.sites,
        "test": _on_this_machine(arguments.test),
        "runs-dir": str(arguments.runs_dir.absolute()),
        "data-dir": "" if arguments.data_dir is None else str(arguments.data_dir.absolute()),
    }
    write_app(arguments.folder, experiment, chosen)
    _say(
        f"{arguments.folder}; its pyproject.toml explains the settings of a run, and `vhl deploy commands "
        f"{arguments.folder} --host NAME --site NAME ...` says what to type where."
    )


def _sets_partition(words: Sequence[str]) -> bool:
    """Whether files or settings say how to deal images out."""
    files, pairs = settings.split(words)
    tables = [read_toml(layer) if isinstance(layer, Path) else layer for layer in files]
    return "partition" in {key.partition(".")[0] for key, _ in pairs}.union(*tables)


def _on_this_machine(test: str) -> str:
    """The server's test images by a path that holds from any folder, for Flower runs in one of its own."""
    kind, _, path = test.partition(":")
    if kind not in ("folder", "npz"):
        return test
    place = Path(path).expanduser().absolute()
    if not place.exists():
        raise VHLError(f"--test {test}: {place} does not exist; write the app where these images are.")
    return f"{kind}:{place}"


def _keys(arguments: argparse.Namespace) -> None:
    from vhl.deploy.keys import make_authority, make_node_key

    folder = arguments.folder
    if arguments.whose == "server":
        make_authority(folder, arguments.host)
        _say(f"{folder / 'ca.pem'} is for every site; the other files in {folder} stay on the server.")
    else:
        make_node_key(folder, arguments.name)
        _say(f"{folder / arguments.name}.pub is for the server; {folder / arguments.name}.key stays here.")


def _commands(arguments: argparse.Namespace) -> None:
    from vhl.deploy.commands import commands

    print(commands(arguments.app, arguments.host, arguments.site))  # noqa: T201 - as it is: rich would fold lines


def _local(arguments: argparse.Namespace) -> None:
    """Site I has part I of the partition; logs are kept only where something went wrong."""
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
    _say(f"The run is in {run.path}.")


def _check_parts(experiment: Experiment, sites: int) -> None:
    """Refuse at once what each site would find out by itself, and say in its own log."""
    dataset = experiment.data.load(data_directory(), experiment.seeds.data)
    parts = len(experiment.partition.assign(dataset, experiment.seeds.data))
    if parts != sites:
        raise VHLError(
            f"With partition = {experiment.partition.name} and these data the number of sites is {parts}, "
            f"not {sites}; use `vhl deploy local {parts}`, or another partition."
        )


def _run(experiment: Experiment, arguments: argparse.Namespace, folder: Path) -> None:
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
        deployment.run(folder / "app", _say)


def _say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
