"""The aggregators that a device trusts, and the question that it has checked.

A question is checked once: its bytes never change. Never judges whether the owner wants to answer (policy).
"""

import hashlib
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import AggregatorId

if TYPE_CHECKING:
    from fleetcount_protocol.question.key_list import SignedKeyList
    from fleetcount_protocol.question.orders import SignedOrder
    from fleetcount_protocol.question.question import Question, SignedQuestion
    from fleetcount_protocol.release.record import ReleaseRecord
    from fleetcount_protocol.window.signing import TrustedAggregator


class TrustStore:
    """The aggregators of one deployment that a device trusts; may be shared by many devices of one process."""

    def __init__(self, deployment: str, aggregators: "Iterable[TrustedAggregator]") -> None:
        trusted: dict[AggregatorId, TrustedAggregator] = {one.aggregator_id: one for one in aggregators}
        self._deployment = deployment
        self._trusted = MappingProxyType(trusted)
        self._checked: set[bytes] = set()

    @property
    def deployment(self) -> str:
        """The deployment whose questions are answered."""
        return self._deployment

    def check_question(self, signed: "SignedQuestion") -> None:
        """Check a question's deployment and the signatures of all its aggregators, which stand for every window.

        Raises:
            QuestionError: another deployment, or an aggregator that is not trusted.
            SignatureError: a signature that is missing or does not verify.
        """
        from fleetcount_protocol.question.signing import (
            verify_signed_question,  # Signatures: only with the first question.
        )

        # The signatures are part of the name: the same question under other signatures is checked anew.
        name = hashlib.sha256(signed.question.canonical + b"".join(signed.signatures)).digest()
        if name not in self._checked:
            if signed.question.deployment != self._deployment:
                wrong = signed.question.deployment
                raise QuestionError(f"deployment of the question is {wrong!r}; allowed is {self._deployment!r}")
            verify_signed_question(signed, self._trusted)
            self._checked.add(name)

    def check_record(self, record: "ReleaseRecord", signatures: Sequence[bytes]) -> None:
        """Check that all aggregators of a record's window, every one of them trusted, have signed it.

        Raises:
            SignatureError: a signature that is missing or does not verify, or an aggregator that is not trusted.
        """
        from fleetcount_protocol.release.record import verify_record_signatures  # As above.

        verify_record_signatures(record, signatures, self._trusted)

    def check_key_list(self, listed: "SignedKeyList", question: "Question") -> None:
        """Check that an aggregator of a checked question has signed its list of sealing keys.

        Raises:
            QuestionError, SignatureError: it has not.
        """
        from fleetcount_protocol.question.key_list import verify_key_list  # As above.

        name = listed.key_list.aggregator_id
        described = {one.aggregator_id: one for one in question.aggregators}
        if name not in described:
            raise QuestionError(f"key list of {name}, which the question does not list")
        verify_key_list(listed, described[name], self._trusted.get(name))

    def check_order(self, signed: "SignedOrder", question: "Question") -> None:
        """Check that an aggregator of a checked question has signed an order, and may give it.

        Raises:
            QuestionError, SignatureError: it has not, or may not.
        """
        from fleetcount_protocol.question.orders import verify_order  # As above.

        verify_order(signed, question, self._trusted)
