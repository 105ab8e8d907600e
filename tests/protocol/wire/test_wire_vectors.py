"""The committed bytes of every layout are read, made and refused today as on the day they were written.

Where it can, a test computes from docs/wire.md with the standard library and `cryptography` alone, not with our code.
"""

import hashlib
import hmac
import json
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fleetcount_evidence.replay.vectors import replay
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.deny_list import decode_signed_deny_list, verify_deny_list
from fleetcount_protocol.channel.greetings import decode_greeting
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import (
    OpeningSession,
    SessionSecret,
    judge_request,
    make_receipt,
    open_request,
    seal_instalment,
    unseal_instalment,
)
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId, owns
from fleetcount_protocol.messages import SessionRequest
from fleetcount_protocol.question.key_list import decode_signed_key_list, key_for
from fleetcount_protocol.question.orders import (
    QuestionOrder,
    check_follows,
    decode_signed_order,
    skipped_windows,
    started_question,
    verify_order,
)
from fleetcount_protocol.question.question import decode_question, decode_signed_question, window_at, window_verify_key
from fleetcount_protocol.question.question_json import question_to_json
from fleetcount_protocol.release.commitments import commitment, set_digest
from fleetcount_protocol.release.record import decode_record, verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json, record_to_json
from fleetcount_protocol.vdaf.prio3 import bits_chunk_length, first_instalments
from fleetcount_protocol.window.domain import SingleDomain, value_of
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.succession import decode_signed_succession
from fleetcount_protocol.window.window import Window, decode_window, prio3_for
from fleetcount_protocol.window.window_json import window_to_json

from tests.support.wire_messages import MESSAGES
from tests.support.wire_reader import verify_record

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "wire"


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def raw(case: dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(case[name])


def expand(secret: bytes, info: bytes, size: int) -> bytes:
    """HKDF-Expand for one block (RFC 5869, section 2.3)."""
    return hmac.digest(secret, info + b"\1", "sha256")[:size]


def by_name(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in load(name)]


@pytest.mark.parametrize("case", by_name("windows"))
def test_window(case: dict[str, Any]) -> None:
    canonical = raw(case, "canonical")
    window = decode_window(canonical)

    assert hashlib.sha256(canonical).hexdigest() == case["window_id"] == window.window_id.hex()
    assert window_to_json(window) == case["window"]


@pytest.mark.parametrize("case", by_name("windows"))
def test_bad_window(case: dict[str, Any]) -> None:
    assert len(case["bad"]) >= 5
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_window(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("deny_lists"))
def test_deny_list(case: dict[str, Any]) -> None:
    authority, keys = (
        x509.load_der_x509_certificate(raw(case, "authority")),
        [bytes.fromhex(key) for key in case["keys"]],
    )
    public = authority.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    named = hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    times = b"".join(case[name].to_bytes(8) for name in ("number", "issued_at", "expires"))
    canonical = b"FCDENY01" + named + times + len(keys).to_bytes(4) + b"".join(sorted(keys))
    signature = raw(case, "signature")
    public.verify(signature, canonical, ec.ECDSA(hashes.SHA256()))

    signed = decode_signed_deny_list(raw(case, "file"))
    verify_deny_list(signed, [authority])

    assert canonical == raw(case, "canonical") == signed.deny_list.canonical
    sizes = len(canonical).to_bytes(4), len(signature).to_bytes(1)
    assert raw(case, "file") == b"FCSDNY01" + sizes[0] + canonical + sizes[1] + signature == signed.encode()
    assert [bytes(key) for key in signed.deny_list.keys] == keys
    assert len(case["bad"]) >= 4
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_signed_deny_list(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("questions"))
def test_question(case: dict[str, Any]) -> None:
    canonical, seed = raw(case, "canonical"), raw(case, "seed")
    question = decode_question(canonical)

    assert hashlib.sha256(canonical).hexdigest() == case["question_id"] == question.question_id.hex()
    assert hashlib.sha256(seed).digest() == question.verify_seed_digest
    assert question_to_json(question) == case["question"]
    signed = decode_signed_question(raw(case, "file"))
    assert signed.question == question
    assert [signature.hex() for signature in signed.signatures] == case["signatures"]
    for aggregator, signature in zip(question.aggregators, signed.signatures, strict=True):
        Ed25519PublicKey.from_public_bytes(aggregator.signing_public_key).verify(signature, canonical)
    question = question.started(case["start"]) if "start" in case else question
    for one in case["windows"]:
        window = window_at(question, one["index"], tuple(one.get("survivors", ())))
        data = raw(one, "canonical")
        window_id = hashlib.sha256(data).digest()
        assert (window.canonical, window.window_id.hex()) == (data, one["window_id"])
        assert window_id.hex() == one["window_id"]
        assert data.startswith(b"FCWIND01" + question.question_id + one["index"].to_bytes(4))
        expected = expand(seed, b"fleetcount v1 verify key" + window_id, 32).hex()
        assert expected == one["verify_key"] == window_verify_key(seed, window.window_id).hex()


@pytest.mark.parametrize("case", by_name("questions"))
def test_bad_question(case: dict[str, Any]) -> None:
    for refuse, list_of_bad in ((decode_question, case), *((decode_window, window) for window in case["windows"])):
        assert len(list_of_bad["bad"]) >= 5
        for bad in list_of_bad["bad"]:
            with pytest.raises(DecodeError):
                refuse(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("key_lists"))
def test_key_list(case: dict[str, Any]) -> None:
    signed = decode_signed_key_list(raw(case, "file"))
    key = Ed25519PrivateKey.from_private_bytes(raw(case, "signing_key"))

    assert signed.key_list.canonical == raw(case, "canonical")
    assert key.sign(raw(case, "canonical")) == raw(case, "signature") == signed.signature
    for at in case["keys"]:
        if at["key_id"] is None:
            with pytest.raises(QuestionError, match="no sealing key"):
                key_for(signed.key_list, at["opens"], at["closes"])
        else:
            assert key_for(signed.key_list, at["opens"], at["closes"]).key_id == at["key_id"]
    assert len(case["bad"]) >= 5
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_signed_key_list(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("successions"))
def test_succession(case: dict[str, Any]) -> None:
    signed = decode_signed_succession(raw(case, "file"))
    key = Ed25519PrivateKey.from_private_bytes(raw(case, "signing_key"))
    said = signed.succession
    head = b"FCSUCC01" + len(said.aggregator_id).to_bytes(2) + said.aggregator_id.encode()
    keys = key.public_key().public_bytes_raw() + raw(case, "new_key")

    times = said.not_before.to_bytes(8) + said.not_after.to_bytes(8)
    assert said.canonical == raw(case, "canonical") == head + keys + times
    assert key.sign(raw(case, "canonical")) == raw(case, "signature") == signed.signature
    assert raw(case, "file") == len(raw(case, "canonical")).to_bytes(4) + raw(case, "canonical") + signed.signature
    assert len(case["bad"]) >= 5
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_signed_succession(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("greetings"))
def test_greeting(case: dict[str, Any]) -> None:
    greeting = decode_greeting(raw(case, "greeting"))
    key = Ed25519PrivateKey.from_private_bytes(raw(case, "signing_key"))
    numbered = case["number"].to_bytes(8) + raw(case, "tag")
    name = case["aggregator_id"].encode()

    signature = key.sign(b"FCEPOC01" + len(name).to_bytes(2) + name + numbered)
    assert raw(case, "epoch") == numbered + signature == greeting.epoch.encode()
    known = raw(case, "known")
    said = case["time_ms"].to_bytes(8) + bytes([80]) + raw(case, "epoch") + bytes([len(known)]) + known
    said += raw(case, "challenge")
    names = b"".join(len(case[one]).to_bytes(2) + case[one].encode() for one in ("caller", "callee"))
    meeting = bytes([case["is_answer"]]) + names + bytes([32]) + raw(case, "tls_key")
    assert raw(case, "greeting") == said + key.sign(b"FCGREE01" + meeting + said)
    assert (b"" if greeting.known is None else greeting.known.encode()) == known
    assert len(case["bad"]) >= 4
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_greeting(raw(bad, "data"))


def test_orders() -> None:
    given: list[QuestionOrder] = []
    for case in load("orders"):
        question = decode_question(raw(case, "question"))
        signed = decode_signed_order(raw(case, "file"))
        given = [one for one in given if one.question_id == question.question_id]
        verify_order(signed, started_question(question, given))
        check_follows(signed.order, given)
        given.append(signed.order)

        assert signed.order.canonical == raw(case, "canonical")
        assert signed.signature == raw(case, "signature")
        assert [[one.start, one.stop] for one in skipped_windows(question, given)] == case["skipped"]
        assert len(case["bad"]) >= 5
        for bad in case["bad"]:
            with pytest.raises(DecodeError):
                decode_signed_order(raw(bad, "data"))


@pytest.mark.parametrize("case", load("sessions"), ids=["x25519", "mlkem768_x25519"])
def test_session(case: dict[str, Any]) -> None:
    named = case["aggregator_id"].encode()
    head = bytes([len(named)]) + named + bytes([case["key_id"]])
    expiry = case["expiry"].to_bytes(8)
    sealed, certificate = raw(case, "sealed_secret"), raw(case, "certificate")
    private = X25519PrivateKey.from_private_bytes(raw(case, "device_ephemeral_private"))
    ephemeral = private.public_key().public_bytes_raw()
    blobs = (sealed, ephemeral, b"\x01" + certificate)
    signed = b"FCSESS03" + head + expiry + b"".join(len(blob).to_bytes(2) + blob for blob in blobs)
    request = SessionRequest(
        aggregator_id=AggregatorId(case["aggregator_id"]),
        key_id=case["key_id"],
        sealed_secret=sealed,
        ephemeral_key=ephemeral,
        credential=b"\x01" + certificate,
        expiry=case["expiry"],
        signature=raw(case, "signature"),
    )
    pair = HpkeKeyPair(case["key_id"], raw(case, "private_key"))
    authority = x509.load_der_x509_certificate(raw(case, "authority"))

    assert signed == raw(case, "signed_bytes")
    assert hashlib.sha256(signed).digest()[:16] == raw(case, "session_id") == request.session_id
    key = x509.load_der_x509_certificate(certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(request.signature, signed, ec.ECDSA(hashes.SHA256()))
    digest = judge_request(request, {case["key_id"]}, request.aggregator_id, [authority], case["expiry"] - 60)
    assert digest == raw(case, "device_key_digest")
    if len(raw(case, "private_key")) == 32:
        suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
        info = b"fleetcount v1 session" + head + digest + expiry
        sealing = X25519PrivateKey.from_private_bytes(raw(case, "private_key"))
        assert suite.decrypt(sealed, sealing, info=info) == raw(case, "secret")

    other = X25519PrivateKey.from_private_bytes(raw(case, "aggregator_ephemeral_private"))
    answered = raw(case, "ephemeral_key")
    said = hashlib.sha256(b"fleetcount v1 session keys" + len(signed).to_bytes(2) + signed + answered).digest()
    shared = private.exchange(X25519PublicKey.from_public_bytes(answered))
    extracted = hmac.digest(said, raw(case, "secret") + shared, "sha256")
    assert answered == other.public_key().public_bytes_raw()
    assert expand(extracted, b"fleetcount v1 confirmation", 32) == raw(case, "confirmation")
    assert expand(extracted, b"fleetcount v1 receipt key", 32) == raw(case, "receipt_key")
    chain = expand(extracted, b"fleetcount v1 chain key", 32)
    for number, link in enumerate(case["chain"], start=1):
        assert (number, chain) == (link["number"], raw(link, "chain_key"))
        assert expand(chain, b"fleetcount v1 window key", 32) == raw(link, "window_key")
        chain = expand(chain, b"fleetcount v1 next key", 32)

    accepted, secret = open_request(request, pair, digest, other)
    opening = OpeningSession(request=request, secret=raw(case, "secret"), ephemeral=private)
    assert (accepted.ephemeral_key, accepted.confirmation) == (answered, raw(case, "confirmation"))
    assert opening.finish(accepted) == secret
    assert [secret.window_key.key, secret.moved_on().window_key.key] == [
        raw(one, "window_key") for one in case["chain"][:2]
    ]


@pytest.mark.parametrize(
    "case", load("reports"), ids=lambda case: f"round{case['round']}_{len(case['plaintext']) // 2}"
)
def test_report(case: dict[str, Any]) -> None:
    window_id, report_id, number = raw(case, "window_id"), raw(case, "report_id"), bytes([case["round"]])
    share, plaintext = raw(case, "public_share"), raw(case, "plaintext")
    sized_share = len(share).to_bytes(2) + share
    place = window_id + report_id + number
    key_number = case["key_number"].to_bytes(2)
    key = expand(raw(case, "window_key"), b"fleetcount v1 report key" + place, 16)
    bound = b"fleetcount v1 report" + place + bytes([case["position"]]) + sized_share
    ciphertext = AESGCM(key).encrypt(bytes(12), plaintext, bound)
    stored = b"fleetcount v2 instalment" + window_id + report_id + raw(case, "session_id") + key_number + number
    digest = hashlib.sha256(stored + sized_share + len(ciphertext).to_bytes(4) + ciphertext).digest()
    receipt_key = raw(case, "receipt_key")
    mac = hmac.digest(receipt_key, b"fleetcount v1 receipt" + place + raw(case, "session_id") + digest, "sha256")

    assert (key, ciphertext, digest) == (
        raw(case, "report_key"),
        raw(case, "ciphertext"),
        raw(case, "instalment_digest"),
    )
    assert mac == raw(case, "receipt_mac")

    secret = SessionSecret(
        session_id=SessionId(raw(case, "session_id")),
        aggregator_id=AggregatorId("alpha"),
        secret=bytes(32),
        receipt_key=receipt_key,
        expiry=1,
    )
    window_key = WindowKey(session_id=secret.session_id, number=case["key_number"], key=raw(case, "window_key"))
    ours = seal_instalment(
        window_key, WindowId(window_id), ReportId(report_id), case["round"], case["position"], share, plaintext
    )
    assert (ours.ciphertext, ours.digest, make_receipt(secret, ours).mac) == (ciphertext, digest, mac)
    assert unseal_instalment(window_key, case["position"], ours) == plaintext


@pytest.mark.parametrize(
    "case", load("answers"), ids=lambda case: f"{case['window']}_{''.join(str(case['measurement']).split())}"
)
def test_answer(case: dict[str, Any]) -> None:
    window = decode_window(raw(next(one for one in load("windows") if one["name"] == case["window"]), "canonical"))
    window_id, device, report_id = raw(case, "window_id"), raw(case, "device_key_digest"), raw(case, "report_id")
    prefix = hashlib.sha256(b"fleetcount v2 report shard" + window_id + device).digest()[:4]
    bound = hashlib.sha256(b"fleetcount v2 report id" + device + report_id[:12]).digest()[:4]

    assert window.window_id == window_id
    assert (report_id[:4], report_id[12:]) == (prefix, bound)
    assert owns(window_id, device, report_id)

    prio3, ctx, measurement = prio3_for(window), b"FCT1" + window_id, case["measurement"]
    parts = {one["round"]: tuple(bytes.fromhex(text) for text in one["plaintexts"]) for one in case["parts"]}
    whole = tuple(map(b"".join, zip(*parts.values(), strict=True)))
    assert prio3.shard(ctx, measurement, report_id, raw(case, "rand")) == (raw(case, "public_share"), whole)
    if 1 in parts:
        assert first_instalments(prio3, ctx, report_id, raw(case, "rand"), measurement[0]) == parts[1]
    assert set(parts) == ({0} if len(parts) == 1 else {1, 2})

    begun = [
        prio3.verify_init(raw(case, "verify_key"), ctx, party, report_id, raw(case, "public_share"), share)
        for party, share in enumerate(whole)
    ]
    shares = [bytes.fromhex(text) for text in case["verifier_shares"]]
    assert [share for _, share in begun] == shares
    assert prio3.combine_verifier_shares(ctx, shares) == raw(case, "verifier_message")
    outputs = [prio3.verify_next(ctx, state, raw(case, "verifier_message")) for state, _ in begun]
    assert prio3.unshard([prio3.aggregate([one]) for one in outputs], 1) == told(window, measurement)


def told(window: Window, measurement: Any) -> list[int]:
    """Return the outputs of one report by the tables of modes and algorithms."""
    if window.mode is Mode.SAMPLING:
        return [int(place == measurement[1]) - int(place == measurement[0]) for place in range(1, window.values + 1)]
    if window.mode is Mode.DIRECT and isinstance(measurement, list):
        return [*measurement, int(any(measurement))]
    return measurement if isinstance(measurement, list) else [int(place == measurement) for place in range(4)]


READERS = {"direct": str, "sampling_h3_envelope": str, "direct_codes": str, "direct_texts": str}


@pytest.mark.parametrize("case", load("readings"), ids=lambda case: f"{case['window']}_{case['reading']}")
def test_reading(case: dict[str, Any]) -> None:
    window = decode_window(raw(next(one for one in load("windows") if one["name"] == case["window"]), "canonical"))
    reading = case["reading"]
    if isinstance(reading, list):
        reading = tuple(map(Fraction, reading))
    elif reading is not None:
        reading = READERS.get(case["window"], Fraction)(reading)

    assert value_of(cast("SingleDomain", window.domain), reading, SeededRandom(0)) == case["value"]


def test_digests() -> None:
    case = load("digests")
    items = [(raw(item, "report_id"), raw(item, "public_share_digest")) for item in case["set"]]
    made, leaves = case["commitment"], b""
    for number in range(256):
        inside = [one + two for one, two in sorted(items) if one[0] == number]
        head = b"fleetcount v2 set leaf" + raw(case, "window_id") + bytes([number]) + len(inside).to_bytes(4)
        leaves += hashlib.sha256(head + b"".join(inside)).digest()
    layout = b"fleetcount v2 report set" + raw(case, "window_id") + leaves
    window_id = WindowId(raw(case, "window_id"))
    named = made["aggregator_id"].encode()
    committed = (
        b"fleetcount v1 commitment"
        + raw(made, "window_id")
        + bytes([len(named)])
        + named
        + raw(made, "set_digest")
        + raw(made, "blind")
        + len(raw(made, "vector")).to_bytes(4)
        + raw(made, "vector")
    )

    assert hashlib.sha256(layout).hexdigest() == case["set_digest"]
    assert hashlib.sha256(leaves).hexdigest() == case["leaves_sha256"]
    named = [(ReportId(one), Digest(two)) for one, two in items]
    assert set_digest(window_id, named).hex() == case["set_digest"]
    assert set_digest(window_id, []).hex() == case["empty_set_digest"]
    assert hashlib.sha256(committed).hexdigest() == made["commitment"]
    ours = commitment(
        raw(made, "vector"),
        raw(made, "blind"),
        window_id=WindowId(raw(made, "window_id")),
        aggregator_id=AggregatorId(made["aggregator_id"]),
        set_digest=Digest(raw(made, "set_digest")),
    )
    assert ours.hex() == made["commitment"]


@pytest.mark.parametrize("case", by_name("records"))
def test_record(case: dict[str, Any]) -> None:
    canonical = raw(case, "canonical")
    signatures = tuple(bytes.fromhex(signature) for signature in case["signatures"])
    record = decode_record(canonical)

    assert record.canonical == canonical
    assert record_to_json(record, signatures) == case["json"]
    assert record_from_json(case["json"]) == (record, signatures)
    verify_record_signatures(record, signatures)


def test_a_stranger_reads_a_record_whose_grid_has_a_frame() -> None:
    [case] = [case for case in load("records") if case["name"] == "sampling_framed"]
    signatures = [bytes.fromhex(signature) for signature in case["signatures"]]

    read = verify_record(raw(case, "canonical"), signatures)

    assert [cell.raw for cell in read.cells] == [cell.raw for cell in decode_record(raw(case, "canonical")).cells]


@pytest.mark.parametrize("case", by_name("records"))
def test_bad_record(case: dict[str, Any]) -> None:
    assert len(case["bad"]) >= 5
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            decode_record(raw(bad, "data"))


@pytest.mark.parametrize("case", by_name("messages"))
def test_message(case: dict[str, Any]) -> None:
    message, _ = MESSAGES[case["name"]]
    data = raw(case, "data")

    assert message.pb_type.DESCRIPTOR.full_name == case["type"]
    assert message.encode(message.decode(data)) == data


@pytest.mark.parametrize("case", by_name("messages"))
def test_bad_message(case: dict[str, Any]) -> None:
    message, _ = MESSAGES[case["name"]]

    assert case["bad"]
    for bad in case["bad"]:
        with pytest.raises(DecodeError):
            message.decode(raw(bad, "data"))


def test_every_message_has_a_vector() -> None:
    assert {case["name"] for case in load("messages")} == set(MESSAGES)


def test_the_chunk_length_takes_the_smaller_of_two_equal_powers_at_every_length_where_that_matters() -> None:
    """Computed from docs/wire.md, "Report", alone."""

    def chunk(length: int, place: int) -> int:
        powers = [1 << exponent for exponent in range(1, length.bit_length() + 1)]
        costs = {power: -(-length // (power - 1)) + power for power in powers}
        best = [power for power in powers if costs[power] == min(costs.values())]
        return -(-length // (best[place] - 1))

    cases = load("chunk_lengths")

    assert len(cases) == 114
    for case in cases:
        length = case["length"]
        assert (case["chunk_length"], case["larger_power"]) == (chunk(length, 0), chunk(length, -1))
        assert bits_chunk_length(length) == case["chunk_length"] != case["larger_power"]
    listed = {case["length"] for case in cases}
    assert [one for one in range(1, 4097) if chunk(one, 0) != chunk(one, -1)] == sorted(listed)


@pytest.mark.parametrize("name", ["Prio3SumVecWithMultiproof_bits_100", "Prio3SumVecWithMultiproof_bad_chunk_length"])
def test_a_report_of_bits_is_taken_and_one_by_the_other_chunk_length_refused(name: str) -> None:
    assert replay(FOLDER / f"{name}.json").line.startswith("ok ")
