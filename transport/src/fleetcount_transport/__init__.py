"""What every networked party shares: configuration tables, limits of callers, streams, logs."""
