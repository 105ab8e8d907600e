"""A device rounds a number at random: in the unit of the question, once a window, and never again after a crash."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.answering import truth_of
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.signals import Description, Reading, fault_of, unfit
from fleetcount_client.spool_rows import Phase
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import MangatVector
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import Numbers, Outside
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.signal import Kind
from fleetcount_transport import failpoints

from tests.client.deployment import EVERY_FIVE_MINUTES, SIGNAL, Deployment, open_policy
from tests.client.test_delivery import Meddler, killed_at
from tests.client.test_shapes import Described

SPEEDS = Numbers(low=Fraction(0), high=Fraction(130), values=5, unit="km/h")
STRICT = Numbers(low=Fraction(0), high=Fraction(130), values=5, unit="km/h", outside=Outside.NONE)
DIE = SamplingDie.uniform(Fraction(1, 2), 5, allow_large_rate=True)
WORLD = Deployment()


def truths(domain: Numbers, reading: Reading, draws: int = 200) -> Counter[object]:
    window, source = WORLD.window(domain=domain, mechanism=DIE), SeededRandom(5)
    return Counter(truth_of(window, reading, source) for _ in range(draws))


def test_a_reading_is_converted_before_it_is_rounded() -> None:
    assert truths(SPEEDS, Reading(value=65 / 3.6, unit="m/s")) == {3: 200}  # The double of 18.05... m/s is 65 km/h.
    assert truths(SPEEDS, Reading(value=65, unit="km/h")) == truths(SPEEDS, Reading(value=65)) == {3: 200}
    assert set(truths(SPEEDS, Reading(value=10, unit="m/s"))) == {2, 3}  # 36 km/h, of which 3.5 above the point.
    assert truths(SPEEDS, Reading(value=10, unit="kWh")) == truths(SPEEDS, Reading()) == {0: 200}


def test_what_is_beyond_the_ends_follows_the_question_in_its_own_unit() -> None:
    assert truths(SPEEDS, Reading(value=40, unit="m/s")) == {5: 200}
    assert truths(STRICT, Reading(value=40, unit="m/s")) == {0: 200}
    assert truths(STRICT, Reading(value=36, unit="m/s")).keys() == {4, 5}


def test_a_vector_has_the_bit_of_the_point_alone() -> None:
    window = WORLD.window(domain=SPEEDS, mode=Mode.RESPONSE, mechanism=MangatVector(Fraction(1, 3), 5))
    found = {truth_of(window, Reading(value=40), SeededRandom(seed)) for seed in range(40)}

    assert found == {(0, 1, 0, 0, 0), (0, 0, 1, 0, 0)}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (Description(kind=Kind.NUMBER, unit="m/s", high=Fraction(-1)), "beyond all of the question's numbers"),
        (Description(kind=Kind.NUMBER, unit="m/s", low=Fraction(37)), "beyond all of the question's numbers"),
        (Description(kind=Kind.NUMBER, unit="m/s", low=Fraction(36)), ""),
        (Description(kind=Kind.NUMBER, unit="kWh"), "its unit is 'kWh', and the question's 'km/h'"),
        (Description(kind=Kind.TRUTH_VALUE), "it is a truth value, and the question asks for a number"),
    ],
)
def test_a_signal_that_is_never_one_of_the_numbers_is_known(known: Description, said: str) -> None:
    why = unfit({SIGNAL: Described(known)}, SIGNAL, STRICT)

    assert said in why
    assert bool(why) is bool(said)
    # Where an end stands for all that lies beyond it, no range is beyond.
    assert unfit({SIGNAL: Described(known)}, SIGNAL, SPEEDS) == ("" if "range" in why else why)


def test_a_reading_that_can_never_be_a_number_of_the_question_is_a_fault() -> None:
    assert "its unit is 'kWh'" in fault_of(Reading(value=63, unit="kWh"), SPEEDS)
    assert "it is a text" in fault_of(Reading(value="63"), SPEEDS)
    assert fault_of(Reading(value=-63, unit="m/s"), STRICT) == ""


@pytest.mark.parametrize("name", failpoints.DEVICE_FAILPOINTS)
async def test_a_crash_at_any_point_does_not_round_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Deployment()
    window = world.ask(domain=SPEEDS, mechanism=DIE)
    transport, identity = Meddler(world), world.identity()
    first = world.device(tmp_path / "device.db", transport, identity=identity, truth=48.75)
    await killed_at(name, first, monkeypatch)
    before = list(transport.sent)

    again = world.device(tmp_path / "device.db", transport, identity=identity, truth=48.75)
    await again.answer()

    assert [one.phase for one in again.spool.answers()] == [Phase.DELIVERED]
    assert set(before) <= set(transport.sent)
    assert transport.distinct() == 4
    (report_id,) = world.report_ids(window, 2)
    words = world.decoded(window, report_id)
    assert words[6:].index(1) in (words[:6].index(1), 2, 3)
    world.verifies(window, report_id)


async def test_every_window_has_a_rounding_of_its_own(tmp_path: Path) -> None:
    schedule = replace(EVERY_FIVE_MINUTES, round_two_s=0)
    varied = False
    for number in range(6):
        world = Deployment()
        question = world.question(domain=SPEEDS, mode=Mode.DIRECT, mechanism=None, schedule=schedule)
        policy = open_policy(allow_direct=True, largest_epsilon=Fraction(9), total_epsilon=Fraction(9))
        device = world.device(tmp_path / f"{number}.db", world.transport(), truth=48.75, policy=policy)
        outcomes = await device.answer_question(world.offer(question))
        assert [(one.kind, one.reason) for one in outcomes] == [(OutcomeKind.DELIVERED, "")] * 4
        points: set[int] = set()
        for window in (window_at(question, index) for index in range(4)):
            (report_id,) = world.report_ids(window, 0)
            points.add(world.decoded(window, report_id).index(1))
        assert points <= {2, 3}
        varied |= len(points) == 2
    # A coin that held for the question would vary in none of six; one of its own for each window in 7 of 8.
    assert varied
