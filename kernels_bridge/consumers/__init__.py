"""The consumers that neatpack registers: one module and one object each, imported when they are first needed."""

from __future__ import annotations
