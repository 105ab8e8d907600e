"""The walks of a drill-down here: which cells the record of the step before leaves for a window, or why none.

Reads what this aggregator has stored and signed itself; every other party reads the same record. It must not decide
about a window (`windows.windows`).
"""

from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release import decode_record
from fleetcount_protocol.release.walk import WalkEnd, next_step

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import MissingReason
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.windows.decided import decided_window
from fleetcount_aggregator.windows.finished import record_here


async def survivors_before(
    context: Context, question: InstalledQuestion, index: int
) -> tuple[int, ...] | MissingReason | None:
    """Return the cells that survived the step before a window, none for what is no later step; None: not known yet.

    The record that counts is the one released here; it may come until round one of the window closes.
    """
    if not question.is_later_step(index):
        return ()
    decided = await decided_window(context, question.question_id, index - 1)
    before = decided.window_id
    if before is None or decided.missing:
        nothing = decided.missing == MissingReason.NOTHING_SURVIVED.value
        return MissingReason.NOTHING_SURVIVED if nothing else MissingReason.WALK_ENDED
    state = await context.state_of(before)
    if state is WindowState.ABORTED:
        return MissingReason.WALK_ENDED
    signed = await record_here(context, before)
    if state is not WindowState.RELEASED or signed is None:
        schedule = question.asked.schedule
        over = context.clock.now() >= schedule.opens(index) + schedule.round_one_s
        return MissingReason.RECORD_LATE if over else None
    found = next_step(question.asked, decode_record(signed))
    return MissingReason(found.value) if isinstance(found, WalkEnd) else found
