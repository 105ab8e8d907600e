"""A Python program under a wall clock that is off: `python -m tests.support.off_clock SECONDS -m fleetcount ...`.

The process and all it does is real but for `time.time`; clocks of compiled libraries (certificates) are right.
"""

import runpy
import sys
import time

if __name__ == "__main__":
    off_s, wall = float(sys.argv.pop(1)), time.time
    time.time = lambda: wall() + off_s
    if (first := sys.argv.pop(1)) == "-m":
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(first, run_name="__main__")
