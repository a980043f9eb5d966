// Where the elements of a matrix in blocks lie, see bulk_arguments.h.
#pragma once
#include "arithmetic.h"

// chunk_in_blocks gives where 8 elements of a row from column c on begin, in elements; across is how many blocks 64 rows have. c is a multiple of 8.
INLINE int64_t chunk_in_blocks(int64_t row, int64_t c, int64_t across) {
  const int within = (int)(row & (BLOCK_SIDE - 1)), chunk = (int)(c & (BLOCK_SIDE - 1)) / 8;
  return (row / BLOCK_SIDE * across + c / BLOCK_SIDE) * (BLOCK_BYTES / 2) + within * BLOCK_SIDE + (chunk ^ (within & 7)) * 8;
}

// ask_for_blocks asks for the first tiles of w's rows [j0, j0 + rows), so many of 64 columns each, if they are wanted: a thread for 32 rows of a tile, which
// lie one after another.
template <int rows, int tiles> INLINE void ask_for_blocks(const weight &w, int64_t j0, bool wanted) {
  constexpr int parts = rows / 32;
  const int64_t across = w.pitch / BLOCK_SIDE, row = j0 + thread() % parts * 32;
  const int tile = thread() / parts;
  const bool own = tile < tiles, along = tile < across, there = row < w.out; // and no condition among them: that would be a branch
  const int64_t at = (row / BLOCK_SIDE * across + tile) * BLOCK_BYTES + row % BLOCK_SIDE * (BLOCK_BYTES / BLOCK_SIDE);
  ask_early(memory<const unsigned char>(w.at) + at, BLOCK_BYTES / 2, wanted & own & along & there);
}

// place_in gives where element (row, c) of w lies, in elements.
INLINE int64_t place_in(const weight &w, int type, int64_t row, int64_t c) { return type == BFLOAT16_BLOCKS ? chunk_in_blocks(row, c & ~(int64_t)7, w.pitch / BLOCK_SIDE) + (c & 7) : row * w.pitch + c; }
INLINE int element_type(int type) { return type == BFLOAT16_BLOCKS ? BFLOAT16 : type; }
