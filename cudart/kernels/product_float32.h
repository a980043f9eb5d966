// Products in float32: every output element is one chain of fused multiply-adds over the inner axis in ascending order, starting from what the output holds or from
// zero, so it does not depend on the number of rows or on how they are cut. A block has 64 × 64 outputs, a thread 4 × 4 of them.
#pragma once
#include "groups.h"

enum { TILE = 64, DEPTH = 16, PRODUCT_THREADS = 256 };

// c[i,j] = Σk left(i,k)·right(k,j). Element (i,k) of left is left.at + i·left.outer + k·left.inner; of right likewise with j and k. One of outer and inner is 1: threads of a warp
// read along that one.
struct operand {
  const float *at;
  int64_t outer, inner;
  const int32_t *list; // not null: of i it has the place, i itself elsewhere
};

// read_tile puts [DEPTH][TILE] elements from (first, k) on into shared memory; beyond the operand they are zero.
INLINE void read_tile(float (*to)[TILE + 1], const operand &o, int64_t first, int64_t count, int64_t k, int64_t depth) {
  for (int e = thread(); e < TILE * DEPTH; e += PRODUCT_THREADS) {
    int i = o.inner == 1 ? e / DEPTH : e % TILE, d = o.inner == 1 ? e % DEPTH : e / TILE;
    to[d][i] = 0.0f;
    if (first + i < count && k + d < depth) to[d][i] = o.at[(o.list ? o.list[first + i] : first + i) * o.outer + (k + d) * o.inner];
  }
}

// product_64x64 computes the tile of c at (i0, j0); finish gives an element of it, of the chain's value.
template <class F> INLINE void product_64x64(const view &c, int64_t i0, int64_t j0, const operand &left, const operand &right, int64_t depth, bool accumulate, F finish) {
  SHARED(float, l[DEPTH][TILE + 1]);
  SHARED(float, r[DEPTH][TILE + 1]);
  int ti = thread() / 16 * 4, tj = thread() % 16;
  float sum[4][4];
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < 4; j++) {
      bool have = accumulate && i0 + ti + i < c.rows && j0 + tj + 16 * j < c.cols;
      sum[i][j] = have ? row_of<const float>(c, i0 + ti + i)[j0 + tj + 16 * j] : 0.0f;
    }
  for (int64_t k = 0; k < depth; k += DEPTH) {
    barrier();
    read_tile(l, left, i0, c.rows, k, depth);
    read_tile(r, right, j0, c.cols, k, depth);
    barrier();
    int most = depth - k < DEPTH ? (int)(depth - k) : DEPTH; // an absent element is no link of the chain
    for (int d = 0; d < most; d++) {
      float u[4], v[4];
      UNROLL for (int i = 0; i < 4; i++) u[i] = l[d][ti + i], v[i] = r[d][tj + 16 * i];
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) sum[i][j] = fma_rn(u[i], v[j], sum[i][j]);
    }
  }
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < 4; j++)
      if (i0 + ti + i < c.rows && j0 + tj + 16 * j < c.cols) row_of<float>(c, i0 + ti + i)[j0 + tj + 16 * j] = finish(sum[i][j]);
}
