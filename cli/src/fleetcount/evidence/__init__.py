"""Show that the claims hold: audit, golden numbers, the papers' experiments, test vectors."""
