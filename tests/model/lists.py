"""Lists of operations: how one is drawn from a seed, what must hold after it, and how a failing one is made short."""

import asyncio
import gc
import random
from collections.abc import Sequence
from typing import Any, Final

from fleetcount_aggregator.durable_steps import released_here
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_transport.failpoints import AGGREGATOR_FAILPOINTS

from tests.model.parties import ModelLoop
from tests.model.world import DEVICES, Dawn, Template, World, pairs, seeded

Operation = tuple[Any, ...]
_MOST_FAULTS: Final = 6
_EARLY_FAULTS: Final = (60, 25, 10, 4, 1)
"""How many of a hundred courses meet none, one, ... before the last report is sent."""
_EARLY_FAULTS_ALONE: Final = (10, 30, 30, 20, 10)
"""The same where a list has its course for itself: a receipt that is given too early is found here, or hardly ever."""
_SHARING: Final = 10
DAWN: Final[Operation] = ("dawn",)
"""Every process is killed and started again. What is on the disks then is remembered for the next list."""
_LEADER_POINTS: Final = [one for one in AGGREGATOR_FAILPOINTS if not one.startswith("helper.")]
_HELPER_POINTS: Final = [one for one in AGGREGATOR_FAILPOINTS if not one.startswith("leader.")]
_UNEXPLAINED: Final = {"set_disagreement", "record_disagreement", "peer_refused", "out_of_range", "restored_backup"}
"""Reasons that only an older copy of a store, a party that gave up by itself or a clock 300 s off can bring about."""


def draw(seed: int) -> tuple[int, list[Operation]]:
    """Return how many parties there are and a list: a window's ordinary course, into which faults are strewn.

    Of ten lists nine have the same course until the last report is sent, and `DAWN` there; one has its own.
    """
    alone = seed % _SHARING == 0
    dice = random.Random(f"course {seed}" if alone else f"course of nine {seed // _SHARING}")
    parties = 3 if dice.random() < 0.15 else 2
    course: list[Operation] = [("step", 10.0)]
    for number in (1, 2):
        sending: list[Operation] = [
            ("send", device, number, party, dice.random() < 0.02)
            for device in range(DEVICES)
            for party in range(parties)
            if dice.random() < 0.97
        ]
        dice.shuffle(sending)
        course += [*sending, ("step", 10.0)]
    early = _EARLY_FAULTS_ALONE if alone else _EARLY_FAULTS
    for _ in range(dice.choices(range(len(early)), early)[0]):
        place, fault = dice.randrange(len(course)), _fault(dice, parties)
        course[place:place] = fault
    dice = seeded(seed)
    looks: list[Operation] = []
    for _ in range(dice.randrange(1, 4)):
        order: list[Operation] = [("look", party) for party in range(parties)]
        dice.shuffle(order)
        looks += [*order, ("step", dice.choice([1.0, 5.0, 60.0, 300.0, 700.0]))]
    for _ in range(dice.randrange(_MOST_FAULTS + 1)):
        place, fault = dice.randrange(len(looks) + 1), _fault(dice, parties)
        if fault[-1][0] == "forge":
            place = 0  # Later there is nothing left to forge, as a rule.
        looks[place:place] = fault
    return parties, [*course, *([] if alone else [DAWN]), *looks]


def _fault(dice: random.Random, parties: int) -> list[Operation]:
    party = dice.randrange(parties)
    point = dice.choice(_LEADER_POINTS if party == 0 else _HELPER_POINTS)
    away = dice.choice([0.5, 2.0, 20.0, 90.0])
    again: list[Operation] = [("step", away), ("restart", party), ("look", party), ("look", 0)]
    ends = dice.choice(pairs(parties))
    device = dice.randrange(DEVICES)
    choices: list[tuple[int, list[Operation]]] = [
        (3, [("crash", party)]),
        (3, [("crash", party), *again]),
        (10, [("fail", party, point), ("look", 0), *again]),
        (4, [("fail", party, point)]),
        (4, [("restart", party)]),
        (6, [("lose", dice.choice(["request", "reply"]), *ends, dice.choice([1, 1, 2, 3, 8]))]),
        (2, [("cut", party)]),
        (2, [("join", party)]),
        (3, [("full", party, dice.choice([1, 1, 2, 4]))]),
        (2, [("copy", party)]),
        (2, [("restore", party), ("look", party), ("look", 0)]),
        (1, [("skew", party, dice.choice([-400, -20, -3, 3, 20, 400]))]),
        (1, [("deny", device, party)]),
        (1, [("abort", party)]),
        (2, [("fail", 0, "leader.before_release"), ("look", 0), ("forge", parties - 1)]),
        (4, [("send", device, dice.choice([1, 2]), party, dice.random() < 0.3)]),
        (5, [("step", dice.choice([0.5, 2.0, 30.0, 601.0])), ("look", party)]),
    ]
    weights = [weight for weight, _ in choices]
    [(_, chosen)] = dice.choices(choices, weights)
    return chosen


class Runner:
    """Runs lists in one process and says what did not hold."""

    def __init__(self) -> None:
        self._loop = ModelLoop()
        self._loop.set_exception_handler(lambda *_: None)
        self._templates: dict[int, Template] = {}
        self._dawn: tuple[Any, Dawn] | None = None
        self.ends: dict[str, int] = {}

    def run(self, seed: int, parties: int, operations: Sequence[Operation]) -> list[str]:
        """Return what is wrong after a list: nothing, as a rule."""
        asyncio.set_event_loop(self._loop)
        try:
            return self._loop.run_until_complete(self._run(seed, parties, operations))
        finally:
            asyncio.set_event_loop(None)

    async def _run(self, seed: int, parties: int, operations: Sequence[Operation]) -> list[str]:
        if parties not in self._templates:
            self._templates[parties] = await Template.make(parties)
            gc.freeze()  # Nothing made so far is ever let go of: the collector need not look at it again.
        world = World(self._templates[parties])
        try:
            await self._carry_out(world, seed, operations)
            ended = await world.heal()
            wrong = [] if ended else [f"stuck: {[world.state(party).value for party in range(parties)]}"]
            wrong += await verdict(world)
            end = reason_of(world) if ended else "stuck"
            self.ends[end] = self.ends.get(end, 0) + 1
            return wrong
        finally:
            await world.close()

    async def _carry_out(self, world: World, seed: int, operations: Sequence[Operation]) -> None:
        """Carry out a list; what comes before `DAWN` is not done again if the last list had the same there."""
        if DAWN not in operations:
            seeded(seed)
            await world.begin(world.template.dawn)
            await world.run(operations)
            return
        place = operations.index(DAWN)
        key = world.parties, operations[:place]
        if self._dawn is None or self._dawn[0] != key:
            self._dawn = None
            seeded(seed // _SHARING)
            await world.begin(world.template.dawn)
            await world.run(operations[:place])
            self._dawn = key, await world.dawn()
        seeded(seed)
        await world.begin(self._dawn[1])
        await world.run(operations[place + 1 :])

    def close(self) -> None:
        """Close the loop, and let go of what it was kept for."""
        self._loop.close()
        gc.unfreeze()


def reason_of(world: World) -> str:
    """Return "released", or why the leader gave the window up."""
    state, reason = world.window(0)
    return "released" if state is WindowState.RELEASED else reason


def _answers(world: World, step: str) -> dict[int, set[bytes]]:
    """Return what each party has ever answered in a durable step, its lost stores too."""
    found: dict[int, set[bytes]] = {party: set() for party in range(world.parties)}
    for party, change in world.steps:
        if change.step is not None and change.step.name == step:
            found[party].add(change.step.answer)
    return found


async def verdict(world: World) -> list[str]:
    """Return what does not hold about a window that was healed."""
    windows = [world.window(party) for party in range(world.parties)]
    states = [state for state, _ in windows]
    wrong: list[str] = []
    if len({state for state in states if state in (WindowState.RELEASED, WindowState.ABORTED)}) > 1:
        wrong.append(f"ends differ: {[state.value for state in states]}")
    for name, opened in world.network.opened.items():
        if len(opened) > 1:
            wrong.append(f"two draws opened by {name}")
    if "restore" not in world.faults:
        for step in ("set", "commit", "sign"):
            wrong += [
                f"{step} taken twice by {party}" for party, made in _answers(world, step).items() if len(made) > 1
            ]
        owed = _owed(world)
        reasons = {reason for _, reason in windows} - {""}
        if reasons & _UNEXPLAINED and not world.faults & {"abort", "far clock"}:
            wrong.append(f"ended for {sorted(reasons)} without a cause")
        if WindowState.ABORTED in states and not world.faults and len(owed) >= world.template.window.min_batch_size:
            wrong.append(f"ended for {sorted(reasons)} though nothing failed")
    wrong += _debits(world, states)
    if WindowState.RELEASED in states:
        wrong += await _released(world, states)
    return wrong


def _debits(world: World, states: Sequence[WindowState]) -> list[str]:
    """Return whose ledger lacks a debit: once for a release, and for noise that was drawn and not released."""
    wrong: list[str] = []
    for party in range(world.parties):
        committed = world.rows(party, "SELECT 1 FROM steps WHERE window_id = ? AND name = 'commit'")
        [(debits, counted)] = world.rows(
            party,
            "SELECT (SELECT count(*) FROM ledger WHERE window_id = ?),"
            " (SELECT coalesce(sum(value), 0) FROM counters WHERE name = 'debits')",
        )
        drawn = committed or states[party] is WindowState.RELEASED
        if debits != counted or (drawn and not debits):
            wrong.append(f"party {party} has {debits} debits, {counted} counted")
    return wrong


def _complete(world: World, told: set[tuple[int, int, int, bool]]) -> set[int]:
    return {
        device
        for device in range(DEVICES)
        if all((device, number, party, False) in told for number in (1, 2) for party in range(world.parties))
    }


def _owed(world: World) -> set[int]:
    """Return the devices that hold every receipt for the one thing they sent, and are denied nowhere."""
    lying = {device for device, _, _, other in world.sent if other}
    return _complete(world, world.receipts) - lying - world.denied


async def _released(world: World, states: Sequence[WindowState]) -> list[str]:
    """Return what is wrong with a record: others differ, a signature, a sum, a device lost or counted twice."""
    window_id = world.template.window.window_id
    records = {
        await released_here(world.network.core(party).context.store, window_id)
        for party, state in enumerate(states)
        if state is WindowState.RELEASED
    }
    wrong = [] if len(records) == 1 else [f"{len(records)} records"]
    released = [change.step for _, change in world.steps if change.step is not None and change.step.name == "release"]
    if len({step.request for step in released}) > 1:
        wrong.append("a second release")
    finished = records.pop()
    if finished is None:
        return [*wrong, "released without a record"]
    if len(finished.signatures) != world.parties or not world.proves(finished):
        wrong.append("a release without every signature")
    counted = [cell.raw for cell in decode_record(finished.record).cells]
    may = _complete(world, world.sent)
    owed = _owed(world)
    for device, times in enumerate(counted):
        if times not in (0, 1) or (times == 1 and device not in may):
            wrong.append(f"device {device} is counted {times} times")
        if times == 0 and device in owed:
            wrong.append(f"device {device} has every receipt and is not counted")
    return wrong


def shrunk(runner: Runner, seed: int, parties: int, operations: Sequence[Operation]) -> list[Operation]:
    """Return a part of a failing list that still fails and of which no operation can be left out."""
    left, size = list(operations), max(1, len(operations) // 2)
    while True:
        place, smaller = 0, False
        while place < len(left):
            tried = left[:place] + left[place + size :]
            if runner.run(seed, parties, tried):
                left, smaller = tried, True
            else:
                place += size
        if size == 1 and not smaller:
            return left
        size = max(1, size // 2)
