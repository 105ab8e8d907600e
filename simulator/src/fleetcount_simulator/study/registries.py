"""Where a real study's populations, engines and attackers come from: the registries of this package, put together."""

from typing import Final

from fleetcount_simulator.attackers import rows
from fleetcount_simulator.engines import engine
from fleetcount_simulator.populations import build
from fleetcount_simulator.study.shards import Registries

STANDARD: Final = Registries(population=build, engine=engine, attacker_rows=rows)
"""What every study uses; tests put their own in its place."""
