"""The device as a program embeds it: fetches questions, asks the owner's policy, answers windows, delivers both rounds.

Puts the parts together; the rules are in answering, policy and ledger, the bytes in spool and the transports.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.errors import DecodeError, MachineError, QuestionError, SignatureError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window, decode_window

from fleetcount_client.charges import LedgerAge, judge_age
from fleetcount_client.config import DeliverySettings, DeviceSettings, load_settings
from fleetcount_client.contact import (
    Contacts,
    DeviceStatus,
    HeardTransport,
    Outcome,
    OutcomeKind,
    SignalNotes,
    TrustStore,
    contacts_of,
)
from fleetcount_client.policy import JoinRule, OwnerPolicy, PolicyRefusal
from fleetcount_client.renewal import Renewal
from fleetcount_client.signals import SignalSource, knowing
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.status import status_of
from fleetcount_client.timer import Activity, SystemTimer, Timer
from fleetcount_client.transport import Transport, Unreachable

if TYPE_CHECKING:
    from fleetcount_protocol.channel.session import DeviceIdentity
    from fleetcount_protocol.messages import QuestionOffer

    from fleetcount_client.private_places import PrivatePlaces
    from fleetcount_client.question_rows import WalkRecords
    from fleetcount_client.rounds import QuestionLoop, Rounds
    from fleetcount_client.subscriptions import KnownQuestion, Subscriptions

_LOG: Final = logging.getLogger(__name__)
_IDLE_CLOSE_S: Final = 5.0


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
        self._notes = SignalNotes()
        self._transport = HeardTransport(transport, self._contacts)
        self._under_way: dict[WindowId, Window] = {}
        self._refused: dict[QuestionId, Outcome] = {}
        self._waits_said = False
        self._source = source or SystemRandom()
        self._settings = settings or DeliverySettings()
        self._activity = Activity(self._timer, idle_close_s, self.close)
        self._identity = identity
        self._policy = policy
        self._join = join
        self._private = private
        self._conditions = conditions
        self._renewal = renewal
        self._walk_records = walk_records

    @property
    def _first_valid(self) -> int:
        return int(self._identity.certificate.not_valid_before_utc.timestamp())

    @cached_property
    def questions(self) -> "Subscriptions":
        """The questions this device knows of and takes part in."""
        from fleetcount_client.subscriptions import Subscriptions  # As below.

        return Subscriptions(
            policy=self._policy,
            trust=self._trust,
            spool=self._spool,
            clock=self._timer,
            source=self._source,
            first_valid=self._first_valid,
            rule=self._join,
        )

    @cached_property
    def _question_loop(self) -> "QuestionLoop":
        from fleetcount_client.question_rows import WalkRecords, Walks
        from fleetcount_client.rounds import QuestionLoop  # As below.

        return QuestionLoop(
            book=self.questions,
            rounds=self._rounds,
            walks=Walks(
                transport=self._transport,
                records=self._walk_records or WalkRecords(self._trust),
                timer=self._timer,
                source=self._source,
                retry=self._settings.retry,
                pause_until=self._activity.pause_until,
            ),
            timer=self._timer,
            under_way=self._under_way,
            pause_until=self._activity.pause_until,
            fetch_offers=self._transport.list_questions,
        )

    @cached_property
    def _rounds(self) -> "Rounds":
        # What only an answer needs is loaded with the first one: a program starts, and may refuse, without it.
        from fleetcount_client.private_places import PrivatePlaces
        from fleetcount_client.rounds import Rounds
        from fleetcount_client.sessions import Delivery, SessionKeeper

        sessions = SessionKeeper(
            spool=self._spool,
            transport=self._transport,
            identity=self._identity,
            timer=self._timer,
            source=self._source,
            retry=self._settings.retry,
            lifetime_s=self._settings.session_lifetime_s,
            activity=self._activity,
        )
        delivery = Delivery(
            spool=self._spool,
            transport=self._transport,
            sessions=sessions,
            timer=self._timer,
            source=self._source,
            retry=self._settings.retry,
            activity=self._activity,
        )
        return Rounds(
            policy=self._policy,
            spool=self._spool,
            sessions=sessions,
            delivery=delivery,
            timer=self._timer,
            source=self._source,
            settings=self._settings,
            book=self.questions,
            private=self._private or PrivatePlaces({}),
            conditions=self._conditions,
            pause_until=self._activity.pause_until,
            notes=self._notes,
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
            self._under_way.values(),
            self._refused.values(),
            waits=lambda: judge_age(self._policy, self._spool.age(now, self._first_valid), now),
            sources=contacts_of(self._signals.values()),
            signals=self._notes.all(),
            now=now,
        )
        if self._activity.resting:
            self._spool.rest()
        return status

    def would_refuse(
        self, offer: "QuestionOffer", signals: Mapping[str, SignalSource] | None = None
    ) -> PolicyRefusal | None:
        """Return why this device would not take part in a question now; None when it would, or does.

        Sends, reserves and stores nothing, but that a new ledger begins now.
        """
        return self.questions.would_refuse(offer, self._sources(signals))

    def run(self, signals: Mapping[str, SignalSource] | None = None, *, once: bool = False) -> tuple[Outcome, ...]:
        """Answer in an event loop of its own: until stopped, or with `once` the questions on offer now, to their end.

        `signals` maps VSS paths to functions that return the present value; they add to the configured ones.

        Raises:
            Unreachable: `once` is set, no aggregator could be asked for questions and nothing was left from before.
            MachineError: `once` is set, and the state file cannot be used.
        """
        return asyncio.run(self._run(signals, once=once))

    async def _run(self, signals: Mapping[str, SignalSource] | None, *, once: bool) -> tuple[Outcome, ...]:
        async with self:
            if once:
                return await self.answer(signals)
            await self.serve(signals)
        return ()

    async def answer(
        self,
        signals: Mapping[str, SignalSource] | None = None,
        *,
        horizon_s: float = math.inf,
        begins: Callable[[tuple["KnownQuestion", ...]], None] = lambda _: None,
    ) -> tuple[Outcome, ...]:
        """Answer every window that opens within `horizon_s` of the questions on offer, and what was left over.

        Returns how each window ended, and why what is on offer was refused; when the last window needed has passed,
        which may be months. `begins` hears once, before the first wait, of the questions in which it takes part.

        Raises:
            Unreachable: no aggregator could be asked and nothing was left from before.
        """
        sources, outcomes = self._sources(signals), list[Outcome]()
        horizon = self._timer.now() + horizon_s
        await self._begin_look()
        unfinished, unreachable = self._unfinished(), await self._look(sources)
        if unreachable is not None and not unfinished and not self.questions.all_joined():
            raise unreachable
        refused, joined = tuple(self._refused.values()), self.questions.all_joined()
        begins(tuple(known for one in joined if (known := self.questions.joined(one)) is not None))
        await self._answer_all(joined, unfinished, sources, outcomes, horizon)
        return (*outcomes, *refused)

    async def _answer_all(
        self,
        questions: Iterable[QuestionId],
        unfinished: Iterable[Window],
        sources: Mapping[str, SignalSource],
        outcomes: list[Outcome],
        horizon: float = math.inf,
    ) -> None:
        # The first is no task; what was begun before comes first.
        parts = [self._take_up(window, outcomes.append) for window in unfinished]
        parts += [self._answer_question(one, sources, outcomes.append, horizon) for one in questions]
        async with asyncio.TaskGroup() as group:
            for part in parts[1:]:
                group.create_task(part)
            if parts:
                await parts[0]

    async def open_sessions(self, aggregators: Sequence[Aggregator], deadline: float) -> bool:
        """Open a session with each aggregator ahead of any window, trying until `deadline` (Unix seconds).

        A window that the same aggregators ask within the life of the sessions finds them open, and its rounds carry
        reports alone. Nothing is stored or charged before a report needs them. Returns whether all accepted.
        """
        with self._activity.begun():
            now = self._timer.now()
            opened = await self._rounds.sessions.open_all(aggregators, int(deadline), now, now, deadline)
        return isinstance(opened, tuple)

    async def serve(self, signals: Mapping[str, SignalSource] | None = None) -> None:
        """Ask for questions every `poll_interval_s` and answer their windows, until cancelled."""
        sources = self._sources(signals)
        running: dict[WindowId | QuestionId, asyncio.Task[None]] = {}
        with self._activity.begun():
            async with asyncio.TaskGroup() as group:
                while True:
                    # What this machine stopped is taken up again.
                    running = {name: task for name, task in running.items() if not task.done()}
                    for window in await self._left_over():
                        if window.window_id not in running:
                            begun = self._take_up(window, _log_outcome)
                            running[window.window_id] = group.create_task(begun, name=_named(window))
                    for question_id in await self._joined(sources):
                        if question_id not in running:
                            loop = self._answer_question(question_id, sources, _log_outcome, until_failed=True)
                            running[question_id] = group.create_task(loop, name=f"question {question_id.hex()[:12]}")
                    await self._activity.pause_until(self._timer.now() + self._settings.poll_interval_s, again=True)

    async def answer_question(
        self, offer: "QuestionOffer", signals: Mapping[str, SignalSource] | None = None
    ) -> tuple[Outcome, ...]:
        """Join a question on offer and answer every window that is left of it; return how each ended.

        The program's word is the owner's: the question is joined whatever `join` says, if the policy and the budget
        allow it. A question that is refused, or that cannot be stored, has one outcome, that of its first window.
        """
        question, sources, outcomes = offer.signed.question, self._sources(signals), list[Outcome]()
        try:
            self._trust.check_question(offer.signed)
            for part in question.parts:
                await knowing(sources.get(part.signal)).learn()
            if refused := self.questions.take([offer], sources, by_owner=True):
                return tuple(refused.values())
            unfinished = self._unfinished()
            begun = [one for one in unfinished if one.question and one.question.question_id == question.question_id]
            await self._answer_all([question.question_id], begun, sources, outcomes)
            if not outcomes and (ended := self._rounds.ended(self.questions.first_window(offer))) is not None:
                outcomes.append(ended)
            return tuple(outcomes)
        except (QuestionError, SignatureError) as error:
            refusal = PolicyRefusal(rule="aggregators", message=str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return (Outcome.of(self.questions.first_window(offer), OutcomeKind.FAILED, str(error)),)
        first = self.questions.first_window(offer)
        return (Outcome.of(first, OutcomeKind.REFUSED, refusal.message, refusal.rule),)

    async def _take_up(self, window: Window, report: Callable[[Outcome], None]) -> None:
        """Finish a window that was begun before, unless it is answered just now; its question begins the others."""
        if window.window_id in self._under_way:
            return
        self._under_way[window.window_id] = window
        try:
            with self._activity.begun():
                report(await self._rounds.take_up(window))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            report(Outcome.of(window, OutcomeKind.FAILED, str(error)))
        finally:
            self._under_way.pop(window.window_id)

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

    async def _begin_look(self) -> None:
        now = self._timer.now()
        await self._renew(now)
        self._spool.tidy(now)
        age = self._spool.known_age() or LedgerAge(created_at=now, first_valid=self._first_valid)
        waits = judge_age(self._policy, age, now)
        if waits is not None and not self._waits_said:
            _LOG.warning("%s", waits.message)
        self._waits_said = waits is not None

    def _unfinished(self) -> tuple[Window, ...]:
        """Return the windows that were begun and are not finished."""
        found: list[Window] = []
        for stored in self._spool.unfinished_windows():
            try:
                found.append(decode_window(stored))
            except (DecodeError, QuestionError) as error:
                _LOG.warning("a window in the state file cannot be read, its answer is not finished: %s", error)
        return tuple(found)

    async def _left_over(self) -> tuple[Window, ...]:
        try:
            await self._begin_look()
            return self._unfinished()
        except MachineError as error:
            _LOG.warning("nothing is taken up: %s", error)  # What is under way goes on; the next poll looks again.
            return ()

    async def _renew(self, now: float) -> None:
        """Go on under a new certificate if there is one; sessions that are open stay open."""
        if self._renewal is None:
            return
        renewed = await self._renewal.look(self._identity, now)
        if renewed is not self._identity:
            self._identity = renewed
            self._rounds.sessions.go_on_as(renewed)
            await self._transport.close()  # The next connection shows the new certificate.

    async def _look(self, sources: Mapping[str, SignalSource]) -> Unreachable | None:
        """Fetch the questions on offer, join and obey; return why none could be fetched."""
        try:
            with self._activity.begun():
                offers = await self._transport.list_questions()
                for path in sorted({part.signal for offer in offers for part in offer.signed.question.parts}):
                    await knowing(sources.get(path)).learn()
                before, self._refused = self._refused, self.questions.take(offers, sources)
        except Unreachable as error:
            _LOG.debug("no questions fetched: %s", error)  # `Contacts` says it once.
            return error
        for question_id, outcome in self._refused.items():
            if question_id not in before or before[question_id].rule != outcome.rule:
                _log_outcome(outcome)
        return None

    async def _joined(self, sources: Mapping[str, SignalSource]) -> tuple[QuestionId, ...]:
        try:
            await self._look(sources)
            return self.questions.all_joined()
        except MachineError as error:
            _LOG.warning("no questions looked for: %s", error)  # As in `_left_over`.
            return ()

    async def _answer_question(
        self,
        question_id: QuestionId,
        sources: Mapping[str, SignalSource],
        report: Callable[[Outcome], None],
        horizon: float = math.inf,
        *,
        until_failed: bool = False,
    ) -> None:
        try:
            with self._activity.begun():
                await self._question_loop.run(question_id, sources, report, horizon, until_failed=until_failed)
        except MachineError as error:
            # The next poll takes the question up again.
            _LOG.warning("question %s: %s", question_id.hex()[:12], error)
        await self._activity.close_if_resting()


def _named(window: Window) -> str:
    return f"answer {window.window_id.hex()[:12]}"


def _log_outcome(outcome: Outcome) -> None:
    _LOG.info("window %s %s %s", outcome.name, outcome.kind.value, outcome.reason)
