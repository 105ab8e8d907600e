"""What was decided about the windows of questions, read from the store when it is asked for: a question may have
65,536.

It must not decide about a window (`windows.windows`), nor keep one in memory.
"""

from collections.abc import AsyncGenerator
from typing import Final

from fleetcount_protocol.ids import QuestionId

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.storage.errors import Damage, DamagedError
from fleetcount_aggregator.storage.row_types import DecidedWindow

_AT_ONCE: Final = 256
"""Windows read in one go."""


async def count_decided(context: Context, question_id: QuestionId, known: int = 0) -> int:
    """Return how many windows of a question are decided, of which `known` are known to be; reads the others.

    Raises:
        DamagedError: one of them is not as it was written, or is gone.
        StoreError: the store failed.
    """
    while rows := await context.store.decided(question_id, above=known - 1, below=known + _AT_ONCE):
        known = rows[-1].index + 1
    return known


async def decided_window(context: Context, question_id: QuestionId, index: int) -> DecidedWindow:
    """Return what was decided about one window, from 0 on.

    Raises:
        DamagedError: it is not as it was written, or not there.
        StoreError: the store failed.
    """
    rows = await context.store.decided(question_id, above=index - 1, below=index + 1)
    if not rows:
        raise DamagedError(
            Damage(table="decided", what=f"the row of window {index} of question {question_id.hex()} is gone")
        )
    return rows[0]


async def decided_before(context: Context, question_id: QuestionId, index: int) -> AsyncGenerator[DecidedWindow]:
    """Give what was decided about the windows before one, the last first: one alone, then `_AT_ONCE` at a time.

    Raises:
        DamagedError, StoreError: as `decided_window`.
    """
    at_once = 1
    while index > 0:
        first = max(0, index - at_once)
        rows = await context.store.decided(question_id, above=first - 1, below=index)
        if len(rows) != index - first:
            await decided_window(context, question_id, first + len(rows))
        for row in reversed(rows):
            yield row
        index, at_once = first, _AT_ONCE
