// What the attention kernels with tensor cores share. They are for pages of bfloat16 whose head dimension is a multiple of 8. A block has four warps; an item is what attention.h says. Queries, probabilities and
// gradients are rounded to bfloat16 where they go into a product; scores and sums are float32, and so are outputs but for what is kept as bfloat16. One instruction sums a group of 16 in one way whatever row of its tile it is for, and a
// product that is zero changes nothing in it, so bits do not depend on the tile, and keys that an item does not see have the probability zero.
#pragma once
#include "attention.h"

enum { TENSOR_THREADS = 128, SHARED_PAD = 8 }; // the pad keeps the rows of one load_matrices in different banks

template <int D> using tensor_row = bfloat16[D + SHARED_PAD];

// fetch_page starts copying one part of a page; columns from dim to D become zero.
template <int D> INLINE void fetch_page(tensor_row<D> *to, const cache &c, int64_t layer, int64_t page, int64_t part) {
  const bfloat16 *from = memory<const bfloat16>(c.at) + page_part(c, layer, page, part);
  // Of large heads no registers are left to keep addresses in, from page to page.
  for (int e = D > 128 ? (int)fresh(thread()) : thread(); e < PAGE_KEYS * (D / 8); e += TENSOR_THREADS) {
    int r = e / (D / 8), d = e % (D / 8) * 8;
    bool have = d < c.dim;
    copy_async(&to[r][d], have ? from + r * c.dim + d : from, have);
  }
  copy_async_commit();
}

// item_walk goes over items in equal steps and says where their rows begin in v. It divides where it begins, not on the way. Numbers of items are below 2³¹, as those of tiles are.
struct item_walk {
  int64_t at, by, back; // the element; a step's elements, and what they are more where it goes on to another row of the batch
  unsigned in_group, by_in_group, group;

  INLINE item_walk begin(const view &v, const sequence &s, int64_t first, unsigned step, int64_t group, int64_t head, int64_t dim) {
    item_walk w;
    w.group = (unsigned)group;
    w.in_group = (unsigned)first % w.group, w.by_in_group = step % w.group;
    w.at = (s.row + (unsigned)first / w.group) * v.stride + (head * group + w.in_group) * dim;
    w.by = step / w.group * v.stride + w.by_in_group * dim, w.back = v.stride - group * dim;
    return w;
  }
  INLINE void go_on(item_walk &w) {
    w.at += w.by, w.in_group += w.by_in_group;
    if (w.in_group >= w.group) w.in_group -= w.group, w.at += w.back;
  }
};

// round_items brings items [first, first + n) of v, rounded; items from all on, and columns from dim to D, are zero. They are there after copy_async_wait and a barrier.
template <int D, int n> INLINE void round_items(tensor_row<D> *to, const view &v, int type, const sequence &s, int64_t first, int64_t all, int64_t group, int64_t head, int64_t dim) {
  static_assert(n * (D / 8) % TENSOR_THREADS == 0); // all threads have equally many pieces
  if (type == BFLOAT16 && v.at % 16 == 0 && v.stride % 8 == 0) { // they are as they are wanted
    constexpr int across = D / 8, step = TENSOR_THREADS / across;
    const int row = thread() / across, d = thread() % across * 8;
    const bfloat16 *from = memory<const bfloat16>(v.at);
    item_walk w = item_walk::begin(v, s, first + row, step, group, head, dim);
    UNROLL for (int i = 0; i < n; i += step) {
      bool have = first + row + i < all && d < dim;
      copy_async(&to[row + i][d], have ? from + w.at + d : from, have);
      item_walk::go_on(w);
    }
    copy_async_commit();
    return;
  }
  if (type == FLOAT32 && in_fours(v, FLOAT32)) { // several are asked for before the first is rounded
    constexpr int across = D / 4, step = TENSOR_THREADS / across, held = n / step < 8 ? n / step : 8;
    const int row = thread() / across, d = thread() % across * 4;
    const float *from = memory<const float>(v.at);
    item_walk w = item_walk::begin(v, s, first + row, step, group, head, dim);
    for (int i0 = row; i0 < n; i0 += held * step) {
      floats<4> x[held];
      UNROLL for (int e = 0; e < held; e++) {
        x[e] = *(const floats<4> *)(first + i0 + e * step < all && d < dim ? from + w.at + d : from);
        item_walk::go_on(w);
      }
      UNROLL for (int e = 0; e < held; e++)
        UNROLL for (int c = 0; c < 4; c++) here(x[e].v[c]);
      UNROLL for (int e = 0; e < held; e++) {
        bool have = first + i0 + e * step < all && d < dim;
        bfloat16_pairs<2> rounded;
        UNROLL for (int c = 0; c < 2; c++) rounded.v[c] = have ? narrow_two(x[e].v[2 * c], x[e].v[2 * c + 1]) : 0;
        *(bfloat16_pairs<2> *)&to[i0 + e * step][d] = rounded;
      }
    }
    return;
  }
  for (int e = thread(); e < n * D; e += TENSOR_THREADS) {
    int i = e / D, d = e % D;
    to[i][d] = first + i < all && d < dim ? narrow(load_as_float(v.at, item_element(v, s, first + i, group, head, dim) + d, type)) : 0;
  }
}

// Fragments of an instruction. A lane's four elements of a 16 × 8 result are (row, column) = (lane/4 + 8·(e/2), 2·(lane%4) + e%2).
INLINE int fragment_row() { return lane() / 4; }
INLINE int fragment_column() { return lane() % 4 * 2; }

// left_fragment reads rows [0, 16) and columns [k, k + 16) as the left operand.
template <int P> INLINE void left_fragment(unsigned (&r)[4], bfloat16 (*rows)[P], int k) { load_matrices(r, &rows[lane() % 16][k + lane() / 16 * 8]); }
// right_fragments reads 16 rows and columns [k, k + 16) as the right operand of two results, whose columns are the rows: r[0], r[1] and r[2], r[3].
template <int P> INLINE void right_fragments(unsigned (&r)[4], bfloat16 (*rows)[P], int k) { load_matrices(r, &rows[lane() % 8 + lane() / 16 * 8][k + lane() / 8 % 2 * 8]); }
// right_fragments_down reads 16 rows and columns [c, c + 16) as the right operand of two results, whose columns are the columns; the sum goes over the rows.
template <int P> INLINE void right_fragments_down(unsigned (&r)[4], bfloat16 (*rows)[P], int c) { load_matrices_transposed(r, &rows[lane() % 16][c + lane() / 16 * 8]); }

// as_left makes two neighbouring results, 16 columns, the left operand of a sum over these columns.
INLINE void as_left(unsigned (&r)[4], const float (&low)[4], const float (&high)[4]) {
  r[0] = narrow_two(low[0], low[1]), r[1] = narrow_two(low[2], low[3]), r[2] = narrow_two(high[0], high[1]), r[3] = narrow_two(high[2], high[3]);
}
