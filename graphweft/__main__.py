"""``python -m graphweft`` is the command ``graphweft``."""

import sys

from graphweft.cli import main

if __name__ == "__main__":
    sys.exit(main())
