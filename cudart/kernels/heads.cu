// What comes between the products of attention and attention itself, in one pass over memory: the norm of every query and key head, rotary positions, and the keys' and values' way into pages; and its
// gradient. A head of a row is a warp's. The arithmetic is that of rms_norm_narrow, rope and write_pages, and so are the bits.
#include "attention.h"
#include "norm.h"
#include "rope.h"

enum { HEADS_THREADS = 256, HEADS = HEADS_THREADS / 32 };

// fetch_head reads the calling lane's columns of a head of a row: every 32nd. store_head writes them.
template <int held> INLINE void fetch_head(float (&v)[held], const view &from, int type, int64_t row, int64_t head, int64_t dim) {
  int64_t at = row * from.stride + head * dim + lane();
  UNROLL for (int e = 0; e < held; e++) v[e] = lane() + 32 * e < dim ? load_as_float(from.at, at + 32 * e, type) : 0.0f;
}
template <int held> INLINE void store_head(uint64_t to, int64_t at, int type, const float (&v)[held], int64_t dim) {
  UNROLL for (int e = 0; e < held; e++)
    if (lane() + 32 * e < dim) store_as(to, at + lane() + 32 * e, type, v[e]);
}

// turn_head turns a head in shared memory, which all lanes have written and will read.
INLINE void turn_head(float *head, const view &table, int64_t position, bool inverse) {
  int64_t half = table.cols / 2;
  const float *cosines = row_of<const float>(table, position), *sines = cosines + half;
  warp_barrier();
  for (int64_t i = lane(); i < half; i += 32) turn(head + i, half, cosines[i], inverse ? -sines[i] : sines[i]);
  warp_barrier();
}

// Block (x, y) has heads 8·y … 8·y + 7 of row x: first the queries', then the keys', then the values'.
template <int held> INLINE void heads_of_row(const heads_arguments &a) {
  SHARED(float, room[HEADS][32 * held]);
  int64_t row = block_x(), part = block_y() * HEADS + warp(), dim = a.c.dim;
  if (part >= a.query_heads + 2 * a.c.heads) return; // a whole warp
  bool query = part < a.query_heads, value = part >= a.query_heads + a.c.heads;
  float v[held], *head = room[warp()];
  if (!query) part -= a.query_heads;
  fetch_head(v, query ? a.queries : value ? a.values : a.keys, FLOAT32, row, value ? part - a.c.heads : part, dim);
  int64_t to = row * a.q.stride + part * dim;
  if (!value) {
    const view &kept = query ? a.kept_queries : a.kept_keys;
    if (kept.at) store_head(kept.at, row * kept.stride + part * dim, BFLOAT16, v, dim);
  }
  if (!query) {
    int64_t slot = memory<const int64_t>(a.slots)[row];
    if (slot < 0) return;
    to = page_part(a.c, a.layer, slot / PAGE_KEYS, part) + slot % PAGE_KEYS * dim;
  }
  if (!value) {
    uint64_t scale = query ? a.query_scale : a.key_scale;
    if (scale) {
      float squares = 0.0f;
      UNROLL for (int e = 0; e < held; e++)
        if (lane() + 32 * e < dim) squares = fma_rn(v[e], v[e], squares);
      float inverse = inverse_root(warp_sum(squares), dim, query ? a.query_eps : a.key_eps);
      UNROLL for (int e = 0; e < held; e++)
        if (lane() + 32 * e < dim) v[e] = v[e] * inverse * memory<const float>(scale)[lane() + 32 * e];
    }
    UNROLL for (int e = 0; e < held; e++) head[lane() + 32 * e] = v[e];
    turn_head(head, a.table, memory<const int32_t>(a.positions)[row], false);
    UNROLL for (int e = 0; e < held; e++) v[e] = head[lane() + 32 * e];
  }
  store_head(query ? a.q.at : a.c.at, to, query ? a.q_type : a.c.type, v, dim);
}

// Block (x, y) has heads 8·y … 8·y + 7 of row x: first the queries', then the keys'.
template <int held> INLINE void heads_of_row_backward(const heads_backward_arguments &a) {
  SHARED(float, room[HEADS][32 * held]);
  int64_t row = block_x(), part = block_y() * HEADS + warp();
  if (part >= a.query_heads + a.key_heads) return; // a whole warp
  bool query = part < a.query_heads;
  int64_t dim = query ? a.dq.cols / a.query_heads : a.dk.cols / a.key_heads;
  if (!query) part -= a.query_heads;
  const view &d = query ? a.dq : a.dk;
  float by_normed[held], *head = room[warp()];
  fetch_head(by_normed, d, FLOAT32, row, part, dim);
  UNROLL for (int e = 0; e < held; e++) head[lane() + 32 * e] = by_normed[e];
  turn_head(head, a.table, memory<const int32_t>(a.positions)[row], true);
  UNROLL for (int e = 0; e < held; e++) by_normed[e] = head[lane() + 32 * e];
  uint64_t scale = query ? a.query_scale : a.key_scale;
  if (scale) {
    float x[held], squares = 0.0f, along = 0.0f;
    fetch_head(x, query ? a.queries : a.keys, query ? a.query_type : a.key_type, row, part, dim);
    UNROLL for (int e = 0; e < held; e++)
      if (lane() + 32 * e < dim) {
        by_normed[e] = by_normed[e] * memory<const float>(scale)[lane() + 32 * e];
        squares = fma_rn(x[e], x[e], squares);
        along = fma_rn(by_normed[e], x[e], along);
      }
    float inverse = inverse_root(warp_sum(squares), dim, query ? a.query_eps : a.key_eps), factor = norm_factor(inverse, warp_sum(along), dim);
    UNROLL for (int e = 0; e < held; e++) by_normed[e] = norm_gradient(by_normed[e], x[e], inverse, factor);
  }
  store_head(d.at, row * d.stride + part * dim, FLOAT32, by_normed, dim);
}

// For head dimensions up to 128 and up to 256.
KERNEL(heads, HEADS_THREADS, heads_arguments) { heads_of_row<4>(a); }
KERNEL(heads_wide, HEADS_THREADS, heads_arguments) { heads_of_row<8>(a); }
KERNEL(heads_backward, HEADS_THREADS, heads_backward_arguments) { heads_of_row_backward<4>(a); }
KERNEL(heads_backward_wide, HEADS_THREADS, heads_backward_arguments) { heads_of_row_backward<8>(a); }
