"""Several processes over one database: limits hold over all, and who coordinates no more writes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage.errors import FencedError
from fleetcount_aggregator.storage.row_types import LedgerRow, SessionRow, StepRow, WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_ledger, read_step, read_window
from fleetcount_aggregator.storage.session_rows import add_session, put_chains, read_sessions_of
from fleetcount_protocol.ids import Digest, SessionId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.replica_stores import ReplicaStore, replica_store

WINDOW = WindowId(b"t" * 32)
DEVICE = Digest(b"d" * 32)
Pair = tuple[ReplicaStore, ReplicaStore]


@pytest.fixture
async def pair(postgres_url: str, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two processes; the first is the coordinator under epoch 1, and one window is releasing."""
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(replica_store(postgres_url, tmp_path)) for _ in range(2)]
        assert one.lead() == 1
        row = WindowRow(
            window_id=WINDOW,
            canonical=b"canonical",
            verify_key=b"",
            state=WindowState.RELEASING,
            abort_reason="",
            installed_at=7,
        )
        await asyncio.to_thread(one.store.data_keys.make, WINDOW)
        await one.store.decide_windows((), row)
        yield one, two


def session(number: int, accepted: bytes = b"a" * 64) -> SessionRow:
    return SessionRow(
        session_id=SessionId(bytes([number]) * 16),
        request=b"request",
        certificate=DEVICE,
        expiry=100,
        accepted=accepted,
        chain=b"chain %d" % number,
    )


def draw(content: bytes) -> WindowChange:
    """Return what the commit step writes: noise drawn once, and its debit."""
    return WindowChange(
        window_id=WINDOW,
        required=frozenset({WindowState.RELEASING}),
        step=StepRow(name="commit", request=b"set", answer=content),
        debit=LedgerRow(window_id=WINDOW, signal="s", opens=0, closes=1, epsilon="1", debited_at=2),
    )


async def test_the_sessions_of_a_device_are_limited_over_all_processes(pair: Pair) -> None:
    rows = [session(number) for number in range(1, 13)]

    added = await asyncio.gather(
        *(pair[at % 2].store.write_unfenced(add_session, row, most=5, now=0) for at, row in enumerate(rows))
    )

    assert sum(row is not None for row in added) == 5
    assert await pair[0].store.read(read_sessions_of, DEVICE, 0) == 5


async def test_two_processes_that_open_one_session_give_one_answer(pair: Pair) -> None:
    both = [session(1, accepted=bytes([at]) * 64) for at in range(2)]

    stored = await asyncio.gather(
        *(one.store.write_unfenced(add_session, row, most=5, now=0) for one, row in zip(pair, both, strict=True))
    )

    assert stored[0] == stored[1]
    assert stored[0] in both


async def test_what_was_asked_for_under_a_former_epoch_is_not_written_under_the_next(pair: Pair) -> None:
    one, other = pair
    writes, begun, gate = one.store._writes, Event(), Event()

    def wait(_: object) -> bool:
        begun.set()
        return gate.wait(60)

    # The writer is busy, as with a server that is away.
    held = asyncio.create_task(writes.write(wait, leading=False))
    assert await asyncio.to_thread(begun.wait, 60)
    late = asyncio.create_task(one.store.apply(draw(b"late")))
    await asyncio.sleep(0)
    await other.link.rows("UPDATE coordinator SET epoch = 3")  # It was followed, and leads again.
    one.store.engine.epoch = 3  # type: ignore[misc]
    gate.set()

    with pytest.raises(FencedError):
        await late
    await held
    assert await one.store.read(read_step, WINDOW, "commit") is None


async def test_of_two_coordinators_at_once_one_draws_and_the_stale_one_writes_nothing(pair: Pair) -> None:
    stale, elected = pair
    stale.release_lead()
    assert elected.lead() == 2
    stale.store.engine.epoch = 1  # type: ignore[misc] # It does not know it yet.

    late, drawn = await asyncio.gather(
        stale.store.apply(draw(b"late")), elected.store.apply(draw(b"drawn")), return_exceptions=True
    )

    assert isinstance(late, FencedError)
    assert drawn is None
    step = await stale.store.read(read_step, WINDOW, "commit")
    assert step is not None
    assert step.answer == b"drawn"
    for write in (
        stale.store.apply(
            WindowChange(window_id=WINDOW, required=frozenset({WindowState.RELEASING}), new_state=WindowState.ABORTED)
        ),
        stale.store.apply(replace(draw(b"late"), step=StepRow(name="open", request=b"", answer=b"late"))),
        stale.store.write(put_chains, [(b"\1" * 16, b"late")]),
    ):
        with pytest.raises(FencedError):
            await write
    window = await elected.store.read(read_window, WINDOW)
    assert window is not None
    assert window.state is WindowState.RELEASING
    assert len(await elected.store.read(read_ledger)) == 1


async def test_who_is_no_coordinator_writes_nothing_that_happens_once(pair: Pair) -> None:
    with pytest.raises(FencedError):
        await pair[1].store.apply(draw(b"never elected"))
    assert await pair[0].store.read(read_step, WINDOW, "commit") is None
