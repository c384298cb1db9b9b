"""How fast the derivations are, against the packages that others use for them. Run `python -m benchmarks`."""
