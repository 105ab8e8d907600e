"""Durable steps: each is taken once, in the states that allow it, and repeated byte for byte ever after."""

import ast
import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fleetcount_aggregator
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator import durable_steps
from fleetcount_aggregator.durable_steps import RULES, Entry, Step, move, once, step_name, taken
from fleetcount_aggregator.host.host import Host, Limits, OwnIdentity
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.states import TRANSITIONS, UNFINISHED, StateConflictError
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.row_types import LedgerRow, StepRow, WindowRow
from fleetcount_aggregator.storage.rows import read_ledger, read_rejections, read_step, read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.aggregators import NoNoise
from tests.support.manual_clock import ManualClock

WINDOW = WindowId(b"t" * 32)
LOG_KEY = bytes(32)
SOURCE = Path(fleetcount_aggregator.__file__).parent

TABLE = {
    "batches": ({"agreeing"}, None),
    "propose": ({"agreeing"}, None),
    "finish": ({"agreeing"}, None),
    "batch": ({"agreeing"}, None),
    "set": ({"agreeing"}, "releasing"),
    "commit": ({"releasing"}, None),
    "open": ({"releasing"}, None),
    "sign": ({"releasing"}, None),
    "release": ({"agreeing", "releasing", "aborted"}, "released"),
    "delivered": ({"released"}, None),
    "settled": ({"aborted"}, None),
}
"""The names existing stores hold, the states that allow each step, and the state it leads to."""
WindowIn = Callable[[WindowState], Awaitable[Windows]]
BATCH_STEPS = {"propose": "propose/3", "finish": "finish/3", "batch": "batch/3"}


def windows_over(store: Store, state: WindowState) -> Windows:
    key = Ed25519PrivateKey.generate()
    identity = OwnIdentity(
        aggregator_id=AggregatorId("alpha"), operator="A", deployment="test", signing_key=key, trusted={}, device_ca=()
    )
    host = Host(identity=identity, keys=KeyRing({}), clock=ManualClock(0), limits=Limits(), noise=NoNoise())
    windows = Windows(host, store)
    windows._states[WINDOW] = state
    return windows


@pytest.fixture
async def window_in(tmp_path: Path) -> AsyncIterator[WindowIn]:
    opened: list[Store] = []
    made = itertools.count()

    async def make(state: WindowState) -> Windows:
        while opened:
            await opened.pop().close()
        database = tmp_path / f"{next(made)}.db"
        store = Store.open(database, LOG_KEY)
        opened.append(store)
        row = WindowRow(window_id=WINDOW, canonical=b"", verify_key=b"", state=state, abort_reason="", installed_at=0)
        await store.decide_windows((), row)
        return windows_over(store, state)

    yield make
    for store in opened:
        await store.close()


class Work:
    """Counts how often it was begun; each time it would give another answer."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Entry:
        self.begun += 1
        answer = b"answer %d" % self.begun
        await self.gate.wait()
        debit = LedgerRow(window_id=WINDOW, signal="S", opens=1, closes=2, epsilon="1", debited_at=3)
        return Entry(answer=answer, debit=debit, rejections={RejectReason.INVALID_PROOF: 1})


def batch_of(step: Step) -> int | None:
    return 3 if RULES[step].per_batch else None


async def take(windows: Windows, step: Step, work: Work, request: bytes = b"request") -> bytes:
    return await once(windows, WINDOW, step, request, work, batch=batch_of(step))


def allowed_state(step: Step) -> WindowState:
    return next(state for state in WindowState if state in RULES[step].allowed)


def test_the_table_is_the_one_existing_stores_were_written_by() -> None:
    rules = {
        step.value: ({state.value for state in rule.allowed}, rule.moves_to and rule.moves_to.value)
        for step, rule in RULES.items()
    }

    assert rules == TABLE
    assert list(RULES) == list(Step)
    assert {step.value for step in Step if RULES[step].per_batch} == set(BATCH_STEPS)
    assert {step.value: step_name(step, 3) for step in Step if RULES[step].per_batch} == BATCH_STEPS


def test_every_move_of_a_step_is_one_of_the_table_of_states() -> None:
    for rule in RULES.values():
        assert rule.moves_to is None or all(rule.moves_to in TRANSITIONS[state] for state in rule.allowed)


def test_the_head_of_the_module_names_every_step_and_no_other() -> None:
    lines = re.findall(r"^    ([a-z]+)(?:/n)? +(?:leader|helper|both) ", str(durable_steps.__doc__), re.MULTILINE)

    assert lines == [step.value for step in Step]


@pytest.mark.parametrize("state", list(WindowState))
async def test_a_step_is_taken_iff_the_state_allows_it(window_in: WindowIn, state: WindowState) -> None:
    for step in Step:
        await check_whether_it_is_taken(await window_in(state), step, state)


async def check_whether_it_is_taken(windows: Windows, step: Step, state: WindowState) -> None:
    work = Work()
    states, moves_to = TABLE[step.value]

    if state.value not in states:
        with pytest.raises(StateConflictError) as conflict:
            await take(windows, step, work)
        assert (conflict.value.state, work.begun) == (state, 0)
        assert await windows.store.read(read_step, WINDOW, step_name(step, batch_of(step))) is None
        return
    answer = await take(windows, step, work)

    after = state if moves_to is None else WindowState(moves_to)
    assert answer == b"answer 1"
    assert windows.states[WINDOW] is after
    row = await windows.store.read(read_window, WINDOW)
    assert row is not None
    assert row.state is after
    stored = await windows.store.read(read_step, WINDOW, step_name(step, batch_of(step)))
    assert stored == StepRow(
        name=BATCH_STEPS.get(step.value, step.value),
        request=b"request",
        answer=answer,
        transient=step.value in BATCH_STEPS,
    )
    assert len(await windows.store.read(read_ledger)) == 1


async def test_a_step_is_repeated_byte_for_byte_in_every_later_state(window_in: WindowIn) -> None:
    for step in Step:
        windows, work = await window_in(allowed_state(step)), Work()
        first = await take(windows, step, work)

        again = [await take(windows, step, work)]
        while following := sorted(
            TRANSITIONS[windows.states[WINDOW]] - {WindowState.ABORTED}, key=list(WindowState).index
        ):
            await move(windows, WINDOW, following[0])
            again.append(await take(windows, step, work))

        assert set(again) == {first}, step
        assert work.begun == 1, step
        assert await windows.store.read(read_rejections, WINDOW) == {RejectReason.INVALID_PROOF: 1}, step


async def test_another_request_under_a_step_that_was_taken_is_refused(window_in: WindowIn) -> None:
    for step in Step:
        windows, work = await window_in(allowed_state(step)), Work()
        await take(windows, step, work)

        with pytest.raises(PeerRefusalError) as refusal:
            await take(windows, step, work, b"another request")

        assert refusal.value.problem is PeerProblem.CONFLICT, step
        assert work.begun == 1, step


async def test_two_that_ask_at_once_share_the_work_and_the_other_request_is_refused(
    window_in: WindowIn,
) -> None:
    windows, work = await window_in(WindowState.RELEASING), Work()

    answers = await asyncio.gather(
        *(take(windows, Step.SIGN, work, request) for request in (b"one", b"one", b"two")), return_exceptions=True
    )

    assert answers[:2] == [b"answer 1"] * 2
    assert isinstance(answers[2], PeerRefusalError)
    assert work.begun == 1


async def test_the_work_goes_on_when_its_caller_gives_up(
    window_in: WindowIn,
) -> None:
    windows, work = await window_in(WindowState.RELEASING), Work()
    work.gate.clear()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await take(windows, Step.COMMIT, work)
    work.gate.set()

    assert await take(windows, Step.COMMIT, work) == b"answer 1"
    assert work.begun == 1


async def test_work_that_fails_leaves_nothing_and_is_done_anew(
    window_in: WindowIn,
) -> None:
    windows, ends = await window_in(WindowState.AGREEING), []

    @contextmanager
    def within() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            ends.append(type(error))
            raise
        else:
            ends.append(None)

    async def fails() -> Entry:
        raise PeerRefusalError(PeerProblem.DISAGREES)

    with pytest.raises(PeerRefusalError, match="disagrees"):
        await once(windows, WINDOW, Step.SET, b"request", fails, within=within())
    assert await taken(windows.store, WINDOW, Step.SET) is None
    assert windows.states[WINDOW] is WindowState.AGREEING

    assert await once(windows, WINDOW, Step.SET, b"request", Entry(answer=b"a"), within=within()) == b"a"
    assert await once(windows, WINDOW, Step.SET, b"request", Entry(answer=b"b"), within=within()) == b"a"
    assert ends == [PeerRefusalError, None], "entered only by who takes the step"


async def test_a_window_that_ends_meanwhile_takes_the_step_no_more(
    window_in: WindowIn,
) -> None:
    windows, work = await window_in(WindowState.RELEASING), Work()
    work.gate.clear()
    asked = asyncio.create_task(take(windows, Step.COMMIT, work))
    while not work.begun:
        await asyncio.sleep(0)
    await move(windows, WINDOW, WindowState.ABORTED, reason="leader_silent")
    work.gate.set()

    with pytest.raises(StateConflictError):
        await asked

    assert await taken(windows.store, WINDOW, Step.COMMIT) is None
    assert not await windows.store.read(read_ledger)


async def test_a_step_survives_its_process(tmp_path: Path) -> None:
    work = Work()
    for _ in range(2):
        store = Store.open(tmp_path / "a.db", LOG_KEY)
        row = WindowRow(
            window_id=WINDOW,
            canonical=b"",
            verify_key=b"",
            state=WindowState.RELEASING,
            abort_reason="",
            installed_at=0,
        )
        await store.decide_windows((), row)
        windows = windows_over(store, row.state)

        answer = await take(windows, Step.COMMIT, work)
        await store.close()

        assert answer == b"answer 1"
    assert work.begun == 1


async def test_a_move_is_made_iff_the_table_of_states_lists_it(window_in: WindowIn) -> None:
    for state, to in itertools.product(WindowState, WindowState):
        windows = await window_in(state)

        after = await move(windows, WINDOW, to, reason="why" if to is WindowState.ABORTED else "")

        row = await windows.store.read(read_window, WINDOW)
        assert row is not None
        assert after is row.state is windows.states[WINDOW]
        assert after is (to if to in TRANSITIONS[state] else state), (state, to)


async def test_a_move_learns_the_state_of_the_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a.db", LOG_KEY)
    await store.decide_windows(
        (),
        WindowRow(
            window_id=WINDOW, canonical=b"", verify_key=b"", state=WindowState.RELEASED, abort_reason="", installed_at=0
        ),
    )
    windows = windows_over(store, WindowState.COLLECTING)

    assert await move(windows, WINDOW, WindowState.AGREEING) is WindowState.RELEASED
    assert windows.states[WINDOW] is WindowState.RELEASED
    await store.close()


def test_unfinished_are_the_states_that_something_follows() -> None:
    assert {state.value for state in UNFINISHED} == {"announced", "collecting", "agreeing", "releasing"}


# No step is taken beside this module.

MODULES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
BELOW = {"durable_steps.py", "memory/windows.py", *(name for name in MODULES if name.startswith("storage/"))}


def test_the_code_uses_every_step_and_no_other() -> None:
    used = {
        node.attr
        for name, tree in MODULES.items()
        if name != "durable_steps.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Step"
    }

    assert used == {step.name for step in Step}


def test_no_module_above_the_steps_names_a_step_to_the_store() -> None:
    """A row or a change made by hand, or a look-up by a string, would be a step outside the table."""
    named: dict[str, set[str]] = {}
    for name in sorted(MODULES.keys() - BELOW):
        nodes = list(ast.walk(MODULES[name]))
        names = {node.id for node in nodes if isinstance(node, ast.Name)} & {"StepRow", "WindowChange"}
        calls = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"step", "apply"}
        if names or calls:
            named[name] = names | calls

    assert named == {}
