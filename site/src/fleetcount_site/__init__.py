"""Pages that show signed records to people: a reader like any other, trusted with nothing."""
