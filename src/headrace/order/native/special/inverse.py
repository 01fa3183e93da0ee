"""From a sample to its place in a cell, the inverse of `cell_table`; a training run never asks."""

from __future__ import annotations

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.native.cell_table import ROW_BITS, ROW_STEP, CellTable, Parts
from headrace.order.random.feistel import feistel_unpermute


class CellInverse:
    __slots__ = ('_firsts', '_ranks', '_starts', '_table', '_units')

    def __init__(self, parts: Parts, block_size: int, key: int) -> None:
        """Arguments as `CellTable.add`'s."""
        self._table = table = CellTable()
        table.add(parts, block_size, key)
        draws = (table.units.keys & ((1 << ROW_BITS) - 1)) - table.units.rows[:, 0]
        firsts = table.units.rows[:, 1] + draws
        self._units = order = np.argsort(firsts)
        """int64[units]: units in order of their shards, and of their place in the shard's order of draws."""
        self._firsts = firsts[order]
        """int64[units]: the shard's first sample plus the number of the unit's first draw, of these; ascending."""
        self._starts = table.units.rows[order, 1]  # int64[units]: the shard's first sample, of these; ascending.
        slots = table.slots.keys.reshape(2, -1)
        self._ranks = np.empty_like(slots)
        """int64[2, tracks]: the tracks' ranks in order of opening, and of closing, last first."""
        for ranks, tracks in zip(self._ranks, slots, strict=True):
            ranks[tracks] = np.arange(len(tracks))

    def find(self, samples: IntArray) -> IntArray:
        """Return the positions int64[n] of samples of the stream int64[n]; -1 where a sample is not the cell's."""
        table = self._table
        unit = self._units[np.maximum(self._starts.searchsorted(samples, 'right') - 1, 0)]
        _, start, size, bits, key = table.units.columns_at(unit)
        draws = samples - start
        is_draw = (draws >= 0) & (draws < size)
        draws[~is_draw] = 0
        draws = feistel_unpermute(*(a.view(np.uint64) for a in (draws, size, bits, key))).view(np.int64)
        unit = self._units[np.maximum(self._firsts.searchsorted(start + draws, 'right') - 1, 0)]
        shift, unit_start = table.units.columns_at(unit)[:2]
        place = table.units.keys_at(unit)
        row = place & ((1 << ROW_BITS) - 1)
        # The row that the draw would be in, if this unit is of the sample's shard and long enough.
        offset = draws + shift - row
        is_draw &= (unit_start == start) & (offset >= 0) & (offset < table.unit_sizes.keys_at(unit))
        row[is_draw] += offset[is_draw]

        begin, end = (int(a) + 1 >> 1 for a in table.folds.rows[0, [2, 4]])
        in_head, in_tail = row < begin, row >= end
        row = np.where(in_head, 2 * begin - 1 - row, np.where(in_tail, 2 * end - 1 - row, row))
        run = table.runs.rows[:, 1].searchsorted(row, 'right') - 1
        first, first_row, samples_of_row, bits, key, tracks, slot = table.runs.columns_at(run)
        by_opening, by_closing = self._ranks[:, place >> ROW_BITS]
        x = np.where(slot == 0, by_opening, by_closing)
        x[in_head] = (tracks + by_opening)[in_head]
        x[in_tail] = (tracks + table.folds.columns_at(run)[0] + by_closing)[in_tail]
        number = row - first_row
        is_whole = tracks == 0
        x[is_whole], number[is_whole] = row[is_whole], 0
        first += number * samples_of_row
        number *= ROW_STEP
        number += key
        x = feistel_unpermute(*(a.view(np.uint64) for a in (x, samples_of_row, bits, number))).view(np.int64)
        return np.where(is_draw, x + first, -1)
