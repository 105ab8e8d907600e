"""The other aggregators as this one knows them: how each is called, its clock and epoch, and when it was last heard of.

A call has a deadline, is counted and noted, and every failure is one of two errors. What helpers answer it must not
judge.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, WindowId

from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.reasons import WaitFor
from fleetcount_aggregator.host.states import UNFINISHED, AbortReason
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import Peer, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.rows import raise_high_water, read_high_water
from fleetcount_aggregator.storage.store import Store

Result = TypeVar("Result")
FATAL: Final = {
    PeerProblem.TOO_FEW: AbortReason.TOO_FEW_REPORTS,
    PeerProblem.ABORTED: AbortReason.PEER_ABORTED,
    PeerProblem.CONFLICT: AbortReason.SET_DISAGREEMENT,
    PeerProblem.DISAGREES: AbortReason.RECORD_DISAGREEMENT,
    PeerProblem.POSTERIOR_TOO_LARGE: AbortReason.POSTERIOR_TOO_LARGE,
    PeerProblem.BEHIND: AbortReason.RESTORED_BACKUP,
    PeerProblem.RELEASED: AbortReason.RESTORED_BACKUP,
}
"""What a peer's final refusal means for the window; every other one is "peer_refused"."""


class WindowEnds(Exception):  # noqa: N818 - an event among the leader's rules, not a fault: there will be no release.
    """A window that this aggregator leads ends without a release, for a reason."""

    def __init__(self, reason: AbortReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class ShownLedger(NamedTuple):
    """How many rows a peer's ledger has, and how many it had shown before it was asked."""

    rows: int
    known: int


class Peers(Mapping[AggregatorId, Peer]):
    """The configured peers by id; `greetings` says what each of them is told and has said beside the calls."""

    def __init__(self, host: Host, store: Store, peers: Mapping[AggregatorId, Peer], greetings: Greetings) -> None:
        self.greetings = greetings
        self._host = host
        self._store = store
        self._peers = peers
        self._last_contact: dict[WindowId, float] = {}

    def __getitem__(self, name: AggregatorId) -> Peer:
        return self._peers[name]

    def __iter__(self) -> Iterator[AggregatorId]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    async def call(
        self, name: AggregatorId, ask: Callable[[Peer], Awaitable[Result]], *, counted: bool = True
    ) -> Result:
        """Return what a peer answers within `call_timeout_s`; not `counted`: how many such calls there are is secret.

        It does not try again: the caller decides that.

        Raises:
            PeerUnreachableError: it did not answer, or is not configured.
            PeerRefusalError: it refused.
        """
        peer = self._peers.get(name)
        if peer is None:
            raise PeerUnreachableError(f"no peer {name} is configured")
        try:
            async with asyncio.timeout(self._host.limits.call_timeout_s):
                answer = await ask(peer)
        except TimeoutError:
            self._note(name, "timeout" if counted else "", "no answer in time")
            raise PeerUnreachableError(f"{name} did not answer in time") from None
        except PeerUnreachableError as error:
            self._note(name, "unreachable" if counted else "", str(error))
            raise
        except PeerRefusalError as refusal:
            self._note(name, refusal.problem.value if counted else "")  # Who refuses is there.
            if refusal.problem is PeerProblem.STALE_EPOCH:
                # Nothing follows for a window: who can show the newer start ends this process, and who cannot did not
                # answer.
                raise PeerUnreachableError(f"{name} knows a newer start of this aggregator") from refusal
            raise
        self._note(name, "ok" if counted else "")
        return answer

    def _note(self, name: AggregatorId, result: str, problem: str = "") -> None:
        if result:
            self._host.metrics.peer_called(name, result)
        self._host.health.note(Dependency.PEER, problem, name=name)

    # The leader of a window that this aggregator helps with.

    def note_contact(self, window_id: WindowId) -> None:
        """Note that the leader of a window has called about it, or answered."""
        self._last_contact[window_id] = self._host.moment().now

    def last_contact(self, window_id: WindowId) -> float:
        """Return when that was last, 0 if it was not since the start."""
        return self._last_contact.get(window_id, 0.0)

    def forget_contact(self, window_id: WindowId) -> None:
        """Drop what is noted about a window that has ended."""
        self._last_contact.pop(window_id, None)

    # The rollback guard: a peer that shows a shorter ledger than before was restored from a backup, and gets no help.

    async def shown_ledger(self, name: AggregatorId, window_id: WindowId, peer: Peer) -> ShownLedger:
        """Ask a peer for its ledger. The mark is read before the question: replies may come out of order."""
        known = (await self._store.read(read_high_water)).get(name, 0)
        return ShownLedger((await peer.status(window_id)).ledger_rows, known)

    async def note_ledger_rows(self, name: AggregatorId, shown: ShownLedger) -> None:
        """Compare a peer's ledger with what it had shown before, and remember the longer.

        Raises:
            PeerRefusalError: BEHIND, the ledger has become shorter.
        """
        if shown.rows < shown.known:
            raise PeerRefusalError(PeerProblem.BEHIND)
        if shown.rows > shown.known:
            await self._store.write(raise_high_water, name, shown.rows)

    async def check_rollback(self, name: AggregatorId, window_id: WindowId) -> None:
        """Ask a peer for its ledger before helping it to a release.

        Raises:
            PeerRefusalError: BEHIND; or BUSY if it has shown a ledger before and cannot be asked now.
        """
        peer = self._peers.get(name)
        try:
            if peer is None:
                raise PeerUnreachableError(f"no peer {name}")
            shown = await self.shown_ledger(name, window_id, peer)
        except (PeerUnreachableError, PeerRefusalError) as error:
            if (await self._store.read(read_high_water)).get(name, 0):
                raise PeerRefusalError(PeerProblem.BUSY) from error
            return
        await self.note_ledger_rows(name, shown)


class Helpers:
    """The helpers of the windows that this aggregator leads: each is asked until it answers."""

    def __init__(self, peers: Peers, windows: Windows, questions: Questions) -> None:
        self._peers = peers
        self._windows = windows
        self._questions = questions
        self._host = windows.host

    async def ask_all(
        self,
        window: InstalledWindow,
        ask: Callable[[Peer], Awaitable[Result]],
        deadline: float | None = None,
        *,
        counted: bool = True,
    ) -> list[Result]:
        """Ask every helper at once, again and again, until all have answered; answers in the window's order.

        Batches are not `counted`: 512 reports are one, and how many take part is secret.

        Raises:
            WindowEnds: as `ask_one`.
        """
        helpers = [one.aggregator_id for one in window.asked.aggregators[1:]]
        asked = [
            asyncio.ensure_future(self.ask_one(window, helper, ask, deadline, counted=counted)) for helper in helpers
        ]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def ask_one(
        self,
        window: InstalledWindow,
        helper: AggregatorId,
        ask: Callable[[Peer], Awaitable[Result]],
        deadline: float | None = None,
        *,
        counted: bool = True,
    ) -> Result:
        """Ask one helper until it answers or the time is over; the pause doubles up to a cap, with jitter.

        Raises:
            WindowEnds: it refuses for good, or the time is over.
        """
        limits = self._host.limits
        end = window.closes + limits.give_up_s if deadline is None else deadline
        wait = limits.first_retry_s
        try:
            while True:
                try:
                    return await self._peers.call(helper, ask, counted=counted)
                except PeerUnreachableError:
                    problem = None
                except PeerRefusalError as refusal:
                    problem = refusal.problem
                why = "unreachable" if problem is None else problem.value
                self._windows.waits.note(window.window_id, WaitFor.PEER, why, whom=helper, until=end)
                if problem is not None and not problem.transient:
                    raise WindowEnds(FATAL.get(problem, AbortReason.PEER_REFUSED))
                if problem is PeerProblem.UNKNOWN_WINDOW:
                    self._hand_over(window, helper)
                if self._host.moment(window.others).is_past(end):
                    raise WindowEnds(AbortReason.PEER_UNREACHABLE)
                await self._host.pause(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret.
                wait = min(2 * wait, limits.longest_retry_s)
        finally:
            self._windows.waits.over(window.window_id, WaitFor.PEER, whom=helper)

    def _hand_over(self, window: InstalledWindow, helper: AggregatorId) -> None:
        """Give the question again to a helper that came back empty; whether it takes it shows later.

        A helper derives its windows by itself. A window that has ended is not handed over.
        """
        if self._windows.states[window.window_id] in UNFINISHED:
            question_id = window.asked.question.question_id
            self._questions.forget_given(self._questions[question_id], helper)
            self._questions.handovers.put(0, question_id)
