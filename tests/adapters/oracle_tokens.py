"""Which document each token belongs to, read token by token, in plain Python."""

from __future__ import annotations


def documents(tokens: list[int], padding: list[bool], eos: set[int], bos: set[int], pad: int | None) -> list[int]:
    """Number the documents of one row; 0 at padding."""
    last = max((place for place, token in enumerate(tokens) if token != pad and not padding[place]), default=-1)
    ids: list[int] = []
    number, ended = 0, True
    for place, token in enumerate(tokens):
        if padding[place] or (pad is not None and place > last):
            ids.append(0)
            ended = True
            continue
        if ended or token in bos:
            number += 1
        ids.append(number)
        ended = token in eos
    return ids
