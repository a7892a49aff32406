"""``python -m benchmarks report``: the table and the chart of the README, from the result files."""

from __future__ import annotations

import sys

from benchmarks.report import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
