"""A question for several signals at once: all are read at one moment, and what an owner says holds for each of them."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client.contact import Outcome, OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.policy import judge_sources, judge_window
from fleetcount_client.private_places import Circle, PrivatePlaces, PrivateSignal
from fleetcount_client.shapes import Shape, ShapedSource, SignalType
from fleetcount_client.signals import Description, KnowingSource, Reading, SignalUnavailable, constant
from fleetcount_protocol.window.domain import Bins, Categories, Cross, Part, SquareGrid
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.signal import Kind
from fleetcount_protocol.window.window import Window

from tests.client.deployment import SIGNAL, START, Deployment, open_policy

SPEED, PLACE = "Vehicle.Speed", "Vehicle.CurrentLocation"
ALLOWED = frozenset({SPEED, PLACE, SIGNAL})
SPEEDS = Bins(edges=(Fraction(0), Fraction(30), Fraction(50)), open_above=True, unit="km/h")
GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(10), columns=2, rows=1)
CROSS = Cross(
    parts=(
        Part(signal=SPEED, domain=SPEEDS),
        Part(signal=SIGNAL, domain=Categories(names=("A", "B"))),
        Part(signal=PLACE, domain=GRID),
    )
)
READ: dict[str, Any] = {SPEED: 40.0, SIGNAL: "B", PLACE: (3.0, 4.0)}
VALUE = CROSS.together((2, 2, 1))


def asked(world: Deployment, **changes: object) -> Window:
    """Offer one direct window for all three signals."""
    return world.ask(**{"signal": SPEED, "domain": CROSS, "mode": Mode.DIRECT, "mechanism": None} | changes)


async def answered(folder: Path, readings: dict[str, Any], **options: Any) -> tuple[Device, Outcome, int | None]:
    """Return a device that has read these, how its window ended, and the value that it answered (None: nothing)."""
    world, policy = Deployment(), options.pop("policy", open_policy(allow_direct=True, signals=ALLOWED))
    window = asked(world)
    device = world.device(folder / "device.db", world.transport(), policy=policy, **options)
    sources: dict[str, Callable[[], Any]] = {
        path: value if callable(value) else constant(value) for path, value in readings.items()
    }
    (outcome,) = await device.answer(sources)
    report_ids = world.report_ids(window, 0)
    if not report_ids:
        return device, outcome, None
    world.verifies(window, next(iter(report_ids)))
    return device, outcome, world.decoded(window, next(iter(report_ids))).index(1)


async def test_the_answer_is_the_value_of_all_signals_and_is_charged_once(tmp_path: Path) -> None:
    device, outcome, value = await answered(tmp_path, READ)

    assert (outcome.kind, value) == (OutcomeKind.DELIVERED, VALUE)
    (charge,) = device.spool.charges()
    assert charge.signal == f"{SPEED} x {SIGNAL} x {PLACE}"
    assert [one.path for one in device.status().signals] == sorted(CROSS_SIGNALS)


CROSS_SIGNALS = [part.signal for part in CROSS.parts]


def unavailable() -> Any:
    raise SignalUnavailable("not now")


@pytest.mark.parametrize("lacking", CROSS_SIGNALS)
@pytest.mark.parametrize("reading", [None, unavailable, -5.0, "C", (90.0, 90.0)])
async def test_one_signal_without_a_value_is_none_of_them_and_is_answered_all_the_same(
    tmp_path: Path, lacking: str, reading: object
) -> None:
    _, outcome, value = await answered(tmp_path, READ | {lacking: reading})

    assert (outcome.kind, value) == (OutcomeKind.DELIVERED, 0)


@pytest.mark.parametrize(
    "private",
    [
        {SPEED: PrivateSignal(values=frozenset({40}))},
        {SIGNAL: PrivateSignal(values=frozenset({"b"}))},
        {PLACE: PrivateSignal(areas=(Circle(x=Fraction(0), y=Fraction(0), radius=Fraction(5)),))},
    ],
)
async def test_a_private_reading_of_any_signal_is_none_of_them(
    tmp_path: Path, private: dict[str, PrivateSignal]
) -> None:
    _, outcome, value = await answered(tmp_path, READ, private=PrivatePlaces(private))

    assert (outcome.kind, value) == (OutcomeKind.DELIVERED, 0)


async def test_each_signal_is_read_by_its_own_type_unit_and_range(tmp_path: Path) -> None:
    shaped = {
        SPEED: ShapedSource(constant(11), Shape(unit="m/s", type=SignalType.DECIMAL)),
        SIGNAL: ShapedSource(constant("B"), Shape(type=SignalType.TEXT)),
        PLACE: constant((13.0, 4.0)),
    }
    beyond = ShapedSource(constant(250), Shape(unit="km/h", valid=(Fraction(0), Fraction(200))))

    assert (await answered(tmp_path, shaped))[2] == CROSS.together((2, 2, 2))  # 11 m/s is 39.6 km/h.
    (tmp_path / "device.db").unlink()
    assert (await answered(tmp_path, shaped | {SPEED: beyond}))[2] == 0


async def test_a_fault_names_its_signal(tmp_path: Path) -> None:
    device, outcome, value = await answered(tmp_path, READ | {SPEED: "fast", PLACE: Reading(value=True)})

    assert value == 0
    assert outcome.fault == (
        f"{SPEED}: it is a text, and the question asks for a number;"
        f" {PLACE}: it is a truth value, and the question asks for a position"
    )
    assert [bool(one.fault) for one in device.status().signals] == [path != SIGNAL for path in sorted(CROSS_SIGNALS)]


@pytest.mark.parametrize("denied", CROSS_SIGNALS)
async def test_one_signal_that_is_not_allowed_refuses_the_question(tmp_path: Path, denied: str) -> None:
    policy = open_policy(allow_direct=True, signals=ALLOWED - {denied})

    device, outcome, value = await answered(tmp_path, READ, policy=policy)

    assert (outcome.kind, outcome.rule, value) == (OutcomeKind.REFUSED, "signals", None)
    assert f"asks for {denied}" in outcome.reason
    assert not device.spool.charges()
    refusal = judge_window(policy, asked(Deployment()))
    assert refusal is not None
    assert refusal.rule == "signals"


@pytest.mark.parametrize("lacking", [SPEED, PLACE])
async def test_one_signal_without_a_source_refuses_the_question(tmp_path: Path, lacking: str) -> None:
    _, outcome, value = await answered(tmp_path, {path: one for path, one in READ.items() if path != lacking})

    assert (outcome.kind, outcome.rule, value) == (OutcomeKind.REFUSED, "signals", None)
    assert f"no source is configured for {lacking}" in outcome.reason


class Described(KnowingSource):
    """A source that reads positions where the question asks for a number."""

    def described(self) -> Description:
        return Description(kind=Kind.POSITION)

    def __call__(self) -> None:
        raise AssertionError("it was read")


def test_one_signal_that_never_fits_refuses_the_question() -> None:
    refusal = judge_sources({**{path: constant(one) for path, one in READ.items()}, SPEED: Described()}, CROSS.parts)

    assert refusal is not None
    assert refusal.message == f"{SPEED}: it is a position, and the question asks for a number"


async def test_all_signals_are_asked_at_one_moment(tmp_path: Path) -> None:
    world, moments = Deployment(), list[float]()
    asked(world, opens=START + 100)

    def noting(value: object) -> Callable[[], Any]:
        def read() -> Any:
            moments.append(world.timer.now())
            return value

        return read

    policy = open_policy(allow_direct=True, signals=ALLOWED)
    device = world.device(tmp_path / "device.db", world.transport(), policy=policy)
    await device.answer({path: noting(value) for path, value in READ.items()})

    assert len(moments) == 3
    assert len(set(moments)) == 1
