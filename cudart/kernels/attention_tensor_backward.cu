// The gradient of attention over bfloat16 pages with tensor cores: the two kernels of attention_backward.cu in the arithmetic of attention_tensor.h. Scores and their gradients go from one product to the
// next in registers.
#include "attention_tensor.h"

enum { KEYS_ITEMS = 32, QUERIES_ITEMS = 64 }; // items that the kernel for keys takes at once, and that a block of the one for queries has

// Of heads over 128, whose sums do not fit into registers beside each other, the keys' gradients are those of two blocks, each of half the columns, and queries take half a page at a time. The chains are the same.
template <int D> struct tensor_attention_backward {
  static constexpr int keys_parts = D <= 128 ? 1 : 2, queries_keys = D <= 128 ? PAGE_KEYS : PAGE_KEYS / 2;
  template <int columns> using sums_of = float[columns / 8][4];

  template <int n> INLINE void clear(float (&s)[n][4]) {
    UNROLL for (int c = 0; c < n; c++)
      UNROLL for (int e = 0; e < 4; e++) s[c][e] = 0.0f;
  }

  // add adds left (16 × 16) times rows [0, 16) of the right operand, from a column on.
  template <int n> INLINE void add(float (&s)[n][4], const unsigned (&left)[4], tensor_row<D> *rows, int column) {
    UNROLL for (int c = 0; c < n; c += 2) {
      unsigned right[4];
      right_fragments_down(right, rows, column + 8 * c);
      multiply_16x8x16(s[c], left, right[0], right[1]);
      multiply_16x8x16(s[c + 1], left, right[2], right[3]);
    }
  }

  // both gives two products at once, of 16 rows with 16·n each: x = a · bᵀ and y = c · dᵀ.
  template <int n> INLINE void both(float (&x)[2 * n][4], tensor_row<D> *a, tensor_row<D> *b, float (&y)[2 * n][4], tensor_row<D> *c, tensor_row<D> *d) {
    UNROLL for (int j = 0; j < 2 * n; j++)
      UNROLL for (int e = 0; e < 4; e++) x[j][e] = 0.0f, y[j][e] = 0.0f;
    auto add_group = [&](int k) { // of 16 dimensions
      unsigned left[2][4], right[2][4];
      left_fragment(left[0], a, k);
      left_fragment(left[1], c, k);
      UNROLL for (int g = 0; g < n; g++) {
        right_fragments(right[0], b + 16 * g, k);
        right_fragments(right[1], d + 16 * g, k);
        UNROLL for (int h = 0; h < 2; h++) {
          multiply_16x8x16(x[2 * g + h], left[0], right[0][2 * h], right[0][2 * h + 1]);
          multiply_16x8x16(y[2 * g + h], left[1], right[1][2 * h], right[1][2 * h + 1]);
        }
      }
    };
    if constexpr (D <= 128) {
      UNROLL for (int k = 0; k < D; k += 16) add_group(k);
    } else {
      UNROLL_2 for (int k = 0; k < D; k += 16) add_group(k); // more at once need more registers than there are
    }
  }

  // probability turns a score into its probability and by_p into the gradient by the score; both are zero for a key that the item does not see.
  INLINE void probability(float &score, float &by_p, bool sees, float scale, float lse, float delta) {
    float p = exp_rn(score * scale - lse), ds = p * (by_p - delta) * scale;
    score = sees ? p : 0.0f, by_p = sees ? ds : 0.0f;
  }

  INLINE float delta_of(const attention_backward_arguments &a, const sequence &s, int64_t item, int64_t head) {
    return memory<const float>(a.delta)[item_number(a.c, s, item, a.group, head)];
  }

  // keys: block (x, z) is a tile whose item is a page number and a key head (page_of_block), and a part of the columns; a warp has 16 of the page's keys. A range of rows that begins behind the page goes on with the chains in dk and dv.
  INLINE void keys(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    tensor_row<D> *k = (tensor_row<D> *)room, *v = k + PAGE_KEYS, *q = v + PAGE_KEYS, *dout = q + KEYS_ITEMS;
    float *lse = (float *)(dout + KEYS_ITEMS), *delta = lse + KEYS_ITEMS;
    int *position = (int *)(delta + KEYS_ITEMS); // of an item, -1 for none
    const auto [tile, head] = page_of_block(a);
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    int64_t dim = a.c.dim, all = s.rows_to * a.group, k0 = (int64_t)tile.item * PAGE_KEYS;
    int64_t page = memory<const int32_t>(a.pages)[s.first_page + tile.item];
    constexpr int columns = D / keys_parts, results = columns / 8;
    const unsigned back = back_of(s);
    const int key0 = (int)k0 + 16 * warp() + fragment_row(), column = keys_parts > 1 ? (int)block_z() * columns : 0;
    sums_of<columns> dk, dv;
    clear(dk), clear(dv);
    UNROLL for (int e = 0; e < 4; e++) {
      int64_t key = key0 + e / 2 * 8;
      if (s.rows_from <= k0 || key >= s.count) continue;
      const float *from_k = row_of<float>(a.dk, s.row + key) + head * dim, *from_v = row_of<float>(a.dv, s.row + key) + head * dim;
      UNROLL for (int c = 0; c < results; c++) {
        int d = column + 8 * c + fragment_column() + e % 2;
        if (d < dim) dk[c][e] = from_k[d], dv[c][e] = from_v[d];
      }
    }
    fetch_page<D>(k, a.c, a.layer, page, head);
    fetch_page<D>(v, a.c, a.layer, page, a.c.heads + head);
    const int64_t end = rows_seeing(s, k0, s.rows_to) * a.group;
    for (int64_t i0 = (s.rows_from > k0 ? s.rows_from : k0) * a.group; i0 < end; i0 += KEYS_ITEMS) {
      float lse_here = 0.0f, delta_here = 0.0f; // on their way while the rows are brought
      int position_here = -1;
      if (thread() < KEYS_ITEMS && i0 + thread() < all) {
        lse_here = item_row(a.lse, s, i0 + thread(), a.group, head, 1)[0];
        delta_here = delta_of(a, s, i0 + thread(), head);
        position_here = (int)row_of_item(i0 + thread(), a.group);
      }
      barrier(); // all have read the items before
      round_items<D, KEYS_ITEMS>(q, a.q, a.q_type, s, i0, all, a.group, head, dim);
      round_items<D, KEYS_ITEMS>(dout, a.dout, FLOAT32, s, i0, all, a.group, head, dim);
      if (thread() < KEYS_ITEMS) lse[thread()] = lse_here, delta[thread()] = delta_here, position[thread()] = position_here;
      copy_async_wait<0>(); // the page's, too, of the first items
      barrier();
      float p[KEYS_ITEMS / 8][4], ds[KEYS_ITEMS / 8][4]; // a row is a key, a column an item
      both<KEYS_ITEMS / 16>(p, k + 16 * warp(), q, ds, v + 16 * warp(), dout);
      UNROLL for (int j = 0; j < KEYS_ITEMS / 8; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          int i = 8 * j + fragment_column() + e % 2;
          probability(p[j][e], ds[j][e], (unsigned)(position[i] - (key0 + e / 2 * 8)) < back, a.scale, lse[i], delta[i]);
        }
      UNROLL for (int g = 0; g < KEYS_ITEMS / 16; g++) {
        unsigned left[4];
        as_left(left, p[2 * g], p[2 * g + 1]);
        add(dv, left, dout + 16 * g, column);
        as_left(left, ds[2 * g], ds[2 * g + 1]);
        add(dk, left, q + 16 * g, column);
      }
    }
    UNROLL for (int e = 0; e < 4; e++) {
      int64_t key = key0 + e / 2 * 8;
      if (key >= s.count) continue;
      float *to_k = row_of<float>(a.dk, s.row + key) + head * dim, *to_v = row_of<float>(a.dv, s.row + key) + head * dim;
      UNROLL for (int c = 0; c < results; c++) {
        int d = column + 8 * c + fragment_column() + e % 2;
        if (d < dim) to_k[d] = dk[c][e], to_v[d] = dv[c][e];
      }
    }
  }

  // queries: block (x, y) is a tile of 64 items and a key head; a warp has 16 of the items. A range of keys that does not begin at 0 goes on with the chains in dq.
  INLINE void queries(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    tensor_row<D> *k = (tensor_row<D> *)room, *v = k + PAGE_KEYS, *q = v + PAGE_KEYS, *dout = q + QUERIES_ITEMS;
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int32_t *pages = memory<const int32_t>(a.pages) + s.first_page;
    int64_t head = block_y(), dim = a.c.dim, all = s.rows_to * a.group, last = tile.item + QUERIES_ITEMS < all ? tile.item + QUERIES_ITEMS : all;
    int64_t last_position = row_of_item(last - 1, a.group), item0 = tile.item + 16 * warp() + fragment_row();
    float lse[2], delta[2];
    int position[2];
    const unsigned back = back_of(s);
    constexpr int results = D / 8;
    sums_of<D> dq;
    clear(dq);
    UNROLL for (int i = 0; i < 2; i++) {
      int64_t item = item0 + 8 * i;
      bool have = item < all;
      lse[i] = have ? item_row(a.lse, s, item, a.group, head, 1)[0] : 0.0f;
      delta[i] = have ? delta_of(a, s, item, head) : 0.0f;
      position[i] = have ? (int)row_of_item(item, a.group) : -1;
      if (!have || s.keys_from == 0) continue;
      const float *from = item_row(a.dq, s, item, a.group, head, dim);
      UNROLL for (int c = 0; c < results; c++)
        UNROLL for (int e = 0; e < 2; e++) {
          int d = 8 * c + fragment_column() + e;
          if (d < dim) dq[c][2 * i + e] = from[d];
        }
    }
    round_items<D, QUERIES_ITEMS>(q, a.q, a.q_type, s, tile.item, all, a.group, head, dim);
    round_items<D, QUERIES_ITEMS>(dout, a.dout, FLOAT32, s, tile.item, all, a.group, head, dim);
    const int64_t first_page = first_page_seen(s, row_of_item(tile.item, a.group));
    for (int64_t k0 = s.keys_from > first_page ? s.keys_from : first_page; k0 <= last_position && k0 < s.keys_to; k0 += PAGE_KEYS) {
      barrier();
      fetch_page<D>(k, a.c, a.layer, pages[k0 / PAGE_KEYS], head);
      fetch_page<D>(v, a.c, a.layer, pages[k0 / PAGE_KEYS], a.c.heads + head);
      copy_async_wait<0>();
      barrier();
      UNROLL for (int from = 0; from < PAGE_KEYS; from += queries_keys) {
        float p[queries_keys / 8][4], ds[queries_keys / 8][4];
        both<queries_keys / 16>(p, q + 16 * warp(), k + from, ds, dout + 16 * warp(), v + from);
        UNROLL for (int j = 0; j < queries_keys / 8; j++)
          UNROLL for (int e = 0; e < 4; e++)
            probability(p[j][e], ds[j][e], (unsigned)(position[e / 2] - ((int)k0 + from + 8 * j + fragment_column() + e % 2)) < back, a.scale, lse[e / 2], delta[e / 2]);
        UNROLL for (int g = 0; g < queries_keys / 16; g++) {
          unsigned left[4];
          as_left(left, ds[2 * g], ds[2 * g + 1]);
          add(dq, left, k + from + 16 * g, 0);
        }
      }
    }
    UNROLL for (int e = 0; e < 4; e++) {
      int64_t item = item0 + e / 2 * 8;
      if (item >= all) continue;
      float *to = item_row(a.dq, s, item, a.group, head, dim);
      UNROLL for (int c = 0; c < results; c++) {
        int d = 8 * c + fragment_column() + e % 2;
        if (d < dim) to[d] = dq[c][e];
      }
    }
  }
};

#define TENSOR_ATTENTION_BACKWARD(D) \
  KERNEL(tensor_attention_backward_keys_##D, TENSOR_THREADS, attention_backward_arguments) { tensor_attention_backward<D>::keys(a); } \
  KERNEL(tensor_attention_backward_queries_##D, TENSOR_THREADS, attention_backward_arguments) { tensor_attention_backward<D>::queries(a); }
TENSOR_ATTENTION_BACKWARD(64)
TENSOR_ATTENTION_BACKWARD(128)
TENSOR_ATTENTION_BACKWARD(256)
