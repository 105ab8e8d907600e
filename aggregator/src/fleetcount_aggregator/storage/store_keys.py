"""The key that a store lies under, as a configuration names it. Reads key files and nothing else."""

from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_aggregator.host.keys import load_signing_key, load_store_key
from fleetcount_aggregator.storage.at_rest import at_rest_key_of
from fleetcount_aggregator.storage.row_seal import RowSeal


class StoreKeys(NamedTuple):
    """The present key, and the one that the store may lie under until its next start."""

    at_rest: bytes
    former: bytes | None

    @classmethod
    def load(
        cls,
        signing_key: Path | str,
        store_key: Path | None,
        former_store_key: Path | None,
        loaded: Ed25519PrivateKey | None = None,
    ) -> "StoreKeys":
        """Return the keys that a configuration names by file; `loaded`: the signing key, where it is loaded already.

        Raises:
            UsageError: a file is missing, open to others, or holds the wrong thing.
        """
        if store_key is not None and former_store_key is not None:
            return cls(load_store_key(store_key), load_store_key(former_store_key))
        # Nothing follows from a key that is in a token: then the configuration names a file of the store's own.
        if store_key is not None and isinstance(signing_key, str):
            return cls(load_store_key(store_key), None)
        derived = at_rest_key_of(loaded or load_signing_key(signing_key))
        return cls(derived, None) if store_key is None else cls(load_store_key(store_key), derived)

    @property
    def row_seal(self) -> RowSeal:
        """What the rows of the store are sealed with."""
        return RowSeal(self.at_rest) if self.former is None else RowSeal(self.at_rest, self.former)

    def __repr__(self) -> str:
        return "StoreKeys(…)"
