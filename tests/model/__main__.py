"""`python -m tests.model`."""

import sys

from tests.model.command import main

if __name__ == "__main__":
    sys.exit(main())
