"""How a window ends here when another aggregator decides: a helper's waiting for its leader, and what follows an abort.

A helper waits as long as its leader shows signs of life, and asks for the outcome when it shows none. After an abort
the leader tells the helpers until all have heard, and a helper asks whether there is a record after all; both until
the window expires, over crashes too. It must not drive a window (`leader`).
"""

from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import AbortWindow, WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.durable_steps import Entry, Step, once, taken
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import adopt_elsewhere, ask_outcomes
from fleetcount_aggregator.storage.rows import read_window

_LONGEST_PAUSE_S: Final = 60.0
"""Between two tries to have an abort known everywhere."""


@dataclass(slots=True)
class _Round:
    """How far one window has come in this process: when to ask again, after which pause, and which helpers have
    heard.
    """

    due: float = 0.0
    pause_s: float = 0.0
    told: set[AggregatorId] = field(default_factory=set[AggregatorId])


class Settling:
    """Looks after windows that this aggregator cannot bring to their end by itself, and after those that were
    aborted.
    """

    def __init__(self, windows: Windows, peers: Peers, steps: ReleaseSteps) -> None:
        self._windows = windows
        self._peers = peers
        self._host = windows.host
        self._store = windows.store
        self._steps = steps
        self._rounds: dict[WindowId, _Round] = {}
        self._settled: set[WindowId] = set()

    def forget(self, window_id: WindowId) -> None:
        """Drop what is remembered about a window that nothing is left to do for."""
        self._rounds.pop(window_id, None)
        self._settled.discard(window_id)
        self._peers.forget_contact(window_id)

    async def adopt_elsewhere(self, window: InstalledWindow) -> bool:
        """Ask the others for the outcome and adopt a record that proves itself; return whether there was one."""
        return await adopt_elsewhere(self._windows, self._steps, window, await ask_outcomes(self._peers, window))

    # A helper and a leader that has not ended the window yet.

    async def wait_for_leader(self, window: InstalledWindow) -> None:
        """Ask for the outcome when the leader has been quiet for `give_up_s`, and give up in time.

        One that has been silent for twice that is given up, unless the record is signed here: only the others know
        then what became of it, so they are asked until the window expires. One that answers, and brings the window to
        no end, is waited for as long. Who comes back after the windows have closed asks at once.
        """
        round_ = self._rounds.setdefault(window.window_id, _Round())
        if self._host.moment().now < self.asks_at(window):
            return
        answers = await ask_outcomes(self._peers, window)
        if await adopt_elsewhere(self._windows, self._steps, window, answers):
            return
        leader = answers.get(window.leader_id)
        if leader is not None and leader.state is WindowState.ABORTED:
            await self._give_up(window, AbortReason.PEER_ABORTED)
            return
        if leader is not None:
            self._peers.note_contact(window.window_id)
        if (reason := await self._out_of_patience(window)) is not None:
            await self._give_up(window, reason)
        # Asked often enough, and at the very moment at which silence has lasted too long.
        now, silent_at = self._host.moment().now, self._quiet_since(window) + 2 * self._host.limits.give_up_s
        round_.due = now + self._host.limits.longest_retry_s
        if now < silent_at:
            round_.due = min(round_.due, silent_at)

    def asks_at(self, window: InstalledWindow) -> float:
        """Return when the outcome of a window that has not ended is asked for, if its leader stays quiet."""
        round_ = self._rounds.get(window.window_id)
        due = 0.0 if round_ is None else round_.due
        back = window.closes <= self._windows.started and due == 0
        return 0.0 if back else max(due, self._quiet_since(window) + self._host.limits.give_up_s)

    def _quiet_since(self, window: InstalledWindow) -> float:
        return max(window.closes, self._windows.started, self._peers.last_contact(window.window_id))

    async def _out_of_patience(self, window: InstalledWindow) -> AbortReason | None:
        moment, patience_s = self._host.moment(window.others), 2 * self._host.limits.give_up_s
        if await taken(self._store, window.window_id, Step.SIGN) is not None:
            return AbortReason.OUTCOME_UNKNOWN if moment.is_past(window.asked.expiry) else None
        if moment.is_past(self._quiet_since(window) + patience_s):
            return AbortReason.LEADER_SILENT
        slow_at = max(window.asked.expiry, window.closes + patience_s)
        return AbortReason.LEADER_SLOW if moment.is_past(slow_at) else None

    async def _give_up(self, window: InstalledWindow, reason: AbortReason) -> None:
        log.warning("window_aborted", window=str(window.window_id), reason=reason.value)
        await abort_here(self._windows, window.window_id, reason)

    # After an abort.

    def is_settled(self, window: InstalledWindow) -> bool:
        """Whether nothing is left to tell or to ask about a window that is aborted here."""
        return window.window_id in self._settled

    def settles_at(self, window: InstalledWindow) -> float:
        """Return when to try again to have an abort known."""
        round_ = self._rounds.get(window.window_id)
        return 0.0 if round_ is None else round_.due

    async def settle(self, window: InstalledWindow) -> None:
        """Try once to have the abort known everywhere; after the window's expiry there is nobody left to tell.

        Raises:
            StoreError: the store failed; call again.
        """
        if self._host.moment().now < self.settles_at(window):
            return
        round_ = self._rounds.setdefault(window.window_id, _Round())
        over = (
            self._host.moment(window.others).is_past(window.asked.expiry)
            or await taken(self._store, window.window_id, Step.SETTLED) is not None
        )
        if over or await (self._tell(window, round_) if window.is_leader else self._ask(window)):
            # A record that was shown meanwhile has released the window.
            if self._windows.states[window.window_id] is WindowState.ABORTED:
                await once(self._windows, window.window_id, Step.SETTLED, b"", Entry())
            self._settled.add(window.window_id)
            return
        round_.pause_s = min(max(2 * round_.pause_s, self._host.limits.first_retry_s), _LONGEST_PAUSE_S)
        round_.due = self._host.moment().now + round_.pause_s

    async def _ask(self, window: InstalledWindow) -> bool:
        """Ask whether there is a record after all; return whether the leader has ended the window."""
        answers = await ask_outcomes(self._peers, window)
        if await adopt_elsewhere(self._windows, self._steps, window, answers):
            return True
        leader = answers.get(window.leader_id)
        return leader is not None and leader.state is WindowState.ABORTED

    async def _tell(self, window: InstalledWindow, round_: _Round) -> bool:
        """Tell the helpers that have not heard of the abort; return whether all have."""
        row = await self._store.read(read_window, window.window_id)
        request = AbortWindow(window_id=window.window_id, reason="" if row is None else row.abort_reason)
        helpers = [one.aggregator_id for one in window.asked.aggregators[1:]]
        for helper in helpers:
            if helper in round_.told:
                continue
            try:
                state = await self._peers.call(helper, lambda peer: peer.abort(request))
            except PeerUnreachableError as error:
                log.info("abort_not_delivered", window=str(window.window_id), peer=helper, reason=str(error))
                continue
            except PeerRefusalError as refusal:
                log.info("abort_not_delivered", window=str(window.window_id), peer=helper, reason=str(refusal))
                # It may not have decided about the window yet.
                may_decide = not self._host.moment(window.others).is_past(window.asked.round_one_closes)
                if refusal.problem is not PeerProblem.UNKNOWN_WINDOW or may_decide:
                    continue
                state = WindowState.ABORTED  # There is nothing of it there, and never will be.
            if state is WindowState.RELEASED and await self.adopt_elsewhere(window):
                return True
            round_.told.add(helper)
        return len(round_.told) == len(helpers)
