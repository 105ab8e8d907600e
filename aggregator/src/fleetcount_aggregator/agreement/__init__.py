"""The agreement of all aggregators on one set of verified reports."""
