"""Verdicts on the paper's claims: every branch, and that the claims are about the right rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vhl.paper import claims as module
from vhl.paper.claims import Claim, checklist, claims
from vhl.paper.contrast import BEST, DRIFT, ROUNDS, START, USUAL, Contrast
from vhl.paper.evidence import Evidence
from vhl.paper.rows import rows
from vhl.runs.digest import Digest
from vhl.runs.statistics import Difference

MAIN = "cifar10/a0.1-e1-k10"
PLAIN, VHL = f"{MAIN}/fedavg", f"{MAIN}/fedavg-vhl"
Make = Callable[..., Digest]
Asked = tuple[str, str, Any, Any]


def verdict(expected: Any, *found: tuple[float, float | None] | None) -> str:
    contrasts = [
        None if one is None else Contrast("", BEST, Difference(one[0], one[1], math.inf, 2), 10, "")
        for one in found
    ]
    return Claim("", lambda evidence: contrasts, expected).verdict(contrasts)


def lines_of(digests: Sequence[Digest]) -> dict[str, tuple[str, str]]:
    """Verdict and numbers by claim."""
    cells = [line.strip("|").split(" | ") for line in checklist(Evidence(digests)).splitlines()[2:]]
    return {claim.strip(): (verdict, numbers.strip()) for claim, verdict, numbers in cells}


@pytest.fixture
def asked() -> list[Asked]:
    """The comparisons that all claims ask for: rows, measure and virtual data."""
    found: list[Asked] = []

    def note(
        evidence: Any, label: str, more: str, less: str, measure: Any = BEST, virtual: Any = USUAL, **_: Any
    ) -> None:
        found.append((more, less, measure, virtual))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "contrast", note)
        for claim in claims():
            claim.contrasts(Evidence([]))
    return found


def line(text: str, beginning: str) -> str:
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {beginning}")]
    return found


# --- verdicts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "value", "error", "answer"),
    [
        ("more", 0.05, 0.02, "holds"),
        ("more", 0.05, 0.03, "undecided"),  # within two standard errors
        ("more", -0.05, 0.03, "undecided"),
        ("more", -0.05, 0.02, "does not hold"),
        ("more", 0.001, 0.0, "holds"),
        ("less", -0.05, 0.02, "holds"),
        ("less", -0.05, 0.03, "undecided"),
        ("less", 0.05, 0.03, "undecided"),
        ("less", 0.05, 0.02, "does not hold"),
        ("equal", 0.01, 0.004, "holds"),  # within two points, two errors included
        ("equal", -0.01, 0.004, "holds"),
        ("equal", 0.01, 0.006, "undecided"),
        ("equal", -0.01, 0.006, "undecided"),
        ("equal", 0.03, 0.006, "undecided"),
        ("equal", 0.03, 0.004, "does not hold"),
        ("equal", -0.03, 0.004, "does not hold"),
        ("equal", 0.0, 0.02, "undecided"),
        *((expected, 0.5, None, "undecided") for expected in ("more", "less", "equal")),
    ],
)
def test_two_standard_errors_decide(expected: str, value: float, error: float | None, answer: str) -> None:
    assert verdict(expected, (value, error)) == answer


def test_all_differences_must_be_as_expected() -> None:
    yes, no, open_ = (0.5, 0.1), (-0.5, 0.1), (0.1, 0.1)
    assert verdict("more", yes, yes) == "holds"
    assert verdict("more", yes, open_) == verdict("more", yes, (0.5, None)) == "undecided"
    assert verdict("more", yes, None) == verdict("more", None, open_) == verdict("more", None) == "not tested"
    for other in (yes, open_, None):  # one that was measured can refute
        assert verdict("more", other, no) == verdict("more", no, other) == "does not hold"


# --- what the claims are about -------------------------------------------------------------------------


def test_every_claim_is_about_rows_of_the_paper(asked: list[Asked]) -> None:
    assert len(asked) == len(list(claims())) + 4  # two that take two comparisons, and one of three
    for more, less, measure, virtual in asked:
        assert more in rows() and less in rows() and more != less
        assert virtual == USUAL or rows()[more].uses_generator
        shared = ("data", "partition", "clients_per_round", "algorithm", "rounds")
        one, other = rows()[more].settings, rows()[less].settings
        assert all(one[key] == other[key] for key in shared)
        assert measure in (BEST, START, DRIFT, ROUNDS)
    measures = [measure for _, _, measure, _ in asked]
    assert (measures.count(ROUNDS), measures.count(DRIFT), measures.count(START)) == (4, 1, 1)


def test_claims_have_texts_of_their_own() -> None:
    texts = [claim.text for claim in claims()]
    assert len(set(texts)) == len(texts) and not any("|" in text or "\n" in text for text in texts)


def test_by_the_papers_own_numbers_every_claim_about_the_best_holds(digest: Make, asked: list[Asked]) -> None:
    names = {name for more, less, *_ in asked for name in (more, less)}
    digests = [digest(name, [(rows()[name].accuracy or 0) / 100], seed) for name in names for seed in (0, 1)]
    evidence = Evidence(digests)
    count = 0
    for claim in claims():
        found = claim.contrasts(evidence)
        assert None not in found
        if all(one is not None and one.measure is BEST for one in found):
            assert claim.verdict(found) == "holds", claim.text
            count += 1
    assert count == len(list(claims())) - 6  # but for rounds, drift and the start


def test_by_the_papers_own_rounds_vhl_is_faster(digest: Make) -> None:
    digests = []
    for algorithm in ("fedavg", "fedprox", "scaffold", "fednova"):
        for name in (f"{MAIN}/{algorithm}", f"{MAIN}/{algorithm}-vhl"):
            rounds = rows()[name].rounds
            assert rounds is not None
            curve = [0.1] * (rounds - 1) + [0.79] * (360 - rounds)
            digests += [digest(name, curve, seed) for seed in (0, 1)]
    found = lines_of(digests)
    for title in ("FedAvg", "FedProx", "SCAFFOLD", "FedNova"):
        assert found[f"With VHL {title} needs fewer rounds to what FedAvg reaches."][0] == "holds"
    (numbers,) = [found[text][1] for text in found if text.startswith("With VHL FedAvg")]
    assert numbers.startswith("with over without: -55.4 ± 0.0 % ")  # 128 over 287


# --- the list ------------------------------------------------------------------------------------------


def test_nothing_was_measured() -> None:
    found = lines_of([])
    assert list(found) == [claim.text for claim in claims()] and len(found) > 25
    assert set(found.values()) == {("not tested", "–")}


def test_verdicts_and_their_numbers(digest: Make) -> None:
    digests = [digest(PLAIN, [0.2, best], seed, drift=2.0) for seed, best in ((0, 0.70), (1, 0.72))]
    digests += [digest(VHL, [0.3, best], seed, drift=1.0) for seed, best in ((0, 0.80), (1, 0.824))]
    digests += [digest("further/vftl/fedavg", [0.1, best], s) for s, best in ((0, 0.701), (1, 0.721))]
    digests += [digest("further/lambda-0.1/fedavg", [0.1, best], s) for s, best in ((0, 0.70), (1, 0.724))]
    found = lines_of(digests)
    setting = "(paper, stylegan, 2 seeds, 2 rounds)"
    assert found["VHL beats FedAvg on CIFAR-10."] == (
        "holds",
        f"with − without: +10.2 ± 0.2 points {setting}",
    )
    assert found["Client drift falls."] == ("holds", f"with over without: -50.0 ± 0.0 % {setting}")
    assert found["VFTL speeds up the start …"] == (
        "does not hold",
        f"VFTL − FedAvg: -10.0 ± 0.0 points {setting}",
    )
    assert found["… and only that: the best is the same."][0] == "holds"
    verdict, numbers = found["λ hardly matters."]  # refuted by one, the other was not run
    assert verdict == "does not hold" and numbers == f"λ 0.1 − 1: -10.0 ± 0.0 points {setting}"
    assert found["VHL beats FedProx on CIFAR-10."] == ("not tested", "–")


def test_a_gain_that_grows_with_the_skew(digest: Make) -> None:
    def gains(strong: float, weak: float) -> tuple[str, str]:
        digests = []
        for alpha, gain in ((0.05, strong), (0.1, weak)):
            for seed, jitter in ((0, 0.001), (1, -0.001)):
                setting = f"cifar10/a{alpha}-e1-k10"
                digests.append(digest(f"{setting}/fedavg", [0.5], seed))
                digests.append(digest(f"{setting}/fedavg-vhl", [0.5 + gain + jitter], seed))
        return lines_of(digests)["It gains more at α = 0.05 than at α = 0.1."]

    verdict, numbers = gains(0.2, 0.1)
    assert verdict == "holds"
    assert numbers.startswith("gain at 0.05 − gain at 0.1: +10.0 ± 0.1 points")  # each ± 0.1
    assert gains(0.1, 0.2)[0] == "does not hold" and gains(0.11, 0.1)[0] == "undecided"
    weak = [digest(f"{MAIN}/fedavg{kind}", [0.5], seed) for kind in ("", "-vhl") for seed in (0, 1)]
    assert lines_of(weak)["It gains more at α = 0.05 than at α = 0.1."] == ("not tested", "–")


def test_noise_is_compared_with_stylegan_alone(digest: Make) -> None:
    """The main row with noise is the noise row itself."""
    digests = [digest(VHL, [0.8], seed, virtual="noise") for seed in (0, 1)]
    assert lines_of(digests)["Noise is as good as StyleGAN."] == ("not tested", "–")
    digests += [digest(VHL, [0.81], seed, virtual="stylegan") for seed in (0, 1)]
    assert lines_of(digests)["Noise is as good as StyleGAN."][0] == "holds"


def test_the_list_is_a_table(digest: Make) -> None:
    text = checklist(Evidence([digest(PLAIN, [0.1]), digest(VHL, [0.3])]))
    lines = text.splitlines()
    assert lines[1] == "| :-- | :-- | :-- |" and text.endswith("|\n")
    assert {line.count("|") for line in lines} == {4} and len(lines) == 2 + len(list(claims()))


def test_one_client_does_not_drift(digest: Any) -> None:
    central = [digest("centralized/cifar10/plain", [0.1], seed, drift=0.0) for seed in (0, 1)]
    checklist(Evidence([*central, digest(PLAIN, [0.1]), digest(VHL, [0.1])]))  # math domain error


def test_rounds_to_what_fedavg_reached_where_it_was_not_run(digest: Any) -> None:
    names = (f"{MAIN}/fedprox", f"{MAIN}/fedprox-vhl")
    digests = [digest(name, [0.1, 0.2 + seed / 10], seed) for name in names for seed in (0, 1)]
    assert "| not tested |" in line(checklist(Evidence(digests)), "With VHL FedProx")


def test_neither_got_there(digest: Any) -> None:
    digests = [digest(f"{MAIN}/{n}", [0.1, 0.2], s) for n in ("fedprox", "fedprox-vhl") for s in (0, 1)]
    digests += [digest(PLAIN, [0.9, 0.9], s) for s in (0, 1)]
    assert "| undecided |" in line(checklist(Evidence(digests)), "With VHL FedProx")


def test_gains_in_different_settings_are_not_subtracted(digest: Any) -> None:
    digests = []
    for seed in (0, 1):
        skewed = {"profile": "release", "virtual": "noise"}
        digests += [digest("cifar10/a0.05-e1-k10/fedavg", [0.3], seed, **skewed)]
        digests += [digest("cifar10/a0.05-e1-k10/fedavg-vhl", [0.6], seed, **skewed)]
        digests += [digest(PLAIN, [0.3], seed), digest(VHL, [0.4], seed)]
    assert "| not tested |" in line(checklist(Evidence(digests)), "It gains more")
