"""Evidence for the claims: the papers' experiments, golden numbers, the audit, test vectors, and tables in buckets.

No package of the product imports this one, except the command.
"""
