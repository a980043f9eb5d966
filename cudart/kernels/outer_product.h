// g[p,q] += Σm a[m,p]·b[m,q], the gradients of LoRA factors, any number of them in one launch: float32 whatever the model's type. An element is one chain of fused multiply-adds over the rows in ascending order, from what g
// holds or from zero, wherever it is cut: one launch may go on at any row from where another ended.
//
// One side of g is an adapter's rank, narrow, the other a layer's width. A tile has 8, 16 or 32 of the narrow side, as the rank wants, by as many of the wide one as make 4,096 elements; a warp has 8 × 128 of them, a thread
// 8 × 4: of each row all threads of a warp read the same 8 numbers, which is one read, and 4 beside each other.
//
// Tensor cores sum groups of 16 rows at once, so a chain could only be cut, or gone on with, at multiples of 16. But a group of sequences is one chain, in which one sequence begins wherever the one before it ends, in this pass
// or another; steps of a pass cut anywhere; and a head's cuts depend on the memory that there is for logits.
#pragma once
#include "arithmetic.h"

enum { OUTER_THREADS = 128, OUTER_POWER = 12, OUTER_TILE = 1 << OUTER_POWER };
enum { OUTER_PLACES = 4, OUTER_WIDE = OUTER_TILE / 2, OUTER_NARROW = 512 }; // places for rows in shared memory, and what each holds of the two sides: 16, 8 or 4 rows

// One side of an outer product, from its first column in the tile on: count of them are there.
struct outer_side {
  const float *at;
  int64_t stride;
  int count;
  bool fours; // they may be copied four at once
};
INLINE outer_side side_of(const view &v, int64_t row, int first) {
  return {row_of<const float>(v, row) + first, v.stride, (int)v.cols - first, (v.at | (uint64_t)v.stride * sizeof(float)) % 16 == 0};
}

// bring_side starts copying depth rows of 2^power elements from row on; what lies beyond the given rows and columns becomes zero.
INLINE void bring_side(float *to, const outer_side &s, int64_t row, int64_t rows, int depth, int power) {
  for (int e = 4 * thread(); e < depth << power; e += 4 * OUTER_THREADS) {
    const int r = e >> power, c = e - (r << power);
    const float *from = s.at + (row + r) * s.stride + c;
    const bool have = row + r < rows && c < s.count;
    if (s.fours && (!have || c + 4 <= s.count)) copy_async(to + e, from, have);
    else
      UNROLL for (int i = 0; i < 4; i++) to[e + i] = have && c + i < s.count ? from[i] : 0.0f;
  }
}

// fours_of calls f(address, how many are there, first, second, third, fourth) for a thread's elements of g, four beside each other. Turned, the wide side is g's rows.
template <bool turned, class F> INLINE void fours_of(float (&sum)[8][4], const view &g, int narrow, int wide, F f) {
  UNROLL for (int k = 0; k < 8; k++) {
    const int row = turned ? wide + k / 2 : narrow + k, column = turned ? narrow + k % 2 * 4 : wide;
    const int have = row < g.rows ? (int)g.cols - column : 0;
    float *at = row_of<float>(g, row) + column;
    if constexpr (turned) f(at, have, sum[k % 2 * 4][k / 2], sum[k % 2 * 4 + 1][k / 2], sum[k % 2 * 4 + 2][k / 2], sum[k % 2 * 4 + 3][k / 2]);
    else f(at, have, sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
  }
}

// outer_chain adds the chain over rows of the narrow and the wide side to the tile of g at (narrow, wide) of the calling thread; apart, it begins with zero, and what g holds comes last.
template <bool turned> INLINE void outer_chain(float (*ns)[OUTER_NARROW], float (*ws)[OUTER_WIDE], const view &g, const outer_side &left, const outer_side &right, int64_t rows, const outer_tile &t, bool first, bool apart) {
  const int power = t.power, most = 1 << power, across = OUTER_TILE >> power, depth = most / 2;
  const int my_narrow = warp() % (most / 8) * 8, my_wide = warp() / (most / 8) * 128 + 4 * lane();
  const bool fours = (g.at | (uint64_t)g.stride * sizeof(float)) % 16 == 0;
  int64_t next = 0;
  int there = 0, here = 0; // the places of the rows that are brought next, and of those that are multiplied
  auto bring = [&]() {
    if (next < rows) {
      bring_side(ns[there], left, next, rows, depth, power);
      bring_side(ws[there], right, next, rows, depth, OUTER_POWER - power);
      next += depth;
    }
    copy_async_commit();
    there = there + 1 == OUTER_PLACES ? 0 : there + 1;
  };
  for (int k = 1; k < OUTER_PLACES; k++) bring();
  float sum[8][4];
  if (first || apart) {
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int e = 0; e < 4; e++) sum[i][e] = 0.0f;
  } else
    fours_of<turned>(sum, g, t.narrow + my_narrow, t.wide + my_wide, [fours](const float *at, int have, float &v0, float &v1, float &v2, float &v3) {
      if (fours && have >= 4) {
        const floats<4> v = *(const floats<4> *)at;
        v0 = v.v[0], v1 = v.v[1], v2 = v.v[2], v3 = v.v[3];
      } else v0 = have > 0 ? at[0] : 0.0f, v1 = have > 1 ? at[1] : 0.0f, v2 = have > 2 ? at[2] : 0.0f, v3 = have > 3 ? at[3] : 0.0f;
    });
  auto multiply = [&](const float *n, const float *w) {
    const floats<4> low = *(const floats<4> *)n, high = *(const floats<4> *)(n + 4), v = *(const floats<4> *)w;
    UNROLL for (int i = 0; i < 4; i++)
      UNROLL for (int e = 0; e < 4; e++) {
        sum[i][e] = fma_rn(low.v[i], v.v[e], sum[i][e]);
        sum[i + 4][e] = fma_rn(high.v[i], v.v[e], sum[i + 4][e]);
      }
  };
  for (int64_t row = 0; row < rows; row += depth) {
    copy_async_wait<OUTER_PLACES - 2>();
    barrier(); // these rows have arrived, and those before them, whose place is the next ones', have been read by all
    bring();
    const float *n = ns[here] + my_narrow, *w = ws[here] + my_wide;
    if (rows - row >= depth) {
      for (int d = 0; d < depth; d += 4) UNROLL for (int k = 0; k < 4; k++) multiply(n + (d + k) * most, w + (d + k) * across);
    } else // an absent row is no link of the chain
      for (int d = 0; d < (int)(rows - row); d++) multiply(n + d * most, w + d * across);
    here = here + 1 == OUTER_PLACES ? 0 : here + 1;
  }
  fours_of<turned>(sum, g, t.narrow + my_narrow, t.wide + my_wide, [fours, apart](float *at, int have, float v0, float v1, float v2, float v3) {
    if (fours && have >= 4) {
      floats<4> v = {{v0, v1, v2, v3}};
      if (apart) {
        const floats<4> c = *(const floats<4> *)at;
        UNROLL for (int i = 0; i < 4; i++) v.v[i] = c.v[i] + v.v[i];
      }
      *(floats<4> *)at = v;
      return;
    }
    if (have > 0) at[0] = apart ? at[0] + v0 : v0;
    if (have > 1) at[1] = apart ? at[1] + v1 : v1;
    if (have > 2) at[2] = apart ? at[2] + v2 : v2;
    if (have > 3) at[3] = apart ? at[3] + v3 : v3;
  });
}
