"""The aggregators that a configuration trusts: the peers and itself, each under its key and the successors of that.

It must not hold a private key.
"""

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.toml_table import ConfigError
from fleetcount_transport.trust_files import read_succession, succeeded

from fleetcount_aggregator.config import AggregatorConfig


def trusted_by(config: AggregatorConfig, own_public: bytes) -> dict[AggregatorId, TrustedAggregator]:
    """Return the aggregators that a configuration trusts, its own included; `own_public`: its public signing key, 32
    bytes.

    Raises:
        ConfigError: a peer has this aggregator's own key, or a succession cannot be used.
    """
    for peer in config.peers:
        if peer.signing_public_key == own_public:
            raise ConfigError(f"peers: {peer.id!r} has this aggregator's own signing key")
    trusted = [
        succeeded(
            TrustedAggregator(
                aggregator_id=AggregatorId(peer.id), operator=peer.operator, signing_public_key=peer.signing_public_key
            ),
            peer.succession_files,
        )
        for peer in config.peers
    ]
    trusted.append(_itself(config, own_public))
    return {one.aggregator_id: one for one in trusted}


def _itself(config: AggregatorConfig, own_public: bytes) -> TrustedAggregator:
    """Return the aggregator itself, under its first key and its successors, of which the last must be `own_public`."""
    files = config.keys.succession_files
    first = read_succession(files[0]).succession.old_key if files else own_public
    own = AggregatorId(config.aggregator.id)
    before = TrustedAggregator(aggregator_id=own, operator=config.aggregator.operator, signing_public_key=first)
    itself = succeeded(before, files)
    if itself.keys[-1] != own_public:
        raise ConfigError(f"keys.succession_files end with another key than that of {config.keys.signing_key_file}")
    return itself
