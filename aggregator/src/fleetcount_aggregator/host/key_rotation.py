"""The schedule of sealing keys, and the files of the key directory: made, listed and erased.

A key is first announced (listed, not valid yet), then active, retired (not valid any more) and deleted.
`windows.sealing_keys` decides when to delete.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.limits import MAX_UNIX_TIME
from fleetcount_transport.durable_files import erase_file, replace_file
from fleetcount_transport.key_files import read_secret

from fleetcount_aggregator.host.keys import KEY_LIST_FILE, MOST_KEYS, Validity, hpke_secret, load_hpke_key
from fleetcount_aggregator.host.token_keys import TokenWrappingKey, is_wrapped

_HEADER: Final = (
    "# When devices may seal to each key, Unix seconds. [keys] rotate_s is set: the aggregator keeps this file.\n"
)


class NextKey(NamedTuple):
    """The key that is due: its id and its validity."""

    key_id: int
    validity: Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new key every `every_s` seconds; it is listed `overlap_s` before it is valid, and the one before stays valid as
    long after that.

    So for every window of up to `overlap_s` there is a key that is valid during the whole window.
    """

    every_s: int
    overlap_s: int

    def bounded(self, keys: Mapping[int, Validity], now: int) -> dict[int, Validity]:
        """Return the validities, each with an end: a key without one gets the end of a key that begins now."""
        end = now + self.every_s + self.overlap_s
        return {
            key_id: Validity(one.not_before, max(end, one.not_before + 1)) if one.not_after == MAX_UNIX_TIME else one
            for key_id, one in keys.items()
        }

    def next_key(self, keys: Mapping[int, Validity], now: int) -> NextKey | None:
        """Return the key to make now, None if none is due; `keys` are the existing ones, from `bounded`."""
        last = max((one.not_after for one in keys.values()), default=now)
        if now < last - 2 * self.overlap_s:
            return None
        begins = max(now, last - self.overlap_s) if keys else now
        newest = max(keys, key=lambda key_id: keys[key_id], default=MOST_KEYS - 1)
        ids = ((newest + 1 + step) % MOST_KEYS for step in range(MOST_KEYS))
        free = next((key_id for key_id in ids if key_id not in keys), None)
        return None if free is None else NextKey(free, Validity(begins, begins + self.every_s + self.overlap_s))


def add_key(directory: Path, key_id: int, *, post_quantum: bool, wrapping: TokenWrappingKey | None = None) -> None:
    """Write a new private key, mode 0600, durably, wrapped if a token's key is given; raises OSError, MachineError."""
    secret = HpkeKeyPair.generate_private_key(post_quantum=post_quantum)
    content = base64.b64encode(secret) + b"\n" if wrapping is None else wrapping.wrap(key_id, secret)
    replace_file(_file_of(directory, key_id), content)


def wrap_keys(directory: Path, wrapping: TokenWrappingKey) -> list[int]:
    """Wrap the private keys of a directory that are not wrapped yet, overwriting the plain bytes; return their ids.

    After a crash each key is plain or wrapped; raises OSError, MachineError, UsageError.
    """
    held = [(path, read_secret(path)) for path in sorted(directory.glob("*.key"))]
    plain = [(path, hpke_secret(path, data), load_hpke_key(path).key_id) for path, data in held if not is_wrapped(data)]
    for path, secret, key_id in plain:
        replace_file(path, wrapping.wrap(key_id, secret), erase=True)
    return [key_id for _, _, key_id in plain]


def erase_key(directory: Path, key_id: int) -> None:
    """Overwrite and delete a private key; raises OSError."""
    erase_file(_file_of(directory, key_id))


def write_validities(directory: Path, validities: Mapping[int, Validity]) -> None:
    """Write the list of the keys' validities, durably; raises OSError."""
    rows = [
        f"\n[[keys]]\nkey_id = {key_id}\nnot_before = {one.not_before}\nnot_after = {one.not_after}\n"
        for key_id, one in sorted(validities.items())
    ]
    replace_file(directory / KEY_LIST_FILE, (_HEADER + "".join(rows)).encode(), mode=0o644)


def _file_of(directory: Path, key_id: int) -> Path:
    return directory / f"{key_id}.key"
