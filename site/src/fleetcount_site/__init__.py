"""Pages that show signed records to people: they have the rights of any reader of records, and no more."""
