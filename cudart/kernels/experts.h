// The table of a mixture of experts: which rows are whose. Only the device knows how many an expert has, so a launch has blocks for as many tiles as there can be, and a block finds what it has, or that it has nothing.
#pragma once
#include "arithmetic.h"

// The parts of a table.
INLINE int32_t *first_rows(const expert_table &t) { return memory<int32_t>(t.words); }
INLINE int32_t *tokens_of_rows(const expert_table &t) { return first_rows(t) + t.experts + 1; }
INLINE int32_t *slots_of_rows(const expert_table &t) { return tokens_of_rows(t) + t.tokens * t.slots; }
INLINE int32_t *rows_of_slots(const expert_table &t) { return slots_of_rows(t) + t.tokens * t.slots; }

INLINE int shuffle_xor_of(int v, int mask) { return bits<int>(shuffle_xor(bits<float>(v), mask)); }

// Rows of an expert, from first on and before end.
struct expert_rows {
  int expert, first, end;
};

// row_of_token is the first of rows [from, to), which are one expert's, that is of a token or a later one.
INLINE int row_of_token(const int32_t *tokens, int from, int to, int token) {
  while (from < to) {
    const int middle = from + (to - from) / 2;
    if (tokens[middle] < token) from = middle + 1;
    else to = middle;
  }
  return from;
}

// rows_of_expert are those of tokens [first, end).
INLINE expert_rows rows_of_expert(const expert_table &t, int expert, int first, int end) {
  expert_rows r = {expert, first_rows(t)[expert], first_rows(t)[expert + 1]};
  const int32_t *tokens = tokens_of_rows(t);
  if (first > 0) r.first = row_of_token(tokens, r.first, r.end, first);
  if (end < t.tokens) r.end = row_of_token(tokens, r.first, r.end, end);
  return r;
}

INLINE int tiles_of(const expert_rows &r, int height) { return (r.end - r.first + height - 1) / height; }

enum { EXPERTS_OF_LANE = 4 }; // that are asked for at once

// tile_of_experts finds a tile of so many rows, by its number among those of experts [from, to), expert by expert, which have rows of tokens [first, end). Every warp of a block does it, each for itself; expert is -1 if there are
// fewer tiles.
INLINE expert_rows tile_of_experts(const expert_table &t, int first, int end, int height, int number) {
  for (int of = (int)t.from; of < t.to; of += 32 * EXPERTS_OF_LANE) {
    expert_rows mine[EXPERTS_OF_LANE];
    int tiles = 0;
    UNROLL for (int k = 0; k < EXPERTS_OF_LANE; k++) {
      mine[k] = {of + lane() * EXPERTS_OF_LANE + k, 0, 0};
      if (mine[k].expert < t.to) mine[k] = rows_of_expert(t, mine[k].expert, first, end);
      tiles += tiles_of(mine[k], height);
    }
    int before = 0, all = tiles; // those of lanes before, and of all
    for (int m = 1; m < 32; m <<= 1) {
      const int others = shuffle_xor_of(all, m);
      if (lane() & m) before += others;
      all += others;
    }
    if (number >= all) {
      number -= all;
      continue;
    }
    expert_rows found = {0, 0, 0}; // one lane's is not
    int at = number - before;
    UNROLL for (int k = 0; k < EXPERTS_OF_LANE; k++) {
      const int have = tiles_of(mine[k], height);
      if (at >= 0 && at < have) found = {mine[k].expert, mine[k].first + at * height, mine[k].end};
      at -= have;
    }
    for (int m = 16; m; m >>= 1) {
      found.expert |= shuffle_xor_of(found.expert, m);
      found.first |= shuffle_xor_of(found.first, m);
      found.end |= shuffle_xor_of(found.end, m);
    }
    return found;
  }
  return {-1, 0, 0};
}
