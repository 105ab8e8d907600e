"""Claims: every entry of a catalogue is stated once, verdicts follow from data and tolerance, and reasons are given."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_evidence.papers.asymmetric import claims as asymmetric_claims
from fleetcount_evidence.papers.asymmetric import theorems as asymmetric_theorems
from fleetcount_evidence.papers.asymmetric.policies import Monotonicity
from fleetcount_evidence.papers.catalogue import CATALOGUES, Catalogue, Claim, claims_json
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.results import Results, Settings
from fleetcount_evidence.papers.sampling import claims as sampling_claims
from fleetcount_evidence.papers.verdicts import EXACT, ClaimError, Data, Reproduction, Tolerance, as_floats, verdict_of
from fleetcount_mechanisms.asymmetric import Direction, optimal_detection
from fleetcount_mechanisms.sampling import toss

ENTRIES = {
    identifier: (paper, entry) for paper in CATALOGUES for identifier, entry in Catalogue.load(paper).entries.items()
}
STAND_IN = {"needs": "CENSUS", "ran_on": "Adult"}


def catalogue(**entry: object) -> Catalogue:
    content = {"source": "section 1", "statement": "a number", "paper": 2.0, "needs": "no data", "ran_on": "no data"}
    return Catalogue(paper="test", title="A paper", entries={"T-1": {**content, **entry}})


@pytest.mark.parametrize(
    ("needs", "ran_on", "agrees", "arithmetic", "verdict"),
    [
        (Data.NONE, Data.NONE, True, False, Reproduction.REPRODUCED),
        (Data.PATIENTS, Data.PATIENTS, True, False, Reproduction.REPRODUCED),
        (Data.NONE, Data.NONE, False, False, Reproduction.CORRECTED),
        (Data.PATIENTS, Data.PATIENTS, False, False, Reproduction.CORRECTED),
        (Data.CENSUS, Data.ADULT, True, False, Reproduction.HOLDS),
        (Data.UNKNOWN, Data.ASSUMED, True, False, Reproduction.HOLDS),
        (Data.CENSUS, Data.ADULT, False, False, Reproduction.CONTRADICTED),
        (Data.CENSUS, Data.ADULT, None, False, Reproduction.NOT_REPRODUCIBLE),
        (Data.NONE, Data.NONE, None, False, Reproduction.NOT_REPRODUCIBLE),
        (Data.NONE, Data.NONE, True, True, Reproduction.ARITHMETIC),
        (Data.PEOPLEFLOW, Data.CITY, True, True, Reproduction.ARITHMETIC),
        (Data.NONE, Data.NONE, False, True, Reproduction.CORRECTED),
        (Data.PEOPLEFLOW, Data.CITY, False, True, Reproduction.CONTRADICTED),
    ],
)
def test_the_verdict_follows_from_the_data_and_the_tolerance(
    needs: Data, ran_on: Data, agrees: bool | None, arithmetic: bool, verdict: Reproduction
) -> None:
    assert verdict_of(needs, ran_on, agrees, arithmetic=arithmetic) is verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (2.0, Reproduction.REPRODUCED),
        (2.05, Reproduction.REPRODUCED),
        (2.06, Reproduction.CORRECTED),
        (math.nan, Reproduction.CORRECTED),
    ],
)
def test_a_number_is_reproduced_exactly_within_its_distance(ours: float, verdict: Reproduction) -> None:
    claims = catalogue(within=0.05, because="printed so", why="a misprint")

    claims.number("T-1", ours)

    assert claims.finished()[0].verdict is verdict


@pytest.mark.parametrize(
    ("limit", "measured", "verdict"),
    [
        ({"at_most": 1.1}, 1.1, Reproduction.HOLDS),
        ({"at_most": 1.1}, 1.11, Reproduction.CONTRADICTED),
        ({"at_least": 2}, 2.0, Reproduction.HOLDS),
        ({"at_least": 2}, 1.99, Reproduction.CONTRADICTED),
        ({"at_least": 2}, math.nan, Reproduction.CONTRADICTED),
        ({"at_most": [11, 10]}, [11.0, 10.0], Reproduction.HOLDS),
        ({"at_most": [11, 10]}, [10.0, 11.0], Reproduction.CONTRADICTED),
    ],
)
def test_a_sentence_is_judged_by_its_limit(limit: dict[str, Any], measured: Any, verdict: Reproduction) -> None:
    claims = catalogue(**STAND_IN, **limit, because="the word means so")

    claims.measured("T-1", measured, ours="as shown")

    assert claims.finished()[0].verdict is verdict


def test_without_a_distance_a_number_must_be_the_papers() -> None:
    claims = catalogue(why="a misprint")

    claims.number("T-1", 2.0 + 1e-9)

    assert claims.finished()[0].verdict is Reproduction.CORRECTED


def test_a_contradiction_says_by_how_much() -> None:
    claims = catalogue(**STAND_IN, at_most=1.1, because="slightly")

    claims.number("T-1", [2.75, 1.0])

    by = claims.finished()[0].as_json()["by"]
    assert by == {"measured": [2.75, 1.0], "claimed": [1.1, 1.1], "factor": [2.5, 0.9091]}


def test_a_contradicted_sentence_without_a_number_is_refused() -> None:
    with pytest.raises(ClaimError, match="by how much"):
        catalogue(**STAND_IN, why="because").fact("T-1", ours=False, holds=False)


@pytest.mark.parametrize("state", [lambda c: c.fact("T-1", False, holds=False), lambda c: c.undecided("T-1", 1.0)])
def test_a_claim_that_is_corrected_or_not_reproducible_needs_a_reason(state: Any) -> None:
    with pytest.raises(ClaimError, match="no reason"):
        state(catalogue())


@pytest.mark.parametrize(
    "entry", [{"within": 1}, {"because": "so"}, {"within": 1, "at_most": 2, "because": "both"}, {"at_least": 1}]
)
def test_a_tolerance_has_one_limit_and_one_reason(entry: dict[str, object]) -> None:
    with pytest.raises(ClaimError, match="allowed: 1 and its `because`"):
        catalogue(**entry).number("T-1", 2.0)


def test_a_claim_is_stated_once_and_none_is_forgotten() -> None:
    claims = catalogue(why="because")

    with pytest.raises(ClaimError, match="not stated: T-1"):
        claims.finished()
    claims.fact("T-1", ours=True, holds=True)
    with pytest.raises(ClaimError, match="stated before"):
        claims.fact("T-1", ours=True, holds=True)
    with pytest.raises(ClaimError, match="not in the catalogue"):
        claims.fact("T-2", ours=True, holds=True)


def test_the_reasons_placeholders_are_filled() -> None:
    claims = catalogue(why="it is {size:.1f}, because {cause}")

    claims.fact("T-1", ours=False, holds=False, size=2.25, cause="of this")

    assert claims.finished()[0].why == "it is 2.2, because of this"


@pytest.mark.parametrize("paper", CATALOGUES)
def test_catalogues_hold_no_result_of_ours_and_name_the_data(paper: str) -> None:
    keys = {"source", "statement", "paper", "needs", "ran_on", "within", "at_least", "at_most", "because", "why"}
    loaded = Catalogue.load(paper)

    assert loaded.entries
    for identifier, entry in loaded.entries.items():
        assert set(entry) - {"arithmetic"} <= keys, identifier
        assert entry["source"], identifier
        assert entry["statement"], identifier
        assert Data(entry["needs"]), identifier
        assert Data(entry["ran_on"]), identifier


def both_ways(paper: str, identifier: str, entry: dict[str, Any]) -> list[Reproduction]:
    """Return the verdicts of a claim on what its tolerance just wants, and on a number one per cent beyond it."""
    tolerance = Tolerance.of(identifier, entry) or EXACT
    printed = as_floats(entry["paper"]) if tolerance.kind == "within" else ()
    right = tolerance.targets(printed, max(len(printed), len(tolerance.limits)))
    limits = tolerance.limits * (len(right) // len(tolerance.limits)) if tolerance.kind == "within" else (0.0,) * 9
    sign = -1 if tolerance.kind == "at_least" else 1
    wrong = [target + sign * (0.01 * abs(target) + 1.01 * limit) for target, limit in zip(right, limits, strict=False)]
    verdicts: list[Reproduction] = []
    for numbers in (right, wrong):
        claims = Catalogue(paper=paper, title="", entries={identifier: {**entry, "why": "so"}})
        claims.number(identifier, numbers)
        verdicts.append(claims.finished()[0].verdict)
    return verdicts


JUDGED = [
    identifier
    for identifier, (_, entry) in ENTRIES.items()
    if "because" in entry or type(entry["paper"]) in (int, float)
]
"""The claims that a number decides."""


@pytest.mark.parametrize("identifier", JUDGED)
def test_a_planted_wrong_number_turns_the_verdict_of_its_claim(identifier: str) -> None:
    paper, entry = ENTRIES[identifier][0], dict(ENTRIES[identifier][1])
    if isinstance(entry["paper"], str):
        entry["paper"] = 1.5  # A formula: the experiment gives its value.

    verdicts = both_ways(paper, identifier, entry)

    own = entry["needs"] == entry["ran_on"]
    good = Reproduction.REPRODUCED if own else Reproduction.HOLDS
    bad = Reproduction.CORRECTED if own else Reproduction.CONTRADICTED
    assert verdicts == [Reproduction.ARITHMETIC if entry.get("arithmetic") else good, bad]


def test_a_claim_on_a_stand_in_is_judged_by_a_number_or_not_at_all() -> None:
    for identifier, (_, entry) in ENTRIES.items():
        if entry["needs"] != entry["ran_on"] and identifier not in JUDGED:
            assert entry["paper"] == "in the figure only" or isinstance(entry["paper"], list), identifier


# Bugs planted in the mechanisms: the claim that rests on each must change its verdict.


def of_sampling(tmp_path: Path) -> dict[str, Claim]:
    results = Results(directory=tmp_path, step=lambda *_: None)
    sampling_claims.add_claims(Extracts.shipped(), Settings(quick=True), results)
    return {claim.identifier: claim for claim in results.claims}


def of_theorems() -> dict[str, Claim]:
    claims = Catalogue.load("asymmetric")
    asymmetric_theorems.add_theorems(claims)
    return {claim.identifier: claim for claim in claims.stated}


def test_a_device_that_never_tells_its_truth_turns_the_leakage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = of_sampling(tmp_path)
    monkeypatch.setattr(sampling_claims, "toss", lambda die, _truth, source: toss(die, 0, source))

    wrong = of_sampling(tmp_path)

    for identifier in ("SP-4.4-equation-21", "SP-4.4-equation-25", "SP-4.4-equation-29"):
        assert right[identifier].verdict is Reproduction.REPRODUCED
        assert wrong[identifier].verdict is Reproduction.CORRECTED


def later(*cases: tuple[str, str, str]) -> list[Any]:
    """Return cases for `make nightly` alone: each proves all theorems again."""
    return [pytest.param(*case, marks=pytest.mark.nightly) for case in cases]


@pytest.mark.parametrize(
    ("name", "planted", "identifier"),
    [
        ("asymmetric_row", "_mirrored", "ADP-VIII.2-loss"),
        ("neighbours", "_none", "ADP-IV.7-bound"),
        *later(
            ("osdp_required_non_sensitive", "_everyone", "ADP-III.3-risk"),
            ("blowfish_revealing_law", "_silent", "ADP-III.2-risk"),
            ("monotonicity", "_all_rise", "ADP-V.4-loss"),
            ("exact_loss_ratio", "_no_loss", "ADP-IV.5-beyond"),
        ),
    ],
)
def test_a_planted_bug_turns_the_theorem_that_rests_on_it(
    name: str, planted: str, identifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asymmetric_theorems, name, globals()[planted](getattr(asymmetric_theorems, name)))

    assert of_theorems()[identifier].verdict is Reproduction.CORRECTED


def _mirrored(row: Any) -> Any:
    return lambda ratio, count, maximum, direction=None: row(
        ratio, count, maximum, *([d for d in Direction if d is not direction] if direction else [])
    )


def _everyone(_required: Any) -> Any:
    return lambda domain, _visited: frozenset[Any]()


def _silent(_law: Any) -> Any:
    return lambda domain, _visited: {record: {True: Fraction(1)} for record in domain}


def _all_rise(_monotonicity: Any) -> Any:
    return lambda *_: (Monotonicity.INCREASING,) * 2


def _no_loss(_ratio: Any) -> Any:
    return lambda *_: Fraction(1)


def _none(_neighbours: Any) -> Any:
    return lambda *_: iter(())


def test_the_theorems_are_those_of_the_paper() -> None:
    claims = of_theorems()

    corrected = {name for name, claim in claims.items() if claim.verdict is Reproduction.CORRECTED}
    assert corrected == {"ADP-III.2-graph", "ADP-III.3-records", "ADP-V-A3-optimal", "ADP-V.6-detection"}
    assert {claim.verdict for name, claim in claims.items() if name not in corrected} == {Reproduction.REPRODUCED}
    assert claims["ADP-III.2-graph"].ours == "printed: eps < -6.215; with ln(beta / alpha): holds for 64 graphs"
    assert claims["ADP-III.3-records"].ours == "non-visitors"
    assert claims["ADP-IV.7-bound"].ours == pytest.approx(optimal_detection(Fraction(1), 3), rel=1e-9)


def test_a_wrong_city_turns_what_was_made_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    city = Extracts.shipped().city()
    monkeypatch.setattr(Extracts, "city", lambda _: {**city, 0: city[0] + 1})
    results = Results(directory=tmp_path, step=lambda *_: None)

    asymmetric_claims.add_claims(Extracts.shipped(), Settings(quick=True), results)

    verdicts = {claim.identifier: claim.verdict for claim in results.claims}
    assert verdicts["ADP-Fig2-locations"] is Reproduction.CONTRADICTED
    assert verdicts["ADP-Fig2-answers"] is Reproduction.CONTRADICTED


def test_claims_json_counts_verdicts_and_knows_no_infinity() -> None:
    claim = Claim(
        identifier="T-1",
        paper="test",
        source="section 1",
        statement="unbounded",
        paper_value=1.0,
        ours=math.inf,
        needs=Data.NONE,
        ran_on=Data.NONE,
        verdict=Reproduction.CORRECTED,
        why="it is",
    )

    content = json.loads(claims_json([claim], seed=3))

    assert content["verdicts"] == {
        "reproduced": 0,
        "holds on a stand-in": 0,
        "contradicted on a stand-in": 0,
        "corrected": 1,
        "not reproducible": 0,
        "check of arithmetic": 0,
    }
    assert content["settings"] == {"seed": 3}
    assert content["claims"][0]["ours"] == "unbounded"


def test_the_documentation_lists_every_claim_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "papers.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?:SP|ADP|GEO|INF)-[^ `,|]+", text.partition("\n## Every claim\n")[2])

    assert sorted(listed) == sorted(ENTRIES)
