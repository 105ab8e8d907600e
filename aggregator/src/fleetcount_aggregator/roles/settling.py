"""How a task ends here when another aggregator decides: a helper's waiting for its leader, and what follows an abort.

A helper waits as long as its leader shows signs of life, and asks for the outcome when it shows none. After an abort
the leader tells the helpers until all have heard, and a helper asks whether there is a record after all; both until
the task expires, over crashes too. It must not drive a task (`leader`).
"""

from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.messages import AbortTask
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Entry, Step, once, taken
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.calling import call_peer
from fleetcount_aggregator.roles.outcomes import adopt_elsewhere, ask_outcomes

__all__ = ["Settling"]

_LONGEST_PAUSE_S: Final = 60.0
"""Between two tries to have an abort known everywhere."""


@dataclass(slots=True)
class _Round:
    """How far one task has come in this process: when to ask again, after which pause, and which helpers have heard."""

    due: float = 0.0
    pause_s: float = 0.0
    told: set[AggregatorId] = field(default_factory=set[AggregatorId])


class Settling:
    """Looks after tasks that this aggregator cannot bring to their end by itself, and after those that were aborted."""

    def __init__(self, context: Context, steps: ReleaseSteps) -> None:
        self._context = context
        self._steps = steps
        self._rounds: dict[TaskId, _Round] = {}
        self._settled: set[TaskId] = set()

    def forget(self, task_id: TaskId) -> None:
        """Drop what is remembered about a task that nothing is left to do for."""
        self._rounds.pop(task_id, None)
        self._settled.discard(task_id)
        self._context.heard.pop(task_id, None)

    async def adopt_elsewhere(self, task: InstalledTask) -> bool:
        """Ask the others for the outcome and adopt a record that proves itself; return whether there was one."""
        return await adopt_elsewhere(self._context, self._steps, task, await ask_outcomes(self._context, task))

    # A helper and a leader that has not ended the task yet.

    async def wait_for_leader(self, task: InstalledTask) -> None:
        """Ask for the outcome when the leader has been quiet for `give_up_s`, and give up in time.

        One that has been silent for twice that is given up, unless the record is signed here: only the others know
        then what became of it, so they are asked until the task expires. One that answers, and brings the task to no
        end, is waited for as long. Who comes back after the windows have closed asks at once.
        """
        context, round_ = self._context, self._rounds.setdefault(task.task_id, _Round())
        if context.clock.now() < self.asks_at(task):
            return
        answers = await ask_outcomes(context, task)
        if await adopt_elsewhere(context, self._steps, task, answers):
            return
        leader = answers.get(task.leader_id)
        if leader is not None and leader.state is State.ABORTED:
            await self._give_up(task, AbortReason.PEER_ABORTED)
            return
        if leader is not None:
            context.heard[task.task_id] = context.clock.now()
        if (reason := await self._out_of_patience(task)) is not None:
            await self._give_up(task, reason)
        # Asked often enough, and at the very moment at which silence has lasted too long.
        now, silent_at = context.clock.now(), self._quiet_since(task) + 2 * context.limits.give_up_s
        round_.due = now + context.limits.longest_retry_s
        if now < silent_at:
            round_.due = min(round_.due, silent_at)

    def asks_at(self, task: InstalledTask) -> float:
        """Return when the outcome of a task that has not ended is asked for, if its leader stays quiet."""
        round_ = self._rounds.get(task.task_id)
        due = 0.0 if round_ is None else round_.due
        back = task.closes <= self._context.started and due == 0
        return 0.0 if back else max(due, self._quiet_since(task) + self._context.limits.give_up_s)

    def _quiet_since(self, task: InstalledTask) -> float:
        return max(task.closes, self._context.started, self._context.heard.get(task.task_id, 0.0))

    async def _out_of_patience(self, task: InstalledTask) -> AbortReason | None:
        now, patience_s = self._context.clock.now(), 2 * self._context.limits.give_up_s
        if await taken(self._context, task.task_id, Step.SIGN) is not None:
            return AbortReason.OUTCOME_UNKNOWN if now >= task.asked.expiry else None
        if now >= self._quiet_since(task) + patience_s:
            return AbortReason.LEADER_SILENT
        return AbortReason.LEADER_SLOW if now >= max(task.asked.expiry, task.closes + patience_s) else None

    async def _give_up(self, task: InstalledTask, reason: AbortReason) -> None:
        log.warning("task_aborted", task=str(task.task_id), reason=reason.value)
        await abort_here(self._context, task.task_id, reason)

    # After an abort.

    def is_settled(self, task: InstalledTask) -> bool:
        """Whether nothing is left to tell or to ask about a task that is aborted here."""
        return task.task_id in self._settled

    def settles_at(self, task: InstalledTask) -> float:
        """Return when to try again to have an abort known."""
        round_ = self._rounds.get(task.task_id)
        return 0.0 if round_ is None else round_.due

    async def settle(self, task: InstalledTask) -> None:
        """Try once to have the abort known everywhere; after the task's expiry there is nobody left to tell.

        Raises:
            StoreError: the store failed; call again.
        """
        if self._context.clock.now() < self.settles_at(task):
            return
        context, round_ = self._context, self._rounds.setdefault(task.task_id, _Round())
        over = context.clock.now() >= task.asked.expiry or await taken(context, task.task_id, Step.SETTLED) is not None
        if over or await (self._tell(task, round_) if task.is_leader else self._ask(task)):
            # A record that was shown meanwhile has released the task.
            if context.states[task.task_id] is State.ABORTED:
                await once(context, task.task_id, Step.SETTLED, b"", Entry())
            self._settled.add(task.task_id)
            return
        round_.pause_s = min(max(2 * round_.pause_s, context.limits.first_retry_s), _LONGEST_PAUSE_S)
        round_.due = context.clock.now() + round_.pause_s

    async def _ask(self, task: InstalledTask) -> bool:
        """Ask whether there is a record after all; return whether the leader has ended the task."""
        answers = await ask_outcomes(self._context, task)
        if await adopt_elsewhere(self._context, self._steps, task, answers):
            return True
        leader = answers.get(task.leader_id)
        return leader is not None and leader.state is State.ABORTED

    async def _tell(self, task: InstalledTask, round_: _Round) -> bool:
        """Tell the helpers that have not heard of the abort; return whether all have."""
        context = self._context
        row = await context.store.task(task.task_id)
        request = AbortTask(task_id=task.task_id, reason="" if row is None else row.abort_reason)
        helpers = [one.aggregator_id for one in task.asked.aggregators[1:]]
        for helper in helpers:
            if helper in round_.told:
                continue
            try:
                state = await call_peer(context, helper, lambda peer: peer.abort(request))
            except PeerUnreachableError as error:
                log.info("abort_not_delivered", task=str(task.task_id), peer=helper, reason=str(error))
                continue
            except PeerRefusalError as refusal:
                log.info("abort_not_delivered", task=str(task.task_id), peer=helper, reason=str(refusal))
                # It may not have decided about the window yet.
                if refusal.problem is not PeerProblem.UNKNOWN_TASK or context.now() < task.asked.round_one_closes:
                    continue
                state = State.ABORTED  # There is nothing of it there, and never will be.
            if state is State.RELEASED and await self.adopt_elsewhere(task):
                return True
            round_.told.add(helper)
        return len(round_.told) == len(helpers)
