"""Two aggregators and a million devices over PostgreSQL: bench_million with both stores on one server of its own."""

import sys

from bench_million import main

if __name__ == "__main__":
    sys.exit(main(["--postgres", *sys.argv[1:]]))
