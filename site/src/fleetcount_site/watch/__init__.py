"""The page of a demo that runs: what is known by now, told to a browser as it happens; on this machine alone."""
