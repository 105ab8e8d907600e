"""When devices are told to seal to a key: `key-list.toml` beside the keys."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fleetcount_aggregator.host.keys import KeyRing, Validity, load_validities
from fleetcount_protocol.channel.certificates import key_pem
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_UNIX_TIME


def add_key(directory: Path, key_id: int) -> None:
    path = directory / f"{key_id}.key"
    path.write_bytes(key_pem(X25519PrivateKey.generate()))
    path.chmod(0o600)


def test_a_key_without_a_row_is_valid_always(tmp_path: Path) -> None:
    add_key(tmp_path, 3)
    add_key(tmp_path, 1)
    (tmp_path / "key-list.toml").write_text("[[keys]]\nkey_id = 3\nnot_before = 10\nnot_after = 20\n")

    listed = KeyRing.load(tmp_path).listed()

    assert [(key_id, validity) for key_id, _, validity in listed] == [
        (1, Validity(0, MAX_UNIX_TIME)),
        (3, Validity(10, 20)),
    ]


def test_a_changed_list_and_new_keys_are_taken_up_without_a_restart(tmp_path: Path) -> None:
    add_key(tmp_path, 1)
    ring = KeyRing.load(tmp_path)
    ring.refresh()
    add_key(tmp_path, 2)
    (tmp_path / "key-list.toml").write_text("[[keys]]\nkey_id = 1\nnot_after = 20\n")

    ring.refresh()
    found = ring.listed()
    (tmp_path / "key-list.toml").write_text("[[keys]]\nkey_id = 1\nnot_after = 2000\n")
    ring.refresh()
    later = ring.listed()
    (tmp_path / "key-list.toml").write_text("[[keys]]\nkey_id = 1\nnot_after = 'soon'\n")
    ring.refresh()

    assert [(key_id, validity.not_after) for key_id, _, validity in found] == [(1, 20), (2, MAX_UNIX_TIME)]
    assert [(key_id, validity.not_after) for key_id, _, validity in later] == [(1, 2000), (2, MAX_UNIX_TIME)]
    assert ring.listed() == later, "an unusable list changes nothing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[keys]]\nkey_id = 256\n", "key_id is 256"),
        ("[[keys]]\nkey_id = 1\n[[keys]]\nkey_id = 1\n", "a second time"),
        ("[[keys]]\nkey_id = 1\nnot_before = 9\nnot_after = 9\n", "not_after is 9"),
        ("[[keys]]\nkey_id = 1\nnot_befor = 9\n", "did you mean 'not_before'"),
        ("[[keys]]\n", "key_id is missing"),
        ("keys = 1\n", "keys is 1"),
    ],
)
def test_a_list_that_cannot_be_is_refused_by_its_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "key-list.toml").write_text(text)

    with pytest.raises(UsageError, match=said):
        load_validities(tmp_path)
