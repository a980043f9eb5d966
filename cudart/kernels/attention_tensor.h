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

// round_items brings items [first, first + n) of v, rounded; items from all on, and columns from dim to D, are zero. They are there after copy_async_wait and a barrier. TENSOR_THREADS threads do it, who is the number of one.
template <int D, int n>
INLINE void round_items(tensor_row<D> *to, const view &v, int type, const sequence &s, int64_t first, int64_t all, int64_t group, int64_t head, int64_t dim, const int who = thread()) {
  static_assert(n * (D / 8) % TENSOR_THREADS == 0); // all threads have equally many pieces
  if (type == BFLOAT16 && v.at % 16 == 0 && v.stride % 8 == 0) { // they are as they are wanted
    constexpr int across = D / 8, step = TENSOR_THREADS / across;
    const int row = who / across, d = who % across * 8;
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
    const int row = who / across, d = who % across * 4;
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
  for (int e = who; e < n * D; e += TENSOR_THREADS) {
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

// A page in the running softmax of a warp's items, where a lane has scores of two items: fragments of groups of 16 keys, as results of products have them.

// seen_keys are the keys that a lane's items see, counted from the lane's first in the fragments, whose first group begins at a key of the page.
struct seen_keys {
  int last[2], first[2];

  INLINE seen_keys of(const int64_t (&position)[2], unsigned back, int64_t k0, bool all, int first_key) {
    seen_keys k;
    UNROLL for (int i = 0; i < 2; i++) {
      k.last[i] = all || position[i] >= k0 + PAGE_KEYS ? PAGE_KEYS : (int)(position[i] - k0) - first_key - fragment_column();
      k.first[i] = all || position[i] - k0 < back ? -PAGE_KEYS : (int)(position[i] - k0 - back) + 1 - first_key - fragment_column();
    }
    return k;
  }
  INLINE_MEMBER bool sees(int j, int e) const { return (8 * j + e % 2 <= last[e / 2]) & (8 * j + e % 2 >= first[e / 2]); }
};

// scale_scores gives the largest of each item's, of all lanes that have some of them.
template <int n> INLINE void scale_scores(float (&score)[n][4], float (&top)[2], float scale, const seen_keys &keys) {
  UNROLL for (int i = 0; i < 2; i++) top[i] = -infinity();
  UNROLL for (int j = 0; j < n; j++)
    UNROLL for (int e = 0; e < 4; e++) {
      score[j][e] = score[j][e] * scale;
      if (keys.sees(j, e)) top[e / 2] = larger(score[j][e], top[e / 2]);
    }
  UNROLL for (int i = 0; i < 2; i++)
    for (int m = 1; m < 4; m *= 2) top[i] = larger(top[i], shuffle_xor(top[i], m));
}

// raise_tops makes top the largest score with those of before: exponentials are of a score less base, and what there was before is multiplied by fix.
INLINE void raise_tops(float (&top)[2], const float (&before)[2], float (&base)[2], float (&fix)[2]) {
  UNROLL for (int i = 0; i < 2; i++) {
    top[i] = larger(top[i], before[i]);
    base[i] = top[i] == -infinity() ? 0.0f : top[i];
    fix[i] = before[i] == top[i] ? 1.0f : exp_rn(before[i] - base[i]);
  }
}

// exponentials makes scores probabilities, but for the factor, and gives the lane's sums: a chain over the groups.
template <int n> INLINE void exponentials(float (&score)[n][4], float (&part)[2], const float (&base)[2], const seen_keys &keys) {
  part[0] = part[1] = 0.0f;
  UNROLL for (int g = 0; g < n / 2; g++) {
    float of_group[2] = {0.0f, 0.0f};
    UNROLL for (int j = 2 * g; j < 2 * g + 2; j++)
      UNROLL for (int e = 0; e < 4; e++) {
        float p = exp_rn(score[j][e] - base[e / 2]);
        here(p); // without branches
        score[j][e] = keys.sees(j, e) ? p : 0.0f;
        of_group[e / 2] = of_group[e / 2] + score[j][e];
      }
    UNROLL for (int i = 0; i < 2; i++) part[i] = part[i] + of_group[i];
  }
}

// add_part adds a page's sums, of the four lanes that have an item, to those of before.
INLINE void add_part(float (&sum)[2], float (&part)[2], const float (&fix)[2]) {
  UNROLL for (int i = 0; i < 2; i++) {
    for (int m = 1; m < 4; m *= 2) part[i] = part[i] + shuffle_xor(part[i], m);
    sum[i] = fma_rn(sum[i], fix[i], part[i]);
  }
}

// In the gradient: probability turns a score into its probability and by_p into the gradient by the score; both are zero for a key that the item does not see.
INLINE void probability(float &score, float &by_p, bool sees, float scale, float lse, float delta) {
  float p = exp_rn(score * scale - lse), ds = p * (by_p - delta) * scale;
  score = sees ? p : 0.0f, by_p = sees ? ds : 0.0f;
}
INLINE float delta_of(const attention_backward_arguments &a, const sequence &s, int64_t item, int64_t head) { return memory<const float>(a.delta)[item_number(a.c, s, item, a.group, head)]; }
