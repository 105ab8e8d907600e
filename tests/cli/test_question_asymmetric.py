"""Values that are protected against each other one way, from a specification to what create says and refuses."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.question.files import read_question
from fleetcount_mechanisms.responses import AsymmetricVector, Flips

from tests.cli.test_question_files import CREATE, SPEC

GRID = SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")]
ASKED = 'kind = "asymmetric"\nepsilon_local = "1"\nprotects = { infected = ["healthy"] }'
TEXT = SPEC.replace(GRID, '[domain]\nkind = "categories"\nnames = ["infected", "healthy"]\n')
TEXT = TEXT.replace('mode = "direct"', 'mode = "response"').replace("[release]", f"[mechanism]\n{ASKED}\n[release]")


def test_a_question_says_which_value_is_hidden_behind_which_and_what_is_not(
    fleetcount: Callable, deployed: Path
) -> None:
    (deployed / "spec.toml").write_text(TEXT)

    created = fleetcount(*CREATE, "--explain")

    assert created.code == 0, created.err
    question = read_question(deployed / "q.question").question
    assert question.mechanism == AsymmetricVector.from_epsilon(Fraction(1), (Flips.UP, Flips.DOWN))
    said = " ".join(created.out.split())
    assert (
        "hidden in each answer: 'infected' replaced by 'healthy' or none, and none replaced by 'healthy' (that a device"
        " has 'healthy', or does not have 'infected', is not protected)"
    ) in said
    assert "for a value replaced by one that hides it; those of any other change have no bound" in said


@pytest.mark.parametrize(
    ("protects", "said"),
    [
        ('{ infected = ["infected", "healthy"] }', "protects 'infected' against itself"),
        ('{ infected = ["healty"] }', "names 'healty', which is no value of the domain; did you mean 'healthy'?"),
        ('{ infected = ["none"] }', "protects does not name 'healthy'"),
        ("{ infected = [] }", "allowed is values each with those that hide it"),
        ('"infected"', "allowed is values each with those that hide it"),
        ("{ infected = [1] }", "names 1, which is no value of the domain"),
    ],
)
def test_a_protection_that_cannot_be_is_refused_by_key(
    fleetcount: Callable, deployed: Path, protects: str, said: str
) -> None:
    (deployed / "spec.toml").write_text(TEXT.replace('{ infected = ["healthy"] }', protects))

    refused = fleetcount(*CREATE)

    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert "mechanism.protects" in refused.error_line
    assert said in refused.error_line


def test_what_is_no_order_and_a_value_named_none_are_refused(fleetcount: Callable, deployed: Path) -> None:
    three = TEXT.replace('["infected", "healthy"]', '["infected", "ill", "healthy"]')
    chain = three.replace('{ infected = ["healthy"] }', '{ infected = ["ill"], ill = ["healthy"] }')
    named = TEXT.replace('["infected", "healthy"]', '["infected", "none"]')
    for text, said in (
        (chain, "protects 'infected' against 'ill' and 'ill' against 'healthy', allowed: an order"),
        (named, "one of which is 'none', allowed: other names"),
        (TEXT.replace('"asymmetric"', '"mangat-vector"'), "mechanism.protects"),
    ):
        (deployed / "spec.toml").write_text(text)
        refused = fleetcount(*CREATE)
        assert (refused.code, said in refused.error_line) == (2, True), refused.err


def test_a_plan_of_asymmetric_answers_shows_the_value_that_is_told_least(fleetcount: Callable) -> None:
    words = ("plan", "--devices", "100000", "--values", "2", "--mechanism", "asymmetric", "--epsilon", "1")
    local = ("--epsilon-local", "2")

    one_way, both = (fleetcount(*words, *local, "--flips", flips, "--json") for flips in ("up,down", "both"))

    assert one_way.code == both.code == 0, one_way.err + both.err
    sd = [json.loads(ran.out)["rows"][0]["standard_error"] for ran in (one_way, both)]
    assert sd[0] < sd[1], "what is wrong one way only is told better"
    for flips, said in (
        ("sideways", "'sideways' is not one of"),
        ("up,down,up", "flips are of 3 values, allowed: of all 2"),
    ):
        refused = fleetcount(*words, *local, "--flips", flips)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    for option in (("--flips", "up"), ("--direction", "down")):
        refused = fleetcount(*words, *local, *option, "--windows", "3")
        assert (refused.code, "allowed: without --windows" in refused.err) == (2, True), refused.err
    refused = fleetcount(*words, *local, "--direction", "down")
    assert "direction is 'down' of asymmetric answers, allowed: up or down, of one-sided counts" in refused.err
