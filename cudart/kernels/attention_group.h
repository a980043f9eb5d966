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

// left_of_tile reads 16 rows, from one on, and 16 columns, the d-th of a matrix of 64 rows, as the left operand.
INLINE void left_of_tile(unsigned (&r)[4], const unsigned char *tile, int row, int d) { load_matrices(r, tile + place_of_chunk<ATTENTION_GROUP_ITEMS>(row + lane() % 16, 2 * d + lane() / 16)); }

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

// A page in the running softmax of a warp's items, where a lane has scores of two items: fragments of groups of 16 keys, as results of products have them. The operations and their order are those of attention_tensor_forward.cu and
// attention_tensor_backward.cu; in these they are not shared, because the compiler then takes more registers for heads of 256 elements than there are.

// seen_keys are the keys that a lane's items see, counted from the lane's first in the fragments, whose first group begins at a key of the page.
struct seen_keys {
  int last[2], first[2];

  INLINE seen_keys of(const int64_t (&position)[2], unsigned back, int64_t k0, bool all, int first_key) {
    seen_keys k;
    UNROLL for (int i = 0; i < 2; i++) {
      k.last[i] = all || position[i] >= k0 + PAGE_KEYS ? PAGE_KEYS : (int)(position[i] - k0) - first_key - fragment_column();
      k.first[i] = all || position[i] - k0 < back ? -PAGE_KEYS : (int)(position[i] - k0 - back) + 1 - first_key - fragment_column();
    }
    return k;
  }
  INLINE_MEMBER bool sees(int j, int e) const { return (8 * j + e % 2 <= last[e / 2]) & (8 * j + e % 2 >= first[e / 2]); }
};

// scale_scores gives the largest of each item's, of all lanes that have some of them.
template <int n> INLINE void scale_scores(float (&score)[n][4], float (&top)[2], float scale, const seen_keys &keys) {
  UNROLL for (int i = 0; i < 2; i++) top[i] = -infinity();
  UNROLL for (int j = 0; j < n; j++)
    UNROLL for (int e = 0; e < 4; e++) {
      score[j][e] = score[j][e] * scale;
      if (keys.sees(j, e)) top[e / 2] = larger(score[j][e], top[e / 2]);
    }
  UNROLL for (int i = 0; i < 2; i++)
    for (int m = 1; m < 4; m *= 2) top[i] = larger(top[i], shuffle_xor(top[i], m));
}

// raise_tops makes top the largest score with those of before: exponentials are of a score less base, and what there was before is multiplied by fix.
INLINE void raise_tops(float (&top)[2], const float (&before)[2], float (&base)[2], float (&fix)[2]) {
  UNROLL for (int i = 0; i < 2; i++) {
    top[i] = larger(top[i], before[i]);
    base[i] = top[i] == -infinity() ? 0.0f : top[i];
    fix[i] = before[i] == top[i] ? 1.0f : exp_rn(before[i] - base[i]);
  }
}

// exponentials makes scores probabilities, but for the factor, and gives the lane's sums: a chain over the groups.
template <int n> INLINE void exponentials(float (&score)[n][4], float (&part)[2], const float (&base)[2], const seen_keys &keys) {
  part[0] = part[1] = 0.0f;
  UNROLL for (int g = 0; g < n / 2; g++) {
    float of_group[2] = {0.0f, 0.0f};
    UNROLL for (int j = 2 * g; j < 2 * g + 2; j++)
      UNROLL for (int e = 0; e < 4; e++) {
        float p = exp_rn(score[j][e] - base[e / 2]);
        here(p); // without branches
        score[j][e] = keys.sees(j, e) ? p : 0.0f;
        of_group[e / 2] = of_group[e / 2] + score[j][e];
      }
    UNROLL for (int i = 0; i < 2; i++) part[i] = part[i] + of_group[i];
  }
}

// add_part adds a page's sums, of the four lanes that have an item, to those of before.
INLINE void add_part(float (&sum)[2], float (&part)[2], const float (&fix)[2]) {
  UNROLL for (int i = 0; i < 2; i++) {
    for (int m = 1; m < 4; m *= 2) part[i] = part[i] + shuffle_xor(part[i], m);
    sum[i] = fma_rn(sum[i], fix[i], part[i]);
  }
}

// In the gradient: probability turns a score into its probability and by_p into the gradient by the score; both are zero for a key that the item does not see.
INLINE void probability(float &score, float &by_p, bool sees, float scale, float lse, float delta) {
  float p = exp_rn(score * scale - lse), ds = p * (by_p - delta) * scale;
  score = sees ? p : 0.0f, by_p = sees ? ds : 0.0f;
}
INLINE float delta_of(const attention_backward_arguments &a, const sequence &s, int64_t item, int64_t head) { return memory<const float>(a.delta)[item_number(a.c, s, item, a.group, head)]; }
