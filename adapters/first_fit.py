"""First fit: documents in the order in which they come, each into the first row that has room for it."""

from __future__ import annotations

import numpy as np

from neatpack.adapters.host_arrays import Integers


def first_fit(lengths: Integers, capacity: int, documents_per_row: int) -> Integers:
    """Give the row of each document, `[documents]`."""
    rooms = Rooms(lengths.size, capacity, documents_per_row)
    return np.array([rooms.take(length) for length in lengths.tolist()], np.int64)


class Rooms:
    """The room left in each row, in a tree whose nodes hold the most room below them: first fit in log n."""

    def __init__(self, rows: int, capacity: int, documents_per_row: int) -> None:
        self._leaves = 1 << max(rows - 1, 0).bit_length()
        self._most = [capacity] * (2 * self._leaves)
        self._seats = [documents_per_row] * rows

    def take(self, length: int) -> int:
        """Take room from the first row that has enough, and give its index."""
        most, node = self._most, 1
        while node < self._leaves:
            node *= 2
            if most[node] < length:
                node += 1
        row = node - self._leaves
        self.put(row, most[node] - length, self._seats[row] - 1)
        return row

    def put(self, row: int, room: int, seats: int) -> None:
        """Set how much room a row has left, and for how many documents."""
        self._seats[row] = seats
        most, node = self._most, row + self._leaves
        room = room if seats else 0
        most[node] = room
        while node > 1:
            room = max(room, most[node ^ 1])
            node //= 2
            if most[node] == room:
                return  # Nothing changes above.
            most[node] = room
