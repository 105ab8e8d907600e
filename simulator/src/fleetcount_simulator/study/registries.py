"""The registries of a real study: the populations, engines and attackers of this package."""

from typing import Final

from fleetcount_simulator.attackers import rows
from fleetcount_simulator.engines import engine
from fleetcount_simulator.populations import build
from fleetcount_simulator.study.shards import Registries

STANDARD: Final = Registries(population=build, engine=engine, attacker_rows=rows)
"""The registries of every study; tests replace them."""
