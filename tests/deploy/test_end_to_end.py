"""The whole of it: processes of Flower's own, TLS, keys, and our apps in them."""

from __future__ import annotations

import torch

from vhl.deploy.folder import write_app
from vhl.deploy.local import LocalDeployment
from vhl.rounds.simulation import Simulation
from vhl.runs.folder import RunFolder


def test_three_sites_train_the_simulators_model(experiment, tmp_path, monkeypatch):
    """SCAFFOLD with VHL: control variates stay at the sites between processes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    experiment = experiment.with_(rounds=2)
    settings = {"sites": 3, "test": "experiment", "runs-dir": str(tmp_path / "runs"), "wait": 200}
    write_app(tmp_path / "app", experiment, settings)
    sites = {f"s{part}": {"data": f"part:{part}", "store": str(tmp_path / f"s{part}")} for part in range(3)}
    lines: list[str] = []
    with LocalDeployment(tmp_path / "work", sites) as deployment:
        deployment.run(tmp_path / "app", lines.append)
    folder = RunFolder(tmp_path / "runs" / "run")
    manifest = folder.manifest()
    assert manifest is not None and (folder.path / "report.html").exists()
    simulation = Simulation(experiment, tmp_path)
    list(simulation)
    assert torch.equal(folder.load_state(manifest).server.parameters, simulation.state.server.parameters)
    assert [line for line in lines if line.startswith("round 2/2")]
    assert all(program.ended for program in [*deployment.nodes, *deployment.server])
