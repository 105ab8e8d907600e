"""Whether this is a run of `make nightly`, in which tests that draw take more runs.

A test that takes long is marked `nightly`: `make test` leaves it out, `make nightly` and pytest with its name run it.
"""

import os

NIGHTLY = bool(os.environ.get("FLEETCOUNT_NIGHTLY"))
