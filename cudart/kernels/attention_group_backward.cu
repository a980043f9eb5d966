// The gradient of attention over bfloat16 pages by warpgroups: the two kernels of attention_tensor_backward.cu, with the same chains. q and dout are rows of bfloat16 as copies of 16 bytes take them, rounded before.
#include "attention_group.h"

enum { GROUP_STEP = 32 }; // items that the kernel for keys takes at once

template <int D> struct group_attention_backward {
  static constexpr int tile_bytes = PAGE_KEYS * D * 2, results = D / 8;
  using sums_of = float[results][4];

  INLINE void clear(sums_of &s) {
    UNROLL for (int c = 0; c < results; c++)
      UNROLL for (int e = 0; e < 4; e++) s[c][e] = 0.0f;
  }
  // each_row calls f(address, element of a fragment) for what a lane has of rows of v that have(row of the warpgroup, of which the lane has two) gives an address of.
  template <class Row, class F> INLINE void each_result(int64_t dim, Row row_at, F f) {
    UNROLL for (int e = 0; e < 4; e++) {
      float *row = row_at(16 * warp_in_group() + fragment_row() + e / 2 * 8);
      if (!row) continue;
      UNROLL for (int c = 0; c < results; c++) {
        const int d = 8 * c + fragment_column() + e % 2;
        if (d < dim) f(row[d], c, e);
      }
    }
  }

  // key_rows says where a row of a page is in dk or dv.
  struct key_rows {
    const view &of;
    const sequence &s;
    int k0;
    int64_t head, dim;
    INLINE_MEMBER float *operator()(int row) const { return k0 + row < s.count ? row_of<float>(of, s.row + k0 + row) + head * dim : nullptr; }
  };

  // A block of the kernel for keys has two pages, whose warpgroups go over the same items, from those on that see the first one.
  static constexpr int places = 5, rows_bytes = GROUP_STEP * D * 2, place_bytes = 2 * rows_bytes + SWIZZLE_BLOCK; // of q, of dout, and numbers of each item
  struct numbers {
    float lse[GROUP_STEP], delta[GROUP_STEP];
    int position[GROUP_STEP]; // -1 for none
  };
  INLINE numbers &numbers_at(unsigned char *place) { return *(numbers *)(place + 2 * rows_bytes); }

  struct page_tile {
    int from, to; // its items
  };
  INLINE page_tile page_of(const sequence &s, int64_t k0, int64_t group) {
    if (k0 >= s.keys_to || k0 >= s.rows_to) return {0, 0}; // there is no page
    return {(int)((s.rows_from > k0 ? s.rows_from : k0) * group), (int)(rows_seeing(s, k0, s.rows_to) * group)};
  }

  INLINE void bring_items_of(ring_barriers b, unsigned char *ring, const attention_backward_arguments &a, const sequence &s, int64_t head, int from, int to) {
    const int64_t dim = a.c.dim;
    const int who = thread_in_group(), all = (int)(s.rows_to * a.group);
    auto filler = ring_filler<places, 2>::begin(b);
    for (int i0 = from; i0 < to; i0 += GROUP_STEP) {
      unsigned char *place = ring + filler.next() * place_bytes;
      float lse = 0.0f, delta = 0.0f; // on their way while the rows are asked for
      int position = -1;
      if (who < GROUP_STEP && i0 + who < all) {
        lse = item_row(a.lse, s, i0 + who, a.group, head, 1)[0];
        delta = delta_of(a, s, i0 + who, head);
        position = (int)row_of_item(i0 + who, a.group);
      }
      bring_items<D, GROUP_STEP, 128>(place, a.q, s, i0, all, a.group, head, dim, who);
      bring_items<D, GROUP_STEP, 128>(place + rows_bytes, a.dout, s, i0, all, a.group, head, dim, who);
      if (who < GROUP_STEP) {
        numbers &n = numbers_at(place);
        n.lse[who] = lse, n.delta[who] = delta, n.position[who] = position;
      }
      filler.sent();
    }
    filler.end();
  }

  // keys: block x is a tile, whose item is the number of the first of its pages, and a key head (page_of_block).
  INLINE void keys(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    unsigned char *base = round_up(room), *k = base + 2 * group_number() * tile_bytes, *v = k + tile_bytes, *ring = base + 2 * ATTENTION_GROUPS * tile_bytes;
    const ring_barriers b = ring_begin<places>(ring + places * place_bytes);
    const page_and_head of = page_of_block(a);
    const attention_tile tile = of.tile;
    const int64_t head = of.head;
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int64_t dim = a.c.dim, first_key = (int64_t)tile.item * PAGE_KEYS;
    const page_tile front = page_of(s, first_key, a.group), rear = page_of(s, first_key + PAGE_KEYS, a.group);
    const int from = front.from, to = rear.to > front.to ? rear.to : front.to;
    if (brings()) {
      leave_registers<BRINGING_REGISTERS>();
      bring_items_of(b, ring, a, s, head, from, to);
      return;
    }
    take_registers<MULTIPLYING_REGISTERS>();
    const page_tile mine = group_number() ? rear : front;
    auto reader = ring_reader<places>::begin(b);
    auto skip = [&](int items) {
      for (; items > 0; items -= GROUP_STEP) reader.skip();
    };
    const int k0 = (int)first_key + group_number() * PAGE_KEYS;
    if (k0 >= s.keys_to || k0 >= s.rows_to) return skip(to - from);
    const int64_t page = memory<const int32_t>(a.pages)[s.first_page + tile.item + group_number()];
    bring_page<D, 128>(k, a.c, a.layer, page, head, thread_in_group());
    bring_page<D, 128>(v, a.c, a.layer, page, a.c.heads + head, thread_in_group());
    copy_async_commit();
    const unsigned back = back_of(s);
    sums_of dk, dv;
    clear(dk), clear(dv);
    if (s.rows_from > k0) {
      each_result(dim, key_rows{a.dk, s, k0, head, dim}, [&](const float &x, int c, int e) { dk[c][e] = x; });
      each_result(dim, key_rows{a.dv, s, k0, head, dim}, [&](const float &x, int c, int e) { dv[c][e] = x; });
    }
    copy_async_wait<0>();
    publish();
    group_barrier();

    float p[GROUP_STEP / 8][4], ds[GROUP_STEP / 8][4]; // a row is a key, a column an item
    auto scores = [&](int at) INLINED {
      const unsigned char *place = ring + at * place_bytes;
      const int64_t again = fresh(0); // else descriptors are kept in registers from step to step
      const shared_matrix keys = along_rows(k + again), values = along_rows(v + again), q = along_rows(place), dout = along_rows(place + rows_bytes);
      multiply_anew(as_row(p), keys, q);
      UNROLL for (int d = 1; d < D / 16; d++) multiply_group<false>(as_row(p), further(keys, inner<PAGE_KEYS>(d)), further(q, inner<GROUP_STEP>(d)));
      multiply_anew(as_row(ds), values, dout);
      UNROLL for (int d = 1; d < D / 16; d++) multiply_group<false>(as_row(ds), further(values, inner<PAGE_KEYS>(d)), further(dout, inner<GROUP_STEP>(d)));
    };
    skip((mine.from < to ? mine.from : to) - from);
    int at = 0;
    if (mine.from < mine.to) {
      at = reader.next();
      begin_products();
      scores(at);
      end_products();
      finish_products(as_row(p)), finish_products(as_row(ds));
    }
    int i0 = mine.from;
    for (; i0 < mine.to; i0 += GROUP_STEP) {
      const numbers &n = numbers_at(ring + at * place_bytes);
      UNROLL for (int j = 0; j < GROUP_STEP / 8; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          const int i = 8 * j + fragment_column() + e % 2;
          probability(p[j][e], ds[j][e], (unsigned)(n.position[i] - (k0 + 16 * warp_in_group() + fragment_row() + e / 2 * 8)) < back, a.scale, n.lse[i], n.delta[i]);
        }
      unsigned by_p[GROUP_STEP / 16][4], by_ds[GROUP_STEP / 16][4];
      UNROLL for (int g = 0; g < GROUP_STEP / 16; g++) as_left(by_p[g], p[2 * g], p[2 * g + 1]), as_left(by_ds[g], ds[2 * g], ds[2 * g + 1]);
      auto add = [&]() INLINED {
        const shared_matrix q = down_rows(ring + at * place_bytes, GROUP_STEP * SWIZZLE_ROW), dout = down_rows(ring + at * place_bytes + rows_bytes, GROUP_STEP * SWIZZLE_ROW);
        UNROLL for (int g = 0; g < GROUP_STEP / 16; g++) {
          multiply_group<true>(as_row(dv), by_p[g], further(dout, 16 * g * SWIZZLE_ROW));
          multiply_group<true>(as_row(dk), by_ds[g], further(q, 16 * g * SWIZZLE_ROW));
        }
      };
      const int done = at;
      if (i0 + GROUP_STEP < mine.to) { // the tensor cores go on to the next items
        const int next = reader.next();
        begin_products();
        add();
        scores(next);
        end_products();
        finish_products(as_row(dv)), finish_products(as_row(dk)), finish_products(as_row(p)), finish_products(as_row(ds));
        at = next;
      } else {
        begin_products();
        add();
        end_products();
        finish_products(as_row(dv)), finish_products(as_row(dk));
      }
      reader.leave(done);
    }
    // Once more: over the loop there are no registers for it.
    const uint64_t again = (uint64_t)fresh(0);
    const sequence now = memory<const sequence>(a.sequences + again)[memory<const attention_tile>(a.tiles + again)[(unsigned)block_x() / (unsigned)a.c.heads].sequence];
    each_result(dim, key_rows{a.dk, now, (int)fresh(k0), head, dim}, [&](float &x, int c, int e) { x = dk[c][e]; });
    each_result(dim, key_rows{a.dv, now, (int)fresh(k0), head, dim}, [&](float &x, int c, int e) { x = dv[c][e]; });
    skip(to - i0);
  }

  // queries: block (x, y) is a tile of 128 items and a key head.
  static constexpr int page_places = D <= 64 ? 8 : 6, own_bytes = 2 * tile_bytes; // queries on their way to registers, and dout

  // What a warpgroup has: items from first on, and the keys of the pages that they see.
  struct group_tile {
    int first, from, to;
  };
  INLINE group_tile tile_of(const sequence &s, int64_t first, int64_t all, int64_t group) {
    const int64_t last = (first + ATTENTION_GROUP_ITEMS < all ? first + ATTENTION_GROUP_ITEMS : all) - 1;
    if (first > last) return {(int)first, 0, 0};
    const int64_t seen = first_page_seen(s, row_of_item(first, group)), from = seen > s.keys_from ? seen : s.keys_from;
    int64_t to = row_of_item(last, group) + 1;
    if (to > s.keys_to) to = s.keys_to;
    return {(int)first, (int)from, to > from ? (int)(to + PAGE_KEYS - 1) / PAGE_KEYS * PAGE_KEYS : (int)from};
  }

  INLINE void queries(const attention_backward_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    unsigned char *ring = round_up(room), *own = ring + page_places * tile_bytes + group_number() * own_bytes, *dout = own + (own_bytes - tile_bytes);
    const ring_barriers b = ring_begin<page_places>(ring + page_places * tile_bytes + ATTENTION_GROUPS * own_bytes);
    const attention_tile tile = memory<const attention_tile>(a.tiles)[block_x()];
    const sequence s = memory<const sequence>(a.sequences)[tile.sequence];
    const int64_t head = block_y(), dim = a.c.dim, all = s.rows_to * a.group;
    const group_tile front = tile_of(s, tile.item, all, a.group), rear = tile_of(s, tile.item + ATTENTION_GROUP_ITEMS, all, a.group);
    const int from = front.from, to = rear.to > front.to ? rear.to : front.to;
    if (brings()) {
      leave_registers<BRINGING_REGISTERS>();
      keys_and_values<D, page_places, page_places - 4>(b, ring, a.c, a.layer, memory<const int32_t>(a.pages) + s.first_page, head, from, to);
      return;
    }
    take_registers<MULTIPLYING_REGISTERS>();
    const group_tile mine = group_number() ? rear : front;
    auto reader = ring_reader<page_places>::begin(b);
    auto skip = [&](int keys) {
      for (; keys > 0; keys -= PAGE_KEYS) reader.skip(), reader.skip();
    };
    if (mine.first >= all) return skip(to - from);
    bring_items<D, ATTENTION_GROUP_ITEMS, 128>(dout, a.dout, s, mine.first, all, a.group, head, dim, thread_in_group());
    bring_items<D, ATTENTION_GROUP_ITEMS, 128>(own, a.q, s, mine.first, all, a.group, head, dim, thread_in_group());
    copy_async_commit();
    const unsigned back = back_of(s);
    float lse[2], delta[2];
    int position[2];
    UNROLL for (int i = 0; i < 2; i++) {
      const int64_t item = mine.first + 16 * warp_in_group() + fragment_row() + 8 * i;
      const bool have = item < all;
      lse[i] = have ? item_row(a.lse, s, item, a.group, head, 1)[0] : 0.0f;
      delta[i] = have ? delta_of(a, s, item, head) : 0.0f;
      position[i] = have ? (int)row_of_item(item, a.group) : -1;
    }
    auto row_at = [&](int row) { return mine.first + row < all ? item_row(a.dq, s, mine.first + row, a.group, head, dim) : nullptr; };
    sums_of dq;
    clear(dq);
    if (s.keys_from > 0) each_result(dim, row_at, [&](const float &x, int c, int e) { dq[c][e] = x; });
    copy_async_wait<0>();
    publish();
    group_barrier();
    unsigned q[D / 16][4];
    UNROLL for (int d = 0; d < D / 16; d++) left_of_tile(q[d], own, 16 * warp_in_group(), d);

    float p[PAGE_KEYS / 8][4], ds[PAGE_KEYS / 8][4];
    auto scores = [&](int keys_at, int values_at) INLINED {
      const shared_matrix keys = along_rows(ring + keys_at * tile_bytes), values = along_rows(ring + values_at * tile_bytes), left = along_rows(dout + fresh(0)); // else descriptors are kept in registers from page to page
      multiply_anew(as_row(p), q[0], keys);
      UNROLL for (int d = 1; d < D / 16; d++) multiply_group<false>(as_row(p), q[d], further(keys, inner<PAGE_KEYS>(d)));
      multiply_anew(as_row(ds), left, values);
      UNROLL for (int d = 1; d < D / 16; d++) multiply_group<false>(as_row(ds), further(left, inner<PAGE_KEYS>(d)), further(values, inner<PAGE_KEYS>(d)));
    };
    skip((mine.from < to ? mine.from : to) - from);
    int keys = 0, values = 0;
    if (mine.from < mine.to) {
      keys = reader.next(), values = reader.next();
      begin_products();
      scores(keys, values);
      end_products();
      finish_products(as_row(p)), finish_products(as_row(ds));
      reader.leave(values);
    }
    for (int k0 = mine.from; k0 < mine.to; k0 += PAGE_KEYS) {
      UNROLL for (int j = 0; j < PAGE_KEYS / 8; j++)
        UNROLL for (int e = 0; e < 4; e++)
          probability(p[j][e], ds[j][e], (unsigned)(position[e / 2] - (k0 + 8 * j + fragment_column() + e % 2)) < back, a.scale, lse[e / 2], delta[e / 2]);
      unsigned by_ds[PAGE_KEYS / 16][4];
      UNROLL for (int g = 0; g < PAGE_KEYS / 16; g++) as_left(by_ds[g], ds[2 * g], ds[2 * g + 1]);
      auto add = [&]() INLINED {
        const shared_matrix k = down_rows(ring + keys * tile_bytes, PAGE_KEYS * SWIZZLE_ROW);
        UNROLL for (int g = 0; g < PAGE_KEYS / 16; g++) multiply_group<true>(as_row(dq), by_ds[g], further(k, 16 * g * SWIZZLE_ROW));
      };
      const int done = keys;
      if (k0 + PAGE_KEYS < mine.to) { // the tensor cores go on to the next page
        const int next = reader.next();
        values = reader.next();
        begin_products();
        add();
        scores(next, values);
        end_products();
        finish_products(as_row(dq)), finish_products(as_row(p)), finish_products(as_row(ds));
        reader.leave(values);
        keys = next;
      } else {
        begin_products();
        add();
        end_products();
        finish_products(as_row(dq));
      }
      reader.leave(done);
    }
    each_result(dim, row_at, [&](float &x, int c, int e) { x = dq[c][e]; });
    skip(to - (mine.to > mine.from ? mine.to : mine.from < to ? mine.from : to));
  }
};

#define GROUP_ATTENTION_BACKWARD(D) \
  KERNEL_BLOCKS(group_attention_backward_keys_##D, ATTENTION_GROUP_THREADS, 1, attention_backward_arguments) { group_attention_backward<D>::keys(a); } \
  KERNEL_BLOCKS(group_attention_backward_queries_##D, ATTENTION_GROUP_THREADS, 1, attention_backward_arguments) { group_attention_backward<D>::queries(a); }
GROUP_ATTENTION_BACKWARD(64)
GROUP_ATTENTION_BACKWARD(128)
