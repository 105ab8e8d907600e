"""`python -m tests.campaign`."""

import os
import sys

# It forks to begin other programs; gRPC's own handlers of forks have ended a campaign in the middle.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tests.campaign.command import main

if __name__ == "__main__":
    sys.exit(main())
