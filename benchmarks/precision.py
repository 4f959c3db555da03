"""bf16 against fp32: the same experiment with the same seeds, mean accuracy of the last 20 rounds.

The runs are records in ``results/precision``. They were made with

    vhl run data=cifar10 model=resnet10 model.width=32 model.init=he objective=plain \\
        clients_per_round=10 rounds=60 engine.precision=bf16 --seeds 0,1,2
    vhl run data=cifar10 model=resnet10 model.width=16 objective=vhl virtual=noise \\
        clients_per_round=5 rounds=60 engine.precision=bf16 --seeds 0,1,2

and the same with ``engine.precision=fp32``.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from vhl.runs.digest import Digest

LAST = 20


def last_rounds(file: Path) -> float:
    accuracies = [record.accuracy for record in Digest.read(file).records[-LAST:]]
    return 100 * statistics.mean(accuracies)


def compare(objective: str) -> None:
    folder = Path(__file__).parent / "results" / "precision"
    differences = []
    for file in sorted(folder.glob(f"{objective}-bf16-seed*.json")):
        bf16, fp32 = last_rounds(file), last_rounds(folder / file.name.replace("bf16", "fp32"))
        differences.append(bf16 - fp32)
        print(f"{objective}, {file.stem[-5:]}: bf16 {bf16:.2f} %, fp32 {fp32:.2f} %, {bf16 - fp32:+.2f}")
    error = statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.mean(differences)
    print(f"{objective}, bf16 − fp32: {mean:+.2f} ± {error:.2f} points (standard error)")


if __name__ == "__main__":
    for objective in ("plain", "vhl"):
        compare(objective)
