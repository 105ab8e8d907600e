"""Why a window waits: what is expected of each state, what is wrong, and what the log says of it."""

from collections.abc import Sequence
from typing import Any

import pytest
import structlog
from fleetcount_aggregator.host.reasons import WaitFor, Waits, clock_time, expected_wait
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.fields import UploadStyle

from tests.support.aggregators import START, Network
from tests.support.manual_clock import ManualClock

WINDOW, OTHER = WindowId(bytes(32)), WindowId(bytes(31) + b"\1")
NOON = 1_799_928_000


def told(lines: Sequence[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line.get("reason", line.get("after"))) for line in lines]


@pytest.mark.parametrize(
    ("state", "leads", "give_up_s", "text"),
    [
        (WindowState.ANNOUNCED, True, 60, "opens 08:00:10 UTC"),
        (WindowState.COLLECTING, None, None, "window closes 08:00:30 UTC"),
        (WindowState.AGREEING, True, 60, "agrees and releases since 20 s; until 08:01:30 UTC"),
        (WindowState.RELEASING, None, None, "agrees and releases since 20 s"),
        (WindowState.AGREEING, False, 60, "waits for its leader alpha since 20 s"),
        (WindowState.RELEASED, True, 60, None),
        (WindowState.ABORTED, True, 60, None),
    ],
)
def test_each_state_says_what_comes_next(
    state: WindowState, leads: bool | None, give_up_s: float | None, text: str | None
) -> None:
    window = Network(2).window()

    wait = expected_wait(window, state, leads=leads, give_up_s=give_up_s)

    assert (wait.text(START + 50) if wait else None) == text


def test_a_window_of_one_envelope_closes_with_its_only_round() -> None:
    window = Network(2).window(upload_style=UploadStyle.ONE_ENVELOPE)

    wait = expected_wait(window, WindowState.COLLECTING, leads=True, give_up_s=60)

    assert wait is not None
    assert wait.until == window.round_one_closes == START + 20


def test_a_moment_that_is_not_near_has_its_date() -> None:
    assert clock_time(NOON + 65, NOON) == "12:01:05 UTC"
    assert clock_time(NOON + 86_400, NOON) == "2027-01-15 12:00 UTC"


def test_a_wait_has_its_reason_and_the_log_tells_it_once_when_it_lasts_and_when_it_ends() -> None:
    clock = ManualClock(NOON)
    waits = Waits(clock.now)
    with structlog.testing.capture_logs() as lines:
        waits.note(WINDOW, WaitFor.PEER, "unreachable", whom="beta", until=NOON + 900)
        clock.advance(9)
        waits.note(WINDOW, WaitFor.PEER, "busy", whom="beta", until=NOON + 900)
        assert lines == []
        for _ in range(3):
            clock.advance(31)
            waits.note(WINDOW, WaitFor.PEER, "unreachable", whom="beta", until=NOON + 900)
        wait = waits.of(WINDOW)
        waits.over(WINDOW, WaitFor.PEER, whom="beta")

    text = "waits for beta since {} s (unreachable)"
    assert wait is not None
    assert wait.text(clock.now()) == text.format(102) + "; until 12:15:00 UTC"
    assert wait.fields(clock.now())["for"] == "peer"
    assert told(lines) == [
        ("window_waits", text.format(40) + "; until 12:15:00 UTC"),
        ("window_waited", text.format(102)),
    ]
    assert {line["window"] for line in lines} == {str(WINDOW)}
    assert waits.of(WINDOW) is None


def test_a_short_wait_is_told_nowhere_and_an_end_forgets_them_all() -> None:
    clock = ManualClock(NOON)
    waits = Waits(clock.now)
    with structlog.testing.capture_logs() as lines:
        waits.note(WINDOW, WaitFor.STORE, "disk full")
        clock.advance(5)
        waits.note(WINDOW, WaitFor.PEER, "unreachable", whom="beta")
        waits.note(WINDOW, WaitFor.PEER, "unreachable", whom="gamma")
        waits.note(OTHER, WaitFor.PEER, "unreachable", whom="beta")
        first = waits.of(WINDOW)
        counts = waits.counts()
        waits.over(WINDOW, WaitFor.EARLIER_WINDOW)
        waits.forget(WINDOW)

    assert first is not None
    assert first.text(clock.now()) == "waits for this machine since 5 s (disk full)"
    assert counts == {"peer": 2, "earlier_window": 0, "store": 1}
    assert waits.counts() == {"peer": 1, "earlier_window": 0, "store": 0}
    assert lines == []
