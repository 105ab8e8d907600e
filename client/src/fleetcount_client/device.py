"""The device as a program embeds it: fetches tasks, asks the owner's policy, answers, delivers both rounds.

Puts the parts together; the rules are in answering, policy and ledger, the bytes in spool and the transports.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.errors import DecodeError, MachineError, SignatureError, TaskError
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.task.task import Aggregator, SignedTask

from fleetcount_client.charges import judge_age
from fleetcount_client.config import DeliverySettings, DeviceSettings, load_settings
from fleetcount_client.contact import Contacts, DeviceStatus, HeardTransport, contacts_of
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import JoinRule, OwnerPolicy, PolicyRefusal
from fleetcount_client.renewal import Renewal
from fleetcount_client.signals import SignalSource
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.status import status_of
from fleetcount_client.timer import SystemTimer, Timer, sleep_until
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_client.trust import TrustStore

if TYPE_CHECKING:
    from fleetcount_protocol.channel.session import DeviceIdentity
    from fleetcount_protocol.messages import SeriesOffer

    from fleetcount_client.private_places import PrivatePlaces
    from fleetcount_client.rounds import Rounds
    from fleetcount_client.series_book import SeriesBook
    from fleetcount_client.series_loop import SeriesLoop
    from fleetcount_client.walks import WalkRecords

__all__ = ["Device"]

_LOG: Final = logging.getLogger(__name__)
_IDLE_CLOSE_S: Final = 5.0
_EARLY_POLLS: Final = 2


class Device:
    """One device: its identity, what its owner allows, its durable memory and its way to the aggregators.

    Everything outside is an argument: `spool`, `transport`, `timer`, `source` (the coins: the system's generator unless
    a simulation says otherwise), `walk_records` (for many devices of one process to share). Connections and files are
    opened when needed and closed while the device only waits. Use it from one event loop at a time, or through `run`
    without any.
    """

    def __init__(  # noqa: PLR0913 - every outside thing is an argument, all but five have a default
        self,
        *,
        identity: "DeviceIdentity",
        trust: TrustStore,
        policy: OwnerPolicy,
        spool: Spool,
        transport: Transport,
        signals: Mapping[str, SignalSource] | None = None,
        timer: Timer | None = None,
        source: RandomSource | None = None,
        settings: DeliverySettings | None = None,
        join: JoinRule = JoinRule.ASK,
        private: "PrivatePlaces | None" = None,
        conditions: Callable[[], bool] = lambda: True,
        idle_close_s: float = _IDLE_CLOSE_S,
        renewal: Renewal | None = None,
        walk_records: "WalkRecords | None" = None,
        contacts: Contacts | None = None,
    ) -> None:
        self._trust = trust
        self._spool = spool
        self._signals = dict(signals or {})
        self._timer = timer or SystemTimer()
        self._contacts = contacts or Contacts(self._timer)
        self._transport = HeardTransport(transport, self._contacts)
        self._tasks_under_way: dict[TaskId, SignedTask] = {}
        self._source = source or SystemRandom()
        self._settings = settings or DeliverySettings()
        self._idle_close_s = idle_close_s
        self._busy = 0
        self._identity = identity
        self._policy = policy
        self._join = join
        self._private = private
        self._conditions = conditions
        self._windows = set[TaskId]()
        self._renewal = renewal
        self._walk_records = walk_records

    @property
    def _first_valid(self) -> int:
        return int(self._identity.certificate.not_valid_before_utc.timestamp())

    @cached_property
    def series(self) -> "SeriesBook":
        """The series this device knows of and takes part in, for its owner to join and leave."""
        from fleetcount_client.series_book import SeriesBook  # As below.

        return SeriesBook(
            policy=self._policy,
            trust=self._trust,
            spool=self._spool,
            clock=self._timer,
            source=self._source,
            first_valid=self._first_valid,
            rule=self._join,
        )

    @cached_property
    def _series_loop(self) -> "SeriesLoop":
        from fleetcount_client.series_loop import SeriesLoop  # As below.
        from fleetcount_client.walks import WalkRecords, Walks

        return SeriesLoop(
            book=self.series,
            rounds=self._rounds,
            walks=Walks(
                transport=self._transport,
                records=self._walk_records or WalkRecords(self._trust),
                timer=self._timer,
                source=self._source,
                retry=self._settings.retry,
                pause_until=self._pause_until,
            ),
            timer=self._timer,
            under_way=self._windows,
            pause_until=self._pause_until,
        )

    @cached_property
    def _rounds(self) -> "Rounds":
        # What only an answer needs is loaded with the first one: a program starts, and may refuse, without it.
        from fleetcount_client.delivery import Delivery
        from fleetcount_client.private_places import PrivatePlaces
        from fleetcount_client.rounds import Rounds
        from fleetcount_client.sessions import SessionKeeper

        sessions = SessionKeeper(
            spool=self._spool,
            transport=self._transport,
            identity=self._identity,
            timer=self._timer,
            source=self._source,
            retry=self._settings.retry,
            lifetime_s=self._settings.session_lifetime_s,
        )
        delivery = Delivery(
            spool=self._spool,
            transport=self._transport,
            sessions=sessions,
            timer=self._timer,
            source=self._source,
            retry=self._settings.retry,
        )
        return Rounds(
            policy=self._policy,
            first_valid=self._first_valid,
            spool=self._spool,
            sessions=sessions,
            delivery=delivery,
            timer=self._timer,
            source=self._source,
            settings=self._settings,
            private=self._private or PrivatePlaces({}),
            conditions=self._conditions,
            pause_until=self._pause_until,
        )

    @classmethod
    def from_config(cls, path: str | Path) -> Self:
        """Return the device a TOML file describes (docs/embedding.md, "Configuration").

        Raises:
            ConfigError: one line that names the key, its value and what is allowed.
        """
        return cls.from_settings(load_settings(Path(path)))

    @classmethod
    def from_settings(cls, settings: DeviceSettings) -> Self:
        """Return the device of these settings, with the transport they name.

        Raises:
            ConfigError: a certificate or key file that does not hold what it should.
        """
        from fleetcount_client.assembly import identity_of, transport_of, trust_of

        timer = SystemTimer()
        contacts = Contacts(timer)
        return cls(
            identity=identity_of(settings),
            trust=trust_of(settings),
            policy=settings.policy,
            spool=SpoolFile(settings.state_file).device(),
            transport=transport_of(settings, contacts.note),
            timer=timer,
            contacts=contacts,
            signals=settings.signals,
            settings=settings.delivery,
            join=settings.join,
            private=settings.private,
            renewal=Renewal(certificate_file=settings.certificate_file, settings=settings.renewal),
        )

    @property
    def spool(self) -> Spool:
        """The device's ledger, refusals and unfinished answers, for its owner to read."""
        return self._spool

    def status(self) -> DeviceStatus:
        """Return whom the device reached when, what it does next and when, and if nothing is ahead, why.

        Reads the state file; sends nothing. It holds no truth, coin or key.
        """
        now = self._timer.now()
        status = status_of(
            self._spool,
            self._contacts,
            self._tasks_under_way.values(),
            waits=lambda: judge_age(self._policy, self._spool.age(now, self._first_valid), now),
            sources=contacts_of(self._signals.values()),
            now=now,
        )
        if self._busy == 0:
            self._spool.rest()
        return status

    def would_refuse(
        self, signed: SignedTask, signals: Mapping[str, SignalSource] | None = None
    ) -> PolicyRefusal | None:
        """Return why this device would not answer a task now; None when it would.

        Sends and charges nothing; all it may store is that a new ledger begins now.
        """
        try:
            self._trust.check(signed)
        except (TaskError, SignatureError) as error:
            return PolicyRefusal(rule="aggregators", message=str(error))
        return self._rounds.judge(signed.task, self._sources(signals))

    def run(self, signals: Mapping[str, SignalSource] | None = None, *, once: bool = False) -> tuple[Outcome, ...]:
        """Answer tasks in an event loop of its own: until stopped, or with `once` the tasks on offer now, to their end.

        `signals` maps VSS paths to functions that return the present value; they add to the configured ones.

        Raises:
            Unreachable: `once` is set, no aggregator could be asked for tasks and nothing was left from before.
        """
        return asyncio.run(self._run(signals, once=once))

    async def _run(self, signals: Mapping[str, SignalSource] | None, *, once: bool) -> tuple[Outcome, ...]:
        async with self:
            if once:
                return await self.answer(signals)
            await self.serve(signals)
        return ()

    async def answer(
        self, signals: Mapping[str, SignalSource] | None = None, *, horizon_s: float = math.inf
    ) -> tuple[Outcome, ...]:
        """Answer every task on offer that opens within `horizon_s`, and what was left over; return how each ended.

        The windows of the series it takes part in are answered alike. Returns when the last window needed has passed,
        which may be days, for a series months.

        Raises:
            Unreachable: no aggregator could be asked and nothing was left from before.
        """
        tasks = await self._tasks(horizon_s)
        sources, outcomes = self._sources(signals), list[Outcome]()
        horizon = self._timer.now() + horizon_s
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self.answer_task(signed, sources), name=f"answer {task_id.hex()[:12]}")
                for task_id, signed in tasks.items()
            ]
            # A broker takes seconds to say that it keeps no series: tasks do not wait for that.
            for series_id in await self._joined_series():
                group.create_task(self._answer_series(series_id, sources, outcomes.append, horizon))
        return (*(task.result() for task in running), *outcomes)

    async def open_sessions(self, aggregators: Sequence[Aggregator], deadline: float) -> bool:
        """Open a session with each aggregator ahead of any task, trying until `deadline` (Unix seconds).

        A task that the same aggregators ask within the life of the sessions finds them open, and its windows carry
        reports alone. Nothing is stored or charged before a report needs them. Returns whether all accepted.
        """
        self._busy += 1
        try:
            opened = await self._rounds.sessions.open_all(aggregators, int(deadline), deadline)
        finally:
            self._busy -= 1
        return isinstance(opened, tuple)

    async def serve(self, signals: Mapping[str, SignalSource] | None = None) -> None:
        """Ask for tasks every `poll_interval_s` and answer them, until cancelled."""
        sources = self._sources(signals)
        running: dict[TaskId, tuple[int, asyncio.Task[Outcome]]] = {}
        series: dict[SeriesId, asyncio.Task[None]] = {}
        self._busy += 1
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    offered = await self._offered()
                    now = self._timer.now()
                    # What this machine stopped is taken up again; what is over and not on offer any more is forgotten.
                    kept = {one for one, (closes, _) in running.items() if one in offered or now < closes}
                    running = {one: at for one, at in running.items() if _is_begun(at[1], one in kept)}
                    for task_id, signed in offered.items():
                        if task_id not in running:
                            name = f"answer {task_id.hex()[:12]}"
                            task = group.create_task(self._answer_logged(signed, sources), name=name)
                            running[task_id] = signed.task.round_two_closes, task
                    for series_id in await self._joined_series():
                        if series_id not in series or series[series_id].done():
                            name = f"series {series_id.hex()[:12]}"
                            loop = self._answer_series(series_id, sources, _log_outcome)
                            series[series_id] = group.create_task(loop, name=name)
                    await self._pause_until(self._timer.now() + self._settings.poll_interval_s)
        finally:
            self._busy -= 1

    async def answer_task(self, signed: SignedTask, signals: Mapping[str, SignalSource] | None = None) -> Outcome:
        """Answer one task, both rounds; return how it ended. An answer begun before is finished, never redone."""
        sources = self._sources(signals)
        self._busy += 1
        try:
            if signed.task.series is not None:
                return await self._finish_window(signed, sources)
            self._trust.check(signed)
            self._tasks_under_way[signed.task.task_id] = signed
            return await self._rounds.answer(signed, sources)
        except (TaskError, SignatureError) as error:
            return self._not_trusted(signed, str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return Outcome.of(signed.task, OutcomeKind.FAILED, str(error))
        finally:
            self._tasks_under_way.pop(signed.task.task_id, None)
            self._busy -= 1

    async def answer_series(
        self, offer: "SeriesOffer", signals: Mapping[str, SignalSource] | None = None
    ) -> tuple[Outcome, ...]:
        """Join a series on offer and answer every window that is left of it; return how each ended.

        The program's word is the owner's: the series is joined whatever `join` says, if the policy and the budget allow
        it. A series that is refused, or that cannot be stored, has one outcome, that of its first window.
        """
        from fleetcount_protocol.series.derive import window_task  # As below.

        series = offer.signed.series
        try:
            self._trust.check_series(offer.signed)
            self.series.take([offer])
            refusal = self.series.join(series.series_id)
            if refusal is None:
                outcomes = list[Outcome]()
                await self._answer_series(series.series_id, self._sources(signals), outcomes.append)
                return tuple(outcomes)
        except (TaskError, SignatureError) as error:
            refusal = PolicyRefusal(rule="aggregators", message=str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return (Outcome.of(window_task(series, 0), OutcomeKind.FAILED, str(error)),)
        return (Outcome.of(window_task(series, 0), OutcomeKind.REFUSED, refusal.message, refusal.rule),)

    async def _finish_window(self, signed: SignedTask, sources: Mapping[str, SignalSource]) -> Outcome:
        """Take up a window that was begun before; its series begins the others."""
        if self._spool.report(signed.task.task_id) is None:
            raise TaskError("a window of a series is answered by joining the series")
        self._windows.add(signed.task.task_id)
        self._tasks_under_way[signed.task.task_id] = signed
        try:
            return await self._rounds.answer(signed, sources)
        finally:
            self._windows.discard(signed.task.task_id)

    async def close(self) -> None:
        """Close connections and files; a later use opens them again."""
        await self._transport.close()
        self._spool.rest()

    async def __aenter__(self) -> Self:
        """Return the device itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close connections and files."""
        await self.close()

    def _sources(self, signals: Mapping[str, SignalSource] | None) -> dict[str, SignalSource]:
        return {**self._signals, **(signals or {})}

    async def _tasks(self, horizon_s: float) -> dict[TaskId, SignedTask]:
        """Return the unfinished tasks and those on offer within the horizon.

        Raises:
            Unreachable: no offer could be fetched and nothing is unfinished.
        """
        now = self._timer.now()
        await self._renew(now)
        self._spool.tidy(now)
        # A window that its series is answering just now is unfinished too.
        tasks = {one.task.task_id: one for one in self._unfinished() if one.task.task_id not in self._windows}
        try:
            offered = await self._transport.list_tasks()
        except Unreachable:
            if not tasks:
                raise
            offered = ()
        for signed in offered:
            if signed.task.round_one_opens <= now + horizon_s:
                tasks.setdefault(signed.task.task_id, signed)
        return tasks

    def _unfinished(self) -> Iterator[SignedTask]:
        from fleetcount_protocol.task.signed_file import decode_signed_task  # Only with the first task.

        for stored in self._spool.unfinished_tasks():
            try:
                yield decode_signed_task(stored)
            except (DecodeError, TaskError) as error:
                _LOG.warning("a task in the state file cannot be read, its answer is not finished: %s", error)

    async def _renew(self, now: float) -> None:
        """Go on under a new certificate if there is one; sessions that are open stay open."""
        if self._renewal is None:
            return
        renewed = await self._renewal.look(self._identity, now)
        if renewed is not self._identity:
            self._identity = renewed
            self._rounds.sessions.go_on_as(renewed)
            await self._transport.close()  # The next connection shows the new certificate.

    async def _offered(self) -> dict[TaskId, SignedTask]:
        try:
            return await self._tasks(_EARLY_POLLS * self._settings.poll_interval_s)
        except Unreachable as error:
            _LOG.debug("no tasks fetched: %s", error)  # `Contacts` says it once.
        except MachineError as error:
            _LOG.warning("no tasks looked for: %s", error)  # What is under way goes on; the next poll looks again.
        return {}

    async def _joined_series(self) -> tuple[SeriesId, ...]:
        """Fetch the series on offer, obey what they say, and return those the device takes part in."""
        self._busy += 1
        try:
            self.series.take(await self._fetched_series())
            return self.series.all_joined()
        except MachineError as error:
            _LOG.warning("no series looked for: %s", error)  # As in `_offered`.
            return ()
        finally:
            self._busy -= 1

    async def _fetched_series(self) -> "tuple[SeriesOffer, ...]":
        try:
            return await self._transport.list_series()
        except Unreachable as error:
            _LOG.debug("no series fetched: %s", error)
            return ()

    async def _answer_series(
        self,
        series_id: SeriesId,
        sources: Mapping[str, SignalSource],
        report: Callable[[Outcome], None],
        horizon: float = math.inf,
    ) -> None:
        self._busy += 1
        try:
            await self._series_loop.run(series_id, sources, report, horizon)
        except MachineError as error:
            # The next poll takes the series up again.
            _LOG.warning("series %s: %s", series_id.hex()[:12], error)
        finally:
            self._busy -= 1
        if self._busy == 0 and self._idle_close_s < math.inf:
            await self.close()  # All that is left waits already, and closed nothing while this was under way.

    async def _answer_logged(self, signed: SignedTask, sources: Mapping[str, SignalSource]) -> Outcome:
        outcome = await self.answer_task(signed, sources)
        _log_outcome(outcome)
        return outcome

    def _not_trusted(self, signed: SignedTask, reason: str) -> Outcome:
        refusal = PolicyRefusal(rule="aggregators", message=reason)
        try:
            self._spool.note_refusal(signed.task.task_id, signed.task.name, refusal, self._timer.now())
        except MachineError as error:
            return Outcome.of(signed.task, OutcomeKind.FAILED, str(error))
        return Outcome.of(signed.task, OutcomeKind.REFUSED, reason, refusal.rule)

    async def _pause_until(self, moment: float) -> None:
        """Wait; close what is idle when every task of this device waits for longer than `idle_close_s`."""
        if moment - self._timer.now() <= self._idle_close_s:
            await sleep_until(self._timer, moment)
            return
        self._busy -= 1
        try:
            if self._busy == 0:
                await self.close()
            await sleep_until(self._timer, moment)
        finally:
            self._busy += 1


def _is_begun(task: "asyncio.Task[Outcome]", is_kept: bool) -> bool:
    """Return whether a task is being answered, or has been and is not to be begun anew."""
    if not task.done():
        return True
    return is_kept and not task.cancelled() and task.result().kind is not OutcomeKind.FAILED


def _log_outcome(outcome: Outcome) -> None:
    _LOG.info("task %s %s %s", outcome.name, outcome.kind.value, outcome.reason)
