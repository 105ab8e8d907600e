"""Which step of a window survives a crash: the closed list of durable steps, the states that allow each, and `once`,
which takes them.

A step is done once per window, or once per batch. Its answer and all its changes become durable in one transaction
(`Store.apply`), before any party sees the answer. After a crash before that the step is done again; after a later crash
the stored answer is repeated, byte for byte. The same step with another request is always refused. In the order of a
window's life, with the results that a repetition does not compute again:

    step        at      first taken in           what survives a crash
    batches     leader  agreeing                 how many reports one batch has
    propose/n   helper  agreeing                 batch n is verified; the reply, with the verifier shares
    finish/n    helper  agreeing                 the leader's messages are checked; the reports accepted here
    batch/n     leader  agreeing                 batch n is decided
    set         both    agreeing -> releasing    the one set and its digest
    commit      both    releasing                noise and noised share, drawn once, and the debit of the budget
    open        both    releasing                the list of commitments this aggregator opened its share against
    sign        both    releasing                the one record this aggregator signed, and the signature
    release     both    releasing -> released    the record with every signature; adopted, also agreeing or aborted
    delivered   leader  released                 every helper has the record
    settled     both    aborted                  every helper knows of the abort; a helper: the leader has ended it

It must not decide what a step does: `agreement`, `release` and `roles` do.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import (
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_PEER_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
)
from fleetcount_protocol.messages import FinishedRecord, WindowState

from fleetcount_aggregator.host.states import FINAL_STATES, TRANSITIONS, StateConflictError
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.row_types import BatchRow, LedgerRow, StepRow, WindowChange
from fleetcount_aggregator.storage.rows import read_step
from fleetcount_aggregator.storage.store import Store


class Step(enum.Enum):
    """The durable steps of a window; a value is the name in existing stores and must not change."""

    BATCHES = "batches"
    PROPOSE = "propose"
    FINISH = "finish"
    BATCH = "batch"
    SET = "set"
    COMMIT = "commit"
    OPEN = "open"
    SIGN = "sign"
    RELEASE = "release"
    DELIVERED = "delivered"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """The states in which a step may first be done, and the state to which it moves the window, None for no move.

    `per_batch`: done once per batch, and deleted with the batches once the window has ended. `kept`: the final states
    in which a retired window keeps it (`windows.retention`); SIGN is not kept after a release, whose step has the
    record.
    """

    allowed: frozenset[WindowState]
    moves_to: WindowState | None = None
    per_batch: bool = False
    kept: frozenset[WindowState] = frozenset()


_AGREEING: Final = frozenset({WindowState.AGREEING})
_RELEASING: Final = frozenset({WindowState.RELEASING})
_PROVABLE: Final = frozenset({WindowState.AGREEING, WindowState.RELEASING, WindowState.ABORTED})
_RELEASED: Final = frozenset({WindowState.RELEASED})

RULES: Final[Mapping[Step, StepRule]] = MappingProxyType(
    {
        Step.BATCHES: StepRule(allowed=_AGREEING),
        Step.PROPOSE: StepRule(allowed=_AGREEING, per_batch=True),
        Step.FINISH: StepRule(allowed=_AGREEING, per_batch=True),
        Step.BATCH: StepRule(allowed=_AGREEING, per_batch=True),
        Step.SET: StepRule(allowed=_AGREEING, moves_to=WindowState.RELEASING, kept=FINAL_STATES),
        Step.COMMIT: StepRule(allowed=_RELEASING),
        Step.OPEN: StepRule(allowed=_RELEASING),
        Step.SIGN: StepRule(allowed=_RELEASING, kept=frozenset({WindowState.ABORTED})),
        Step.RELEASE: StepRule(allowed=_PROVABLE, moves_to=WindowState.RELEASED, kept=_RELEASED),
        Step.DELIVERED: StepRule(allowed=_RELEASED, kept=_RELEASED),
        Step.SETTLED: StepRule(allowed=frozenset({WindowState.ABORTED})),
    }
)

KEPT: Final[Mapping[WindowState, tuple[str, ...]]] = MappingProxyType(
    {end: tuple(step.value for step, rule in RULES.items() if end in rule.kept) for end in FINAL_STATES}
)
"""The names of the steps that a retired window keeps, by its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The writes of a step: the bytes of its answer, and the changes of the same transaction (`WindowChange`)."""

    answer: bytes = field(default=b"", repr=False)
    batch: BatchRow | None = None
    included: bytes | None = field(default=None, repr=False)
    rejections: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    debit: LedgerRow | None = None


def step_name(step: Step, batch: int | None = None) -> str:
    """Return the name of a step in the store: `propose/3` is the proposal of batch 3."""
    return step.value if batch is None else f"{step.value}/{batch}"


async def taken(store: Store, window_id: WindowId, step: Step, batch: int | None = None) -> StepRow | None:
    """Return a step with its request and its answer if it has been done, else None."""
    return await store.read(read_step, window_id, step_name(step, batch))


async def once(
    windows: Windows,
    window_id: WindowId,
    step: Step,
    request: bytes,
    work: Entry | Callable[[], Awaitable[Entry]],
    *,
    batch: int | None = None,
    within: AbstractContextManager[None] | None = None,
) -> bytes:
    """Return the answer of a step, after doing the step if it has not been done.

    Two requests are the same if `request`, their bytes or a digest, is equal. `work` makes the entry; it is not started
    if the window's state forbids the step. It continues when its caller is cancelled; a second caller waits for the
    same work. A crash loses the results of `work`, which no party has seen. `within` is entered once, by the call that
    does the step, from before the work until after the entry is stored.

    Raises:
        StateConflictError: the step was not done, and the window's state does not allow it.
        PeerRefusalError: CONFLICT, the step was done for another request; or what `work` raises.
        DamagedError: the window is in quarantine.
        StoreError: this machine failed; the next call finds out whether the step was done.
    """
    windows.check_undamaged(window_id)
    name = step_name(step, batch)
    begin = partial(_known_or_taken, windows, window_id, step, name, request, work, within or nullcontext())
    known = await _one_at_a_time(windows, window_id, name, begin)
    if RULES[step].moves_to is not None and windows.states.get(window_id) in RULES[step].allowed:
        await windows.catch_up(window_id)  # It was stored, but the store's answer was lost.
    if known.request != request:
        raise PeerRefusalError(PeerProblem.CONFLICT)
    return known.answer


async def _one_at_a_time(
    windows: Windows, window_id: WindowId, name: str, begin: Callable[[], Coroutine[Any, Any, StepRow]]
) -> StepRow:
    """Return the result of a step under way, or begin it; it continues when its caller is cancelled."""
    key, under_way = (window_id, name), windows.steps_under_way
    running = under_way.get(key)
    if running is None:
        running = under_way[key] = asyncio.create_task(begin(), name=f"step {name} of {window_id.hex()[:12]}")

        def done(ended: asyncio.Task[StepRow]) -> None:
            del under_way[key]
            # Read the error in case no caller waits any more; the next caller starts the work again and gets its own.
            if not ended.cancelled():
                ended.exception()

        running.add_done_callback(done)
    return await asyncio.shield(running)


async def _known_or_taken(
    windows: Windows,
    window_id: WindowId,
    step: Step,
    name: str,
    request: bytes,
    work: Entry | Callable[[], Awaitable[Entry]],
    within: AbstractContextManager[None],
) -> StepRow:
    # Read here, in the one task of this step: another process may have stored it since `once` was called.
    known = await windows.store.read(read_step, window_id, name)
    if known is not None:
        return known
    rule, state = RULES[step], windows.states[window_id]
    if state not in rule.allowed:
        raise StateConflictError(state, name)
    with within:
        entry = work if isinstance(work, Entry) else await work()
        row = StepRow(name=name, request=request, answer=entry.answer, transient=rule.per_batch)
        # After `apply` the answer is durable; if the store already has the step, it returns the stored answer, which
        # wins.
        return await windows.apply(_change(window_id, rule, row, entry)) or row


def _change(window_id: WindowId, rule: StepRule, row: StepRow, entry: Entry) -> WindowChange:
    return WindowChange(
        window_id=window_id,
        required=rule.allowed,
        new_state=rule.moves_to,
        step=row,
        batch=entry.batch,
        included=entry.included,
        rejections=entry.rejections,
        debit=entry.debit,
    )


async def move(windows: Windows, window_id: WindowId, to: WindowState, *, reason: str = "") -> WindowState:
    """Move a window to a state without a step, if its present state allows that; return its state afterwards."""
    windows.check_undamaged(window_id)
    allowed = frozenset(state for state, following in TRANSITIONS.items() if to in following)
    if windows.states[window_id] not in allowed:
        return windows.states[window_id]
    try:
        await windows.apply(WindowChange(window_id=window_id, required=allowed, new_state=to, abort_reason=reason))
    except StateConflictError as conflict:
        return conflict.state
    return to


# The finished record: its encoding in the stored step, and the record of a window.


def finished_bytes(finished: FinishedRecord) -> bytes:
    """Return a record and its signatures, encoded as the answer of the step RELEASE."""
    parts = [sized(finished.record, 4), uint(len(finished.signatures), 1)]
    return b"".join([*parts, *(sized(one, 1) for one in finished.signatures)])


async def released_here(store: Store, window_id: WindowId) -> FinishedRecord | None:
    """Return the stored record and its signatures, or None before the release; always the same bytes."""
    step = await taken(store, window_id, Step.RELEASE)
    if step is None:
        return None
    reader = Reader(step.answer, "stored record", MAX_PEER_MESSAGE_BYTES)
    record, size = reader.sized(4, 1, MAX_RECORD_BYTES), ED25519_SIGNATURE_BYTES
    signatures = tuple(reader.sized(1, size, size) for _ in range(reader.count(1, 1, MAX_AGGREGATORS)))
    reader.finish()
    return FinishedRecord(window_id=window_id, record=record, signatures=signatures)


async def record_here(store: Store, window_id: WindowId) -> bytes | None:
    """Return the record released here, which may have been adopted, or else the one signed here; None without either.

    One that was only signed here may not be delivered yet.
    """
    finished = await released_here(store, window_id)
    if finished is not None:
        return finished.record
    signed = await taken(store, window_id, Step.SIGN)
    return None if signed is None else signed.request
