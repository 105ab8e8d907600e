"""A session opens for its device at the aggregator it names; a report part opens in its own place only."""

import hashlib
import hmac
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.channel import certificates
from fleetcount_protocol.channel.chain import expand
from fleetcount_protocol.channel.session import (
    DeviceIdentity,
    SessionSecret,
    accept_session,
    new_session,
    report_key,
    seal_instalment,
    unseal_instalment,
)
from fleetcount_protocol.errors import DecodeError, Refused, RejectReason, SealError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import Instalment, SessionAccepted, SessionRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.protocol_samples import aggregator, key_pair, keyed_aggregator, seed_bytes, session_secret
from tests.support.twins import twin_of

NOW = datetime(2027, 1, 15, tzinfo=UTC)
TIME = int(NOW.timestamp())
AUTHORITY = certificates.CertificateAuthority.create("Fleet", NOW)
CREDENTIAL = AUTHORITY.issue_device(now=NOW)
DEVICE = DeviceIdentity(certificate=CREDENTIAL.certificate, private_key=CREDENTIAL.private_key)
ALPHA = AggregatorId("alpha")
REQUEST, OPENING = new_session(aggregator(0), keyed_aggregator(0).hpke_keys[0], DEVICE, TIME + 86_400, SeededRandom(1))
SECRET = session_secret()
KEY = SECRET.window_key
WINDOW, REPORT = WindowId(seed_bytes("window")), ReportId(seed_bytes("report", 16))


def accept(
    request: SessionRequest, now: float = TIME, position: int = 0, **changes: Any
) -> tuple[SessionAccepted, SessionSecret]:
    """Return answer and session, as the aggregator at a position has them."""
    arguments: dict[str, Any] = {
        "key_pairs": {key_pair(position).key_id: key_pair(position)},
        "aggregator_id": aggregator(position).aggregator_id,
        "ca": (AUTHORITY.certificate,),
    }
    return accept_session(request, now=now, **(arguments | changes))[:2]


def resigned(request: SessionRequest, device: DeviceIdentity = DEVICE) -> SessionRequest:
    signature = device.private_key.sign(request.signed_bytes, ec.ECDSA(hashes.SHA256()))
    return replace(request, signature=signature)


def refuses(reason: RejectReason, request: SessionRequest, **arguments: Any) -> None:
    with pytest.raises(Refused) as refusal:
        accept(request, **arguments)
    assert refusal.value.reason is reason


def test_both_sides_have_the_same_session() -> None:
    accepted, secret, digest = accept_session(REQUEST, {1: key_pair(0)}, ALPHA, (AUTHORITY.certificate,), TIME)

    assert OPENING.finish(accepted) == secret
    assert accepted.session_id == REQUEST.session_id == secret.session_id
    assert digest == certificates.key_digest(DEVICE.certificate)
    assert secret.expiry == accepted.expiry == TIME + 86_400
    assert secret.number == 1


def test_a_request_accepted_twice_gives_sessions_that_have_nothing_in_common() -> None:
    one, other = accept(REQUEST), accept(REQUEST)

    assert one[0] != other[0]
    assert len({one[1].secret, one[1].receipt_key, other[1].secret, other[1].receipt_key}) == 4


def test_post_quantum_session_returns_the_secret() -> None:
    from fleetcount_protocol.channel.hpke import HpkeKeyPair
    from fleetcount_protocol.window.fields import HpkeKey

    pair = HpkeKeyPair(9, seed_bytes("hybrid", 96))
    key = HpkeKey(key_id=9, public_key=pair.public_key)
    request, opening = new_session(aggregator(0), key, DEVICE, TIME + 3_600, SeededRandom(2))

    accepted, secret = accept(request, key_pairs={9: pair})
    assert opening.finish(accepted) == secret


def test_only_who_holds_the_sealing_key_can_answer_and_only_this_request() -> None:
    accepted, _ = accept(REQUEST)
    other, _ = new_session(aggregator(0), keyed_aggregator(0).hpke_keys[0], DEVICE, TIME + 86_400, SeededRandom(7))
    ephemeral = X25519PrivateKey.generate().public_key().public_bytes_raw()
    forged = [
        replace(accepted, ephemeral_key=ephemeral),
        replace(accepted, ephemeral_key=bytes(32)),
        replace(accepted, confirmation=bytes(32)),
        replace(accepted, expiry=accepted.expiry - 3_600),
        replace(accept(other)[0], session_id=REQUEST.session_id),
        replace(accepted, session_id=other.session_id),
    ]
    for bit in range(256):
        changed = bytearray(accepted.confirmation)
        changed[bit // 8] ^= 1 << bit % 8
        forged.append(replace(accepted, confirmation=bytes(changed)))

    for answer in forged:
        with pytest.raises(SignatureError, match="does not verify"):
            OPENING.finish(answer)
    assert OPENING.finish(accepted).session_id == REQUEST.session_id


def test_a_recording_and_the_sealing_key_open_no_session() -> None:
    """What is left after both sides threw their ephemeral keys away: the request, the answer, the sealing key."""
    accepted, secret = accept(REQUEST)

    again = [OPENING.finish(accepted), accept(REQUEST)[1]]

    assert again[0] == secret, "the device's ephemeral key, which lives as long as it waits for the answer"
    assert again[1].secret != secret.secret
    info = b"fleetcount v1 session\x05alpha\x01" + certificates.key_digest(DEVICE.certificate)
    sealed = key_pair(0).open(REQUEST.sealed_secret, info + REQUEST.expiry.to_bytes(8))
    guesses = (sealed, *(sealed + part for part in (REQUEST.ephemeral_key, accepted.ephemeral_key, bytes(32))))
    salts = (hashlib.sha256(b"fleetcount v1 session keys" + one).digest() for one in (said(REQUEST, accepted), b""))
    for guess, salt in itertools.product(guesses, salts):
        assert expand(hmac.digest(salt, guess, "sha256"), b"fleetcount v1 chain key") != secret.secret


def said(request: SessionRequest, accepted: SessionAccepted) -> bytes:
    signed = request.signed_bytes
    return len(signed).to_bytes(2) + signed + accepted.ephemeral_key


def test_session_is_named_by_the_signed_bytes_not_the_signature() -> None:
    again = resigned(REQUEST)

    assert again.signature != REQUEST.signature
    assert again.session_id == REQUEST.session_id
    assert accept(again)[0].session_id == REQUEST.session_id


def test_certificate_copied_with_another_authority_signature_is_the_same_device() -> None:
    twin = certificates.certificate_der(twin_of(DEVICE.certificate))
    request = resigned(replace(REQUEST, credential=b"\x01" + twin))

    assert twin != certificates.certificate_der(DEVICE.certificate)
    _, _, digest = accept_session(request, {1: key_pair(0)}, ALPHA, (AUTHORITY.certificate,), TIME)
    assert digest == certificates.key_digest(DEVICE.certificate)


def test_wrong_aggregator_key_time_or_size_is_refused_by_name() -> None:
    refuses(RejectReason.MALFORMED, REQUEST, aggregator_id=AggregatorId("beta"))
    refuses(RejectReason.UNKNOWN_KEY, REQUEST, key_pairs={})
    refuses(RejectReason.BAD_SEAL, REQUEST, key_pairs={1: key_pair(1)})
    refuses(RejectReason.EXPIRED, REQUEST, now=TIME + 86_400)
    refuses(RejectReason.MALFORMED, resigned(replace(REQUEST, expiry=TIME + 100 * 86_400 + 3_600)))
    for changes in (
        {"key_id": 256},
        {"expiry": 0},
        {"expiry": 2**60},
        {"sealed_secret": bytes(79)},
        {"sealed_secret": bytes(3_000)},
        {"ephemeral_key": bytes(31)},
        {"ephemeral_key": bytes(33)},
        {"credential": b""},
        {"credential": b"\x01"},
        {"credential": b"\x01" + bytes(5_000)},
        {"credential": b"\x02" + REQUEST.certificate},
        {"credential": b"\x00" + REQUEST.certificate},
        {"signature": b""},
        {"signature": bytes(81)},
    ):
        refuses(RejectReason.MALFORMED, replace(REQUEST, **changes))
    refuses(RejectReason.MALFORMED, resigned(replace(REQUEST, ephemeral_key=bytes(32))))  # Of small order.
    assert accept(REQUEST, now=TIME + 86_399)[1].expiry == TIME + 86_400


def test_request_to_another_aggregator_cannot_be_redirected() -> None:
    redirected = replace(REQUEST, aggregator_id=AggregatorId("beta"))

    refuses(RejectReason.BAD_SIGNATURE, redirected, position=1, key_pairs={1: key_pair(0)})
    # Even signed anew by the device's own key, the seal was made for alpha.
    refuses(RejectReason.BAD_SEAL, resigned(redirected), position=1, key_pairs={1: key_pair(0)})


@pytest.mark.parametrize("changes", [{"expiry": TIME + 82_800}, {"key_id": 2}])
def test_everything_in_the_request_is_bound_by_the_seal(changes: dict[str, int]) -> None:
    request = resigned(replace(REQUEST, **changes))

    refuses(RejectReason.BAD_SEAL, request, key_pairs={1: key_pair(0), 2: key_pair(0)})


def test_stolen_seal_under_another_certificate_is_refused() -> None:
    credential = AUTHORITY.issue_device(now=NOW)
    thief = DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
    stolen = replace(REQUEST, credential=b"\x01" + certificates.certificate_der(thief.certificate))

    refuses(RejectReason.BAD_SIGNATURE, stolen)
    refuses(RejectReason.BAD_SEAL, resigned(stolen, thief))


def test_certificates_of_others_are_refused() -> None:
    stranger = certificates.CertificateAuthority.create("Fleet", NOW)
    credential = stranger.issue_device(now=NOW)
    device = DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
    request, _ = new_session(aggregator(0), keyed_aggregator(0).hpke_keys[0], device, TIME + 3_600, SeededRandom(3))

    refuses(RejectReason.BAD_CERTIFICATE, request)
    refuses(RejectReason.BAD_CERTIFICATE, resigned(replace(REQUEST, credential=b"\x01\x30\x03\x02\x01\x01")))
    year = datetime.fromtimestamp(TIME + 400 * 86_400, UTC).timestamp()
    late = resigned(replace(REQUEST, expiry=int(year) + 3_600))
    refuses(RejectReason.BAD_CERTIFICATE, late, now=year)


@pytest.mark.parametrize("purpose", [one for one in certificates.Purpose if one is not certificates.Purpose.DEVICE])
def test_only_a_device_s_certificate_reports(purpose: certificates.Purpose) -> None:
    credential = AUTHORITY.issue_new(purpose, "somebody", now=NOW)
    other = DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
    request, _ = new_session(aggregator(0), keyed_aggregator(0).hpke_keys[0], other, TIME + 3_600, SeededRandom(3))

    refuses(RejectReason.BAD_CERTIFICATE, request)


def test_a_session_ends_with_its_certificate_at_the_latest() -> None:
    end = int(DEVICE.certificate.not_valid_after_utc.timestamp()) // 3_600 * 3_600
    now = end - 12
    last, beyond = (
        new_session(aggregator(0), keyed_aggregator(0).hpke_keys[0], DEVICE, expiry, SeededRandom(3))[0]
        for expiry in (end, end + 3_600)
    )

    assert accept(last, now=now)[1].expiry == end
    refuses(RejectReason.BAD_CERTIFICATE, beyond, now=now)


@pytest.mark.parametrize("off_s", [-1, 1, 1_800])
def test_a_session_that_ends_off_the_hour_is_refused(off_s: int) -> None:
    """An odd second would tell one device's sessions from those of others, also when a device means to."""
    refuses(RejectReason.MALFORMED, resigned(replace(REQUEST, expiry=REQUEST.expiry + off_s)))


def test_every_changed_byte_of_a_request_is_refused() -> None:
    for field in ("sealed_secret", "ephemeral_key", "credential", "signature"):
        value: bytes = getattr(REQUEST, field)
        for index in range(len(value)):
            changed = bytearray(value)
            changed[index] ^= 1 << index % 8
            with pytest.raises(Refused):
                accept(replace(REQUEST, **{field: bytes(changed)}))
        for end in range(len(value)):
            with pytest.raises(Refused):
                accept(replace(REQUEST, **{field: value[:end]}))


def test_request_bytes_refuse_fields_beyond_their_size() -> None:
    with pytest.raises(DecodeError, match="256"):
        _ = replace(REQUEST, key_id=256).signed_bytes
    with pytest.raises(DecodeError, match="does not fit"):
        _ = replace(REQUEST, credential=bytes(65_536)).signed_bytes


def test_sessions_hide_their_secrets() -> None:
    accepted, secret = accept(REQUEST)
    shown = repr((OPENING, accepted, secret, secret.window_key))

    hidden = (OPENING.secret, accepted.confirmation, secret.secret, secret.receipt_key, secret.window_key.key)
    for one in hidden:
        assert one.hex() not in shown
        assert repr(one) not in shown
    for word in ("secret=b", "ephemeral=", "receipt_key", "confirmation", "key=b"):
        assert word not in shown.replace("sealed_secret=b", "").replace("ephemeral_key=b", "")
    for changes in ({"secret": bytes(31)}, {"receipt_key": bytes(33)}):
        with pytest.raises(UsageError, match="32"):
            replace(secret, **changes)


def test_identity_needs_its_own_key() -> None:
    with pytest.raises(UsageError, match="does not belong"):
        DeviceIdentity(certificate=DEVICE.certificate, private_key=ec.generate_private_key(ec.SECP256R1()))


def test_identity_is_kept_in_two_files(tmp_path: Path) -> None:
    device = DeviceIdentity.generate(AUTHORITY)
    certificates.save_certificates(tmp_path / "device.crt", [device.certificate])
    certificates.save_private_key(tmp_path / "device.key", device.private_key)

    loaded = DeviceIdentity.load(tmp_path / "device.crt", tmp_path / "device.key")

    assert loaded.certificate == device.certificate
    assert "private" not in repr(loaded)


# Report parts.


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=160), st.sampled_from([0, 2]), st.integers(0, 4))
@settings(max_examples=60)
def test_report_part_returns(plaintext: bytes, public_share: bytes, round_number: int, position: int) -> None:
    sealed = seal_instalment(KEY, WINDOW, REPORT, round_number, position, public_share, plaintext)

    assert unseal_instalment(KEY, position, sealed) == plaintext
    assert len(sealed.ciphertext) == len(plaintext) + 16
    assert sealed == seal_instalment(KEY, WINDOW, REPORT, round_number, position, public_share, plaintext)


def places() -> list[dict[str, Any]]:
    choices = {
        "key": [session_secret("one").window_key, session_secret("two").moved_on().window_key],
        "window_id": [WINDOW, WindowId(seed_bytes("other window"))],
        "report_id": [REPORT, ReportId(seed_bytes("other report", 16))],
        "round_number": [0, 1, 2],
        "aggregator_position": [0, 1],
    }
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def test_transplants_between_all_pairs_of_places_are_refused() -> None:
    parts = [(place, seal_instalment(**place, public_share=b"", plaintext=b"part")) for place in places()]
    opened = 0
    for (_, part), (place, target) in itertools.product(parts, parts):
        moved = replace(target, ciphertext=part.ciphertext)
        try:
            unseal_instalment(place["key"], place["aggregator_position"], moved)
            opened += 1
        except SealError:
            continue
    assert opened == len(parts) == 48


def test_every_changed_byte_of_a_report_part_is_refused() -> None:
    sealed = seal_instalment(KEY, WINDOW, REPORT, 2, 1, seed_bytes("public", 64), seed_bytes("part", 64))
    for field in ("window_id", "report_id", "session_id", "public_share", "ciphertext"):
        value: bytes = getattr(sealed, field)
        for bit in range(8 * len(value)):
            changed = bytearray(value)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(SealError):
                unseal_instalment(KEY, 1, replace(sealed, **{field: type(value)(bytes(changed))}))
    for field in ("public_share", "ciphertext"):
        value = getattr(sealed, field)
        for other in (*(value[:end] for end in range(len(value))), value + b"\0"):
            with pytest.raises(SealError):
                unseal_instalment(KEY, 1, replace(sealed, **{field: other}))
    with pytest.raises(SealError):
        unseal_instalment(KEY, 1, replace(sealed, key_number=2))


def test_keys_of_different_parts_differ() -> None:
    keys = {
        report_key(place["key"], place["window_id"], place["report_id"], place["round_number"]) for place in places()
    }

    assert len(keys) == 24
    assert {len(key) for key in keys} == {16}


def test_parts_beyond_their_size_are_refused() -> None:
    for plaintext, share, position in (
        (bytes(204_785), b"", 0),
        (b"a", bytes(161), 0),
        (b"a", b"", 5),
        (b"a", b"", -1),
    ):
        with pytest.raises(UsageError):
            seal_instalment(KEY, WINDOW, REPORT, 2, position, share, plaintext)


@pytest.mark.parametrize(("round_number", "share"), [(-1, b""), (3, b""), (1, b"share")])
def test_instalment_knows_three_rounds(round_number: int, share: bytes) -> None:
    with pytest.raises(DecodeError):
        Instalment(
            window_id=WINDOW,
            report_id=REPORT,
            session_id=SessionId(bytes(16)),
            key_number=1,
            round=round_number,
            public_share=share,
            ciphertext=bytes(17),
        )
