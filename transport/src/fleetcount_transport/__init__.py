"""The code that all networked parties share: configuration tables, limits of callers, streams, logs."""
