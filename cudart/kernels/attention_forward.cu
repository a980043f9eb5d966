// Causal attention over pages, for prefill, decoding and training in one arithmetic. For every item: pages of 64 keys in ascending order; a score is a chain over the
// dimension, an output element a chain over the keys, the maximum and the sum of a page a fixed tree; the running softmax begins anew every 2,048 keys and the parts are
// merged in order. Within a window it never does. Keys that an item does not see are left out, not multiplied by zero. So an item's bits depend on nothing but its query and the keys up to it: not on
// the tile, the cut of the sequence, or whether parts are computed by one block (attention) or by one each (attention_part, for few long sequences).
#include "attention.h"

template <int D, int PER, bool split> struct attention_block {
  static constexpr int items = 16 * PER, dims = D / 16;

  struct state {
    float o[PER][dims], top[PER], sum[PER];
  };
  INLINE void begin(state &s) {
    UNROLL for (int i = 0; i < PER; i++) {
      s.top[i] = -infinity(), s.sum[i] = 0.0f;
      UNROLL for (int e = 0; e < dims; e++) s.o[i][e] = 0.0f;
    }
  }

  // page adds one page; with all, every item sees every key of it.
  INLINE void page(state &s, const attention_arguments &a, int64_t head, int64_t number, int32_t k0, const int32_t (&position)[PER], unsigned back, bool all, float (*q)[D + 1],
                   float (*kv)[D + 1], float (*p)[PAGE_KEYS + 1]) {
    int ty = thread() / 16, tx = thread() % 16;
    float score[PER][4];
    barrier();
    read_page<D>(kv, a.c, a.layer, number, head);
    barrier();
    dots<D, PER>(score, q, kv);
    UNROLL for (int i = 0; i < PER; i++) {
      float most = -infinity();
      UNROLL for (int j = 0; j < 4; j++) {
        score[i][j] = score[i][j] * a.scale;
        if (sees_key(back, position[i], k0 + tx + 16 * j)) most = larger(score[i][j], most);
      }
      UNROLL for (int m = 8; m; m >>= 1) most = larger(most, shuffle_xor(most, m));
      float top = larger(most, s.top[i]), base = top == -infinity() ? 0.0f : top, part = 0.0f;
      float fix = s.top[i] == top ? 1.0f : exp_rn(s.top[i] - base);
      UNROLL for (int j = 0; j < 4; j++) {
        float e = sees_key(back, position[i], k0 + tx + 16 * j) ? exp_rn(score[i][j] - base) : 0.0f;
        p[ty * PER + i][tx + 16 * j] = e;
        part = part + e;
      }
      UNROLL for (int m = 8; m; m >>= 1) part = part + shuffle_xor(part, m);
      s.sum[i] = fma_rn(s.sum[i], fix, part);
      s.top[i] = top;
      UNROLL for (int e = 0; e < dims; e++) s.o[i][e] = s.o[i][e] * fix;
    }
    barrier();
    read_page<D>(kv, a.c, a.layer, number, a.c.heads + head);
    barrier();
    UNROLL_2 for (int key = 0; key < PAGE_KEYS; key++)
      UNROLL for (int i = 0; i < PER; i++) {
        if (!all && !sees_key(back, position[i], k0 + key)) continue;
        float w = p[ty * PER + i][key];
        UNROLL for (int e = 0; e < dims; e++) s.o[i][e] = fma_rn(w, kv[key][tx + 16 * e], s.o[i][e]);
      }
  }

  INLINE void run(const attention_arguments &a) {
    DYNAMIC_SHARED(float, room);
    float(*q)[D + 1] = (float(*)[D + 1])room, (*kv)[D + 1] = q + items, (*p)[PAGE_KEYS + 1] = (float(*)[PAGE_KEYS + 1])(kv + PAGE_KEYS);
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int32_t *pages = memory<const int32_t>(a.pages) + s.first_page;
    int ty = thread() / 16, tx = thread() % 16;
    int64_t head = block_y(), dim = a.c.dim, all = s.count * a.group, last = tile.item + items < all ? tile.item + items : all;
    int32_t position[PER]; // of 64 bits each, registers would spill
    int64_t first_position = s.first + row_of_item(tile.item, a.group), last_position = s.first + row_of_item(last - 1, a.group);
    UNROLL for (int i = 0; i < PER; i++) position[i] = tile.item + ty * PER + i < all ? (int32_t)(s.first + row_of_item(tile.item + ty * PER + i, a.group)) : -1;
    const key_range keys = keys_of_block(s, first_position, last_position, split, block_z());
    if (keys.from >= keys.to) return; // this part has no keys for the tile
    const unsigned back = back_of(s);
    read_items<D>(q, items, a.q, s, tile.item, all, a.group, head, dim);

    state now;
    float total_top[PER], total_sum[PER];
    begin(now);
    for (int64_t k0 = keys.from; k0 < keys.to; k0 += PAGE_KEYS) {
      page(now, a, head, pages[k0 / PAGE_KEYS], (int32_t)k0, position, back, all_see(back, first_position, last_position, k0), q, kv, p);
      if (!ends_part(s, k0, keys.to)) continue;
      const int64_t part = part_of(s, k0);
      UNROLL for (int i = 0; i < PER; i++) {
        if (position[i] < part * RESTART_KEYS) continue; // not an item, or one that sees nothing of the part
        int64_t item = tile.item + ty * PER + i;
        if (split) {
          float *out = memory<float>(a.parts) + (item_number(a.c, s, item, a.group, head) * a.part_count + part) * (dim + 2);
          UNROLL for (int e = 0; e < dims; e++)
            if (tx + 16 * e < dim) out[tx + 16 * e] = now.o[i][e];
          if (tx == 0) out[dim] = now.top[i], out[dim + 1] = now.sum[i];
          continue;
        }
        float *out = item_row(a.o, s, item, a.group, head, dim); // holds the total of earlier parts
        float x = 0.0f, y = 1.0f, top = now.top[i], sum = now.sum[i];
        if (part > 0) {
          top = larger(total_top[i], now.top[i]), x = exp_rn(total_top[i] - top), y = exp_rn(now.top[i] - top);
          sum = merge(total_sum[i], x, now.sum[i], y);
        }
        total_top[i] = top, total_sum[i] = sum;
        bool done = ends_in_part(s, position[i], part);
        UNROLL for (int e = 0; e < dims; e++) {
          if (tx + 16 * e >= dim) continue;
          float v = part > 0 ? merge(out[tx + 16 * e], x, now.o[i][e], y) : now.o[i][e];
          out[tx + 16 * e] = done ? v / sum : v;
        }
        if (done && tx == 0 && a.lse.at) item_row(a.lse, s, item, a.group, head, 1)[0] = top + log_rn(sum);
      }
      begin(now);
    }
  }
};

#define ATTENTION(name, D, PER, split) \
  KERNEL(name, ATTENTION_THREADS, attention_arguments) { attention_block<D, PER, split>::run(a); }
ATTENTION(attention_32, 32, 4, false)
ATTENTION(attention_64, 64, 4, false)
ATTENTION(attention_128, 128, 4, false)
ATTENTION(attention_256, 256, 4, false)
ATTENTION(attention_few_32, 32, 1, false)
ATTENTION(attention_few_64, 64, 1, false)
ATTENTION(attention_few_128, 128, 1, false)
ATTENTION(attention_few_256, 256, 1, false)
ATTENTION(attention_part_32, 32, 1, true)
ATTENTION(attention_part_64, 64, 1, true)
ATTENTION(attention_part_128, 128, 1, true)
ATTENTION(attention_part_256, 256, 1, true)

// attention_merge puts the parts of split attention together; block (x, y) is an entry of the tiles (16 items from it on) and a key head, a warp an item at a time.
KERNEL(attention_merge, ATTENTION_THREADS, attention_arguments) {
  const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
  const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
  int64_t head = block_y(), dim = a.c.dim, all = s.count * a.group;
  for (int64_t item = tile.item + warp(); item < tile.item + 16 && item < all; item += ATTENTION_THREADS / 32) {
    const float *in = memory<const float>(a.parts) + item_number(a.c, s, item, a.group, head) * a.part_count * (dim + 2);
    int64_t parts = part_of(s, s.first + row_of_item(item, a.group)) + 1;
    float *out = item_row(a.o, s, item, a.group, head, dim), sum = 0.0f, top = 0.0f;
    for (int64_t d = lane(); d < dim; d += 32) {
      float v = in[d];
      top = in[dim], sum = in[dim + 1];
      for (int64_t part = 1; part < parts; part++) {
        const float *next = in + part * (dim + 2);
        float most = larger(top, next[dim]), x = exp_rn(top - most), y = exp_rn(next[dim] - most);
        v = merge(v, x, next[d], y);
        sum = merge(sum, x, next[dim + 1], y);
        top = most;
      }
      put_result(a, s, item, head, out, d, v / sum);
    }
    if (lane() == 0 && a.lse.at) item_row(a.lse, s, item, a.group, head, 1)[0] = top + log_rn(sum);
  }
}
