"""Run folders written by hand, and a browser to look at their pages with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

from vhl.experiment import Experiment
from vhl.report.content import content
from vhl.report.figure import Figure
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

Write = Callable[..., RunFolder]

PROBLEM = {
    "classes": ["cat", "dog", "owl"],
    "sites": [],
    "counts": [[30, 0, 4], [1, 20, 5]],
    "heterogeneity": 0.4321,
    "test_samples": 1500,
}
MACHINE = {
    "date": "2026-01-02",
    "python": "3.11.9",
    "packages": {"vhl": "0.0", "torch": "2.99"},
    "processor": "Abacus",
    "gpu": None,
}


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    """A round with this accuracy (``None``: not evaluated): 10 images, 100 bytes and 2 seconds."""

    def make(round_: int, accuracy: float | None, **measured: Any) -> Record:
        usual = {
            "loss": {"natural": 1 / round_},
            "train_accuracy": 0.5,
            "drift": 1.0,
            "learning_rate": 0.01,
            "samples": 10,
            "compute": 1.0,
            "bytes": 100,
            "clients": [0, 1],
            "seconds": 2.0,
        }
        return Record(round=round_, accuracy=accuracy, **{**usual, **measured})

    return make


@pytest.fixture(scope="session")
def write(record: Callable[..., Record]) -> Write:
    """Write a run folder: its rounds, or an accuracy a round.

    ``problem`` and ``machine`` say what differs from the usual; everything else is a setting.
    """

    def write_run(
        folder: Path,
        rounds: Sequence[Record | float | None],
        /,
        problem: dict[str, Any] | None = None,
        machine: dict[str, Any] | None = None,
        **settings: Any,
    ) -> RunFolder:
        run = RunFolder(folder)
        run.begin(Experiment(**settings), {**PROBLEM, **(problem or {})}, {**MACHINE, **(machine or {})})
        records = [r if isinstance(r, Record) else record(i, r) for i, r in enumerate(rounds, 1)]
        lines = [json.dumps(r.model_dump()) + "\n" for r in records]  # a thousand `append` take seconds
        (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
        return run

    return write_run


ROUNDS = 30


def _measured(make: Callable[..., Record], method: int, seed: int, round_: int) -> Record:
    """Numbers that no two rounds, methods or seeds have in common; every third round is not evaluated."""
    rng = np.random.default_rng([method, seed, round_])
    reached = (0.55 + 0.08 * method) * (1 - 0.9**round_) + rng.uniform(0, 0.02)
    evaluated = round_ % 3 != 1
    virtual = {"virtual": rng.uniform(0, 3)} if method else {}
    return make(
        round_,
        reached if evaluated else None,
        per_class=rng.uniform(0, 1, 3).tolist() if evaluated else None,
        loss={"natural": rng.uniform(0, 2), **virtual},
        virtual_accuracy=rng.uniform(0, 1) if method else None,
        drift=rng.uniform(1, 2),
        samples=int(rng.integers(100, 200)),
        seconds=rng.uniform(1, 2),
        compute=1.0 + 0.7 * bool(method),
    )


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, write: Write, record: Any) -> list[RunFolder]:
    """FedAvg with and without VHL over three seeds, FedProx with VHL on another problem over one.

    Not to be changed. FedAvg with VHL has pictures of virtual images, and its first seed features of two
    rounds; its first two looks at the last one.
    """
    root = tmp_path_factory.mktemp("compared")
    methods = [("plain", "plain", "fedavg"), ("ours", "vhl", "fedavg"), ("prox", "vhl", "fedprox")]
    runs = []
    for method, (name, objective, algorithm) in enumerate(methods):
        for seed in range(3 if method < 2 else 1):
            runs.append(
                write(
                    root / f"{name}-seed{seed}",
                    [_measured(record, method, seed, round_) for round_ in range(1, ROUNDS + 1)],
                    problem={"counts": [[7, 8, 9]], "sites": ["Rome"]} if method == 2 else None,
                    objective=objective,
                    algorithm=algorithm,
                    rounds=ROUNDS,
                    seeds={"batches": seed, "model": seed, "sampling": seed},
                )
            )
    for number, run in enumerate(runs[3:6]):
        run.save_picture(Image.new("RGB", (20, 10), (200, 10, 30 if number < 2 else 60)))
    for round_ in (10, 30):
        runs[3].save_features(round_, features(round_))
    confusions = ([[9, 1, 0, 0, 2], [2, 7, 1, 1, 0], [0, 3, 6, 0, 0]], [[5, 0, 1], [0, 6, 0], [2, 0, 3]])
    for run, confusion, clients in zip(runs[3:5], confusions, ([1, 0], [0, 1]), strict=True):
        sent = {"clients": torch.tensor(clients), "client_accuracy": torch.tensor([0.25, 0.625])}
        run.save_last({"confusion": torch.tensor(confusion), **sent})
    return runs


@pytest.fixture(scope="session")
def described() -> Callable[..., dict[str, Figure]]:
    """The figures of a page by name."""
    return lambda runs, **chosen: {figure.name: figure for figure in content(runs, **chosen)["figures"]}


def features(seed: int) -> dict[str, torch.Tensor]:
    """Two models' features of nine test images in three classes and of four virtual images in two others."""
    rng = np.random.default_rng(seed)
    found = {}
    for model in ("server", "client1"):
        for kind, labels in (("test", [0, 1, 2] * 3), ("virtual", [3, 4] * 2)):
            values = np.eye(5)[labels] * 9 + rng.normal(0, 0.1, (len(labels), 5))
            found[f"{model}.{kind}.features"] = torch.tensor(values, dtype=torch.float32)
            found[f"{model}.{kind}.labels"] = torch.tensor(labels)
    return found


# --- the browser -------------------------------------------------------------------------------------------

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_MISSING = "the report's browser tests need a browser"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as it is installed on this machine; without one tests are skipped, but fail where CI=true."""
    found = os.environ.get("VHL_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"{_MISSING}: one of {', '.join(_NAMES)} or what $VHL_BROWSER names")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--disable-gpu"])
        yield browser
        browser.close()


_SERIES = """name => report.charts.get(name).instance.getOption().series.map(
    ({ name, type, data }) => [name, data.map((item) => item?.value ?? item)])"""


class Look:
    """A page in the browser, with all that it said and asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.requested: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", self._note)

    def _hear(self, message: ConsoleMessage) -> None:
        self.said.append(f"{message.type}: {message.text}")

    def _dismiss(self, dialog: Dialog) -> None:
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.requested.append(request.url)

    def see(self, chart: str) -> None:
        """Scroll to a chart: what is far from the window is not drawn."""
        self.page.evaluate("name => report.charts.get(name).place.scrollIntoView({ block: 'center' })", chart)
        self.page.wait_for_function("name => !report.charts.get(name).stale", arg=chart)

    def charts(self) -> list[str]:
        names: list[str] = self.page.evaluate("[...report.charts.keys()]")
        return names

    def series(self, chart: str) -> dict[str, list[Any]]:
        """What a chart draws: the data of each series by its name."""
        self.see(chart)
        return dict(self.page.evaluate(_SERIES, chart))

    def option(self, chart: str, path: str) -> Any:
        """One value of what a chart was told, such as ``xAxis[0].data``."""
        self.see(chart)
        return self.page.evaluate(f"name => report.charts.get(name).instance.getOption().{path}", chart)

    def texts(self, selector: str) -> list[str]:
        """As they stand in the page, white space and all."""
        return self.page.locator(selector).all_text_contents()

    def rows(self, table: str) -> list[list[str]]:
        found: list[list[str]] = self.page.evaluate(
            "table => [...document.querySelectorAll(`${table} tbody tr`)].map("
            "(row) => [...row.cells].map((cell) => cell.textContent))",
            table,
        )
        return found

    def drawn_after(self) -> float:
        """Seconds from the navigation until two frames after everything was loaded."""
        frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        milliseconds: float = self.page.evaluate(f"{frames}.then(() => performance.now())")
        return milliseconds / 1000


Open = Callable[..., Any]


@pytest.fixture(scope="session")
def open_in_browser(browser: Browser) -> Open:
    """``with open_in_browser(file or address) as look:`` a page in a profile of its own."""

    @contextmanager
    def open_(place: Path | str, *, clock: bool = False, **profile: Any) -> Iterator[Look]:
        """``clock``: time stands still unless the test moves it."""
        context = browser.new_context(reduced_motion="reduce", **profile)  # smooth scrolling takes its time
        context.set_default_timeout(15_000)
        look = Look(context.new_page())
        if clock:
            look.page.clock.install()
        look.page.goto(place.as_uri() if isinstance(place, Path) else place)
        yield look
        context.close()

    return open_
