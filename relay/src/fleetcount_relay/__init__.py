"""The relay role: collects small uploads of many devices into large batches that it cannot read."""
