"""A question is believed only with the signatures of all its aggregators, each trusted under this very key."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fleetcount_protocol.errors import QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.question import sign_question, verify_signed_question

from tests.support.protocol_samples import aggregator, signing_key, trusted
from tests.support.question_samples import sampling_question, sign_everywhere

QUESTION = sampling_question(3)
SIGNED = sign_everywhere(QUESTION)
TRUSTED = trusted(QUESTION.first_window)
BETA = AggregatorId("beta")


def test_signatures_of_all_are_accepted_and_are_over_the_canonical_bytes_alone() -> None:
    verify_signed_question(SIGNED, TRUSTED)

    key = Ed25519PublicKey.from_public_bytes(QUESTION.aggregators[0].signing_public_key)
    key.verify(SIGNED.signatures[0], QUESTION.canonical)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_signature_is_needed(position: int) -> None:
    other = sign_question(sampling_question(3, name="Another"), signing_key(position))
    for wrong in (b"", bytes(64), other, SIGNED.signatures[position - 1]):
        signatures = tuple(wrong if place == position else one for place, one in enumerate(SIGNED.signatures))
        with pytest.raises(SignatureError, match=QUESTION.aggregators[position].aggregator_id):
            verify_signed_question(replace(SIGNED, signatures=signatures), TRUSTED)


def test_every_flipped_bit_of_a_signature_is_refused() -> None:
    first = SIGNED.signatures[0]
    for bit in range(8 * len(first)):
        flipped = bytearray(first)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureError):
            verify_signed_question(replace(SIGNED, signatures=(bytes(flipped), *SIGNED.signatures[1:])), TRUSTED)


def test_number_of_signatures_must_match() -> None:
    for signatures in (SIGNED.signatures[:2], (*SIGNED.signatures, b"")):
        with pytest.raises(SignatureError, match="signatures for 3"):
            verify_signed_question(replace(SIGNED, signatures=signatures), TRUSTED)


def test_one_untrusted_aggregator_spoils_the_question() -> None:
    known = {name: one for name, one in TRUSTED.items() if name != BETA}

    with pytest.raises(QuestionError, match="beta is not among the trusted"):
        verify_signed_question(SIGNED, known)


def test_trust_is_in_this_key_and_this_operator() -> None:
    for changed, why in (
        ({"signing_public_key": aggregator(4).signing_public_key}, "another signing key"),
        ({"operator": "Somebody else"}, "another operator"),
    ):
        with pytest.raises(QuestionError, match=why):
            verify_signed_question(SIGNED, {**TRUSTED, BETA: replace(TRUSTED[BETA], **changed)})


def test_operators_differing_in_spelling_only_are_trusted_as_one() -> None:
    verify_signed_question(SIGNED, {**TRUSTED, BETA: replace(TRUSTED[BETA], operator="OPERATOR beta")})
