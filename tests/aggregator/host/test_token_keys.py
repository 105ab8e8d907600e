"""Keys in a PKCS #11 token: found by their URI, used without leaving it, with a PIN that is shown nowhere."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fleetcount_aggregator.host.key_rotation import add_key, wrap_keys
from fleetcount_aggregator.host.keys import KeyRing, load_hpke_key, load_signing_key
from fleetcount_aggregator.host.token_keys import (
    PIN_VARIABLE,
    TokenUri,
    TokenWrappingKey,
    load_token_key,
    load_wrapping_key,
)
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import decode_record, verify_record_signatures

from tests.support.aggregators import Network, answer_all
from tests.support.tokens import Token, the_token


@pytest.fixture(scope="module")
def token() -> Token:
    return the_token()


GOOD = "pkcs11:token=A%20token;object=signing?module-path=/lib/x.so&pin-source=file:/etc/pin"


def test_a_uri_names_token_object_library_and_pin_file() -> None:
    found = TokenUri.parse(GOOD)
    by_number = TokenUri.parse("pkcs11:serial=12ab;id=%01%ff?module-path=/lib/x.so")

    assert (found.token_label, found.label, found.module) == ("A token", "signing", Path("/lib/x.so"))
    assert found.pin_file == Path("/etc/pin")
    assert (by_number.token_serial, by_number.id, by_number.pin_file) == ("12ab", b"\x01\xff", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file:/etc/key", "is no pkcs11: URI"),
        ("pkcs11:object=signing?module-path=/x", "must have token or serial"),
        ("pkcs11:token=a?module-path=/x", "object or id"),
        ("pkcs11:token=a;object=b", "module-path"),
        ("pkcs11:token=a;object=b?module-path=/x&pin-value=4821", "pin-value; allowed: pin-source"),
        ("pkcs11:token=a;token=b;object=c?module-path=/x", "'token' of a pkcs11: URI; allowed, once each"),
        ("pkcs11:token=a;objekt=b?module-path=/x", "'objekt' of a pkcs11: URI"),
        ("pkcs11:token=a;object=?module-path=/x", "'object' of a pkcs11: URI"),
    ],
)
def test_a_uri_that_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        TokenUri.parse(text)

    assert "4821" not in str(refused.value)


def test_the_pin_comes_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "pin"
    file.write_text("4821\n")
    file.chmod(0o600)
    named = TokenUri.parse(f"pkcs11:token=a;object=b?module-path=/x&pin-source={file}")
    other = TokenUri.parse("pkcs11:token=a;object=b?module-path=/x")

    assert named.pin({PIN_VARIABLE: "other"}) == "4821"
    assert other.pin({PIN_VARIABLE: "other"}) == "other"
    with pytest.raises(UsageError, match=f"PIN of the token is missing.*{PIN_VARIABLE}"):
        other.pin({})
    file.chmod(0o644)
    with pytest.raises(UsageError, match="has mode 0644"):
        named.pin({})


def test_without_the_library_of_python_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)

    with pytest.raises(UsageError, match=r"fleetcount\[pkcs11\]"):
        load_token_key("pkcs11:token=a;object=b?module-path=/x", {})


@pytest.mark.processes
def test_a_wrong_pin_opens_nothing_and_is_not_shown(token: Token) -> None:
    """In a process of its own: one logs in once for all."""
    code = "import sys; from fleetcount_aggregator.host.token_keys import load_token_key; load_token_key(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", code, token.uri()],
        env={**os.environ, PIN_VARIABLE: "77777"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith("PinIncorrect")
    assert "77777" not in ran.stderr


@pytest.mark.processes
def test_a_key_in_a_token_signs_and_does_not_come_out(token: Token, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIN_VARIABLE, token.pin)
    for uri in (token.uri(), token.uri(object="", id="%01%ff")):
        key = load_signing_key(uri)

        assert key.public_key().public_bytes_raw() == token.public_key
        Ed25519PublicKey.from_public_bytes(token.public_key).verify(key.sign(b"a message"), b"a message")
        with pytest.raises(UsageError, match="does not give it away"):
            key.private_bytes_raw()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token": "absent"}, "NoSuchToken"),
        ({"object": "absent"}, "NoSuchKey"),
        ({"module_path": "/nowhere/lib.so"}, "/nowhere/lib.so is no PKCS #11 library that can be loaded"),
    ],
)
def test_what_cannot_be_used_is_named_and_no_pin_is_shown(token: Token, changes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        load_token_key(token.uri(**changes), {PIN_VARIABLE: token.pin})

    assert token.pin not in str(refused.value)


@pytest.mark.processes
def test_a_token_that_is_gone_is_this_machine_s_failure(token: Token) -> None:
    key = load_token_key(token.uri(), {PIN_VARIABLE: token.pin})
    key._key.session.close()

    with pytest.raises(MachineError, match="did not sign"):
        key.sign(b"a message")


@pytest.mark.processes
async def test_an_aggregator_with_its_key_in_a_token_releases_a_window(token: Token) -> None:
    network = Network(2)
    seat = network.seats[1]
    seat.signing_key = load_token_key(token.uri(), {PIN_VARIABLE: token.pin})
    seat.aggregator = replace(seat.aggregator, signing_public_key=token.public_key)
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])

    await network.run_to_the_end(window)

    answer = await network.core(0).service.release(window.window_id)
    assert answer.state is WindowState.RELEASED
    verify_record_signatures(decode_record(answer.record), answer.signatures, network._identity(seat).trusted)


@pytest.fixture
def wrapping(token: Token) -> TokenWrappingKey:
    return load_wrapping_key(token.uri(object="wrapping"), {PIN_VARIABLE: token.pin})


@pytest.mark.parametrize("post_quantum", [False, True])
def test_sealing_keys_lie_wrapped_and_open_with_the_token_alone(
    tmp_path: Path, wrapping: TokenWrappingKey, *, post_quantum: bool
) -> None:
    add_key(tmp_path, 7, post_quantum=post_quantum)
    plain = (tmp_path / "7.key").read_bytes()
    public = load_hpke_key(tmp_path / "7.key").public_key
    with pytest.raises(UsageError, match=r"7\.key is not wrapped, and \[keys\] wrapping_key is set.*keys wrap"):
        KeyRing.load(tmp_path, wrapping)

    assert wrap_keys(tmp_path, wrapping) == [7]
    assert wrap_keys(tmp_path, wrapping) == []
    add_key(tmp_path, 8, post_quantum=post_quantum, wrapping=wrapping)
    ring = KeyRing.load(tmp_path, wrapping)

    assert ring.public_key(7) == public
    assert ring.key_ids == {7, 8}
    assert plain.strip() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*"))
    assert (tmp_path / "7.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match=r"7\.key is wrapped by a key in a token"):
        KeyRing.load(tmp_path)


def test_a_wrapped_key_opens_under_no_other_id_and_unchanged_alone(tmp_path: Path, wrapping: TokenWrappingKey) -> None:
    add_key(tmp_path, 7, post_quantum=False, wrapping=wrapping)
    content = (tmp_path / "7.key").read_bytes()
    for name, changed, said in (
        ("8.key", content, "does not open with 'wrapping'"),
        ("7.key", content[:40] + (b"A" if content[40:41] != b"A" else b"B") + content[41:], "does not open"),
        ("7.key", content[:20] + b"\n", "is no wrapped key"),
        ("7.key", b"wrapped:~\n", "is no wrapped key"),
    ):
        file = tmp_path / name
        file.write_bytes(changed)
        file.chmod(0o600)
        with pytest.raises(UsageError, match=rf"{name} {said}"):
            load_hpke_key(file, wrapping)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("short", "'short' of token 'fleetcount tests' is no AES key of 256 bits"),
        ("loose", "'loose' of token 'fleetcount tests' can be taken out of it; allowed: sensitive, not extractable"),
        ("signing", "the wrapping key in token 'fleetcount tests': NoSuchKey"),
    ],
)
def test_a_wrapping_key_is_one_that_stays(token: Token, named: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_wrapping_key(token.uri(object=named), {PIN_VARIABLE: token.pin})


@pytest.mark.processes
def test_a_token_that_is_back_opens_what_came_meanwhile(tmp_path: Path, token: Token) -> None:
    wrapping = load_wrapping_key(token.uri(object="wrapping"), {PIN_VARIABLE: token.pin})
    add_key(tmp_path, 1, post_quantum=False, wrapping=wrapping)
    ring = KeyRing.load(tmp_path, wrapping)
    add_key(tmp_path, 2, post_quantum=False, wrapping=wrapping)
    there = wrapping._key
    wrapping._key = load_wrapping_key(token.uri(object="wrapping"), {PIN_VARIABLE: token.pin})._key
    wrapping._key.session.close()

    ring.refresh()
    assert (set(ring.key_ids), ring.is_unusable) == ({1}, True), "what is in memory goes on"
    with pytest.raises(MachineError, match="did not wrap a sealing key"):
        add_key(tmp_path, 3, post_quantum=False, wrapping=wrapping)
    assert not (tmp_path / "3.key").exists()

    wrapping._key = there
    ring.refresh()
    assert (set(ring.key_ids), ring.is_unusable) == ({1, 2}, False)
