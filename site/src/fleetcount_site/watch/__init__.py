"""The page of a running demo: its events, sent to browsers on this machine as they happen."""
