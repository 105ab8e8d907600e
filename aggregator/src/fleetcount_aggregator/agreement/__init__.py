"""How the aggregators come to one set of verified reports."""
