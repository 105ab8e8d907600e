"""`fleetcount` under a wall clock that is off: `python -m tests.support.off_clock SECONDS aggregator serve ...`.

The process and all it does is real but for `time.time`; clocks of compiled libraries (certificates) are right.
"""

import runpy
import sys
import time

if __name__ == "__main__":
    off_s, wall = float(sys.argv.pop(1)), time.time
    time.time = lambda: wall() + off_s
    runpy.run_module("fleetcount", run_name="__main__", alter_sys=True)
