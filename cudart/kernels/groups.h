// Products of groups of rows, each with a weight of its own: many adapters in one launch.
#pragma once
#include "arithmetic.h"

struct block_group {
  row_group g;
  int64_t first; // the block's first row
};

// group_of_block gives the group that block number works for; without a list there is one, in steps of rows.
INLINE block_group group_of_block(const product_arguments &a, int rows, int64_t number) {
  block_group b;
  if (a.tiles) {
    const product_tile t = memory<const product_tile>(a.tiles)[number];
    b.g = memory<const row_group>(a.groups)[t.group];
    b.first = b.g.from + t.row;
  } else {
    b.g = a.only;
    b.first = b.g.from + number * rows;
  }
  return b;
}

INLINE float finished(float v, const row_group &g) { return g.factor != 0.0f ? rounded_to(v * g.factor, g.type) : v; }
