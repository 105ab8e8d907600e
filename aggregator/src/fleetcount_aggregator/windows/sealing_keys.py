"""The life of this aggregator's sealing keys, by its confirmed clock: announced, active, retired, deleted; no restart.

With a retired key no new session is opened, and every window for which devices could seal to it has closed. Deletion
overwrites the file and removes the key from memory; after that nothing decrypts messages that were sealed to it. Open
sessions do not need it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.key_rotation import Rotation, add_key, erase_key, write_validities

_X25519_BYTES: Final = 32


class SealingKeys:
    """Maintains the key directory; without a rotation it only loads the operator's changes."""

    def __init__(self, host: Host, rotation: Rotation | None) -> None:
        self._host = host
        self._rotation = rotation
        host.keys.rotates = rotation is not None

    async def look(self) -> None:
        """Load the directory; with a rotation make the key that is due and delete retired keys.

        Raises:
            OSError, MachineError: the directory cannot be written, or the token does not wrap; the next call does the
                rest.
        """
        keys = self._host.keys
        keys.refresh()
        if self._rotation is None or keys.directory is None or keys.is_unusable:
            return
        moment = self._host.moment()
        if not moment.is_confirmed:
            return  # A key that is deleted does not come back, and one that is announced binds devices.
        now, held = int(moment.now), {key_id: one for key_id, _, one in keys.listed()}
        wanted = self._rotation.bounded(held, now)
        following = self._rotation.next_key(wanted, now)
        if following is not None:
            wanted[following.key_id] = following.validity
        if wanted != held:
            # The list before the key: a key without a row would be valid for ever.
            write_validities(keys.directory, wanted)
        if following is not None:
            hybrid = any(len(public_key) > _X25519_BYTES for _, public_key, _ in keys.listed())
            add_key(keys.directory, following.key_id, post_quantum=hybrid, wrapping=keys.wrapping)
            log.info("sealing_key_announced", key_id=following.key_id, **following.validity._asdict())
        keys.refresh()
        self._retire(keys.directory, [key_id for key_id, one in wanted.items() if one.not_after <= now])

    def _retire(self, directory: Path, over: Sequence[int]) -> None:
        """Retire keys whose validity is over, so that no new session uses them; delete those of the last call."""
        keys = self._host.keys
        before, keys.retired = keys.retired, frozenset(over)
        # One call later: a session that was being opened when its key was retired is open by then.
        for key_id in sorted(keys.retired & before):
            erase_key(directory, key_id)
            keys.refresh()
            write_validities(directory, {one: validity for one, _, validity in keys.listed()})
            log.info("sealing_key_deleted", key_id=key_id)
