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

// Block (x, y): the row rows[x] loses the columns for which the mask x has no bit.
KERNEL(mask_columns, 256, mask_arguments) {
  const uint64_t *mask = memory<const uint64_t>(a.bits) + block_x() * a.words;
  float *x = row_of<float>(a.x, memory<const int32_t>(a.rows)[block_x()]);
  EACH_COLUMN(c, a.x.cols) {
    if (!(mask[c / 64] >> (c % 64) & 1)) x[c] = -infinity();
  }
}

// A thread asks for DRAW_HELD columns at once. Orders are searched in digits of DIGIT_BITS bits; DIGIT_COPIES are the sums of one digit, of which a lane has its own or shares it with one other.
enum { DRAW_THREADS = 512, DRAW_HELD = 8, DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, DIGIT_COPIES = 16 };

// weight_of is a probability in units of 2⁻⁴⁴, cut off.
INLINE uint64_t weight_of(float p) { return p > 0.0f ? (uint64_t)((p < 2.0f ? p : 2.0f) * 17592186044416.0f) : 0; }

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

// A row's columns, and shared memory of its block.
struct drawn_row {
  const float *logits, *probs;
  int cols;             // at most 2²⁴
  uint64_t *room;       // an element for each thread
  uint32_t *low, *high; // halves of a sum for each copy of each digit
};
struct logit_and_prob {
  float logit, prob;
};
INLINE void here(logit_and_prob &v) { here(v.logit), here(v.prob); }

// each_column does f(c, logit, probability) for columns [from, to). Probabilities are read if they are wanted.
template <bool probs, class F> INLINE void each_column(const drawn_row &r, int from, int to, F f) {
  const float *x = r.logits, *p = r.probs;
  if constexpr (probs) each_held<DRAW_THREADS, DRAW_HELD>(from + thread(), to, [=](int c) { return logit_and_prob{x[c], p[c]}; }, [&](int c, const logit_and_prob &v) { f(c, v.logit, v.prob); });
  else each_held<DRAW_THREADS, DRAW_HELD>(from + thread(), to, [=](int c) { return x[c]; }, [&](int c, float v) { f(c, v, 0.0f); });
}

// total is the sum of f over columns [from, to).
template <bool probs, class F> INLINE uint64_t total(const drawn_row &r, int from, int to, F f) {
  uint64_t v = 0;
  each_column<probs>(r, from, to, [&](int c, float logit, float prob) { v += f(c, logit, prob); });
  return block_total(v, r.room);
}
// greatest is the greatest f of all columns.
template <bool probs, class F> INLINE uint64_t greatest(const drawn_row &r, F f) {
  uint64_t v = 0;
  each_column<probs>(r, 0, r.cols, [&](int c, float logit, float prob) {
    uint64_t of = f(c, logit, prob);
    v = of > v ? of : v;
  });
  return block_greatest(v, r.room);
}
// passing is the first column at which the running sum of f passes target, which the sum of all does.
template <bool probs, class F> INLINE int passing(const drawn_row &r, uint64_t target, F f) {
  int from = 0, to = r.cols;
  while (to - from > 1) {
    int middle = from + (to - from) / 2;
    uint64_t v = total<probs>(r, from, middle, f);
    if (v > target) to = middle;
    else target -= v, from = middle;
  }
  return from;
}

// sum_digits leaves in room[d], for every digit d, the sum of f over the columns whose order has the digits of order above shift, and d or a higher digit there.
template <bool probs, class F> INLINE void sum_digits(const drawn_row &r, uint32_t order, int shift, F f) {
  for (int i = thread(); i < DIGITS * DIGIT_COPIES; i += DRAW_THREADS) r.low[i] = 0, r.high[i] = 0;
  barrier();
  each_column<probs>(r, 0, r.cols, [&](int c, float logit, float prob) {
    uint32_t digit = (order_of(logit) ^ order) >> shift; // order has zeros from shift down
    if (digit >= DIGITS) return;
    uint64_t v = f(c, logit, prob);
    if (v == 0) return;
    // Shared memory adds 32 bits at once: the half below says by what it was before whether this one carries, and how often that happens depends on the sum alone.
    int at = (int)digit * DIGIT_COPIES + lane() % DIGIT_COPIES;
    uint32_t part = (uint32_t)v, carried = add_shared(r.low + at, part) + part < part ? 1 : 0, more = (uint32_t)(v >> 32) + carried;
    if (more != 0) add_shared(r.high + at, more);
  });
  barrier();
  if (thread() < DIGITS) {
    uint64_t v = 0;
    for (int i = 0; i < DIGIT_COPIES; i++) {
      int at = thread() * DIGIT_COPIES + (i + thread() / 2) % DIGIT_COPIES; // lanes read different banks
      v += r.low[at] + ((uint64_t)r.high[at] << 32);
    }
    r.room[thread()] = v;
  }
  for (int far = 1; far < DIGITS; far *= 2) {
    barrier();
    uint64_t v = thread() + far < DIGITS ? r.room[thread() + far] : 0;
    barrier();
    if (thread() < DIGITS) r.room[thread()] = r.room[thread()] + v;
  }
  barrier();
}

// reaching is the greatest order of which, and above which, the sum of f reaches need, which is not 0; order 0 if all do not. It is found digit by digit, from the highest on.
struct reached {
  uint32_t order;
  uint64_t above; // the sum above it, less than need
};
template <bool probs, class F> INLINE reached reaching(const drawn_row &r, uint64_t need, F f) {
  reached found = {0, 0};
  for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
    sum_digits<probs>(r, found.order, shift, f);
    if (thread() < DIGITS) {
      uint64_t with = found.above + r.room[thread()], without = found.above + (thread() + 1 < DIGITS ? r.room[thread() + 1] : 0);
      if ((thread() == 0 || with >= need) && without < need) r.room[DIGITS] = (uint64_t)thread(), r.room[DIGITS + 1] = without; // of one thread
    }
    barrier();
    found.order |= (uint32_t)r.room[DIGITS] << shift;
    found.above = r.room[DIGITS + 1];
  }
  return found;
}

// Block x: the token of row x and its logit, see tensor.Drawer.
KERNEL_BLOCKS(draw_tokens, DRAW_THREADS, 2, draw_arguments) {
  SHARED(uint64_t, room[DRAW_THREADS]);
  SHARED(uint32_t, low[DIGITS * DIGIT_COPIES]);
  SHARED(uint32_t, high[DIGITS * DIGIT_COPIES]);
  const draw &d = memory<const draw>(a.draws)[block_x()]; // read where it is used: no registers hold it meanwhile
  const drawn_row r = {row_of<const float>(a.logits, block_x()), row_of<const float>(a.probs, block_x()), (int)a.logits.cols, room, low, high};
  const int cols = r.cols;

  // The likeliest, of equal ones that of the lowest id.
  int token = (int)~(uint32_t)greatest<false>(r, [](int c, float logit, float) { return (uint64_t)order_of(logit) << 32 | ~(uint32_t)c; });

  if (d.top_k != 1) {
    // Left are the logits above least, and those that equal it before column end.
    uint32_t least = 0;
    int end = cols;
    auto left = [&](int c, float logit, float prob) {
      uint32_t order = order_of(logit);
      return order > least || (order == least && c < end) ? weight_of(prob) : 0;
    };
    // cut keeps equals, so many that they make rest, of which each has share.
    auto cut = [&](uint64_t rest, uint64_t share) {
      uint32_t order = least;
      end = passing<false>(r, (rest + share - 1) / share - 1, [=](int, float logit, float) { return (uint64_t)(order_of(logit) == order); }) + 1;
    };
    if (d.top_k > 0 && d.top_k < cols) {
      const reached kept = reaching<false>(r, (uint64_t)d.top_k, [](int, float, float) { return (uint64_t)1; });
      least = kept.order;
      cut((uint64_t)d.top_k - kept.above, 1);
    }
    uint64_t all = total<true>(r, 0, cols, left);
    if (d.top_p < 1.0 && all > 0) {
      double wanted = d.top_p * (double)all;
      uint64_t need = (uint64_t)wanted;
      if ((double)need < wanted || need == 0) need++;
      const reached kept = reaching<true>(r, need, [](int, float, float prob) { return weight_of(prob); }); // what top-k has cut off comes after it
      uint32_t order = kept.order;
      least = order;
      cut(need - kept.above, greatest<true>(r, [=](int, float logit, float prob) { return order_of(logit) == order ? weight_of(prob) : 0; }));
    }
    double floor = d.min_p * (double)r.probs[token];
    auto drawn = [&](int c, float logit, float prob) { return c == token || (double)prob >= floor ? left(c, logit, prob) : 0; };
    all = total<true>(r, 0, cols, drawn);
    uint64_t target = (uint64_t)(d.u * (double)all);
    if (target < all) token = passing<true>(r, target, drawn);
  }
  if (thread() == 0) {
    float *y = row_of<float>(a.y, block_x());
    y[0] = (float)token, y[1] = r.logits[token];
  }
}
