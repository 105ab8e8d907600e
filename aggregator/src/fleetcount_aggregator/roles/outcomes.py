"""How a window has ended at the other aggregators: asks them, and adopts a record that proves itself.

It must not take anybody's word for a release, nor decide when to ask (`settling`, `leader`).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.messages import FinishedRecord, ReleaseAnswer, WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.calling import call_peer

_OPEN: Final = (WindowState.ANNOUNCED, WindowState.COLLECTING)


async def abort_windows(
    context: Context, question_id: QuestionId, reason: AbortReason, ends: Callable[[int], object] = lambda _: True
) -> None:
    """Abort here the windows of a question that still take reports and of which `ends` says so."""
    for window in list(context.live.values()):
        place = window.asked.question
        if place.question_id != question_id or context.states[window.window_id] not in _OPEN:
            continue
        if ends(place.index):
            await abort_here(context, window.window_id, reason)


async def ask_outcomes(context: Context, window: InstalledWindow) -> Mapping[AggregatorId, ReleaseAnswer]:
    """Return what the others of a window say of its end; run by any of its aggregators. Who is silent is left out."""
    others = [one.aggregator_id for one in window.asked.aggregators if one.aggregator_id != context.aggregator_id]
    asked = (call_peer(context, other, lambda peer: peer.outcome(window.window_id)) for other in others)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: dict[AggregatorId, ReleaseAnswer] = {}
    for other, answer in zip(others, answers, strict=True):
        if isinstance(answer, ReleaseAnswer):
            found[other] = answer
        elif not isinstance(answer, PeerUnreachableError | PeerRefusalError):
            raise answer
    return found


async def adopt(context: Context, steps: ReleaseSteps, window: InstalledWindow, finished: FinishedRecord) -> None:
    """Release a window here by a record that all its aggregators have signed, whoever shows it and whatever was known.

    Raises:
        PeerRefusalError: as `ReleaseSteps.finish`; nothing has changed.
    """
    await steps.finish(window, finished)
    context.failpoints.hit("helper.after_deliver_store")
    if window.is_leader:
        context.take_up(
            window, WindowState.RELEASED
        )  # It owes the others the record, also of a window that it had given up.
    await context.purge(window.window_id)
    log.info("window_released", window=str(window.window_id), name=window.asked.name)


async def adopt_elsewhere(
    context: Context, steps: ReleaseSteps, window: InstalledWindow, answers: Mapping[AggregatorId, ReleaseAnswer]
) -> bool:
    """Adopt the window's record if one of the others has shown one that proves itself; return whether it did."""
    for other, answer in answers.items():
        if answer.state is not WindowState.RELEASED:
            continue
        finished = FinishedRecord(window_id=window.window_id, record=answer.record, signatures=answer.signatures)
        try:
            await adopt(context, steps, window, finished)
        except PeerRefusalError as refusal:
            log.warning("record_not_adopted", window=str(window.window_id), peer=other, reason=str(refusal))
        else:
            log.info("record_adopted", window=str(window.window_id), peer=other)
            return True
    return False
