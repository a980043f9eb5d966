// Products of groups of rows, each with a weight of its own: many adapters in one launch.
#pragma once
#include "arithmetic.h"

// What a block has of the products of a launch: which of them, and which tile of its rows and of its columns.
struct block_product {
  int product;
  int64_t down, across;
};

INLINE block_product product_of_block(const products_arguments &a) {
  const int number = (int)block_x();
  int product = 0, first = 0;
  UNROLL for (int i = 0; i + 1 < MOST_PRODUCTS; i++)
    if (number >= a.blocks[i].end) product = i + 1, first = a.blocks[i].end;
  const unsigned within = (unsigned)(number - first), down = (unsigned)a.blocks[product].down;
  return {product, within % down, within / down};
}

struct block_group {
  row_group g;
  int64_t first; // the block's first row
};

// group_of_block gives the group that block number works for; without a list there is one, in steps of rows.
INLINE block_group group_of_block(const product_arguments &a, int rows, int64_t number) {
  block_group b;
  if (a.tiles) {
    const product_tile t = value_at<product_tile>(a.tiles + number * sizeof(product_tile));
    b.g = value_at<row_group>(a.groups + t.group * sizeof(row_group));
    b.first = b.g.from + t.row;
  } else {
    b.g = a.only;
    b.first = b.g.from + number * rows;
  }
  return b;
}

// inner_axis is what a chain is taken over, from place k on: rows of x and a weight's rows or, transposed, its columns.
struct inner_axis {
  uint64_t x, w;
  int64_t stride, pitch;
  int type, out, depth, k;
  bool last;   // there is no other after it
  bool blocks; // the weight lies in blocks, for kernels that know them
};

template <bool transposed> INLINE inner_axis axis_of(const view &x, int type, const weight &w, bool last) {
  return {x.at, w.at, x.stride, w.pitch, type, (int)w.out, (int)(transposed ? w.out : w.in), 0, last, false};
}
template <bool transposed> INLINE inner_axis first_axis(const product_arguments &a, const row_group &g) { return axis_of<transposed>(a.x, a.x_type, g.w, g.tail.at == 0); }

// go_on goes on by so many places, at the end of an axis to the group's second one; false at the end of that.
template <bool transposed> INLINE bool go_on(inner_axis &of, int places, const product_arguments &a, const row_group &g) {
  of.k += places;
  if (of.k >= of.depth && !of.last) of = axis_of<transposed>(a.tail_x, a.tail_type, g.tail, true);
  return of.k < of.depth;
}

INLINE float finished(float v, const row_group &g) { return g.factor != 0.0f ? rounded_to(v * g.factor, g.type) : v; }
