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
        rows = f"{MAIN}/{algorithm}-vhl", f"{MAIN}/{algorithm}"
        yield Claim(f"VHL beats {title} on CIFAR-10.", _versus(("with − without", *rows)))
    for dataset, title in (("fmnist", "FMNIST"), ("svhn", "SVHN"), ("cifar100", "CIFAR-100")):
        rows = f"{dataset}/a0.1-e1-k10/fedavg-vhl", f"{dataset}/a0.1-e1-k10/fedavg"
        yield Claim(f"VHL beats FedAvg on {title}.", _versus(("with − without", *rows)))
    yield Claim("It helps 100 clients too.", _versus(("with − without", *_pair("cifar10/a0.1-e1-k100"))))
    yield Claim(
        "It helps with 5 local epochs too.", _versus(("with − without", *_pair("cifar10/a0.1-e5-k10")))
    )
    yield Claim("It gains more at α = 0.05 than at α = 0.1.", _gain_at_stronger_skew)
    for algorithm, title in _TITLES.items():
        rows = f"{MAIN}/{algorithm}-vhl", f"{MAIN}/{algorithm}"
        text = f"With VHL {title} needs fewer rounds to what FedAvg reaches."
        yield Claim(text, _versus(("with over without", *rows), measure=ROUNDS), "less")
    yield Claim("Client drift falls.", _versus(("with over without", _VHL, _FEDAVG), measure=DRIFT), "less")
    for partition in ("classes-2", "subset"):
        yield Claim(
            f"It helps on the partition {partition}.",
            _versus(("with − without", *_pair(f"partitions/{partition}"))),
        )
    yield Claim("Naive VHL helps.", _versus(("naive − FedAvg", "further/naive/fedavg", _FEDAVG)))
    yield Claim("It helps less than VHL.", _versus(("VHL − naive", _VHL, "further/naive/fedavg")))
    yield Claim("VFA helps.", _versus(("VFA − FedAvg", "further/vfa/fedavg", _FEDAVG)))
    vftl = "VFTL − FedAvg", "further/vftl/fedavg", _FEDAVG
    yield Claim("VFTL speeds up the start …", _versus(vftl, measure=START))
    yield Claim("… and only that: the best is the same.", _versus(vftl), "equal")
    yield from _virtual_data()
    yield from _sensitivity()


def _virtual_data() -> Iterator[Claim]:
    noise, decoder, photographs = (f"further/{kind}/fedavg" for kind in ("noise", "decoder", "tiny-imagenet"))
    yield Claim(
        "Noise is as good as StyleGAN.",
        _versus(("StyleGAN − noise", _VHL, noise), virtual=["stylegan"]),
        "equal",
    )
    yield Claim(
        "StyleGAN is better than decoders.",
        _versus(("StyleGAN − decoders", _VHL, decoder), virtual=["stylegan"]),
    )
    yield Claim(
        "Decoders are better than Tiny-ImageNet.", _versus(("decoders − photographs", decoder, photographs))
    )


def _sensitivity() -> Iterator[Claim]:
    large, small = "further/batch-384/fedavg", "further/batch-64/fedavg"
    yield Claim("A larger virtual batch is better: 384 than 64.", _versus(("B_v 384 − 64", large, small)))
    weights = ((f"λ {weight} − 1", f"further/lambda-{weight}/fedavg", _VHL) for weight in ("0.1", "10.0"))
    yield Claim("λ hardly matters.", _versus(*weights), "equal")
    taps = {tap: f"further/tap-{tap}/fedavg" for tap in ("last", "middle", "shallow")}
    others = ((f"deep − {tap}", "further/tap-deep/fedavg", row) for tap, row in taps.items())
    yield Claim("The deep tap is best.", _versus(*others))
    for depth in (10, 34):
        rows = f"further/resnet{depth}-vhl/fedavg", f"further/resnet{depth}/fedavg"
        yield Claim(f"VHL helps ResNet-{depth}.", _versus(("with − without", *rows)))
    weak = _versus(("with − without", *_pair("cifar100/a0.1-e5-k10")))
    yield Claim("On CIFAR-100 with 5 epochs it does not help.", weak, "equal")


def _pair(setting: str) -> tuple[str, str]:
    return f"{setting}/fedavg-vhl", f"{setting}/fedavg"


def _versus(
    *pairs: tuple[str, str, str], measure: Measure = BEST, virtual: Sequence[str] = USUAL
) -> Contrasts:
    """Pairs of a label and two rows; the first row should have more, or less, than the second."""
    return lambda evidence: [contrast(evidence, *pair, measure, virtual) for pair in pairs]


def _gain_at_stronger_skew(evidence: Evidence) -> list[Contrast | None]:
    strong = contrast(evidence, "", *_pair("cifar10/a0.05-e1-k10"))
    weak = contrast(evidence, "", *_pair(MAIN), like=strong)
    return [None if strong is None or weak is None else strong.minus(weak, "gain at 0.05 − gain at 0.1")]


def checklist(evidence: Evidence) -> str:
    """The claims as a Markdown table."""
    headings, lines = ("claim", "verdict", "measured"), []
    for claim in claims():
        found = claim.contrasts(evidence)
        numbers = "; ".join(str(one) for one in found if one is not None) or "–"
        lines.append((claim.text, claim.verdict(found), numbers))
    return markdown_table(headings, lines, words=headings)
