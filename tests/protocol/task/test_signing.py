"""A task is believed only with the signatures of all its aggregators, each trusted under this very key."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task.signing import sign_task, verify_signed_task
from fleetcount_protocol.task.task import SignedTask

from tests.support.protocol_samples import aggregator, in_series, sampling_task, sign_all, signing_key, trusted

TASK = sampling_task(3)
SIGNED = sign_all(TASK)


def test_signatures_of_all_are_accepted() -> None:
    verify_signed_task(SIGNED, trusted(TASK))


def test_signature_is_over_the_canonical_bytes_alone() -> None:
    key = Ed25519PublicKey.from_public_bytes(TASK.aggregators[0].signing_public_key)

    key.verify(SIGNED.signatures[0], TASK.canonical)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_signature_is_needed(position: int) -> None:
    other = sign_task(sampling_task(3, name="Another"), signing_key(position))
    for wrong in (b"", bytes(64), other, SIGNED.signatures[position - 1]):
        signatures = tuple(wrong if place == position else one for place, one in enumerate(SIGNED.signatures))
        with pytest.raises(SignatureError, match=TASK.aggregators[position].aggregator_id):
            verify_signed_task(SignedTask(task=TASK, signatures=signatures), trusted(TASK))


def test_every_flipped_bit_of_a_signature_is_refused() -> None:
    first = SIGNED.signatures[0]
    for bit in range(8 * len(first)):
        flipped = bytearray(first)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureError):
            verify_signed_task(replace(SIGNED, signatures=(bytes(flipped), *SIGNED.signatures[1:])), trusted(TASK))


def test_number_of_signatures_must_match() -> None:
    for signatures in (SIGNED.signatures[:2], (*SIGNED.signatures, b"")):
        with pytest.raises(SignatureError, match="signatures for 3"):
            verify_signed_task(replace(SIGNED, signatures=signatures), trusted(TASK))


@pytest.mark.parametrize("count", [0, 3])
def test_a_window_of_a_series_is_not_believed_by_its_own_signatures(count: int) -> None:
    window = in_series(TASK)
    signatures = tuple(sign_task(window, signing_key(position)) for position in range(count))

    with pytest.raises(TaskError, match=r"is window 5 of series [0-9a-f]{64}: the series is signed"):
        verify_signed_task(SignedTask(task=window, signatures=signatures), trusted(TASK))


def test_one_untrusted_aggregator_spoils_the_task() -> None:
    known = trusted(TASK)
    del known[AggregatorId("beta")]

    with pytest.raises(TaskError, match="beta is not among the trusted"):
        verify_signed_task(SIGNED, known)


def test_trust_is_in_this_key_and_this_operator() -> None:
    beta = AggregatorId("beta")
    for changed, why in (
        ({"signing_public_key": aggregator(4).signing_public_key}, "another signing key"),
        ({"operator": "Somebody else"}, "another operator"),
    ):
        known = trusted(TASK)
        known[beta] = replace(known[beta], **changed)
        with pytest.raises(TaskError, match=why):
            verify_signed_task(SIGNED, known)


def test_operators_differing_in_spelling_only_are_trusted_as_one() -> None:
    known = trusted(TASK)
    beta = AggregatorId("beta")
    known[beta] = replace(known[beta], operator="OPERATOR beta")

    verify_signed_task(SIGNED, known)
