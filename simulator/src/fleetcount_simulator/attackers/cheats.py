"""Devices that cheat: their reports are no one-hot pair, have a wrong length, or shares of different reports.

The proof (docs/wire.md) refuses each of them, so the study tallies them and adds nothing to a sum. The aggregator's
tests show that real reports of these kinds are refused.
"""

import numpy as np
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.attackers.findings import finding, share_of
from fleetcount_simulator.attackers.parameters import MOST_DEVICES, read_keys
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Row


@settings
class Keys:
    """The parameters of cheats."""

    devices: int = setting(Table.integer, 1, MOST_DEVICES, default=1)


def refused_reports(attacker: Attacker) -> int:
    """Return how many reports of this attacker are refused in every run: all."""
    return read_keys(attacker, Keys).devices


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return the share of the invalid reports that was refused, over all runs; nothing is drawn."""
    sent = sum(refused_reports(one) for one in case.attackers if one.kind == "cheats") * outcome.released.size
    refused = int(outcome.tallies["invalid"].sum())
    return [finding(attacker, "refused", "invalid reports", share_of(refused, sent), theory=1.0)]
