// Tokens from rows of logits: changes to single logits, and one draw per row. All sums are of integers and all decisions are the block's, so the order of threads has no influence. A row is one
// block's, which reads it again and again; nothing is sorted.
#include "arithmetic.h"

KERNEL(adjust_elements, 256, adjust_arguments) {
  const adjustment *list = memory<const adjustment>(a.list);
  EACH_COLUMN(i, a.count) {
    const adjustment j = list[i];
    float *x = row_of<float>(a.x, j.row) + j.column, v = *x;
    v = v > 0.0f ? v / j.divisor : v * j.divisor;
    *x = v - j.less + j.more;
  }
}

enum { DRAW_THREADS = 512 };

// weight_of is a probability in units of 2⁻⁴⁴, cut off.
INLINE uint64_t weight_of(float p) { return p > 0.0f ? (uint64_t)((p < 2.0f ? p : 2.0f) * 17592186044416.0f) : 0; }

// order_of has the order of logits; both zeros are one.
INLINE uint32_t order_of(float x) {
  uint32_t u = bits<uint32_t>(x);
  if (u == 0x80000000) u = 0;
  return u & 0x80000000 ? ~u : u | 0x80000000;
}

INLINE uint64_t block_total(uint64_t v, uint64_t *room) {
  barrier();
  room[thread()] = v;
  for (int half = DRAW_THREADS / 2; half; half >>= 1) {
    barrier();
    if (thread() < half) room[thread()] = room[thread()] + room[thread() + half];
  }
  barrier();
  return room[0];
}
INLINE uint64_t block_greatest(uint64_t v, uint64_t *room) {
  barrier();
  room[thread()] = v;
  for (int half = DRAW_THREADS / 2; half; half >>= 1) {
    barrier();
    if (thread() < half && room[thread() + half] > room[thread()]) room[thread()] = room[thread() + half];
  }
  barrier();
  return room[0];
}

// total is the sum of f over columns [from, to).
template <class F> INLINE uint64_t total(int64_t from, int64_t to, uint64_t *room, F f) {
  uint64_t v = 0;
  for (int64_t c = from + thread(); c < to; c += DRAW_THREADS) v += f(c);
  return block_total(v, room);
}
// greatest is the greatest f of all columns.
template <class F> INLINE uint64_t greatest(int64_t cols, uint64_t *room, F f) {
  uint64_t v = 0;
  for (int64_t c = thread(); c < cols; c += DRAW_THREADS) v = f(c) > v ? f(c) : v;
  return block_greatest(v, room);
}
// passing is the first column at which the running sum of f passes target, which the sum of all does.
template <class F> INLINE int64_t passing(int64_t cols, uint64_t target, uint64_t *room, F f) {
  int64_t from = 0, to = cols;
  while (to - from > 1) {
    int64_t middle = from + (to - from) / 2;
    uint64_t v = total(from, middle, room, f);
    if (v > target) to = middle;
    else target -= v, from = middle;
  }
  return from;
}
// reaching is the greatest order of which, and above which, the sum of f reaches need; 0 if all do not.
template <class F> INLINE uint32_t reaching(const float *x, int64_t cols, uint64_t need, uint64_t *room, F f) {
  uint32_t order = 0;
  for (uint32_t bit = 0x80000000; bit; bit >>= 1) {
    uint32_t trial = order | bit;
    if (total(0, cols, room, [=](int64_t c) { return order_of(x[c]) >= trial ? f(c) : 0; }) >= need) order = trial;
  }
  return order;
}

// Block x: the token of row x and its logit, see tensor.Drawer.
KERNEL(draw_tokens, DRAW_THREADS, draw_arguments) {
  SHARED(uint64_t, room[DRAW_THREADS]);
  const draw d = memory<const draw>(a.draws)[block_x()];
  const float *x = row_of<const float>(a.logits, block_x()), *p = row_of<const float>(a.probs, block_x());
  int64_t cols = a.logits.cols;
  auto heavy = [=](int64_t c) { return weight_of(p[c]); };
  auto one = [=](int64_t) { return (uint64_t)1; };

  // The likeliest, of equal ones that of the lowest id.
  int64_t token = ~(uint32_t)greatest(cols, room, [=](int64_t c) { return (uint64_t)order_of(x[c]) << 32 | ~(uint32_t)c; });

  if (d.top_k != 1) {
    // Left are the logits above least, and those that equal it before column end.
    uint32_t least = 0;
    int64_t end = cols;
    auto kept = [&](int64_t c) { return order_of(x[c]) > least || (order_of(x[c]) == least && c < end); };
    // cut keeps equals, so many that they make rest, of which each has share.
    auto cut = [&](uint64_t rest, uint64_t share) {
      uint32_t order = least;
      end = passing(cols, (rest + share - 1) / share - 1, room, [=](int64_t c) { return (uint64_t)(order_of(x[c]) == order); }) + 1;
    };
    if (d.top_k > 0 && d.top_k < cols) {
      uint32_t order = reaching(x, cols, (uint64_t)d.top_k, room, one);
      least = order;
      cut((uint64_t)d.top_k - total(0, cols, room, [=](int64_t c) { return (uint64_t)(order_of(x[c]) > order); }), 1);
    }
    auto left = [&](int64_t c) { return kept(c) ? weight_of(p[c]) : 0; };
    uint64_t all = total(0, cols, room, left);
    if (d.top_p < 1.0 && all > 0) {
      double wanted = d.top_p * (double)all;
      uint64_t need = (uint64_t)wanted;
      if ((double)need < wanted || need == 0) need++;
      uint32_t order = reaching(x, cols, need, room, heavy); // what top-k has cut off comes after it
      uint64_t above = total(0, cols, room, [=](int64_t c) { return order_of(x[c]) > order ? weight_of(p[c]) : 0; });
      least = order;
      cut(need - above, greatest(cols, room, [=](int64_t c) { return order_of(x[c]) == order ? weight_of(p[c]) : 0; }));
    }
    double floor = d.min_p * (double)p[token];
    auto drawn = [&](int64_t c) { return c == token || (double)p[c] >= floor ? left(c) : 0; };
    all = total(0, cols, room, drawn);
    uint64_t target = (uint64_t)(d.u * (double)all);
    if (target < all) token = passing(cols, target, room, drawn);
  }
  if (thread() == 0) {
    float *y = row_of<float>(a.y, block_x());
    y[0] = (float)token, y[1] = x[token];
  }
}
