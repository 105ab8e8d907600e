"""Devices that cheat: reports that are no one-hot pair, of the wrong length, or whose shares do not belong together.

Every one of them is refused by the proof (docs/wire.md), so it is tallied and adds nothing. That this holds for real
reports is shown by the aggregator's own tests; here the study counts what an operator would see.
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
