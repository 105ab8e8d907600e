"""`fleetcount verify`: who signed a release, also after a signing key was succeeded."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount.keys.party_files import reader_toml
from fleetcount_protocol.release.record import sign_record
from fleetcount_protocol.release.record_json import record_to_json
from fleetcount_protocol.window.succession import Succession, encode_signed_succession, sign_succession

from tests.support.protocol_samples import record, sampling_window, signing_key

WINDOW = sampling_window()
RECORD = record(WINDOW)


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release that the leader's next key has signed, and beside it the statement."""
    monkeypatch.chdir(tmp_path)
    new = Ed25519PrivateKey.generate()
    succession = Succession(
        aggregator_id=WINDOW.aggregators[0].aggregator_id,
        old_key=WINDOW.aggregators[0].signing_public_key,
        new_key=new.public_key().public_bytes_raw(),
        not_before=RECORD.released_at,
        not_after=RECORD.released_at + 10,
    )
    data = encode_signed_succession(sign_succession(succession, signing_key(0)))
    (tmp_path / "alpha.succession").write_bytes(data)
    signatures = [sign_record(RECORD, key) for key in (new, signing_key(1))]
    (tmp_path / "release.json").write_text(record_to_json(RECORD, signatures))
    old = [sign_record(RECORD, signing_key(place)) for place in range(2)]
    (tmp_path / "old.json").write_text(record_to_json(RECORD, old))
    for name in ("analyst.crt", "analyst.key", "ca.crt"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o600)
    text = reader_toml("test", WINDOW.aggregators).replace("../ca/aggregators.crt", "ca.crt")
    (tmp_path / "analyst.toml").write_text(text)
    return tmp_path


def test_a_release_says_who_signed_it(fleetcount: Callable, signed: Path) -> None:
    ran = fleetcount("verify", "old.json")
    trusted = fleetcount("verify", "old.json", "--config", "analyst.toml")

    assert ran.code == trusted.code == 0, ran.err + trusted.err
    assert "signed by alpha" in ran.out
    assert "all of them agree; who they are, the window says" in ran.out
    assert "trusted by analyst.toml" in trusted.out


@pytest.mark.parametrize("options", [(), ("--config", "analyst.toml")])
def test_a_successor_s_signature_needs_the_statement_beside(
    fleetcount: Callable, signed: Path, options: tuple[str, ...]
) -> None:
    refused = fleetcount("verify", "release.json", *options)
    taken = fleetcount("verify", "release.json", *options, "--succession", "alpha.succession")

    assert refused.code == 3
    assert "signature of alpha under the record" in refused.error_line
    assert taken.code == 0, taken.err


def test_what_does_not_fit_is_refused_in_one_line(fleetcount: Callable, signed: Path) -> None:
    (signed / "none.succession").write_bytes(b"x")

    none = fleetcount("verify", "release.json", "--succession", "none.succession")
    twice = fleetcount("verify", "release.json", *["--succession", "alpha.succession"] * 2)

    assert (none.code, twice.code) == (2, 2)
    assert "none.succession is no succession of a signing key" in none.error_line
    assert "another signing key than the one trusted before it" in twice.error_line


def test_a_release_that_an_editor_saved_with_a_byte_order_mark_is_read(fleetcount: Callable, signed: Path) -> None:
    text = (signed / "old.json").read_bytes()
    (signed / "old.json").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))

    ran = fleetcount("verify", "old.json", "--config", "analyst.toml")

    assert (ran.code, "trusted by analyst.toml" in ran.out) == (0, True), ran.err
