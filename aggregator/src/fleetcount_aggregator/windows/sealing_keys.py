"""The life of this aggregator's sealing keys, by its own clock: announced, active, retired, deleted; no restart.

A retired key opens no new session, and every window that could be sealed to it has closed. It is deleted: the file is
overwritten and the key leaves memory, and from then on nothing opens what was sealed to it. Sessions that are open go
on without it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.key_rotation import Rotation, add_key, erase_key, write_validities

_X25519_BYTES: Final = 32


class SealingKeys:
    """Looks after the key directory; without a rotation it only takes up what the operator changes there."""

    def __init__(self, host: Host, rotation: Rotation | None) -> None:
        self._host = host
        self._rotation = rotation
        host.keys.rotates = rotation is not None

    async def look(self) -> None:
        """Take up the directory; with a rotation make the key that is due and delete what nothing needs.

        Raises:
            OSError, MachineError: the directory cannot be written, or the token does not wrap; what was begun is
                finished at the next look.
        """
        keys = self._host.keys
        keys.refresh()
        if self._rotation is None or keys.directory is None or keys.is_unusable:
            return
        now, held = self._host.now(), {key_id: one for key_id, _, one in keys.listed()}
        wanted = self._rotation.bounded(held, now)
        following = self._rotation.next_key(wanted, now)
        if following is not None:
            wanted[following.key_id] = following.validity
        if wanted != held:
            # The list first: a key without a row would be valid always.
            write_validities(keys.directory, wanted)
        if following is not None:
            hybrid = any(len(public_key) > _X25519_BYTES for _, public_key, _ in keys.listed())
            add_key(keys.directory, following.key_id, post_quantum=hybrid, wrapping=keys.wrapping)
            log.info("sealing_key_announced", key_id=following.key_id, **following.validity._asdict())
        keys.refresh()
        self._retire(keys.directory, [key_id for key_id, one in wanted.items() if one.not_after <= now])

    def _retire(self, directory: Path, over: Sequence[int]) -> None:
        """Let no new session be sealed to keys that are over; delete them."""
        keys = self._host.keys
        before, keys.retired = keys.retired, frozenset(over)
        # One look later: a session that was being opened when its key was retired is open by then.
        for key_id in sorted(keys.retired & before):
            erase_key(directory, key_id)
            keys.refresh()
            write_validities(directory, {one: validity for one, _, validity in keys.listed()})
            log.info("sealing_key_deleted", key_id=key_id)
