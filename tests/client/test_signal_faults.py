"""A reading that its question can never hold is said to the owner and to the program, and to nobody else."""

import logging
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.contact import Outcome, OutcomeKind, SignalStatus
from fleetcount_client.device import Device
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.signals import Description, KnowingSource, Reading, SignalFault, SignalUnavailable
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.window.domain import Bins, Categories, ValueDomain
from fleetcount_protocol.window.signal import Kind

from tests.client.deployment import SIGNAL, START, Deployment

BINS = Bins(edges=(Fraction(0), Fraction(30), Fraction(50)), open_above=True, unit="km/h")
WORN = Categories(names=("worn", "whole"))


async def answered(
    folder: Path, domain: ValueDomain, truth: object, world: Deployment
) -> tuple[Device, Outcome, tuple[int, ...], list[int]]:
    """Return a device that has answered, how its window ended, the sizes that it sent, and the words of its report."""
    window = world.ask(domain=domain, mechanism=SamplingDie.uniform(Fraction(1, 4), domain.values))
    device = world.device(folder / "device.db", world.transport(), truth=truth)
    (outcome,) = await device.answer()
    (report_id,) = world.report_ids(window, 2)
    instalments = [one for intake in world.intakes.values() for one in intake.instalments.values()]
    return device, outcome, tuple(sorted(len(one.ciphertext) for one in instalments)), world.decoded(window, report_id)


@pytest.mark.parametrize("truth", [10**5000, -(10**200), Decimal("1e4999")], ids=["long", "negative", "decimal"])
async def test_a_number_that_is_longer_than_any_name_is_none_of_them(tmp_path: Path, truth: object) -> None:
    _, outcome, _, words = await answered(tmp_path, Categories(names=("1", "2")), truth, Deployment())

    assert (outcome.kind, outcome.fault) == (OutcomeKind.DELIVERED, "")
    assert words[3:].index(1) in (0, words[:3].index(1))


@pytest.mark.parametrize(
    ("domain", "truth", "fault"),
    [
        (BINS, "sixty-three", "it is a text, and the question asks for a number"),
        (BINS, True, "it is a truth value, and the question asks for a number"),
        (BINS, [1, 2, 3], "it is a list or an object, and the question asks for a number"),
        (
            BINS,
            Reading(value=63, unit="kWh"),
            "its unit is 'kWh', and the question's 'km/h', which measures something else",
        ),
        (BINS, (1.0, 2.0), "it is a position, and the question asks for a number"),
        (WORN, True, "it is a truth value, and none of the question's names is 'true' or 'false'"),
        (WORN, 63, "it is a number, and none of the question's names is a whole number"),
    ],
)
async def test_a_fault_is_in_status_log_and_outcome_and_the_answer_is_that_of_none(
    tmp_path: Path, domain: ValueDomain, truth: object, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = await answered(tmp_path, domain, None, Deployment())
    (tmp_path / "device.db").unlink()

    with caplog.at_level(logging.DEBUG, logger="fleetcount_client"):
        device, outcome, sizes, words = await answered(tmp_path, domain, truth, Deployment())

    assert (outcome.kind, outcome.fault) == (OutcomeKind.DELIVERED, fault)
    (status,) = device.status().signals
    assert status == SignalStatus(path=SIGNAL, read_at=status.read_at, fault=fault)
    assert status.read_at >= START
    assert [one for one in caplog.messages if fault in one] == [f"{SIGNAL} is answered as none of the values: {fault}"]
    # Nobody outside sees it: the same messages of the same sizes, and a report of value 0.
    assert sizes == nothing[2]
    halves = words[: domain.values + 1], words[domain.values + 1 :]
    assert halves[1].index(1) in (0, halves[0].index(1))
    assert "sixty" not in f"{caplog.text} {outcome} {status}"


@pytest.mark.parametrize(
    ("truth", "why_none"),
    [
        (None, "there is no value now"),
        (SignalUnavailable("the tank is away"), "the tank is away"),
        (63.5, ""),
        (-4, ""),
    ],
)
async def test_what_is_no_value_now_or_in_no_bin_is_no_fault(
    tmp_path: Path, truth: object, why_none: str, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> object:
        if isinstance(truth, Exception):
            raise truth
        return truth

    world = Deployment()
    world.ask(domain=BINS, mechanism=SamplingDie.uniform(Fraction(1, 4), BINS.values))
    device = world.device(tmp_path / "device.db", world.transport())
    with caplog.at_level(logging.DEBUG, logger="fleetcount_client"):
        (outcome,) = await device.answer({SIGNAL: read})  # type: ignore[dict-item]

    assert (outcome.kind, outcome.fault) == (OutcomeKind.DELIVERED, "")
    (status,) = device.status().signals
    assert (status.why_none, status.fault) == (why_none, "")
    assert "none of the values" not in caplog.text
    assert "tank" not in caplog.text


async def test_a_fault_is_logged_once_and_gone_when_it_is_put_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[object] = []

    def read() -> object:
        said.append(len(said))
        if len(said) < 3:
            raise SignalFault("it is a list or an object")
        return "A"

    world = Deployment()
    offer = world.offer(world.question())
    device = world.device(tmp_path / "device.db", world.transport())
    with caplog.at_level(logging.WARNING, logger="fleetcount_client"):
        outcomes = await device.answer_question(offer, {SIGNAL: read})  # type: ignore[dict-item]

    assert [one.fault for one in outcomes] == ["it is a list or an object"] * 2 + [""] * 2
    assert len([one for one in caplog.messages if "it is a list" in one]) == 1
    assert device.status().signals[0].fault == ""


class Learning(KnowingSource):
    """A source that knows its kind once it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def learn(self) -> None:
        self.asked += 1

    def described(self) -> Description:
        return Description(kind=Kind.TRUTH_VALUE if self.asked else None)

    def __call__(self) -> bool:
        return True


@pytest.mark.parametrize("domain", [BINS, WORN])
async def test_a_signal_that_never_fits_is_refused_when_the_question_is_judged(
    tmp_path: Path, domain: ValueDomain
) -> None:
    world, source = Deployment(), Learning()
    window = world.ask(domain=domain, mechanism=SamplingDie.uniform(Fraction(1, 4), domain.values))
    device = world.device(tmp_path / "device.db", world.transport())
    device._signals = {SIGNAL: source}

    (outcome,) = await device.answer()
    again = await device.answer_question(world.offers[0])
    judged = device.would_refuse(world.offers[0])

    assert (outcome.kind, outcome.rule, outcome.window_id) == (OutcomeKind.REFUSED, "signals", window.window_id)
    assert outcome.reason.startswith(f"{SIGNAL}: it is a truth value, and")
    assert judged == PolicyRefusal(rule="signals", message=outcome.reason)
    assert [one.kind for one in again] == [OutcomeKind.REFUSED]
    assert device.spool.charges() == ()
    assert source.asked >= 1


async def test_a_mistake_of_the_program_ends_no_other_question(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> float:
        raise AttributeError("63.5")

    world = Deployment()
    world.ask(domain=BINS, mechanism=SamplingDie.uniform(Fraction(1, 4), BINS.values))
    wider = Bins(edges=(Fraction(0), Fraction(60)), open_above=True, unit="km/h")
    other = world.ask(domain=wider, mechanism=SamplingDie.uniform(Fraction(1, 4), wider.values))
    device = world.device(tmp_path / "device.db", world.transport())
    sources = iter([read, lambda: 63.5])

    def first_raises() -> float:
        return next(sources)()

    outcomes = await device.answer({SIGNAL: first_raises})

    assert [one.kind for one in outcomes] == [OutcomeKind.DELIVERED] * 2
    assert sorted(one.fault.partition(" (")[0] for one in outcomes) == ["", "reading it raised AttributeError"]
    assert "63.5" not in f"{caplog.text} {outcomes} {device.status()}"
    assert world.report_ids(other, 2)


async def test_conditions_that_raise_let_the_window_pass(tmp_path: Path) -> None:
    def conditions() -> bool:
        raise RuntimeError("no bus")

    world = Deployment()
    world.ask(domain=BINS, mechanism=SamplingDie.uniform(Fraction(1, 4), BINS.values))
    device = world.device(tmp_path / "device.db", world.transport(), truth=63.5, conditions=conditions)

    (outcome,) = await device.answer()

    assert (outcome.kind, outcome.reason) == (OutcomeKind.MISSED, "the program's conditions raised RuntimeError")
