"""The paper's claims, each with a verdict from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vhl.paper.contrast import BEST, DRIFT, ROUNDS, START, USUAL, Contrast, Measure, contrast
from vhl.paper.evidence import Evidence
from vhl.paper.markdown import markdown_table
from vhl.paper.row import MAIN

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]
Expected = Literal["more", "less", "equal"]
Contrasts = Callable[[Evidence], list[Contrast | None]]
_NEAR = 0.02  # accuracies that differ by less than two points count as equal
_FEDAVG, _VHL = f"{MAIN}/fedavg", f"{MAIN}/fedavg-vhl"
_TITLES = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fednova": "FedNova"}


@dataclass(frozen=True)
class Claim:
    """A claim, and the differences that decide it: all of them must be as expected."""

    text: str
    contrasts: Contrasts
    expected: Expected = "more"

    def verdict(self, found: Sequence[Contrast | None]) -> Verdict:
        """One that was measured can refute the claim; to confirm it takes all."""
        single = [_judge(one, self.expected) for one in found]
        for verdict in ("does not hold", "not tested", "undecided"):
            if verdict in single:
                return verdict
        return "holds"


def _judge(found: Contrast | None, expected: Expected) -> Verdict:
    """A difference decides that is more than chance."""
    if found is None:
        return "not tested"
    difference = found.difference
    if (doubt := difference.margin) is None:
        return "undecided"
    if expected == "equal":
        distance = abs(difference.mean)
        if distance - doubt > _NEAR:
            return "does not hold"
        return "holds" if distance + doubt < _NEAR else "undecided"
    if not difference.decided:
        return "undecided"
    return "holds" if (difference.mean > 0) == (expected == "more") else "does not hold"


def claims() -> Iterator[Claim]:
    """In the order of the paper."""
    for algorithm, title in _TITLES.items():
        yield _helps(f"VHL beats {title} on CIFAR-10.", f"{MAIN}/{algorithm}")
    for dataset, title in (("fmnist", "FMNIST"), ("svhn", "SVHN"), ("cifar100", "CIFAR-100")):
        yield _helps(f"VHL beats FedAvg on {title}.", f"{dataset}/a0.1-e1-k10/fedavg")
    yield _helps("It helps 100 clients too.", "cifar10/a0.1-e1-k100/fedavg")
    yield _helps("It helps with 5 local epochs too.", "cifar10/a0.1-e5-k10/fedavg")
    yield Claim("It gains more at α = 0.05 than at α = 0.1.", _gain_at_stronger_skew)
    for algorithm, title in _TITLES.items():
        pair = "with over without", f"{MAIN}/{algorithm}-vhl", f"{MAIN}/{algorithm}"
        text = f"With VHL {title} needs fewer rounds to what FedAvg reaches."
        yield _claim(text, pair, expected="less", measure=ROUNDS)
    drift = "with over without", _VHL, _FEDAVG
    yield _claim("Client drift falls.", drift, expected="less", measure=DRIFT)
    for partition in ("classes-2", "subset"):
        yield _helps(f"It helps on the partition {partition}.", f"partitions/{partition}/fedavg")
    naive, vfa, vftl = (f"further/{variant}/fedavg" for variant in ("naive", "vfa", "vftl"))
    yield _claim("Naive VHL helps.", ("naive − FedAvg", naive, _FEDAVG))
    yield _claim("It helps less than VHL.", ("VHL − naive", _VHL, naive))
    yield _claim("VFA helps.", ("VFA − FedAvg", vfa, _FEDAVG))
    yield _claim("VFTL speeds up the start …", ("VFTL − FedAvg", vftl, _FEDAVG), measure=START)
    yield _claim("… and only that: the best is the same.", ("VFTL − FedAvg", vftl, _FEDAVG), expected="equal")
    yield from _virtual_data()
    yield from _sensitivity()


def _virtual_data() -> Iterator[Claim]:
    noise, decoder, photographs = (f"further/{kind}/fedavg" for kind in ("noise", "decoder", "tiny-imagenet"))
    stylegan = ["stylegan"]
    pair = "StyleGAN − noise", _VHL, noise
    yield _claim("Noise is as good as StyleGAN.", pair, expected="equal", virtual=stylegan)
    pair = "StyleGAN − decoders", _VHL, decoder
    yield _claim("StyleGAN is better than decoders.", pair, virtual=stylegan)
    pair = "decoders − photographs", decoder, photographs
    yield _claim("Decoders are better than Tiny-ImageNet.", pair)


def _sensitivity() -> Iterator[Claim]:
    sizes = "B_v 384 − 64", "further/batch-384/fedavg", "further/batch-64/fedavg"
    yield _claim("A larger virtual batch is better: 384 than 64.", sizes)
    weights = ((f"λ {weight} − 1", f"further/lambda-{weight}/fedavg", _VHL) for weight in ("0.1", "10.0"))
    yield _claim("λ hardly matters.", *weights, expected="equal")
    taps = ((f"deep − {tap}", f"further/tap-{tap}/fedavg") for tap in ("last", "middle", "shallow"))
    others = ((label, "further/tap-deep/fedavg", row) for label, row in taps)
    yield _claim("The deep tap is best.", *others)
    for depth in (10, 34):
        rows = f"further/resnet{depth}-vhl/fedavg", f"further/resnet{depth}/fedavg"
        yield _claim(f"VHL helps ResNet-{depth}.", ("with − without", *rows))
    weak = "cifar100/a0.1-e5-k10/fedavg"
    yield _helps("On CIFAR-100 with 5 epochs it does not help.", weak, expected="equal")


def _claim(
    text: str,
    *pairs: tuple[str, str, str],
    expected: Expected = "more",
    measure: Measure = BEST,
    virtual: Sequence[str] = USUAL,
) -> Claim:
    """Of pairs of a label and two rows; the first row should have more, or less, than the second."""
    return Claim(text, lambda evidence: [contrast(evidence, *p, measure, virtual) for p in pairs], expected)


def _helps(text: str, row: str, expected: Expected = "more") -> Claim:
    """That a row is better with VHL."""
    return _claim(text, ("with − without", f"{row}-vhl", row), expected=expected)


def _gain_at_stronger_skew(evidence: Evidence) -> list[Contrast | None]:
    strong, weak = "cifar10/a0.05-e1-k10/fedavg", _FEDAVG
    first = contrast(evidence, "", f"{strong}-vhl", strong)
    second = contrast(evidence, "", f"{weak}-vhl", weak, like=first)
    return [None if first is None or second is None else first.minus(second, "gain at 0.05 − gain at 0.1")]


def checklist(evidence: Evidence) -> str:
    """The claims as a Markdown table."""
    headings, lines = ("claim", "verdict", "measured"), []
    for claim in claims():
        found = claim.contrasts(evidence)
        numbers = "; ".join(str(one) for one in found if one is not None) or "–"
        lines.append((claim.text, claim.verdict(found), numbers))
    return markdown_table(headings, lines, words=headings)
