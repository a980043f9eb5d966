// What the attention kernels by warpgroups share. The arithmetic is that of attention_tensor.h; matrices are multiplied by the instructions of warpgroup.h, whose results lie in the lanes of a warp as those of multiply_16x8x16 do, in the same
// order of groups of 16.
//
// A block has two warpgroups that multiply, each with tiles of its own, and one that brings what both read into a ring of places in shared memory. Two mbarriers of each place count the warps that have brought it and those that have left it. Rows
// come by copies of 16 bytes, because pages lie without the pattern that products read by; a tile is told about when those after it are on their way.
#pragma once
#include "attention_tensor.h"
#include "bulk.h"

enum {
  ATTENTION_GROUPS = 2,            // warpgroups of a block that multiply; the one that brings is behind them
  ATTENTION_GROUP_THREADS = 384,   // of a block
  ATTENTION_GROUP_ITEMS = 64,      // of a warpgroup
  BRINGING_REGISTERS = 40, MULTIPLYING_REGISTERS = 232, // of a thread: as many as three times the 168 of the launch
};

#define INLINED __attribute__((always_inline)) // of what a lambda does: products are not begun in one function and waited for in another

// The calling thread's warpgroup, its number in that, and its warp's.
INLINE int group_number() { return warp() / 4; }
INLINE int thread_in_group() { return thread() % 128; }
INLINE int warp_in_group() { return warp() % 4; }
INLINE bool brings() { return group_number() == ATTENTION_GROUPS; }

// A matrix of rows × D in shared memory is blocks of 64 columns, each with rows of 128 bytes. place_of_chunk is where chunk c of 8 columns of a row lies.
template <int rows> INLINE int place_of_chunk(int row, int c) { return c / 8 * (rows * SWIZZLE_ROW) + (int)swizzled(row, c % 8); }
// inner is the place in it of the 16 columns that are the d-th group of the inner axis, for products along its rows.
template <int rows> INLINE unsigned inner(int d) { return d / 4 * (rows * SWIZZLE_ROW) + d % 4 * 32; }

// bring_page starts copying one part of a page; columns from dim to D become zero. So many threads do it, who is the number of one.
template <int D, int threads> INLINE void bring_page(unsigned char *to, const cache &c, int64_t layer, int64_t page, int64_t part, int who) {
  const bfloat16 *from = memory<const bfloat16>(c.at) + page_part(c, layer, page, part);
  constexpr int across = D / 8;
  UNROLL_4 for (int i = 0; i < PAGE_KEYS * across / threads; i++) {
    const int e = i * threads + who, r = e / across, d = e % across;
    const bool have = 8 * d < c.dim;
    copy_async(to + place_of_chunk<PAGE_KEYS>(r, d), have ? from + r * (int)c.dim + 8 * d : from, have);
  }
}

// bring_items starts copying items [first, first + n) of rows of bfloat16 whose chunks of 8 lie at multiples of 16 bytes; items from all on, and columns from dim to D, become zero.
template <int D, int n, int threads> INLINE void bring_items(unsigned char *to, const view &v, const sequence &s, int64_t first, int64_t all, int64_t group, int64_t head, int64_t dim, int who) {
  constexpr int across = D / 8, step = threads / across;
  static_assert(threads % across == 0 && n % step == 0);
  const int row = who / across, d = who % across;
  const bfloat16 *from = memory<const bfloat16>(v.at);
  item_walk w = item_walk::begin(v, s, first + row, step, group, head, dim);
  UNROLL_4 for (int i = 0; i < n; i += step) {
    const bool have = first + row + i < all && 8 * d < dim;
    copy_async(to + place_of_chunk<n>(row + i, d), have ? from + w.at + 8 * d : from, have);
    item_walk::go_on(w);
  }
}

// The barriers of a ring's places, behind each other in shared memory.
struct ring_barriers {
  mbarrier *full, *empty;
};
template <int places> INLINE ring_barriers ring_begin(void *at) {
  ring_barriers b = {(mbarrier *)at, (mbarrier *)at + places};
  if (thread() == 0) {
    UNROLL for (int i = 0; i < places; i++) {
      mbarrier_init(b.full + i, 4);
      mbarrier_init(b.empty + i, 4 * ATTENTION_GROUPS);
    }
    mbarrier_init_done();
  }
  barrier();
  return b;
}

// ring_filler is a warp's that brings: next gives the place of the next tile when all have left it, sent comes behind the copies to it. While so many tiles ahead are on their way, the one before them is told about. Readers may need some tiles at
// once, of which the first is left when the last has come: with so many besides those ahead, a ring has one place more.
template <int places, int ahead> struct ring_filler {
  ring_barriers b;
  int place, told, waiting;
  unsigned parity;

  INLINE ring_filler begin(ring_barriers b) { return {b, 0, 0, 0, 1}; }
  INLINE_MEMBER int next() {
    mbarrier_wait(b.empty + place, parity);
    return place;
  }
  INLINE_MEMBER void tell() {
    publish();
    warp_barrier();
    if (lane() == 0) mbarrier_arrive(b.full + told);
    if (++told == places) told = 0;
    waiting--;
  }
  INLINE_MEMBER void sent() {
    copy_async_commit();
    if (++place == places) place = 0, parity ^= 1;
    if (++waiting <= ahead) return;
    copy_async_wait<ahead>();
    tell();
  }
  INLINE_MEMBER void end() {
    copy_async_wait<0>();
    while (waiting > 0) tell();
  }
};

// ring_reader is a warp's that reads: it waits for the next tile, and leaves places in their order.
template <int places> struct ring_reader {
  ring_barriers b;
  int place;
  unsigned parity;

  INLINE ring_reader begin(ring_barriers b) { return {b, 0, 0}; }
  INLINE_MEMBER int next() {
    const int at = place;
    mbarrier_wait(b.full + at, parity);
    if (++place == places) place = 0, parity ^= 1;
    return at;
  }
  // leave comes when the warp's products with what is there are done.
  INLINE_MEMBER void leave(int at) const {
    if (lane() == 0) mbarrier_arrive(b.empty + at);
  }
  INLINE_MEMBER void skip() {
    const int at = next();
    warp_barrier();
    leave(at);
  }
};

// keys_and_values has a bringing warpgroup fill the ring with the keys and the values of pages, one after the other.
template <int D, int places, int ahead>
INLINE void keys_and_values(ring_barriers b, unsigned char *ring, const cache &c, int64_t layer, const int32_t *pages, int64_t head, int from, int to) {
  auto filler = ring_filler<places, ahead>::begin(b);
  for (int k0 = from; k0 < to; k0 += PAGE_KEYS) {
    const int64_t page = pages[k0 / PAGE_KEYS];
    UNROLL for (int part = 0; part < 2; part++) {
      bring_page<D, 128>(ring + filler.next() * (PAGE_KEYS * D * 2), c, layer, page, head + part * c.heads, thread_in_group());
      filler.sent();
    }
  }
  filler.end();
}

// as_row sees results as products take them.
template <int n> INLINE float (&as_row(float (&v)[n][4]))[4 * n] { return *(float(*)[4 * n])v; }
