"""A relay's log names each window it carries once, and few of those that a stranger invents."""

import structlog
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_relay.carried import Carried

ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")


def window(number: int) -> WindowId:
    return WindowId(number.to_bytes(32, "big"))


def test_a_window_is_logged_once_for_each_aggregator_with_its_whole_id() -> None:
    carried = Carried()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            carried.note(window(1), ALPHA)
            carried.note(window(1), BETA)

    assert [(line["event"], line["window"], line["aggregator"]) for line in lines] == [
        ("window_carried", str(window(1)), ALPHA),
        ("window_carried", str(window(1)), BETA),
    ]


def test_invented_windows_neither_fill_the_log_nor_the_memory() -> None:
    moments = [0.0]
    carried = Carried(lambda: moments[0])
    with structlog.testing.capture_logs() as lines:
        for number in range(5_000):
            carried.note(window(number), ALPHA)
        first = len(lines)
        moments[0] = 60.0
        carried.note(window(6_000), ALPHA)

    assert (first, len(lines)) == (30, 31)
    assert len(carried._known) == 1_024
