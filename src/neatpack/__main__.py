"""The command `neatpack`, and `python -m neatpack`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or say what has to be installed for it.

    Returns:
        The exit status.
    """
    try:
        from neatpack.kernels_bridge.cli import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "numpy"):
            raise
        remedy = "Run `pip install 'neatpack[hf,cli]'`."
        sys.stderr.write(f"neatpack: the command needs {missing.name}, which is not installed. {remedy}\n")
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
