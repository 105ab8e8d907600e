"""Which windows are in memory: those in work; one that has ended when it is asked for.

An aggregator has thousands of ended windows: they are read from the store again. It must not check, install or drive.
"""

import asyncio
from contextlib import suppress
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window, decode_window

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreAwayError, StoreError
from fleetcount_aggregator.storage.row_types import WindowRow

_MOST_ENDED: Final = 64
"""Ended windows kept in memory, the last to end or to be asked for: devices come late in crowds."""


async def learn_window(context: Context, row: WindowRow) -> InstalledWindow:
    """Return a stored window as `read_window` does; a data key that this process has not read is read in a thread.

    Raises:
        FleetcountError: as `read_window`; the server that has the key is away.
    """
    if row.state not in FINAL_STATES:
        await context.learned_key(row.window_id)
    return read_window(context, row)


def read_window(context: Context, row: WindowRow) -> InstalledWindow:
    """Return a stored window, whose data key is in memory; one that has ended has no verify key any more.

    Raises:
        FleetcountError: it cannot be read (another at-rest key, a damaged file, a rule it breaks).
    """
    window, has_ended = decode_window(row.canonical), row.state in FINAL_STATES
    if window.window_id != row.window_id:
        what = f"the bytes of window {row.window_id.hex()} are another window's"
        raise DamagedError(Damage(table="windows", what=what, window_id=row.window_id))
    return InstalledWindow(
        asked=window,
        verify_key=b"" if has_ended else context.data_key(row.window_id).open(row.verify_key, *_place(row.window_id)),
        position=window.position_of(context.aggregator_id),
    )


async def window_row(context: Context, window: InstalledWindow) -> WindowRow:
    """Return a new window as it goes into the store, its verify key sealed under its data key, which is made here.

    Raises:
        StoreError: the disk does not take the key.
    """
    data_key = await asyncio.to_thread(context.store.data_keys.make, window.window_id)
    return WindowRow(
        window_id=window.window_id,
        canonical=window.asked.canonical,
        verify_key=data_key.seal(window.verify_key, *_place(window.window_id)),
        state=WindowState.ANNOUNCED,
        abort_reason="",
        installed_at=context.now(),
    )


def _place(window_id: WindowId) -> tuple[bytes, ...]:
    return b"verify key", window_id


async def window_here(context: Context, window_id: WindowId) -> InstalledWindow | None:
    """Return a window of this aggregator, read from the store if it has ended; None for any other id.

    Raises:
        DamagedError: it is in quarantine.
        StoreError: the store failed.
    """
    context.check_whole(window_id)
    known = context.windows.get(window_id)
    if known is not None:
        return known
    row = await context.store.window(window_id)
    if row is None or row.state not in FINAL_STATES:
        return context.windows.get(window_id)  # What is being installed is not here before it is taken up.
    window = read_window(context, row)
    context.windows[window_id] = window
    context.states[window_id] = row.state
    let_go(context, window)
    return window


def let_go(context: Context, window: InstalledWindow) -> None:
    """Let an ended window leave memory, once `_MOST_ENDED` others have ended or been asked for after it."""
    context.resting[window.window_id] = None
    while len(context.resting) > _MOST_ENDED:
        oldest = next(iter(context.resting))
        for known in (context.resting, context.windows, context.states):
            known.pop(oldest, None)


async def load_windows(context: Context) -> None:
    """Take up the windows in work, when the process starts or is elected and the questions are loaded; the others rest.

    What is damaged is named, and its window in quarantine; the others are taken up. A record that a helper lacks, or an
    abort that is not known everywhere, is work. Finishes the purges a crash has cut off.

    Raises:
        FleetcountError: a stored window cannot be read (another at-rest key).
    """
    context.started = context.clock.now()  # Whom a leader has talked to before nothing in memory says.
    context.adopting = await context.store.restored()
    damaged = await context.store.damaged()
    # Who led meanwhile may have settled what an earlier term found; what is damaged still is found again below.
    for window_id in context.quarantined.keys() - {one.window_id for one in damaged}:
        del context.quarantined[window_id]
    for damage in damaged:
        await _quarantine(context, damage)
    context.ended.clear()  # What a former term has left of them is in work still, or another's work is done.
    in_work = await context.store.active_windows()
    for window_id in in_work:
        if window_id not in context.quarantined:
            await _take_up(context, window_id)
    for window_id in context.live.keys() - set(in_work):
        await _let_rest(context, window_id)
    # Who is elected has started long ago: what was cut off since then still has its key.
    keys = await asyncio.to_thread(context.store.data_keys.held)
    cut_off = [one for one in context.live if one in keys and context.states[one] in FINAL_STATES]
    for window_id in dict.fromkeys((*await context.store.unpurged(), *cut_off)):
        if window_id not in context.quarantined and await context.state_of(window_id) is not None:
            await _purge(context, window_id)


async def _let_rest(context: Context, window_id: WindowId) -> None:
    """Let go of what another process has brought to rest, and nobody said so here before this one was elected."""
    try:
        await follow_window(context, window_id)
    except DamagedError as error:
        await _quarantine(context, error.damage)
    for held in (context.live, context.awake):
        held.pop(window_id, None)  # It may be forgotten.


async def _purge(context: Context, window_id: WindowId) -> None:
    try:
        await context.purge(window_id)
    except DamagedError as error:
        await _quarantine(context, error.damage)


async def follow_window(context: Context, window_id: WindowId) -> None:
    """Take up what the store has of one window that another process of this aggregator installed or moved.

    Raises:
        FleetcountError: the store failed, or the window cannot be read.
    """
    row = await context.store.window(window_id)
    if row is None:
        return
    known = context.windows.get(window_id)
    if row.state in UNFINISHED:
        context.take_up(known or await learn_window(context, row), row.state)
        return
    for held in (context.live, context.awake):
        held.pop(window_id, None)
    if known is not None and context.states[window_id] is not row.state:
        context.states[window_id] = row.state
        context.note_outcome(known)
        let_go(context, known)


async def _take_up(context: Context, window_id: WindowId) -> None:
    try:
        row = await context.store.window(window_id)
        if row is None:
            return
        window = await learn_window(context, row)
    except DamagedError as error:
        await _quarantine(context, error.damage)
        return
    except StoreAwayError:
        raise
    except StoreError:
        key = Damage(
            table="windows", what=f"the verify key of window {window_id.hex()} does not open", window_id=window_id
        )
        await _quarantine(context, key)
        return
    place = window.asked.question
    if place.question_id not in context.questions and row.state in UNFINISHED:
        damage = Damage(
            table="questions",
            what=f"window {window_id.hex()} is a window of a question that is damaged",
            window_id=window_id,
        )
        context.quarantine(damage, window.asked)
        return
    context.take_up(window, row.state)


async def _quarantine(context: Context, damage: Damage) -> None:
    """Put a window in quarantine with its fields, if its bytes are whole."""
    window: Window | None = None
    if damage.window_id is not None and (canonical := await context.store.canonical(damage.window_id)) is not None:
        with suppress(DecodeError):
            found = decode_window(canonical)
            window = found if found.window_id == damage.window_id else None
    context.quarantine(damage, window)
