"""Who has which connection to the broker, for somebody who only looks (`leases` takes and gives up)."""

from fleetcount_aggregator.storage.database import Database


def slot_holders(database: Database) -> dict[int, str]:
    """Return the slots that living members hold, each with the address at which other members reach its holder."""
    found = database.execute("SELECT slot, address FROM slots JOIN living ON member = owner").fetchall()
    return {int(slot): str(address) for slot, address in found}
