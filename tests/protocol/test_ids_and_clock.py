"""Identifiers have one size and one spelling; a manual clock only moves forward."""

import pytest
from fleetcount_protocol.clock import AnchoredClock, SystemClock
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId

from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize("kind", [WindowId, ReportId, SessionId, Digest])
def test_identifier_refuses_every_other_size(kind: type[WindowId]) -> None:
    for size in (0, kind.SIZE - 1, kind.SIZE + 1, 2 * kind.SIZE):
        with pytest.raises(DecodeError, match=f"not {kind.SIZE}"):
            kind(bytes(size))


def test_identifier_shows_its_start_only() -> None:
    assert repr(WindowId(bytes(range(32)))) == "WindowId(000102030405…)"
    assert str(ReportId(bytes(16))) == "00" * 16


@pytest.mark.parametrize("name", ["", "Alpha", "1a", "a" * 33, "a_b", "a.b", "alpha\n", "ａlpha", "-a", "a b"])
def test_aggregator_id_refuses_other_spellings(name: str) -> None:
    with pytest.raises(DecodeError, match="aggregator id"):
        AggregatorId(name)


def test_manual_clock_never_goes_back() -> None:
    clock = ManualClock(10)
    clock.advance(2.5)

    assert clock.now() == 12.5
    with pytest.raises(ValueError, match="-1"):
        clock.advance(-1)


def test_system_clock_is_the_wall_clock() -> None:
    assert SystemClock().now() > 1_700_000_000


class Machine:
    """A wall clock that can be set, and the time passed, which cannot; `clock` reads both."""

    def __init__(self, believes_after_s: float | None = None) -> None:
        self.passed, self.set_ahead = 5.0, 0.0
        self.clock = AnchoredClock(
            believes_after_s=believes_after_s,
            wall=lambda: 1000 + self.passed + self.set_ahead,
            passed=lambda: self.passed,
        )

    def run(self, seconds: float, look_every: float = 0.5) -> float:
        """Let time pass, look at the clock now and then, and return how far it is ahead of the true time."""
        before = self.clock.now()
        end = self.passed + seconds
        while self.passed < end:
            self.passed = min(end, self.passed + look_every)
            now = self.clock.now()
            assert now > before, "an anchored clock goes forward"
            before = now
        return before - 1000 - self.passed


@pytest.mark.parametrize("jump", [600.0, -600.0, 1e9, -1e9])
def test_a_jump_of_the_wall_clock_moves_an_anchored_one_by_a_hundredth_of_its_duration(jump: float) -> None:
    machine = Machine()
    machine.run(100)
    machine.set_ahead = jump
    assert abs(machine.run(3)) <= 0.03 + 1e-6
    machine.set_ahead = 0.0

    assert machine.run(10) == pytest.approx(0, abs=1e-6)


def test_a_wall_clock_set_right_is_followed_slowly_and_whoever_looks_seldom_sees_the_same() -> None:
    often, seldom = Machine(), Machine()
    often.set_ahead = seldom.set_ahead = 20

    assert often.run(1000) == pytest.approx(10)
    assert seldom.run(1000, look_every=1000) == pytest.approx(10)
    assert often.run(1100) == pytest.approx(20)


@pytest.mark.parametrize("jump", [7200.0, 1e8])
def test_a_device_believes_its_wall_clock_after_a_minute(jump: float) -> None:
    machine = Machine(believes_after_s=60)
    machine.set_ahead = jump
    assert machine.run(59) < 1
    machine.set_ahead = 0.0
    machine.run(5)
    machine.set_ahead = jump

    assert machine.run(59) < 2
    assert machine.run(3) == pytest.approx(jump, abs=1)


def test_a_device_believes_a_clock_set_back_too() -> None:
    machine = Machine(believes_after_s=60)
    machine.clock.now()
    machine.set_ahead = -7200
    machine.passed += 1
    machine.clock.now()
    machine.passed += 60

    assert machine.clock.now() == 1000 + machine.passed - 7200


def test_reject_reasons_keep_their_numbers() -> None:
    # The numbers are on the wire and in stores: a reason may be added at the end, never moved.
    names = [reason.label for reason in sorted(RejectReason, key=lambda reason: reason.value)]

    assert [reason.value for reason in RejectReason] == list(range(1, 19))
    assert names[:6] == ["unknown_window", "unknown_session", "too_early", "too_late", "malformed", "bad_seal"]
    assert {reason.label for reason in RejectReason if not reason.final} == {"busy", "too_early"}
