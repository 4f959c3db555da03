"""The server's half as a Flower ServerApp: the simulator's rounds, in a run folder like any other."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from vhl.config.registry import build
from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.base import Source, data_directory
from vhl.deploy.exchange import Exchange
from vhl.deploy.fleet import Fleet, Note
from vhl.deploy.settings import RunSettings
from vhl.deploy.sites import SiteClients
from vhl.deploy.terms import Facts, Terms, agree, read_experiment
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.report.write import write_report
from vhl.rounds.datasheet import DataSheet
from vhl.rounds.federation import Federation
from vhl.rounds.local import make_virtual, own_evaluator
from vhl.rounds.setup import Setup
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.session.session import Session
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision, choose_device
from vhl.training.threads import choose_threads

_OWN = "experiment"


def make_server_app(experiment: Path) -> ServerApp:
    """The app of the experiment in a TOML file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def note(sentence: str) -> None:
            log(logging.INFO, sentence)

        choose_threads()
        try:
            folder = serve(grid, Experiment.read(experiment), RunSettings.read(context.run_config), note)
            note(f"report: {folder.path / 'report.html'}")
        except VHLError as error:
            log(logging.ERROR, str(error))
            raise

    return app


def serve(grid: Grid, experiment: Experiment, settings: RunSettings, note: Note) -> RunFolder:
    """Run the rounds that are left, and write the run's page."""
    read_experiment({"experiment": experiment.table()})  # as every site will, and with an error now
    fleet = Fleet(grid, experiment, settings, note)

    def federate(named: Experiment) -> Federation:
        return _federation(named, RunFolder(Path(settings.runs_dir) / named.name), fleet, settings)

    session = Session(
        experiment,
        settings.runs_dir,
        resume=settings.resume,
        data_dir=data_directory(settings.data_dir),
        on_note=note,
        federate=federate,
    )
    folder = session.folder
    if folder.exists and not settings.resume:
        raise VHLError(
            f"{folder.path} exists already; `flwr run app vhl --run-config 'resume=true'` "
            "continues it, another `name` in app/experiment.toml begins another."
        )
    for record in session:
        note(_describe(record, session.experiment, folder.data()["test_samples"]))
    write_report([folder], folder.path / "report.html")
    return folder


def _federation(experiment: Experiment, folder: RunFolder, fleet: Fleet, settings: RunSettings) -> Federation:
    """From what sites say, or have said when the run began."""
    if folder.exists:
        known = folder.data().get("deployment")
        if known is None:
            raise VHLError(f"{folder.path} is no run of sites; choose another name.")
        facts, run = [Facts.read(own) for own in known["facts"]], known["run"]
        fleet.reunite(facts)
    else:
        facts, run = fleet.gather(settings.sites), uuid.uuid4().hex
    terms, counts = agree(run, experiment, facts, settings.class_names)
    fleet.note(_describe_classes(terms, counts))
    own, terms = _own_data(terms, settings)
    setup = _setup(terms, counts, facts, own, data_directory(settings.data_dir))
    exchange = Exchange(fleet, terms, None if setup.virtual is None else setup.virtual.images)
    lanes = Lanes(experiment.engine, setup.precision, fleet.note)
    evaluator = None if own is None else own_evaluator(setup, lanes)
    return Federation(setup, SiteClients(setup, exchange, evaluator), lanes)


def _setup(
    terms: Terms, counts: np.ndarray, facts: Sequence[Facts], own: Dataset | None, data_dir: Path
) -> Setup:
    """The server has its own test images, or none."""
    held_out = sum(sum(site.test) for site in facts)
    if own is None and not held_out:
        raise VHLError("No site holds out images to test on; set test to images that the server has.")
    experiment = terms.experiment
    precision = Precision.choose(experiment.engine, choose_device(experiment.device))
    sheet = DataSheet(
        terms.classes,
        terms.sites,
        terms.shape,
        terms.statistics,
        counts,
        test_samples=held_out if own is None else len(own.test),
        fingerprint="",  # sites answer for their images themselves
        deployment={"run": terms.run, "facts": [site.model_dump() for site in facts]},
    )
    virtual = make_virtual(experiment, sheet, data_dir, precision)
    sets = {} if own is None else {"test": own.test, "validation": own.validation}
    return Setup.of(experiment, precision, sheet, data_dir, virtual, **sets)


def _own_data(terms: Terms, settings: RunSettings) -> tuple[Dataset | None, Terms]:
    """The server's images to test on, in these terms; the experiment's own also say mean and deviation."""
    if not settings.test:
        return None, terms
    seed, directory = terms.experiment.seeds.data, data_directory(settings.data_dir)
    if settings.test == _OWN:
        source = terms.experiment.data
        dataset = source.load(directory, seed)
        mean, std = source.statistics(dataset.train.images)
        return terms.fit(dataset), replace(terms, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    given = build(Source, "test", settings.test)
    sized = given.model_copy(update={"size": terms.shape[0], "channels": terms.shape[2]})
    dataset = terms.fit(sized.load(directory, seed))
    both = ImageSet(
        np.concatenate([dataset.train.images, dataset.test.images]),
        np.concatenate([dataset.train.labels, dataset.test.labels]),
    )
    return replace(dataset, test=both, validation=None), terms


def _describe_classes(terms: Terms, counts: np.ndarray) -> str:
    """What all predict; a class at one site alone may be another's under a name that differs by a letter."""
    sentence = f"{len(terms.classes)} classes: {', '.join(terms.classes)}."
    alone = [
        f"{name} ({terms.sites[int(column.argmax())]})"
        for name, column in zip(terms.classes, counts.T, strict=True)
        if np.count_nonzero(column) == 1 < len(terms.sites)
    ]
    return f"{sentence} One site alone has {', '.join(alone)}." if alone else sentence


def _describe(record: Record, experiment: Experiment, test_images: int) -> str:
    words = [f"round {record.round}/{experiment.rounds}"]
    if record.accuracy is not None:
        part = "" if record.tested is None else f" of {record.tested} of {test_images} test images"
        words.append(f"accuracy {100 * record.accuracy:.1f}%{part}")
    words.append(f"{len(record.clients) - len(record.left_out)} of {len(record.clients)} sites")
    return "  ".join([*words, f"{record.seconds:.0f} s"])
