"""A machine without Numba, for every Python that has this directory in PYTHONPATH, and all that it starts."""

import sys

sys.modules["numba"] = None  # type: ignore[assignment]  # Python's own word for what cannot be imported.
