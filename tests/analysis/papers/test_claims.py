"""Claims: every entry of a catalogue is stated once, verdicts follow from the numbers, and reasons are given."""

import json
import math
import re
from pathlib import Path

import pytest
from fleetcount_analysis.papers.claims import CATALOGUES, Catalogue, Claim, ClaimError, Reproduction, claims_json


def catalogue(**entry: object) -> Catalogue:
    content = {"source": "section 1", "statement": "a number", "paper": 2.0, **entry}
    return Catalogue(paper="test", title="A paper", entries={"T-1": content})


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
    claims = catalogue(within=0.05, why="a misprint")

    claims.number("T-1", ours)

    assert claims.finished()[0].verdict is verdict


def test_without_a_distance_a_number_must_be_the_papers() -> None:
    claims = catalogue(why="a misprint")

    claims.number("T-1", 2.0 + 1e-9)

    assert claims.finished()[0].verdict is Reproduction.CORRECTED


def test_a_claim_that_is_not_reproduced_needs_a_reason() -> None:
    with pytest.raises(ClaimError, match="no reason"):
        catalogue().fact("T-1", ours=False, holds=False)


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
def test_catalogues_hold_no_result_of_ours(paper: str) -> None:
    loaded = Catalogue.load(paper)

    assert loaded.entries
    for identifier, entry in loaded.entries.items():
        assert set(entry) <= {"source", "statement", "paper", "within", "why"}, identifier
        assert entry["source"], identifier
        assert entry["statement"], identifier


def test_claims_json_counts_verdicts_and_knows_no_infinity() -> None:
    claim = Claim(
        identifier="T-1",
        paper="test",
        source="section 1",
        statement="unbounded",
        paper_value=1.0,
        ours=math.inf,
        verdict=Reproduction.CORRECTED,
        why="it is",
    )

    content = json.loads(claims_json([claim], seed=3))

    assert content["verdicts"] == {"reproduced": 0, "corrected": 1, "not reproducible": 0}
    assert content["settings"] == {"seed": 3}
    assert content["claims"][0]["ours"] == "unbounded"


def test_the_documentation_lists_every_claim_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "papers.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ((?:SP|ADP|GEO|INF)-[^ ]+) \|", text, flags=re.MULTILINE)

    assert listed == [identifier for paper in CATALOGUES for identifier in Catalogue.load(paper).entries]
