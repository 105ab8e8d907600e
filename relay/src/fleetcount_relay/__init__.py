"""The relay role: packs small uploads of many devices into large batches, which it cannot read."""
