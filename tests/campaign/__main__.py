"""`python -m tests.campaign`."""

import sys

from tests.campaign.command import main

if __name__ == "__main__":
    sys.exit(main())
