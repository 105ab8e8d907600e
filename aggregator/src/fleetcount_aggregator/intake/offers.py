"""What devices are told of the questions they may join, and the digest of all of it, by which a device finds that it
holds everything already.

Nothing is encoded or hashed twice: each offer's digest is kept with its question until the question changes
(`Questions.edition`). It must not decide about a question.
"""

import hashlib
from collections.abc import Mapping

from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import QuestionOffer, held_digest
from fleetcount_protocol.wire.question import QUESTION_OFFER

from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.questions import Questions, installed_everywhere


class Offers:
    """The offers of one aggregator."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._edition: object = None
        self._lists_edition: object = None
        self._digests: Mapping[QuestionId, bytes] = {}
        self._held = held_digest(())

    def of(self, question: InstalledQuestion) -> QuestionOffer:
        """Return what devices are told of a question: all that was signed, and the key lists and orders known here."""
        return QuestionOffer(
            signed=question.signed,
            key_lists=self._questions.key_lists.of(question.asked),
            orders=question.orders,
        )

    def digests(self) -> Mapping[QuestionId, bytes]:
        """Return the SHA-256 of the offer of every question that devices may join, in the order of their ids.

        It is the same object while nothing has changed.
        """
        edition, questions = self._questions.edition(), self._questions
        if edition == self._edition:
            return self._digests
        if questions.key_lists.edition != self._lists_edition:
            for question in questions.values():
                question.offer_digest = None
            self._lists_edition = questions.key_lists.edition
        digests: dict[QuestionId, bytes] = {}
        for question in questions.above(None):
            if question.offer_digest is None:
                question.offer_digest = self._digest(question)
            if question.offer_digest:
                digests[question.question_id] = question.offer_digest
        self._digests, self._held, self._edition = digests, held_digest(digests.values()), edition
        return digests

    def held(self) -> bytes:
        """Return the digest that a device names which holds every offer as it is now."""
        self.digests()
        return self._held

    def _digest(self, question: InstalledQuestion) -> bytes:
        return hashlib.sha256(QUESTION_OFFER.encode(self.of(question))).digest() if may_be_joined(question) else b""


def may_be_joined(question: InstalledQuestion) -> bool:
    """Return whether no aggregator refused a question and, if this one leads it, every other has it."""
    return not question.refused_by and (not question.is_leader or installed_everywhere(question))
