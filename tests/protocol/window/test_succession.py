"""An old signing key names the new one; who was shown the statement takes both while it says so, nobody else does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_protocol.errors import DecodeError, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.key_list import KeyList, ListedKey, sign_key_list, verify_key_list
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order, verify_order
from fleetcount_protocol.question.question import SignedQuestion, sign_question, verify_signed_question
from fleetcount_protocol.release.record import sign_record, verify_record_signatures
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.succession import (
    SignedSuccession,
    Succession,
    decode_signed_succession,
    encode_signed_succession,
    sign_succession,
    with_successions,
)

from tests.support.protocol_samples import keyed_aggregator, record, sampling_window, seed_bytes, signing_key, trusted
from tests.support.question_samples import sampling_question, sign_everywhere

WINDOW = sampling_window(3)
QUESTION = sampling_question(3)
OPENS = QUESTION.schedule.first
OLD, NEW, THIRD = signing_key(0), Ed25519PrivateKey.from_private_bytes(seed_bytes("the next key")), signing_key(4)


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def statement(begins: int, ends: int, old: Ed25519PrivateKey = OLD, new: Ed25519PrivateKey = NEW) -> SignedSuccession:
    name = WINDOW.aggregators[0].aggregator_id
    made = Succession(aggregator_id=name, old_key=public(old), new_key=public(new), not_before=begins, not_after=ends)
    return sign_succession(made, old)


def shown(*statements: SignedSuccession) -> dict[AggregatorId, TrustedAggregator]:
    known = trusted(WINDOW)
    name = WINDOW.aggregators[0].aggregator_id
    return {**known, name: with_successions(known[name], statements)}


def by_the_new_key() -> SignedQuestion:
    """The question as it names the new key, signed with it and by the others."""
    first, *others = QUESTION.aggregators
    question = replace(QUESTION, aggregators=(replace(first, signing_public_key=public(NEW)), *others))
    signatures = tuple(sign_question(question, key) for key in (NEW, signing_key(1), signing_key(2)))
    return SignedQuestion(question=question, signatures=signatures)


def test_a_statement_s_bytes_come_back_and_every_flipped_bit_is_refused_or_does_not_verify() -> None:
    signed = statement(OPENS - 10, OPENS + 10)
    data = encode_signed_succession(signed)
    known = trusted(WINDOW)[WINDOW.aggregators[0].aggregator_id]

    assert decode_signed_succession(data) == signed
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DecodeError, QuestionError, SignatureError)):
            with_successions(known, [decode_signed_succession(bytes(flipped))])
    for cut in (data[:-1], data + b"\0", b""):
        with pytest.raises(DecodeError):
            decode_signed_succession(cut)


def test_both_keys_are_the_aggregator_s_while_one_succeeds_the_other() -> None:
    known = shown(statement(100, 200))[WINDOW.aggregators[0].aggregator_id]

    assert known.keys_at(99) == (public(OLD),)
    assert known.keys_at(100) == known.keys_at(199) == (public(OLD), public(NEW))
    assert known.keys_at(200) == (public(NEW),)


def test_a_question_of_the_new_key_is_taken_once_the_statement_was_shown_and_from_its_begin() -> None:
    with pytest.raises(QuestionError, match="trusted under another signing key"):
        verify_signed_question(by_the_new_key(), trusted(WINDOW))
    verify_signed_question(by_the_new_key(), shown(statement(OPENS, OPENS + 10)))
    with pytest.raises(QuestionError, match="trusted under another signing key"):
        verify_signed_question(by_the_new_key(), shown(statement(OPENS + 1, OPENS + 10)))


def test_a_question_of_the_old_key_is_taken_until_the_end() -> None:
    verify_signed_question(sign_everywhere(QUESTION), shown(statement(OPENS - 10, OPENS + 1)))
    with pytest.raises(QuestionError, match="trusted under another signing key"):
        verify_signed_question(sign_everywhere(QUESTION), shown(statement(OPENS - 10, OPENS)))


def test_a_question_is_signed_with_the_key_that_it_names() -> None:
    signed = by_the_new_key()
    other = replace(signed, signatures=(sign_question(signed.question, OLD), *signed.signatures[1:]))

    with pytest.raises(SignatureError, match="does not verify"):
        verify_signed_question(other, shown(statement(OPENS, OPENS + 10)))


@pytest.mark.parametrize("key", [OLD, NEW])
def test_a_record_s_signature_is_of_a_key_of_its_time(key: Ed25519PrivateKey) -> None:
    made = record(WINDOW)
    signatures = tuple(sign_record(made, one) for one in (key, signing_key(1), signing_key(2)))
    at = made.released_at

    verify_record_signatures(made, signatures, shown(statement(at, at + 1)))
    late = shown(statement(at + 1, at + 2)) if key is NEW else shown(statement(at - 1, at))
    with pytest.raises(SignatureError, match="does not verify"):
        verify_record_signatures(made, signatures, late)
    if key is NEW:
        with pytest.raises(SignatureError, match="does not verify"):
            verify_record_signatures(made, signatures, trusted(WINDOW))


def test_key_lists_and_orders_follow() -> None:
    asked = sampling_question()
    described = asked.aggregators[0]
    listed = ListedKey(key=keyed_aggregator(0).hpke_keys[0], not_before=0, not_after=10**10)
    keys = sign_key_list(KeyList(aggregator_id=described.aggregator_id, issued_at=500, keys=(listed,)), NEW)
    order = QuestionOrder(
        question_id=asked.question_id,
        number=1,
        action=OrderAction.PAUSE,
        aggregator_id=described.aggregator_id,
        from_window=3,
    )
    opens = asked.schedule.opens(3)
    early, fitting, late = statement(0, 400), statement(400, 600), statement(501, 600)

    for moments, check in (
        ((early, fitting, late), lambda known: verify_key_list(keys, described, known[described.aggregator_id])),
        (
            (statement(opens - 9, opens - 1), statement(opens, opens + 1), statement(opens + 1, opens + 2)),
            lambda known: verify_order(sign_order(order, NEW), asked, known),
        ),
    ):
        taken(check, moments)


def taken(
    check: Callable[[dict[AggregatorId, TrustedAggregator]], None], moments: tuple[SignedSuccession, ...]
) -> None:
    """The new key's signature holds after the first two statements have begun, and not before the third has."""
    before, fitting, later = moments
    check(shown(before))
    check(shown(fitting))
    for known in (trusted(WINDOW), shown(later)):
        with pytest.raises(SignatureError, match="does not verify"):
            check(known)


def test_statements_follow_each_other_and_none_comes_back() -> None:
    first, second = statement(100, 200), statement(200, 300, NEW, THIRD)

    known = shown(first, second)[WINDOW.aggregators[0].aggregator_id]
    assert known.keys_at(150) == (public(OLD), public(NEW))
    assert known.keys_at(250) == (public(NEW), public(THIRD))
    assert known.keys_at(300) == (public(THIRD),)
    for wrong, said in (
        ((second,), "another signing key than the one trusted"),
        ((first, statement(199, 300, NEW, THIRD)), "begins at 199, allowed: from 200"),
        ((first, statement(200, 300, NEW, OLD)), "comes back"),
    ):
        with pytest.raises(QuestionError, match=said):
            shown(*wrong)


def test_only_the_old_key_names_its_successor() -> None:
    good = statement(100, 200)
    forged = replace(good, signature=NEW.sign(good.succession.canonical))
    others = replace(good, succession=replace(good.succession, aggregator_id=WINDOW.aggregators[1].aggregator_id))

    with pytest.raises(SignatureError, match="does not verify"):
        shown(forged)
    with pytest.raises(QuestionError, match="in the place of"):
        shown(others)
    with pytest.raises(QuestionError, match="is not the old key"):
        sign_succession(good.succession, NEW)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"new_key": public(OLD)}, "the new signing key is the old one"),
        ({"not_after": 100}, "not_after of the succession is 100"),
        ({"not_before": -1}, "not_before of the succession is -1"),
        ({"new_key": bytes(31)}, "32"),
    ],
)
def test_a_statement_that_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(QuestionError, match=said):
        replace(statement(100, 200).succession, **changes)  # type: ignore[arg-type]  # the test names fields.
