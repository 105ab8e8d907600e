"""An aggregator's operator at the command line: its configuration, its id and whom it trusts.

Reads files; it must not sign.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.trust import trusted_by
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator

from fleetcount.command.options import config_option

CONFIG = config_option("The aggregator's configuration.", "config_path")
"""The option of a command that an operator gives, with `config_path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An aggregator's operator at the command line: its configuration and whom it trusts, itself included."""

    config: AggregatorConfig
    aggregator_id: AggregatorId
    trusted: dict[AggregatorId, TrustedAggregator]


def operator_of(config_path: Path) -> Operator:
    """Return the operator of an aggregator's configuration file.

    Raises:
        UsageError: the configuration or the signing key cannot be used.
    """
    config = load_config(config_path, os.environ)
    public = load_signing_key(config.keys.signing_key_file).public_key().public_bytes_raw()
    own = AggregatorId(config.aggregator.id)
    return Operator(config=config, aggregator_id=own, trusted=trusted_by(config, public))
