// The gradient of causal attention, without atomic additions: one kernel has a page of keys of a sequence per block and goes over the items that see it (dk and dv are
// chains over the items), another has a tile of items and goes over the pages (dq is a chain over the keys). Both compute the probabilities again from the log-sum-exp.
#include "attention.h"

enum { BACKWARD_PER = 2, BACKWARD_ITEMS = 16 * BACKWARD_PER };

// delta = Σ do·o of every row and head, for do as the products have it, so that it cancels: block x is a row, its warps take heads.
KERNEL(attention_delta, ATTENTION_THREADS, attention_backward_arguments) {
  int64_t heads = a.c.heads * a.group;
  for (int64_t h = warp(); h < heads; h += ATTENTION_THREADS / 32) {
    const float *x = row_of<const float>(a.dout, block_x()) + h * a.c.dim;
    const int64_t y = block_x() * a.o.stride + h * a.c.dim;
    float s = 0.0f;
    for (int64_t d = lane(); d < a.c.dim; d += 32) s = fma_rn(rounded_to(x[d], a.type), load_as_float(a.o.at, y + d, a.o_type), s);
    s = warp_sum(s);
    if (lane() == 0) memory<float>(a.delta)[block_x() * heads + h] = s;
  }
}

template <int D> struct attention_backward {
  static constexpr int dims = D / 16;
  typedef float wide_row[D + 1];
  typedef float key_row[PAGE_KEYS + 1];

  // shared memory of a block
  struct tiles {
    wide_row *k, *v, *q, *dout;
    key_row *p, *ds;
  };
  INLINE tiles place(float *room) {
    tiles t;
    t.k = (wide_row *)room, t.v = t.k + PAGE_KEYS, t.q = t.v + PAGE_KEYS, t.dout = t.q + BACKWARD_ITEMS;
    t.p = (key_row *)(t.dout + BACKWARD_ITEMS), t.ds = t.p + BACKWARD_ITEMS;
    return t;
  }

  // probabilities leaves p and its gradient by the scores, ds, of items [i0, i0 + 32) with the page at k0.
  INLINE void probabilities(const tiles &t, const attention_backward_arguments &a, const sequence &s, int64_t head, int64_t i0, int64_t all, int64_t k0) {
    const unsigned back = back_of(s);
    int ty = thread() / 16, tx = thread() % 16;
    float score[BACKWARD_PER][4], by_p[BACKWARD_PER][4];
    dots<D, BACKWARD_PER>(score, t.q, t.k);
    dots<D, BACKWARD_PER>(by_p, t.dout, t.v);
    UNROLL for (int i = 0; i < BACKWARD_PER; i++) {
      int64_t item = i0 + ty * BACKWARD_PER + i;
      float lse = 0.0f, delta = 0.0f;
      if (item < all) {
        lse = item_row(a.lse, s, item, a.group, head, 1)[0];
        delta = memory<const float>(a.delta)[item_number(a.c, s, item, a.group, head)];
      }
      UNROLL for (int j = 0; j < 4; j++) {
        bool sees = item < all && sees_key(back, row_of_item(item, a.group), k0 + tx + 16 * j);
        float p = exp_rn(score[i][j] * a.scale - lse), ds = p * (by_p[i][j] - delta) * a.scale;
        t.p[ty * BACKWARD_PER + i][tx + 16 * j] = sees ? p : 0.0f;
        t.ds[ty * BACKWARD_PER + i][tx + 16 * j] = sees ? ds : 0.0f;
      }
    }
  }

  // keys: a block is a tile whose item is a page number, and a key head (page_of_block). A range of rows that begins behind the page goes on with the chains in dk and dv.
  INLINE void keys(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(float, room);
    tiles t = place(room);
    const auto [tile, head] = page_of_block(a);
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    int64_t dim = a.c.dim, all = s.rows_to * a.group, k0 = (int64_t)tile.item * PAGE_KEYS;
    int64_t page = memory<const int32_t>(a.pages)[s.first_page + tile.item];
    int ty = thread() / 16, tx = thread() % 16;
    float dk[4][dims], dv[4][dims];
    UNROLL for (int i = 0; i < 4; i++)
      UNROLL for (int e = 0; e < dims; e++) {
        int64_t key = k0 + ty * 4 + i;
        bool go_on = s.rows_from > k0 && key < s.count && tx + 16 * e < dim;
        dk[i][e] = go_on ? row_of<float>(a.dk, s.row + key)[head * dim + tx + 16 * e] : 0.0f;
        dv[i][e] = go_on ? row_of<float>(a.dv, s.row + key)[head * dim + tx + 16 * e] : 0.0f;
      }
    read_page<D>(t.k, a.c, a.layer, page, head);
    read_page<D>(t.v, a.c, a.layer, page, a.c.heads + head);
    const int64_t end = rows_seeing(s, k0, s.rows_to) * a.group;
    for (int64_t i0 = (s.rows_from > k0 ? s.rows_from : k0) * a.group; i0 < end; i0 += BACKWARD_ITEMS) {
      barrier();
      read_items<D>(t.q, BACKWARD_ITEMS, a.q, s, i0, all, a.group, head, dim);
      read_items<D>(t.dout, BACKWARD_ITEMS, a.dout, s, i0, all, a.group, head, dim);
      barrier();
      probabilities(t, a, s, head, i0, all, k0);
      barrier();
      UNROLL_2 for (int item = 0; item < BACKWARD_ITEMS; item++)
        UNROLL for (int i = 0; i < 4; i++) {
          float p = t.p[item][ty * 4 + i], ds = t.ds[item][ty * 4 + i];
          UNROLL for (int e = 0; e < dims; e++) {
            dv[i][e] = fma_rn(p, t.dout[item][tx + 16 * e], dv[i][e]);
            dk[i][e] = fma_rn(ds, t.q[item][tx + 16 * e], dk[i][e]);
          }
        }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      int64_t key = k0 + ty * 4 + i;
      if (key >= s.count) continue;
      float *to_k = row_of<float>(a.dk, s.row + key) + head * dim, *to_v = row_of<float>(a.dv, s.row + key) + head * dim;
      UNROLL for (int e = 0; e < dims; e++)
        if (tx + 16 * e < dim) to_k[tx + 16 * e] = dk[i][e], to_v[tx + 16 * e] = dv[i][e];
    }
  }

  // queries: block (x, y) is a tile of 32 items and a key head. A range of keys that does not begin at 0 goes on with the chains in dq.
  INLINE void queries(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(float, room);
    tiles t = place(room);
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int32_t *pages = memory<const int32_t>(a.pages) + s.first_page;
    int64_t head = block_y(), dim = a.c.dim, all = s.rows_to * a.group, last = tile.item + BACKWARD_ITEMS < all ? tile.item + BACKWARD_ITEMS : all;
    int64_t last_position = row_of_item(last - 1, a.group);
    int ty = thread() / 16, tx = thread() % 16;
    float dq[BACKWARD_PER][dims];
    UNROLL for (int i = 0; i < BACKWARD_PER; i++)
      UNROLL for (int e = 0; e < dims; e++) {
        int64_t item = tile.item + ty * BACKWARD_PER + i;
        dq[i][e] = s.keys_from > 0 && item < all && tx + 16 * e < dim ? item_row(a.dq, s, item, a.group, head, dim)[tx + 16 * e] : 0.0f;
      }
    read_items<D>(t.q, BACKWARD_ITEMS, a.q, s, tile.item, all, a.group, head, dim);
    read_items<D>(t.dout, BACKWARD_ITEMS, a.dout, s, tile.item, all, a.group, head, dim);
    const int64_t first_page = first_page_seen(s, row_of_item(tile.item, a.group));
    for (int64_t k0 = s.keys_from > first_page ? s.keys_from : first_page; k0 <= last_position && k0 < s.keys_to; k0 += PAGE_KEYS) {
      barrier();
      read_page<D>(t.k, a.c, a.layer, pages[k0 / PAGE_KEYS], head);
      read_page<D>(t.v, a.c, a.layer, pages[k0 / PAGE_KEYS], a.c.heads + head);
      barrier();
      probabilities(t, a, s, head, tile.item, all, k0);
      barrier();
      UNROLL for (int i = 0; i < BACKWARD_PER; i++) {
        const int64_t position = row_of_item(tile.item + ty * BACKWARD_PER + i, a.group), end = position - k0 + 1, first = first_seen(s, position) - k0;
        UNROLL_2 for (int key = first > 0 ? (int)first : 0; key < PAGE_KEYS && key < end; key++) {
          float ds = t.ds[ty * BACKWARD_PER + i][key];
          UNROLL for (int e = 0; e < dims; e++) dq[i][e] = fma_rn(ds, t.k[key][tx + 16 * e], dq[i][e]);
        }
      }
    }
    UNROLL for (int i = 0; i < BACKWARD_PER; i++) {
      int64_t item = tile.item + ty * BACKWARD_PER + i;
      if (item >= all) continue;
      float *to = item_row(a.dq, s, item, a.group, head, dim);
      UNROLL for (int e = 0; e < dims; e++)
        if (tx + 16 * e < dim) to[tx + 16 * e] = dq[i][e];
    }
  }
};

#define ATTENTION_BACKWARD(D) \
  KERNEL(attention_backward_keys_##D, ATTENTION_THREADS, attention_backward_arguments) { attention_backward<D>::keys(a); } \
  KERNEL(attention_backward_queries_##D, ATTENTION_THREADS, attention_backward_arguments) { attention_backward<D>::queries(a); }
ATTENTION_BACKWARD(32)
ATTENTION_BACKWARD(64)
ATTENTION_BACKWARD(128)
ATTENTION_BACKWARD(256)
