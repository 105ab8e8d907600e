"""What is told of a run: refusals by reason, and which devices newly hold their receipts."""

from typing import Any

from fleetcount_protocol.errors import RejectReason
from fleetcount_simulator.network.events import Held, Refused, RunEvent
from fleetcount_simulator.network.watch import Watch

from tests.simulator.network.test_parts import instalment, way, window_now


async def test_refusals_are_counted_by_reason() -> None:
    transport, far, _, tally = way()
    window = window_now()
    far.refusal = RejectReason.TOO_LATE

    for _ in range(2):
        await transport.upload(window, 0, [instalment(window)])

    assert tally.refused == {"too late": 2}
    assert not tally.receipts


class Lines:
    """A fleet process that says a few lines."""

    name = "fleet-7"

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._said = lines

    async def lines(self) -> Any:
        for line in self._said:
            yield line


async def test_a_listener_is_told_what_a_process_names_and_nothing_where_nothing_is_new() -> None:
    told: list[RunEvent] = []
    quiet = {"event": "progress", "first": [], "every": [], "refused": {}}
    process: Any = Lines(
        [
            {"event": "progress"},
            quiet,
            {**quiet, "first": [3, 5], "every": [5]},
            {**quiet, "event": "done", "refused": {"too late": 1}},
        ]
    )
    parties: Any = None
    watch = Watch(parties, {process: None}, 0, 2, lambda *_: None, told.append)  # type: ignore[dict-item] # no file is read
    watch._show = lambda: None  # type: ignore[method-assign] # the stages are another test's

    await watch._until(process, "done")

    assert told == [Held(first=(3, 5), every=(5,)), Refused(process="fleet-7", reasons={"too late": 1})]
