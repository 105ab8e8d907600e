"""A release: the signed record, its JSON form, the chain of windows and the commitments to noise."""
