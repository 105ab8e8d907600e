"""The signing keys of aggregators that an analyst trusts, from a reader's file or from one made by hand.

It must not take a key from the release that it is to judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.signing import TrustedAggregator

from fleetcount.read.readers import trusted_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Signing keys of aggregators, by their ids, and the files that they came from."""

    trusted: Mapping[AggregatorId, TrustedAggregator]
    source: str

    def check(self, aggregators: tuple[Aggregator, ...], what: str) -> None:
        """Refuse an aggregator whose key is unknown, or known as another one, before any signature is verified.

        Raises:
            SignatureError: one of them; names those that are known.
        """
        for one in aggregators:
            known = self.trusted.get(one.aggregator_id)
            if known is None:
                names = ", ".join(sorted(self.trusted)) or "none"
                raise SignatureError(
                    f"{what} is of aggregator {one.aggregator_id!r} ({one.operator}), for which {self.source} has no"
                    f" key; it has keys for {names}"
                )
            if one.signing_public_key not in known.keys:
                raise SignatureError(
                    f"{what} names another key for aggregator {one.aggregator_id!r} than {self.source} trusts; ask its"
                    " operator which is right"
                )

    def __repr__(self) -> str:
        return f"<Keys of {', '.join(sorted(self.trusted))}, from {self.source}>"


def read_keys(*files: str | PathLike[str]) -> Keys:
    """Return the keys of one or several files.

    A file is an analyst's, device's or aggregator's configuration, a public descriptor (`keys init` and operators give
    them away), or a TOML file of nothing but `[[aggregators]]` with `id`, `operator` and `signing_public_key`.

    Raises:
        UsageError: no file, a file of another kind, or two files with different keys of one aggregator.
    """
    if not files:
        raise UsageError("read_keys() got no file, allowed: one or more, for example trusted.toml")
    found: dict[AggregatorId, TrustedAggregator] = {}
    for path in map(Path, files):
        for one in trusted_in(path):
            if found.setdefault(one.aggregator_id, one) != one:
                raise UsageError(f"{path} names another key for aggregator {one.aggregator_id!r} than the file before")
    return Keys(trusted=found, source=", ".join(str(path) for path in files))
