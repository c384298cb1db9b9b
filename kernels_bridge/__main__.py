"""`python -m neatpack.kernels_bridge`: the command line without its script."""

from __future__ import annotations

import sys

from neatpack.kernels_bridge.cli import main

if __name__ == "__main__":
    sys.exit(main())
