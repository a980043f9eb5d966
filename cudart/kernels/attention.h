// What the attention kernels share. An item is a row of the batch and one query head of the block's group: item i of a sequence is row i / group, head i % group, so that the query
// heads of a key head read its keys together. A block has 256 threads: thread (ty, tx) has items ty·PER …, keys tx, tx+16, tx+32, tx+48 of a page, and dimensions tx, tx+16, …
#pragma once
#include "arithmetic.h"

enum { ATTENTION_THREADS = 256 };

// page_part is where the keys (part = head) or values (part = heads + head) of a page begin, [64][dim].
INLINE int64_t page_part(const cache &c, int64_t layer, int64_t page, int64_t part) { return ((layer * c.pages + page) * 2 * c.heads + part) * PAGE_KEYS * c.dim; }

// read_page brings one part of a page as float32; columns from dim to D are zero.
template <int D> INLINE void read_page(float (*to)[D + 1], const cache &c, int64_t layer, int64_t page, int64_t part) {
  int64_t at = page_part(c, layer, page, part);
  for (int e = thread(); e < PAGE_KEYS * D; e += ATTENTION_THREADS) {
    int r = e / D, d = e % D;
    to[r][d] = d < c.dim ? load_as_float(c.at, at + r * c.dim + d, c.type) : 0.0f;
  }
}

// item_element is where item i's row of v begins, for the key head of the block.
INLINE int64_t item_element(const view &v, const sequence &s, int64_t i, int64_t group, int64_t head, int64_t dim) { return (s.row + i / group) * v.stride + (head * group + i % group) * dim; }
INLINE float *item_row(const view &v, const sequence &s, int64_t i, int64_t group, int64_t head, int64_t dim) { return memory<float>(v.at) + item_element(v, s, i, group, head, dim); }

// read_items brings items [first, first + n) of v; items from all on, and columns from dim to D, are zero.
template <int D> INLINE void read_items(float (*to)[D + 1], int n, const view &v, const sequence &s, int64_t first, int64_t all, int64_t group, int64_t head, int64_t dim) {
  for (int e = thread(); e < n * D; e += ATTENTION_THREADS) {
    int i = e / D, d = e % D;
    to[i][d] = first + i < all && d < dim ? item_row(v, s, first + i, group, head, dim)[d] : 0.0f;
  }
}

// put_result writes element d of a finished item, whose row of o is out.
INLINE void put_result(const attention_arguments &a, const sequence &s, int64_t item, int64_t head, float *out, int64_t d, float v) {
  if (a.kept.at) memory<bfloat16>(a.kept.at)[item_element(a.kept, s, item, a.group, head, a.c.dim) + d] = narrow(v);
  else out[d] = v;
}

// merge puts a part's value behind the total of those before it: x and y are the factors of both.
INLINE float merge(float total, float x, float part, float y) { return fma_rn(total, x, part * y); }

// dots gives the products of a thread's PER items with its four keys, each a chain over the dimensions in ascending order.
template <int D, int PER> INLINE void dots(float (&out)[PER][4], float (*items)[D + 1], float (*keys)[D + 1]) {
  int ty = thread() / 16, tx = thread() % 16;
  UNROLL for (int i = 0; i < PER; i++)
    UNROLL for (int j = 0; j < 4; j++) out[i][j] = 0.0f;
  UNROLL_4 for (int d = 0; d < D; d++) {
    float q[PER], k[4];
    UNROLL for (int i = 0; i < PER; i++) q[i] = items[ty * PER + i][d];
    UNROLL for (int j = 0; j < 4; j++) k[j] = keys[tx + 16 * j][d];
    UNROLL for (int i = 0; i < PER; i++)
      UNROLL for (int j = 0; j < 4; j++) out[i][j] = fma_rn(q[i], k[j], out[i][j]);
  }
}
