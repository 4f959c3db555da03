"""Weights & Biases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import Tracker, need, remember, remembered


class Wandb(Tracker):
    """A run of Weights & Biases: online for a user who is logged in, else offline, or as WANDB_MODE says.

    Its files are in the run folder, under ``wandb/``; ``wandb sync runs/NAME/wandb/offline-run-*`` sends what
    was offline.
    """

    def __init__(self) -> None:
        need("wandb", "wandb")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

    def begin(self, run: RunFolder, experiment: Experiment) -> int:
        import wandb

        identity = remembered(run, "wandb")
        if identity is not None:  # offline nothing is known of earlier files: a new one gets all rounds
            for folder in (run.path / "wandb").glob(f"offline-run-*-{identity}"):
                shutil.rmtree(folder)
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "vhl",
            id=identity,
            resume="allow" if mode == "online" else None,
            name=experiment.name,
            config=experiment.model_dump(mode="json"),  # which it shows with dotted keys
            dir=run.path,
            mode=mode,
            reinit="create_new",  # for several runs go side by side
            settings=wandb.Settings(console="off", silent=mode != "online"),
        )
        remember(run, "wandb", self._run.id)
        if not self._run.disabled:
            file = Path(self._run.dir) / "experiment.toml"
            file.write_text(experiment.toml(), encoding="utf-8")
            self._run.save(file, base_path=self._run.dir, policy="now", glob=False)
        following: int = self._run.starting_step
        return max(0, following - 1)

    def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
        self._run.log({**metrics, "_timestamp": when}, step=round_, commit=True)

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def _is_logged_in() -> bool:
    import wandb

    return bool(wandb.login(prompt=False, verify=False))
