// Causal attention over bfloat16 pages with tensor cores: the order of attention_forward.cu (pages of 64 keys ascending, a new running softmax every 2,048 keys, parts merged in order), in the arithmetic of
// attention_tensor.h. A block has 64 items, a warp 16 of them; or, for decoding, 16 items, of which each warp has a quarter of a page's keys and a quarter of the output's columns. Both add in the same
// order: an output element is a chain of groups of 16 keys; a page's sum of exponentials is, for each quarter of the columns of a fragment, the chain over the groups of 16 keys, and then a tree over the quarters.
#include "attention_tensor.h"

template <int D, bool few, bool split> struct tensor_attention {
  static constexpr int items = few ? 16 : 64, key_groups = few ? 1 : 4, results = few ? D / 32 : D / 8; // of a warp: groups of 16 keys, results of 8 columns of the output
  static constexpr bool held = few || D <= 128; // queries in registers; else they are read for every page, for there is no room beside the output
  static constexpr int places = few ? 2 : 1; // for pages: keys and values of the next are on their way where little is computed with one

  // shared memory of a block
  struct tiles {
    tensor_row<D> *q, *k, *v; // k and v in the first place; those in the second follow
    // The others are, for few items, where q was, which is in registers before they are written: then a multiprocessor has room for three blocks.
    int *not_finite; // for each key of a page whether its value is not finite, and for any
    bfloat16 (*p)[PAGE_KEYS + SHARED_PAD];
    float (*tops)[4], (*sums)[16];
  };
  INLINE tiles place(unsigned char *room) {
    tiles t;
    t.k = (tensor_row<D> *)room, t.v = t.k + PAGE_KEYS, t.q = t.k + 2 * places * PAGE_KEYS;
    t.not_finite = (int *)(few ? t.q : t.q + items);
    t.p = (bfloat16(*)[PAGE_KEYS + SHARED_PAD])(t.not_finite + PAGE_KEYS + 4);
    t.tops = (float(*)[4])(t.p + 16), t.sums = (float(*)[16])(t.tops + 16);
    return t;
  }

  struct state {
    float o[results][4], top[2], sum[2]; // a lane has rows lane/4 and lane/4 + 8
  };
  INLINE void begin(state &s) {
    UNROLL for (int i = 0; i < 2; i++) s.top[i] = -infinity(), s.sum[i] = 0.0f;
    UNROLL for (int c = 0; c < results; c++)
      UNROLL for (int e = 0; e < 4; e++) s.o[c][e] = 0.0f;
  }

  // in_place gives the tiles with the keys and values of the page at k0.
  INLINE tiles in_place(const tiles &t, int64_t k0) {
    tiles at = t;
    int further = k0 / PAGE_KEYS % places * 2 * PAGE_KEYS;
    at.k += further, at.v += further;
    return at;
  }
  INLINE void fetch_keys(const tiles &t, const attention_arguments &a, int64_t head, int64_t number, int64_t k0) { fetch_page<D>(in_place(t, k0).k, a.c, a.layer, number, head); }
  INLINE void fetch_values(const tiles &t, const attention_arguments &a, int64_t head, int64_t number, int64_t k0) { fetch_page<D>(in_place(t, k0).v, a.c, a.layer, number, a.c.heads + head); }

  // clean_values takes what is not finite out of a page's values, where some item does not see some key: zero times it would not be zero. An item that does see it becomes NaN as a whole.
  INLINE void clean_values(const tiles &t, state &s, int64_t k0, const int64_t (&position)[2], unsigned back) {
    if (thread() <= PAGE_KEYS) t.not_finite[thread()] = 0;
    barrier();
    for (int e = held ? thread() : (int)fresh(thread()); e < PAGE_KEYS * D; e += TENSOR_THREADS) {
      bfloat16 &x = t.v[e / D][e % D];
      if ((x & 0x7f80) == 0x7f80) x = 0, t.not_finite[e / D] = 1, t.not_finite[PAGE_KEYS] = 1;
    }
    barrier();
    if (!t.not_finite[PAGE_KEYS]) return;
    if constexpr (!held) k0 = fresh(k0); // else what it gives with positions is kept in registers, page after page
    for (int key = 0; key < PAGE_KEYS; key++)
      UNROLL for (int i = 0; i < 2; i++)
        if (t.not_finite[key] && sees_key(back, position[i], k0 + key)) s.sum[i] = bits<float>(0x7fc00000u);
  }

  // page adds the page at k0. Its keys have been asked for, where there are two places its values, too; those of page next are asked for on the way, unless that is negative.
  INLINE void page(const tiles &all_places, state &s, const unsigned (*q)[4], const attention_arguments &a, int64_t head, int64_t number, int64_t next, int64_t k0, const int64_t (&position)[2], unsigned back,
                   bool all) {
    const int first_group = few ? warp() : 0, column = few ? warp() * (D / 4) : 0;
    const tiles t = in_place(all_places, k0);
    copy_async_wait<0>();
    barrier(); // what was asked for is there, and all have read the values before
    if constexpr (!few) fetch_values(all_places, a, head, number, k0);
    else if (next >= 0) fetch_keys(all_places, a, head, next, k0 + PAGE_KEYS), fetch_values(all_places, a, head, next, k0 + PAGE_KEYS);
    float score[2 * key_groups][4];
    UNROLL for (int j = 0; j < 2 * key_groups; j++)
      UNROLL for (int e = 0; e < 4; e++) score[j][e] = 0.0f;
    auto add_group = [&](const unsigned (&q)[4], int d) { // of 16 dimensions
      UNROLL for (int g = 0; g < key_groups; g++) {
        unsigned right[4];
        right_fragments(right, t.k + 16 * (first_group + g), 16 * d);
        multiply_16x8x16(score[2 * g], q, right[0], right[1]);
        multiply_16x8x16(score[2 * g + 1], q, right[2], right[3]);
      }
    };
    if constexpr (held) {
      UNROLL for (int d = 0; d < D / 16; d++) add_group(q[d], d);
    } else {
      UNROLL_1 for (int d = 0; d < D / 16; d++) {
        unsigned fetched[4];
        left_fragment(fetched, t.q + 16 * warp(), 16 * d);
        add_group(fetched, d);
      }
    }
    int last[2], first[2]; // keys of the lane's that an item sees, counted from the lane's first
    UNROLL for (int i = 0; i < 2; i++) {
      last[i] = all || position[i] >= k0 + PAGE_KEYS ? PAGE_KEYS : (int)(position[i] - k0) - 16 * first_group - fragment_column();
      first[i] = all || position[i] - k0 < back ? -PAGE_KEYS : (int)(position[i] - k0 - back) + 1 - 16 * first_group - fragment_column();
    }
    auto sees = [&](int j, int e) { return (8 * j + e % 2 <= last[e / 2]) & (8 * j + e % 2 >= first[e / 2]); };
    float top[2] = {-infinity(), -infinity()};
    UNROLL for (int j = 0; j < 2 * key_groups; j++)
      UNROLL for (int e = 0; e < 4; e++) {
        score[j][e] = score[j][e] * a.scale;
        if (sees(j, e)) top[e / 2] = larger(score[j][e], top[e / 2]);
      }
    UNROLL for (int i = 0; i < 2; i++)
      for (int m = 1; m < 4; m *= 2) top[i] = larger(top[i], shuffle_xor(top[i], m));
    if constexpr (few) {
      UNROLL for (int i = 0; i < 2; i++)
        if (lane() % 4 == 0) t.tops[fragment_row() + 8 * i][warp()] = top[i];
      barrier();
      UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int w = 0; w < 4; w++) top[i] = larger(top[i], t.tops[fragment_row() + 8 * i][w]);
    }
    float base[2], fix[2], part[2];
    UNROLL for (int i = 0; i < 2; i++) {
      top[i] = larger(top[i], s.top[i]);
      base[i] = top[i] == -infinity() ? 0.0f : top[i];
      fix[i] = s.top[i] == top[i] ? 1.0f : exp_rn(s.top[i] - base[i]);
      part[i] = 0.0f;
    }
    UNROLL for (int g = 0; g < key_groups; g++) {
      float of_group[2] = {0.0f, 0.0f};
      UNROLL for (int j = 2 * g; j < 2 * g + 2; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          float p = exp_rn(score[j][e] - base[e / 2]);
          here(p); // without branches
          score[j][e] = sees(j, e) ? p : 0.0f;
          of_group[e / 2] = of_group[e / 2] + score[j][e];
        }
      UNROLL for (int i = 0; i < 2; i++) part[i] = part[i] + of_group[i];
    }
    if constexpr (few) {
      UNROLL for (int i = 0; i < 2; i++) t.sums[fragment_row() + 8 * i][4 * warp() + lane() % 4] = part[i];
      UNROLL for (int j = 0; j < 2; j++)
        UNROLL for (int i = 0; i < 2; i++)
          *(unsigned *)&t.p[fragment_row() + 8 * i][16 * warp() + 8 * j + fragment_column()] = narrow_two(score[j][2 * i], score[j][2 * i + 1]);
    }
    if constexpr (!few) copy_async_wait<0>();
    barrier(); // the values are there, and the probabilities of all warps, and all have read the keys
    if constexpr (!few)
      if (next >= 0) fetch_keys(all_places, a, head, next, k0 + PAGE_KEYS);
    if constexpr (few)
      UNROLL for (int i = 0; i < 2; i++) {
        part[i] = 0.0f;
        UNROLL for (int w = 0; w < 4; w++) part[i] = part[i] + t.sums[fragment_row() + 8 * i][4 * w + lane() % 4];
      }
    UNROLL for (int i = 0; i < 2; i++) {
      for (int m = 1; m < 4; m *= 2) part[i] = part[i] + shuffle_xor(part[i], m);
      s.sum[i] = fma_rn(s.sum[i], fix[i], part[i]);
      s.top[i] = top[i];
    }
    UNROLL for (int c = 0; c < results; c++)
      UNROLL for (int e = 0; e < 4; e++) s.o[c][e] = s.o[c][e] * fix[e / 2];
    if (!all) clean_values(t, s, k0, position, back);
    UNROLL for (int g = 0; g < 4; g++) {
      unsigned left[4];
      if constexpr (few) left_fragment(left, t.p, 16 * g);
      else as_left(left, score[2 * g], score[2 * g + 1]);
      UNROLL for (int c = 0; c < results; c += 2) {
        unsigned right[4];
        right_fragments_down(right, t.v + 16 * g, column + 8 * c);
        multiply_16x8x16(s.o[c], left, right[0], right[1]);
        multiply_16x8x16(s.o[c + 1], left, right[2], right[3]);
      }
    }
  }

  INLINE void run(const attention_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    const tiles t = place(room);
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int32_t *pages = memory<const int32_t>(a.pages) + s.first_page;
    const int first_item = few ? 0 : 16 * warp(), first_column = few ? warp() * (D / 4) : 0;
    int64_t head = block_y(), dim = a.c.dim, all = s.count * a.group, last = tile.item + items < all ? tile.item + items : all;
    int64_t position[2], first_position = s.first + row_of_item(tile.item, a.group), last_position = s.first + row_of_item(last - 1, a.group);
    UNROLL for (int i = 0; i < 2; i++) {
      int64_t item = tile.item + first_item + fragment_row() + 8 * i;
      position[i] = item < all ? s.first + row_of_item(item, a.group) : -1;
    }
    const key_range keys = keys_of_block(s, first_position, last_position, split, block_z());
    const int64_t from = keys.from, to = keys.to;
    if (from >= to) return; // this part has no keys for the tile
    const unsigned back = back_of(s);
    fetch_keys(t, a, head, pages[from / PAGE_KEYS], from);
    if constexpr (few) fetch_values(t, a, head, pages[from / PAGE_KEYS], from);
    round_items<D, items>(t.q, a.q, a.q_type, s, tile.item, all, a.group, head, dim);
    copy_async_wait<0>();
    barrier();
    unsigned q[held ? D / 16 : 1][4];
    if constexpr (held)
      UNROLL for (int d = 0; d < D / 16; d++) left_fragment(q[d], t.q + first_item, 16 * d);

    state now;
    float total_top[2], total_sum[2];
    begin(now);
    for (int64_t k0 = from; k0 < to; k0 += PAGE_KEYS) {
      page(t, now, q, a, head, pages[k0 / PAGE_KEYS], k0 + PAGE_KEYS < to ? pages[k0 / PAGE_KEYS + 1] : -1, k0, position, back, all_see(back, first_position, last_position, k0));
      if (!ends_part(s, k0, to)) continue;
      const int64_t part = part_of(s, k0);
      const uint64_t again = held ? 0 : (uint64_t)fresh(0); // read once more: over the loop there are no registers for it
      const attention_tile tile = memory<const attention_tile>(a.tiles + again)[block_x()];
      const sequence s = memory<const sequence>(a.sequences + again)[tile.sequence];
      UNROLL for (int i = 0; i < 2; i++) {
        if (position[i] < part * RESTART_KEYS) continue; // not an item, or one that sees nothing of the part
        int64_t item = tile.item + first_item + fragment_row() + 8 * i;
        if constexpr (split) {
          float *out = memory<float>(a.parts) + (item_number(a.c, s, item, a.group, head) * a.part_count + part) * (dim + 2);
          UNROLL for (int c = 0; c < results; c++)
            UNROLL for (int e = 0; e < 2; e++) {
              int d = first_column + 8 * c + fragment_column() + e;
              if (d < dim) out[d] = now.o[c][2 * i + e];
            }
          if (warp() == 0 && lane() % 4 == 0) out[dim] = now.top[i], out[dim + 1] = now.sum[i];
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
        UNROLL for (int c = 0; c < results; c++)
          UNROLL for (int e = 0; e < 2; e++) {
            int d = first_column + 8 * c + fragment_column() + e;
            if (d >= dim) continue;
            float v = part > 0 ? merge(out[d], x, now.o[c][2 * i + e], y) : now.o[c][2 * i + e];
            if (done) put_result(a, s, item, head, out, d, v / sum);
            else out[d] = v;
          }
        if (done && (!few || warp() == 0) && lane() % 4 == 0 && a.lse.at) item_row(a.lse, s, item, a.group, head, 1)[0] = top + log_rn(sum);
      }
      begin(now);
    }
  }
};

#define TENSOR_ATTENTION(name, D, few, split) \
  KERNEL(name, TENSOR_THREADS, attention_arguments) { tensor_attention<D, few, split>::run(a); }
// KERNEL_BLOCKS: it does with the registers of three blocks, of which there is room for as many; the compiler takes more by itself.
KERNEL_BLOCKS(tensor_attention_64, TENSOR_THREADS, 3, attention_arguments) { tensor_attention<64, false, false>::run(a); }
TENSOR_ATTENTION(tensor_attention_128, 128, false, false)
TENSOR_ATTENTION(tensor_attention_256, 256, false, false)
TENSOR_ATTENTION(tensor_attention_few_64, 64, true, false)
KERNEL_BLOCKS(tensor_attention_few_128, TENSOR_THREADS, 3, attention_arguments) { tensor_attention<128, true, false>::run(a); }
TENSOR_ATTENTION(tensor_attention_few_256, 256, true, false)
TENSOR_ATTENTION(tensor_attention_part_64, 64, true, true)
KERNEL_BLOCKS(tensor_attention_part_128, TENSOR_THREADS, 3, attention_arguments) { tensor_attention<128, true, true>::run(a); }
TENSOR_ATTENTION(tensor_attention_part_256, 256, true, true)
