"""Identifiers have one size and one spelling; a manual clock only moves forward."""

import pytest
from fleetcount_protocol.clock import ManualClock, SystemClock
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId


@pytest.mark.parametrize("kind", [TaskId, ReportId, SessionId, Digest])
def test_identifier_refuses_every_other_size(kind: type[TaskId]) -> None:
    for size in (0, kind.SIZE - 1, kind.SIZE + 1, 2 * kind.SIZE):
        with pytest.raises(DecodeError, match=f"not {kind.SIZE}"):
            kind(bytes(size))


def test_identifier_shows_its_start_only() -> None:
    assert repr(TaskId(bytes(range(32)))) == "TaskId(000102030405…)"
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


def test_reject_reasons_keep_their_numbers() -> None:
    # The numbers are on the wire and in stores: a reason may be added at the end, never moved.
    names = [reason.label for reason in sorted(RejectReason, key=lambda reason: reason.value)]

    assert [reason.value for reason in RejectReason] == list(range(1, 19))
    assert names[:6] == ["unknown_task", "unknown_session", "too_early", "too_late", "malformed", "bad_seal"]
    assert {reason.label for reason in RejectReason if not reason.final} == {"busy", "too_early", "unknown_session"}
