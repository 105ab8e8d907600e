"""What shows that the claims hold: the papers' experiments, golden numbers, the audit, vectors, and tables in buckets.

It stands beside the packages that do the work, and none of them imports it; the command does.
"""
