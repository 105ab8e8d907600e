"""A series: one signed object from which the tasks of all its windows follow by rule (docs/wire.md, "Series")."""
