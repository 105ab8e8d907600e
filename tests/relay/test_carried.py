"""A relay's log names each task it carries once, and few of those that a stranger invents."""

import structlog
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_relay.carried import Carried

ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")


def task(number: int) -> TaskId:
    return TaskId(number.to_bytes(32, "big"))


def test_a_task_is_logged_once_for_each_aggregator_with_its_whole_id() -> None:
    carried = Carried()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            carried.note(task(1), ALPHA)
            carried.note(task(1), BETA)

    assert [(line["event"], line["task"], line["aggregator"]) for line in lines] == [
        ("task_carried", str(task(1)), ALPHA),
        ("task_carried", str(task(1)), BETA),
    ]


def test_invented_tasks_neither_fill_the_log_nor_the_memory() -> None:
    moments = [0.0]
    carried = Carried(lambda: moments[0])
    with structlog.testing.capture_logs() as lines:
        for number in range(5_000):
            carried.note(task(number), ALPHA)
        first = len(lines)
        moments[0] = 60.0
        carried.note(task(6_000), ALPHA)

    assert (first, len(lines)) == (30, 31)
    assert len(carried._known) == 1_024
