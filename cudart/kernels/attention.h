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

// row_of_item is the row of item i in its sequence, head_of_item its query head in the group. Numbers of items are below 2³¹, as those of tiles are; a division of 64 bits takes a call and about 100 instructions.
INLINE int64_t row_of_item(int64_t i, int64_t group) { return (unsigned)i / (unsigned)group; }
INLINE int64_t head_of_item(int64_t i, int64_t group) { return (unsigned)i % (unsigned)group; }
// item_element is where item i's row of v begins, for the key head of the block; item_number numbers the rows of all heads and sequences.
INLINE int64_t item_element(const view &v, const sequence &s, int64_t i, int64_t group, int64_t head, int64_t dim) {
  return (s.row + row_of_item(i, group)) * v.stride + (head * group + head_of_item(i, group)) * dim;
}
INLINE int64_t item_number(const cache &c, const sequence &s, int64_t i, int64_t group, int64_t head) {
  return (s.row + row_of_item(i, group)) * c.heads * group + head * group + head_of_item(i, group);
}
INLINE float *item_row(const view &v, const sequence &s, int64_t i, int64_t group, int64_t head, int64_t dim) { return memory<float>(v.at) + item_element(v, s, i, group, head, dim); }

// read_items brings items [first, first + n) of v; items from all on, and columns from dim to D, are zero.
template <int D> INLINE void read_items(float (*to)[D + 1], int n, const view &v, const sequence &s, int64_t first, int64_t all, int64_t group, int64_t head, int64_t dim) {
  for (int e = thread(); e < n * D; e += ATTENTION_THREADS) {
    int i = e / D, d = e % D;
    to[i][d] = first + i < all && d < dim ? item_row(v, s, first + i, group, head, dim)[d] : 0.0f;
  }
}

// Which keys a row sees. back is the sequence's window or, without one, more positions than there are: a distance from the row back to the key, as unsigned, is below it where the row sees the key.
INLINE unsigned back_of(const sequence &s) { return s.window ? (unsigned)s.window : 0x80000000u; }
INLINE bool sees_key(unsigned back, int64_t position, int64_t key) { return (uint64_t)(position - key) < back; }
INLINE bool sees_key(unsigned back, int32_t position, int32_t key) { return (unsigned)(position - key) < back; } // the same: positions have 31 bits, and a difference below zero is at least 2³¹
// first_seen is the first key that the row at a position sees.
INLINE int64_t first_seen(const sequence &s, int64_t position) { return s.window && position >= s.window ? position - s.window + 1 : 0; }
// first_page_seen is where the page begins that has it.
INLINE int64_t first_page_seen(const sequence &s, int64_t position) { return first_seen(s, position) / PAGE_KEYS * PAGE_KEYS; }
// rows_seeing is where those rows of a sequence end that see some of the page at k0, of the rows before end.
INLINE int64_t rows_seeing(const sequence &s, int64_t k0, int64_t end) { return s.window && k0 + PAGE_KEYS - 1 + s.window < end ? k0 + PAGE_KEYS - 1 + s.window : end; }
// all_see tells whether rows from the position first to last see all keys of the page at k0.
INLINE bool all_see(unsigned back, int64_t first, int64_t last, int64_t k0) { return first >= k0 + PAGE_KEYS - 1 && last - k0 < back; }

// Keys of a block of the forward pass, from the beginning of a page on. Of split attention it has one part of them; all keys of a window are the first part, for within it the running softmax never restarts.
struct key_range {
  int64_t from, to;
};
INLINE key_range keys_of_block(const sequence &s, int64_t first_position, int64_t last_position, bool split, int64_t part) {
  key_range r = {first_page_seen(s, first_position), last_position + 1};
  if (!split) return r;
  if (s.window) return part ? key_range{0, 0} : r;
  r.from = part * RESTART_KEYS;
  if (r.to > r.from + RESTART_KEYS) r.to = r.from + RESTART_KEYS;
  return r;
}
// part_of is the part of the keys that the page at k0 is in; ends_part tells whether it is the last one of that, of keys before to.
INLINE int64_t part_of(const sequence &s, int64_t k0) { return s.window ? 0 : k0 / RESTART_KEYS; }
INLINE bool ends_part(const sequence &s, int64_t k0, int64_t to) { return k0 + PAGE_KEYS >= to || (!s.window && (k0 + PAGE_KEYS) % RESTART_KEYS == 0); }
// ends_in_part tells whether a row sees no keys of later parts.
INLINE bool ends_in_part(const sequence &s, int64_t position, int64_t part) { return s.window || position < (part + 1) * RESTART_KEYS; }

// page_of_block is the page that a block of the gradient by keys and values has, and its key head. The heads of a tile are blocks after one another, so that the tiles, which begin with those that take longest, do so over all heads.
struct page_and_head {
  attention_tile tile;
  int64_t head;
};
INLINE page_and_head page_of_block(const attention_backward_arguments &a) {
  const unsigned number = (unsigned)block_x(), heads = (unsigned)a.c.heads;
  return {memory<const attention_tile>(a.tiles)[number / heads], number % heads};
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
