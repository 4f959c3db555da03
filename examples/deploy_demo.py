"""FedAvg + VHL over three sites on this machine, with TLS and keys; one site dies and comes back.

`make deploy-demo` runs this. A hospital's sites are separate machines: docs/deployment.md.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from vhl.deploy.folder import write_app
from vhl.deploy.local import LocalDeployment
from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder

RUNS = Path("runs").absolute()
EXPERIMENT = Experiment.read(
    {
        "name": "deploy-demo",
        "data": "digits",
        "partition": {"name": "lda", "alpha": 0.3, "clients": 3},
        "model": {"name": "cnn", "width": 16},
        "objective": "vhl",
        "virtual": {"name": "noise", "per_class": 100},
        "training": {"epochs": 3, "lr": 0.05, "batch_size": 32},
        "rounds": 10,
        "clients_per_round": 1.0,
    }
)
SETTINGS = {"sites": 3, "test": "experiment", "runs-dir": str(RUNS), "round-timeout": 40, "wait": 180}


def main() -> None:
    run = RunFolder(RUNS / EXPERIMENT.name)
    shutil.rmtree(run.path, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_app(folder / "app", EXPERIMENT, SETTINGS)
        sites = {
            f"site-{part + 1}": {"data": f"part:{part}", "store": str(folder / f"store-{part + 1}")}
            for part in range(3)
        }
        with LocalDeployment(folder, sites) as deployment:

            def on_line(line: str) -> None:
                say(line)
                if line.startswith("round 3/"):
                    say("— site-2 is killed —")
                    deployment.nodes[1].kill()
                if line.startswith("round 4/"):
                    say("— site-2 is started again —")
                    deployment.start_node(1)

            deployment.run(folder / "app", on_line)
    left_out = {record.round: record.left_out for record in run.records() if record.left_out}
    say(f"Rounds in which sites were left out: {left_out}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
