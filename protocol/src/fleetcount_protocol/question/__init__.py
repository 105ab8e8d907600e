"""A question: one signed object from which the windows of all its windows follow by rule (docs/wire.md, "Question")."""
