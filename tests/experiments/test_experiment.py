"""The rule of a verdict."""

import pytest

from regard.experiments import Bilingual, Claim, Criterion, judge

TEXT = Bilingual.same("text")
CLAIM = Claim(
    1,
    "made",
    TEXT,
    TEXT,
    TEXT,
    (
        Criterion("core", TEXT, ">=", 0.5, core=True),
        Criterion("more", TEXT, ">=", 0.5),
        Criterion("less", TEXT, "<=", 0.5),
    ),
)


@pytest.mark.parametrize(
    ("core", "more", "less", "kind"),
    [
        (0.5, 0.9, 0.5, "holds"),
        (0.9, 0.1, 0.1, "limited"),
        (0.9, 0.1, 0.9, "limited"),
        (0.1, 0.9, 0.1, "fails"),
        (0.1, 0.1, 0.9, "fails"),
        (0.9, float("nan"), 0.1, "limited"),
    ],
)
def test_claim_follows_from_its_sub_claims(core: float, more: float, less: float, kind: str) -> None:
    verdict = judge(CLAIM, {"core": (core, TEXT), "more": (more, TEXT), "less": (less, TEXT)}, TEXT, TEXT)
    assert verdict.kind == kind
    assert [part.holds for part in verdict.subclaims] == [core >= 0.5, more >= 0.5, less <= 0.5]
    assert [part.core for part in verdict.subclaims] == [True, False, False]


def test_without_core_a_claim_fails_only_if_nothing_holds() -> None:
    claim = Claim(1, "made", TEXT, TEXT, TEXT, CLAIM.criteria[1:])
    assert judge(claim, {"more": (0.1, TEXT), "less": (0.9, TEXT)}, TEXT, TEXT).kind == "fails"
    assert judge(claim, {"more": (0.1, TEXT), "less": (0.1, TEXT)}, TEXT, TEXT).kind == "limited"


def test_every_criterion_must_be_measured() -> None:
    with pytest.raises(KeyError, match="less"):
        judge(CLAIM, {"core": (1, TEXT), "more": (1, TEXT)}, TEXT, TEXT)
