// Causal attention over bfloat16 pages by warpgroups: the kernel of attention_tensor_forward.cu for many items. Each warpgroup has 64 items, which are a tile of those kernels, so that both go over the same pages and take what is not finite out of the same values.
// q is rows of bfloat16 as copies of 16 bytes take them.
#include "attention_group.h"

template <int D> struct group_attention {
  static constexpr int tile_bytes = PAGE_KEYS * D * 2, places = D <= 64 ? 8 : 6, results = D / 8;
  // A warpgroup's own room: for its queries, then for values of which what is not finite has been taken out.
  static constexpr int own_bytes = tile_bytes, flags = PAGE_KEYS + 4;

  // What a warpgroup has: items from first on, of which none are from all on, at these positions, and the keys of the pages that they see.
  struct group_tile {
    int first, from, to, first_position, last_position;
  };
  INLINE group_tile tile_of(const sequence &s, int64_t first, int64_t all, int64_t group) {
    if (first >= all) return {(int)first, 0, 0, 0, 0};
    const int64_t last = first + ATTENTION_GROUP_ITEMS < all ? first + ATTENTION_GROUP_ITEMS : all;
    const int64_t first_position = s.first + row_of_item(first, group), last_position = s.first + row_of_item(last - 1, group);
    return {(int)first, (int)first_page_seen(s, first_position), (int)(last_position / PAGE_KEYS + 1) * PAGE_KEYS, (int)first_position, (int)last_position};
  }

  struct state {
    float o[results][4], top[2], sum[2]; // a lane has rows lane/4 and lane/4 + 8 of its warp's
  };
  INLINE void begin(state &s) {
    UNROLL for (int i = 0; i < 2; i++) s.top[i] = -infinity(), s.sum[i] = 0.0f;
    UNROLL for (int c = 0; c < results; c++)
      UNROLL for (int e = 0; e < 4; e++) s.o[c][e] = 0.0f;
  }

  // clean_values is that of attention_tensor_forward.cu: it gives a copy without what is not finite, because the other warpgroup reads the values, too, of which its items may see all.
  INLINE const unsigned char *clean_values(const unsigned char *values, unsigned char *own, int *not_finite, float (&sum)[2], int64_t k0, const int64_t (&position)[2], unsigned back) {
    if (thread_in_group() <= PAGE_KEYS) not_finite[thread_in_group()] = 0;
    group_barrier(); // and all products with the copy of before are done
    UNROLL_2 for (int e = thread_in_group(); e < tile_bytes / 16; e += 128) {
      struct alignas(16) eight {
        bfloat16 v[8];
      } x = *(const eight *)(values + 16 * e);
      bool all_finite = true;
      UNROLL for (int i = 0; i < 8; i++)
        if ((x.v[i] & 0x7f80) == 0x7f80) x.v[i] = 0, all_finite = false;
      if (!all_finite) not_finite[16 * e % (PAGE_KEYS * SWIZZLE_ROW) / SWIZZLE_ROW] = 1, not_finite[PAGE_KEYS] = 1;
      *(eight *)(own + 16 * e) = x;
    }
    publish();
    group_barrier();
    if (not_finite[PAGE_KEYS])
      for (int key = 0; key < PAGE_KEYS; key++)
        UNROLL for (int i = 0; i < 2; i++)
          if (not_finite[key] && sees_key(back, position[i], k0 + key)) sum[i] = bits<float>(0x7fc00000u);
    return own;
  }

  INLINE void run(const attention_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    unsigned char *ring = round_up(room), *own = ring + places * tile_bytes + group_number() * own_bytes;
    int *not_finite = (int *)(ring + places * tile_bytes + ATTENTION_GROUPS * own_bytes) + group_number() * flags;
    const ring_barriers b = ring_begin<places>(ring + places * tile_bytes + ATTENTION_GROUPS * (own_bytes + flags * (int)sizeof(int)));
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int64_t head = block_y(), dim = a.c.dim, all = s.count * a.group;
    const group_tile front = tile_of(s, tile.item, all, a.group), rear = tile_of(s, tile.item + ATTENTION_GROUP_ITEMS, all, a.group);
    const int from = front.from, to = rear.to > front.to ? rear.to : front.to;
    if (brings()) {
      leave_registers<BRINGING_REGISTERS>();
      keys_and_values<D, places, 3>(b, ring, a.c, a.layer, memory<const int32_t>(a.pages) + s.first_page, head, from, to);
      return;
    }
    take_registers<MULTIPLYING_REGISTERS>();
    const group_tile mine = group_number() ? rear : front;
    auto reader = ring_reader<places>::begin(b);
    auto skip = [&](int keys) {
      for (; keys > 0; keys -= PAGE_KEYS) reader.skip(), reader.skip();
    };
    if (mine.to == 0) return skip(to - from);
    int64_t position[2];
    UNROLL for (int i = 0; i < 2; i++) {
      const int64_t item = mine.first + 16 * warp_in_group() + fragment_row() + 8 * i;
      position[i] = item < all ? s.first + row_of_item(item, a.group) : -1;
    }
    const unsigned back = back_of(s);
    unsigned q[D / 16][4];
    bring_items<D, ATTENTION_GROUP_ITEMS, 128>(own, a.q, s, mine.first, all, a.group, head, dim, thread_in_group());
    copy_async_commit();
    copy_async_wait<0>();
    publish(); // products never read these, but they may not follow copies that were not published
    group_barrier();
    UNROLL for (int d = 0; d < D / 16; d++) left_of_tile(q[d], own, 16 * warp_in_group(), d);

    state now;
    float total_top[2], total_sum[2], score[PAGE_KEYS / 8][4];
    begin(now);
    auto scores = [&](int place) INLINED {
      const shared_matrix k = along_rows(ring + place * tile_bytes);
      multiply_anew(as_row(score), q[0], k);
      UNROLL for (int d = 1; d < D / 16; d++) multiply_group<false>(as_row(score), q[d], further(k, inner<PAGE_KEYS>(d)));
    };
    skip(mine.from - from);
    int keys = reader.next();
    begin_products();
    scores(keys);
    end_products();
    finish_products(as_row(score));
    reader.leave(keys);
    for (int k0 = mine.from; k0 < mine.to; k0 += PAGE_KEYS) {
      const bool sees_all = all_see(back, mine.first_position, mine.last_position, k0);
      const seen_keys seen = seen_keys::of(position, back, k0, sees_all, 0);
      float top[2], base[2], fix[2], part[2];
      scale_scores(score, top, a.scale, seen);
      raise_tops(top, now.top, base, fix);
      exponentials(score, part, base, seen);
      add_part(now.sum, part, fix);
      UNROLL for (int i = 0; i < 2; i++) now.top[i] = top[i];
      UNROLL for (int c = 0; c < results; c++)
        UNROLL for (int e = 0; e < 4; e++) now.o[c][e] = now.o[c][e] * fix[e / 2];
      unsigned p[PAGE_KEYS / 16][4];
      UNROLL for (int g = 0; g < PAGE_KEYS / 16; g++) as_left(p[g], score[2 * g], score[2 * g + 1]);
      const int values = reader.next();
      const unsigned char *at = ring + values * tile_bytes;
      if (!sees_all) at = clean_values(at, own, not_finite, now.sum, k0, position, back);
      const shared_matrix v = down_rows(at, PAGE_KEYS * SWIZZLE_ROW);
      auto add_values = [&]() INLINED {
        UNROLL for (int g = 0; g < PAGE_KEYS / 16; g++) multiply_group<true>(as_row(now.o), p[g], further(v, 16 * g * SWIZZLE_ROW));
      };
      if (k0 + PAGE_KEYS < mine.to) { // the tensor cores go on to the scores of the next page
        keys = reader.next();
        begin_products();
        add_values();
        scores(keys);
        end_products();
        finish_products(as_row(now.o));
        finish_products(as_row(score));
        reader.leave(keys);
      } else {
        begin_products();
        add_values();
        end_products();
        finish_products(as_row(now.o));
      }
      reader.leave(values);
      if (!ends_part(s, k0, mine.to)) continue;
      store(a, s, now, total_top, total_sum, part_of(s, k0), mine.first, position, head);
      begin(now);
    }
    if (group_number() == 0) skip(tile_of(s, tile.item + fresh(ATTENTION_GROUP_ITEMS), all, a.group).to - mine.to); // once more: over the loop there is no register for it
  }

  // store puts a part's results behind those of the parts before, and writes items that see no more keys.
  INLINE void store(const attention_arguments &a, const sequence &s, const state &now, float (&total_top)[2], float (&total_sum)[2], int64_t part, int64_t first, const int64_t (&position)[2], int64_t head) {
    const int64_t dim = a.c.dim;
    UNROLL for (int i = 0; i < 2; i++) {
      if (position[i] < part * RESTART_KEYS) continue; // not an item, or one that sees nothing of the part
      const int64_t item = first + 16 * warp_in_group() + fragment_row() + 8 * i;
      float *out = item_row(a.o, s, item, a.group, head, dim); // holds the total of earlier parts
      float x = 0.0f, y = 1.0f, top = now.top[i], sum = now.sum[i];
      if (part > 0) {
        top = larger(total_top[i], now.top[i]), x = exp_rn(total_top[i] - top), y = exp_rn(now.top[i] - top);
        sum = merge(total_sum[i], x, now.sum[i], y);
      }
      total_top[i] = top, total_sum[i] = sum;
      const bool done = ends_in_part(s, position[i], part);
      UNROLL for (int c = 0; c < results; c++)
        UNROLL for (int e = 0; e < 2; e++) {
          const int d = 8 * c + fragment_column() + e;
          if (d >= dim) continue;
          const float v = part > 0 ? merge(out[d], x, now.o[c][2 * i + e], y) : now.o[c][2 * i + e];
          if (done) put_result(a, s, item, head, out, d, v / sum);
          else out[d] = v;
        }
      if (done && lane() % 4 == 0 && a.lse.at) item_row(a.lse, s, item, a.group, head, 1)[0] = top + log_rn(sum);
    }
  }
};

#define GROUP_ATTENTION(D) \
  KERNEL_BLOCKS(group_attention_##D, ATTENTION_GROUP_THREADS, 1, attention_arguments) { group_attention<D>::run(a); }
GROUP_ATTENTION(64)
GROUP_ATTENTION(128)
