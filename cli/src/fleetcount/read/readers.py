"""Readers of what aggregators release: an analyst, a device or an operator, by its configuration file.

Reads files; it opens no connection (`asking` and `states` do).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_client.assembly import trusted_by
from fleetcount_client.config import load_settings
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.trust_files import succeeded

from fleetcount.keys.descriptors import read_descriptor

if TYPE_CHECKING:  # An analyst reads records without gRPC.
    import grpc

_READER_KEYS: Final = ("deployment", "certificate_file", "key_file", "aggregator_ca_file")
_PARTY_KEYS: Final = ("id", "operator", "signing_public_key", "grpc_endpoint", "succession_files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader: the aggregators it trusts and the files of its TLS identity (None: plaintext on loopback)."""

    config: Path
    trusted: Mapping[AggregatorId, TrustedAggregator]
    tls_files: tuple[Path, Path, Path] | None = field(repr=False)
    """Authority of the aggregators, own certificate, own key."""
    authorities: Mapping[AggregatorId, Path] = field(default_factory=dict, repr=False)
    """The authority's file of each aggregator that has one of its own."""
    endpoints: Mapping[AggregatorId, str] = field(default_factory=dict)
    """Where an analyst's file says that aggregators are, for `fleetcount doctor`: a question says it for itself."""

    def certificate(self) -> str:
        """Describe the own certificate as messages do, "" without TLS.

        Raises:
            UsageError: as `credentials`.
        """
        return "" if self.tls_files is None else TlsFiles.read(*self.tls_files).described()

    def credentials(self, aggregator: AggregatorId) -> "grpc.ChannelCredentials | None":
        """Return the credentials of a channel to an aggregator.

        Raises:
            UsageError: a file cannot be used.
        """
        if self.tls_files is None:
            return None
        common, certificate, key = self.tls_files
        return TlsFiles.read(self.authorities.get(aggregator, common), certificate, key).to_servers()


def read_reader(path: Path) -> Reader:
    """Return the reader of a configuration: an analyst's, a device's or an aggregator's.

    Raises:
        UsageError: the file is not one of the three kinds, or cannot be used.
    """
    content = read_toml(path)
    if content.has("reader"):
        return _analyst(path)
    if content.has("device"):
        return _device(path)
    if content.has("aggregator"):
        return _aggregator(path)
    raise UsageError(f"{path} has none of [reader], [device], [aggregator]; it is no configuration of fleetcount")


def _analyst(path: Path) -> Reader:
    root = read_toml(path, ("reader", "aggregators"))
    table = root.section("reader", _READER_KEYS)
    table.deployment("deployment")
    rows = root.sections("aggregators", _PARTY_KEYS, least=1, most=64)
    trusted = {one.aggregator_id: one for one in map(_party, rows)}
    files = (
        table.existing_file("aggregator_ca_file"),
        table.existing_file("certificate_file"),
        table.private_file("key_file"),
    )
    endpoints = {one.aggregator_id("id"): one.endpoint("grpc_endpoint") for one in rows if one.raw("grpc_endpoint")}
    return Reader(config=path, trusted=trusted, tls_files=files, endpoints=endpoints)


def read_trusted(path: Path) -> list[TrustedAggregator]:
    """Return the `[[aggregators]]` of an analyst's configuration, or of a file that has nothing else.

    Certificate and key, which only connections need, are not read.

    Raises:
        UsageError: the file cannot be used, or names an aggregator twice.
    """
    rows = read_toml(path, ("reader", "aggregators")).sections("aggregators", _PARTY_KEYS, least=1, most=64)
    parties = list(map(_party, rows))
    if len({one.aggregator_id for one in parties}) < len(parties):
        raise UsageError(f"{path} names an aggregator twice, allowed: each once")
    return parties


def _party(table: Table) -> TrustedAggregator:
    party = TrustedAggregator(
        aggregator_id=table.aggregator_id("id"),
        operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
        signing_public_key=table.base64_bytes("signing_public_key", 32),
    )
    return succeeded(party, table.file_names("succession_files"))


def _device(path: Path) -> Reader:
    settings = load_settings(path)
    trusted = {one.aggregator_id: one for one in trusted_by(settings)}
    if settings.grpc is None:
        raise UsageError(f"{path}: device.transport is 'mqtt'; a release is read over gRPC")
    authority = settings.grpc.ca_file
    files = None if authority is None else (authority, settings.certificate_file, settings.key_file)
    return Reader(config=path, trusted=trusted, tls_files=files)


def _aggregator(path: Path) -> Reader:
    from fleetcount.keys.operator import operator_of

    operator = operator_of(path)
    tls = operator.config.tls
    files = (tls.aggregator_ca_file, tls.certificate_file, tls.key_file)
    return Reader(
        config=path,
        trusted=operator.trusted,
        tls_files=None if operator.config.grpc.insecure else files,
        authorities=operator.config.aggregator_authorities,
    )


def trusted_in(path: Path) -> Iterator[TrustedAggregator]:
    """Give the aggregators that a file trusts: a configuration, a descriptor, or nothing but `[[aggregators]]`.

    Raises:
        UsageError: a file of another kind, or one that cannot be used.
    """
    content = read_toml(path)
    if content.has("signing_public_key"):
        yield TrustedAggregator.of(read_descriptor(path))
    elif content.has("aggregators") and not content.has("device"):
        yield from read_trusted(path)
    else:
        yield from read_reader(path).trusted.values()
