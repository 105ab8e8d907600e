"""fleetcount as the release after this one: its schema is one ahead, by a table and a column that nothing reads.

Run as a program, with the words of the command. Nothing of the product knows this file.
"""

from collections.abc import Sequence
from dataclasses import replace

import fleetcount
from fleetcount_aggregator.storage import schema
from fleetcount_transport.migrations import Schema

LATER = (
    "CREATE TABLE later (one BIGINT PRIMARY KEY)",
    "ALTER TABLE windows ADD COLUMN later BIGINT NOT NULL DEFAULT 0",
    "UPDATE windows SET later = installed_at",
)


def later(known: Schema, added: Sequence[str] = LATER) -> Schema:
    """Return the schema of the version after `known`: its step makes older tables what those of a new database are."""
    steps = {**known.steps, known.version: added}
    return replace(known, version=known.version + 1, tables=(*known.tables, *added), steps=steps)


if __name__ == "__main__":
    schema.POSTGRES = later(schema.POSTGRES)  # type: ignore[misc] # Before anything reads it.
    fleetcount.__version__ = "next"
    from fleetcount.__main__ import main

    main()
