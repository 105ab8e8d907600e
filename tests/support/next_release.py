"""fleetcount as the release after this one: its schema is one ahead, by a table and a column that nothing reads.

Run as a program, with the words of the command. Nothing of the product knows this file.
"""

from dataclasses import replace

import fleetcount
from fleetcount_aggregator.storage import schema

LATER = ("CREATE TABLE later (one BIGINT PRIMARY KEY)", "ALTER TABLE tasks ADD COLUMN later BIGINT NOT NULL DEFAULT 0")
NOW = schema.POSTGRES

if __name__ == "__main__":
    version = NOW.version + 1
    # Before anything reads it.
    schema.POSTGRES = replace(NOW, version=version, tables=(*NOW.tables, *LATER), steps={NOW.version: LATER})  # type: ignore[misc]
    fleetcount.__version__ = "next"
    from fleetcount.__main__ import main

    main()
