"""An operator whose aggregator's signing key is in a PKCS #11 token: succeeded into it, signing, serving."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount.keys.descriptors import read_descriptor
from fleetcount_aggregator.host.token_keys import PIN_VARIABLE
from fleetcount_transport.toml_writing import toml_text

from tests.cli.test_deployment import SPEC
from tests.support.tokens import Token, the_token


@pytest.fixture(scope="module")
def token() -> Token:
    return the_token()


@pytest.mark.processes
def test_a_signing_key_moves_into_a_token_and_its_aggregator_serves_from_there(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: Token
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    alpha = tmp_path / "dep" / "alpha" / "aggregator.toml"
    pin = tmp_path / "pin"
    pin.write_text(token.pin)
    pin.chmod(0o600)
    uri = token.uri(pin_source=f"file:{pin}")

    made = fleetcount("keys", "succeed", "--config", alpha, "--new-key", uri, "--output", "alpha.succession")
    statement = toml_text(str(tmp_path / "alpha.succession"))
    text = alpha.read_text()
    alpha.write_text(text.replace('"keys/signing.key"', f"{toml_text(uri)}\nsuccession_files = [{statement}]"))
    old, new = "dep/alpha.descriptor.toml", "dep/alpha.next.descriptor.toml"
    described = fleetcount("keys", "descriptor", "--config", alpha, "--from", old, "--output", new)
    (tmp_path / "spec.toml").write_text(SPEC.replace(old, new))
    created = fleetcount("question", "create", "--spec", "spec.toml", "--output", "q.question")
    signed = fleetcount("question", "sign", "--config", alpha, "q.question")

    assert [one.code for one in (made, described, created, signed)] == [0] * 4, (made.err, described.err, signed.err)
    assert read_descriptor(tmp_path / new).signing_public_key == token.public_key
    assert token.pin not in "".join(one.out + one.err for one in (made, described, created, signed))
    _serves(alpha, token)
    _serves_with_wrapped_keys(fleetcount, alpha, token, pin)
    alpha.write_text(text.replace('"keys/signing.key"', toml_text(token.uri())))
    assert PIN_VARIABLE in fleetcount("question", "sign", "--config", alpha, "q.question").error_line


def _serves_with_wrapped_keys(fleetcount: Callable, config: Path, token: Token, pin: Path) -> None:
    text = config.read_text()
    missing = fleetcount("keys", "wrap", "--config", config)
    named = toml_text(token.uri(object="wrapping", pin_source=f"file:{pin}"))
    config.write_text(text.replace("[keys]", f"[keys]\nwrapping_key = {named}"))
    too_early = fleetcount("aggregator", "serve", "--config", config)
    wrapped, again = (fleetcount("keys", "wrap", "--config", config) for _ in range(2))
    checked = fleetcount("doctor", "--config", config)

    assert (missing.code, too_early.code, wrapped.code, again.code) == (2, 2, 0, 0)
    assert "names no keys.wrapping_key" in missing.error_line
    assert "is not wrapped" in too_early.error_line
    assert (wrapped.out.rsplit(": ")[-1], again.out.rsplit(": ")[-1]) == ("wrapped 1\n", "nothing to wrap\n")
    assert "key ids 1, wrapped by a token's key" in checked.out
    assert token.pin not in wrapped.out + wrapped.err + checked.out + checked.err
    _serves(config, token)
    config.write_text(text.replace("[keys]", '[keys]\nwrapping_key = "keys/a.key"'))
    assert "the pkcs11: URI of an AES-256 key in a token" in fleetcount("keys", "wrap", "--config", config).error_line
    config.write_text(text)


def _serves(config: Path, token: Token) -> None:
    """Start the aggregator as its operator does, see it ready, and let it end; the PIN is in nothing it writes."""
    command = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", str(config)]
    with subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            assert json.loads(line)["event"] == "ready"
        finally:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert token.pin.encode() not in line + out + err


def test_a_store_whose_signing_key_is_in_a_token_needs_a_key_of_its_own(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    alpha = tmp_path / "dep" / "alpha" / "aggregator.toml"
    text = alpha.read_text().replace('"keys/signing.key"', '"pkcs11:token=a;object=b?module-path=/x"')
    alpha.write_text(text.replace('store_key_file = "keys/store.key"\n', ""))
    store = fleetcount("aggregator", "serve", "--config", alpha)
    alpha.write_text(text.replace('"keys/hpke"', '"pkcs11:token=a;object=b?module-path=/x"'))
    sealing = fleetcount("aggregator", "serve", "--config", alpha)

    assert (store.code, sealing.code) == (2, 2)
    assert "keys.store_key_file is missing; nothing follows from a signing key in a token" in store.error_line
    assert "hpke_key_directory" in sealing.error_line
    assert "opening HPKE needs the private key here" in sealing.error_line
