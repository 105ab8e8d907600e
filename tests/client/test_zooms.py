"""A device reports once for all zooms, and its owner's limits count every one of them."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.ledger import charges_of_question
from fleetcount_client.policy import judge_question, judge_window
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.client.deployment import START, Deployment, charge_of, open_policy
from tests.support.protocol_samples import at_zooms

WORLD = Deployment()
GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=4, rows=2)
RELEASE = at_zooms(Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20)), 2)
DIRECT = {"domain": GRID, "mode": Mode.DIRECT, "mechanism": None, "release": RELEASE}
SAMPLING = {"domain": GRID, "mechanism": SamplingDie.uniform(Fraction(1, 4), 8), "release": RELEASE}


def test_an_owner_s_limit_holds_for_all_zooms_together() -> None:
    window = window_at(WORLD.once(**DIRECT), 0)
    policy = open_policy(allow_direct=True, largest_epsilon=Fraction(2))

    assert judge_window(policy, window) is None
    refusal = judge_window(replace(policy, largest_epsilon=Fraction(199, 100)), window)
    assert refusal is not None
    assert (refusal.rule, "epsilon of the release is 2.00000" in refusal.message) == ("largest_epsilon", True)


@pytest.mark.parametrize("asked", [DIRECT, SAMPLING], ids=["direct", "sampling"])
def test_an_answer_is_charged_for_every_zoom_and_exposed_once(asked: dict[str, object]) -> None:
    policy = open_policy(allow_direct=True)
    stronger = replace(RELEASE, coarser=(), noise_epsilon=Fraction(1))

    releases = (RELEASE, replace(RELEASE, coarser=()), stronger)
    several, one, double = (charge_of(WORLD.once(**{**asked, "release": release}), policy) for release in releases)

    assert (several.exposure, several.answers) == (one.exposure, one.answers)
    assert several.epsilon == double.epsilon
    assert asked is SAMPLING or several.epsilon == Decimal("2.00000")
    assert several.loss is not None
    assert one.loss is not None
    assert all(more > less for more, less in zip(several.loss.at, one.loss.at, strict=True))


def test_a_question_is_judged_and_reserved_for_every_zoom() -> None:
    question = WORLD.question(**SAMPLING, coin=Coin.DAY)
    plain = WORLD.question(**{**SAMPLING, "release": replace(RELEASE, coarser=())}, coin=Coin.DAY)
    policy = open_policy(largest_epsilon=Fraction(2))

    # Under a coin of a day one answer loses as without it: two numbers of each of two zooms.
    assert judge_question(policy, question, window_at(question, 0)) is None
    refusal = judge_question(replace(policy, largest_epsilon=Fraction(199, 100)), question, window_at(question, 0))
    assert refusal is not None
    assert "epsilon of one answer is 2.00000" in refusal.message
    reserved, less = (charges_of_question(one, policy, START, 0) for one in (question, plain))
    for charge, other in zip(reserved, less, strict=True):
        assert charge.loss is not None
        assert other.loss is not None
        assert all(more > one for more, one in zip(charge.loss.at, other.loss.at, strict=True))
        assert charge.exposure == other.exposure


async def test_a_device_sends_one_report_of_the_finest_squares(tmp_path: Path) -> None:
    world = Deployment()
    window, policy = world.ask(**DIRECT), open_policy(allow_direct=True)
    device = world.device(tmp_path / "device.db", world.transport(), truth=(250.0, 150.0), policy=policy)

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(window, 0)
    assert world.decoded(window, report_id) == [0, 0, 0, 0, 0, 0, 0, 1, 0], "column 2 of row 1"
