"""Which document each token belongs to, read token by token, in plain Python."""

from __future__ import annotations


def documents(tokens: list[int], padding: list[bool], eos: set[int], bos: set[int], pad: int | None) -> list[int]:
    """Number the documents of one row; 0 at padding."""
    ids: list[int] = []
    number, ended = 0, True
    for place, token in enumerate(tokens):
        if padding[place] or (token == pad and _between(tokens, padding, eos, bos, place)):
            ids.append(0)
            ended = True
            continue
        if ended or token in bos:
            number += 1
        ids.append(number)
        ended = token in eos
    return ids


def _between(tokens: list[int], padding: list[bool], eos: set[int], bos: set[int], place: int) -> bool:
    """Tell whether a run of padding tokens has a document on one side of it at most."""
    pad, before, after = tokens[place], place, place
    while before >= 0 and tokens[before] == pad and not padding[before]:
        before -= 1
    while after < len(tokens) and tokens[after] == pad and not padding[after]:
        after += 1
    ended = before < 0 or padding[before] or tokens[before] in eos
    return ended or after == len(tokens) or padding[after] or tokens[after] in bos
