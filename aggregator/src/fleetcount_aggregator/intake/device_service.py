"""What devices and analysts may ask, the same over every transport: windows, sessions, uploads, releases.

Answers from the aggregator's own state; decides nothing itself.
"""

from collections.abc import Mapping, Sequence

from fleetcount_protocol.errors import PeerError, PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.limits import (
    MAX_ORDER_BYTES,
    MAX_QUESTION_LIST_BYTES,
    MAX_QUESTIONS_PER_LIST,
)
from fleetcount_protocol.messages import (
    Instalment,
    InstalmentReply,
    QuestionList,
    QuestionOffer,
    QuestionQuery,
    ReleaseAnswer,
    SessionReply,
    SessionRequest,
)
from fleetcount_protocol.wire.device_columns import Upload, UploadAnswer
from fleetcount_transport.admission.identity import Identity

from fleetcount_aggregator.intake.intake import Intake
from fleetcount_aggregator.intake.offers import Offers, may_be_joined
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.steps import ReleaseSteps

_WINDOW_OVERHEAD_BYTES = 1024
_SIGNED_OVERHEAD_BYTES = 128
"""A signature and the lengths around it."""


class UnknownWindowError(PeerError):
    """The asker names a window this aggregator does not have."""


class DeviceService:
    """Answers devices and analysts."""

    def __init__(self, questions: Questions, intake: Intake, steps: ReleaseSteps) -> None:
        self._questions = questions
        self._offers = Offers(questions)
        self._host = questions.host
        self._intake = intake
        self._steps = steps

    def questions(self, query: QuestionQuery) -> QuestionList:
        """Return the questions that are not over, above the one asked for, as many as one list holds: always one.

        Who holds them all as they are is told so instead.

        Raises:
            PeerRefusalError: the query is for another aggregator.
        """
        self.check_own(query.aggregator_id)
        if query.deployment != self._host.identity.deployment:
            return QuestionList(offers=())
        if query.held is not None and query.held == self._offers.held():
            return QuestionList(offers=(), unchanged=True)
        offers: list[QuestionOffer] = []
        room = MAX_QUESTION_LIST_BYTES
        for question in filter(may_be_joined, self._questions.above(query.after, over=query.over)):
            offer = self._offers.of(question)
            room -= _offer_bytes(offer)
            if room < 0 or len(offers) == MAX_QUESTIONS_PER_LIST:
                return QuestionList(offers=tuple(offers), more=True)
            offers.append(offer)
        return QuestionList(offers=tuple(offers))

    def offered(self) -> Mapping[QuestionId, bytes]:
        """Return the digests of the offers of all questions that devices may join; see `Offers.digests`."""
        return self._offers.digests()

    def offer(self, question_id: QuestionId) -> QuestionOffer | None:
        """Return what devices are told of a question, None if it is here no more."""
        question = self._questions.get(question_id)
        return None if question is None else self._offers.of(question)

    async def open_sessions(
        self, requests: Sequence[SessionRequest], callers: Sequence[Identity] | None = None
    ) -> tuple[SessionReply, ...]:
        """Open sessions; `callers` says by whom each came; one answer a request, in order."""
        return tuple(await self._intake.open_sessions(requests, callers))

    async def upload(self, instalments: Sequence[Instalment]) -> tuple[InstalmentReply, ...]:
        """Take instalments; one answer an instalment, in order, after the commit."""
        return tuple(await self._intake.upload(instalments))

    async def take(self, upload: Upload) -> UploadAnswer:
        """Take a batch of instalments as columns; one answer an instalment, in order, after the commit.

        Raises:
            PeerRefusalError: it is for another aggregator.
        """
        self.check_own(upload.aggregator_id)
        return UploadAnswer(runs=tuple(await self._intake.take(upload.runs)))

    def refuse_busy(self, upload: Upload) -> UploadAnswer:
        """Refuse a batch for which there is no room at present; it may be sent again later.

        Raises:
            PeerRefusalError: it is for another aggregator.
        """
        self.check_own(upload.aggregator_id)
        return UploadAnswer(runs=tuple(self._intake.refuse_busy(upload.runs)))

    def check_own(self, aggregator_id: AggregatorId) -> None:
        """Refuse a request that names another aggregator, before any work for it.

        Raises:
            PeerRefusalError: it does.
        """
        if aggregator_id != self._host.aggregator_id:
            raise PeerRefusalError(PeerProblem.UNKNOWN_AGGREGATOR)

    async def release(self, window_id: WindowId) -> ReleaseAnswer:
        """Return a window's state, and its signed record once it is released.

        Raises:
            UnknownWindowError: no such window here.
        """
        answer = await self._steps.outcome(window_id)
        if answer is None:
            raise UnknownWindowError("unknown window")
        return answer


def _offer_bytes(offer: QuestionOffer) -> int:
    """Return no less than an offer takes in a list."""
    lists = sum(len(one.key_list.canonical) + _SIGNED_OVERHEAD_BYTES for one in offer.key_lists)
    orders = len(offer.orders) * (MAX_ORDER_BYTES + _SIGNED_OVERHEAD_BYTES)
    return len(offer.signed.question.canonical) + _WINDOW_OVERHEAD_BYTES + lists + orders
