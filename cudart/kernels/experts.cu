// Mixtures of experts: which experts a token takes, the table of the rows of each, and what goes from tokens to rows and back.
#include "experts.h"

enum { ROUTE_THREADS = 32, MOST_SLOTS = 64, DISPATCH_THREADS = 256 };

// order_of_choice has the order in which experts are taken; not a number comes first, so that probabilities are none.
INLINE uint32_t order_of_choice(float x) { return x == x ? order_of(x) : 0xffffffffu; }

// route_sum is Σ exp(logit - largest) over all experts.
INLINE float route_sum(const float *logits, int64_t experts, float largest) {
  float sum = 0.0f;
  for (int64_t e = lane() % 16; e < experts; e += 16) sum = sum + exp_rn(logits[e] - largest);
  return lanes_sum(sum);
}

// A warp has a token. It takes the experts one after another: the first of those that come after the one before, by the order of logits, then of numbers.
KERNEL(route, ROUTE_THREADS, route_arguments) {
  SHARED(float, room[MOST_SLOTS]);
  const float *logits = row_of<const float>(a.logits, block_x());
  int32_t *choice = row_of<int32_t>(a.choice, block_x());
  float *p = row_of<float>(a.p, block_x());
  const int experts = (int)a.logits.cols, slots = (int)a.choice.cols;
  uint32_t order = 0xffffffffu;
  int last = -1;
  float largest = 0.0f;
  for (int s = 0; s < slots; s++) {
    uint32_t best = 0; // the order of no logit
    int at = experts;
    UNROLL_4 for (int e = lane(); e < experts; e += 32) {
      const uint32_t o = order_of_choice(logits[e]);
      if (o > best && (o < order || (o == order && e > last))) best = o, at = e;
    }
    for (int m = 16; m; m >>= 1) {
      const uint32_t o = (uint32_t)shuffle_xor_of((int)best, m);
      const int e = shuffle_xor_of(at, m);
      if (o > best || (o == best && e < at)) best = o, at = e;
    }
    order = best, last = at;
    const float logit = logits[at];
    if (s == 0) largest = logit;
    if (lane() == 0) choice[s] = at, room[s] = exp_rn(logit - largest);
  }
  warp_barrier();
  float sum = 0.0f;
  if (a.normalise)
    for (int s = 0; s < slots; s++) sum = sum + room[s];
  else sum = route_sum(logits, experts, largest);
  for (int s = lane(); s < slots; s += 32) p[s] = room[s] / sum;
}

// A warp has a token.
KERNEL(route_backward, ROUTE_THREADS, route_backward_arguments) {
  const float *logits = row_of<const float>(a.logits, block_x()), *dp = row_of<const float>(a.dp, block_x()), *p = row_of<const float>(a.p, block_x());
  const int32_t *choice = row_of<const int32_t>(a.choice, block_x());
  float *dlogits = row_of<float>(a.dlogits, block_x()), mean = 0.0f;
  const int64_t experts = a.dlogits.cols, slots = a.choice.cols;
  for (int64_t s = 0; s < slots; s++) mean = fma_rn(p[s], dp[s], mean);
  if (a.normalise)
    for (int64_t e = lane(); e < experts; e += 32) dlogits[e] = 0.0f;
  else {
    const float largest = logits[choice[0]], sum = route_sum(logits, experts, largest);
    for (int64_t e = lane(); e < experts; e += 32) dlogits[e] = exp_rn(logits[e] - largest) / sum * -mean;
  }
  warp_barrier();
  for (int64_t s = lane(); s < slots; s += 32) dlogits[choice[s]] = p[s] * (dp[s] - mean);
}

// A block has an expert, and reads all that was chosen: its rows begin behind those of experts with lower numbers. A thread has slots that follow one another, so rows are in the order of slots. What is no expert's number
// counts as the nearest that is: every slot has a row, whatever the choice.
KERNEL(dispatch, DISPATCH_THREADS, dispatch_arguments) {
  SHARED(int, counts[DISPATCH_THREADS]);
  SHARED(int, lower[DISPATCH_THREADS]);
  const int expert = (int)block_x(), experts = (int)a.table.experts, slots = (int)a.table.slots, all = (int)(a.table.tokens * a.table.slots);
  const int64_t each = (all + (int64_t)DISPATCH_THREADS - 1) / DISPATCH_THREADS, begin = thread() * each, after = begin + each;
  const int from = (int)(begin < all ? begin : all), to = (int)(after < all ? after : all);
  // each_slot calls f(slot, expert) for the thread's slots.
  auto each_slot = [&](auto f) {
    int token = from / slots, s = from % slots;
    for (int slot = from; slot < to; slot++) {
      const int chosen = row_of<const int32_t>(a.choice, token)[s];
      f(slot, token, chosen < 0 ? 0 : chosen < experts ? chosen : experts - 1);
      if (++s == slots) s = 0, token++;
    }
  };
  int mine = 0, less = 0;
  each_slot([&](int, int, int e) { mine += e == expert, less += e < expert; });
  // Sums over the threads before this one, and over all.
  counts[thread()] = mine, lower[thread()] = less;
  for (int step = 1; step < DISPATCH_THREADS; step <<= 1) {
    barrier();
    const int before = thread() >= step ? counts[thread() - step] : 0, before_lower = thread() >= step ? lower[thread() - step] : 0;
    barrier();
    counts[thread()] += before, lower[thread()] += before_lower;
  }
  barrier();
  const int first = lower[DISPATCH_THREADS - 1];
  int row = first + counts[thread()] - mine;
  if (thread() == 0) {
    first_rows(a.table)[expert] = first;
    if (expert == experts - 1) first_rows(a.table)[experts] = first + counts[DISPATCH_THREADS - 1];
  }
  int32_t *tokens = tokens_of_rows(a.table), *slots_of = slots_of_rows(a.table), *rows = rows_of_slots(a.table);
  if (mine) each_slot([&](int slot, int token, int e) {
    if (e == expert) tokens[row] = token, slots_of[row] = slot, rows[slot] = row, row++;
  });
}

// factor_of_slot is the element of p that a slot has.
INLINE float factor_of_slot(const view &p, int slot, int64_t slots) { return p.at ? row_of<const float>(p, slot / slots)[slot % slots] : 1.0f; }

// rows may be x.
KERNEL(spread, 256, spread_arguments) {
  const int64_t row = block_x(), from = a.gathered ? tokens_of_rows(a.table)[row] : row;
  const float p = factor_of_slot(a.p, slots_of_rows(a.table)[row], a.table.slots);
  each_some(a.rows.cols, in_fours(a.rows, FLOAT32) && in_fours(a.x, FLOAT32), [&a, row, from, p](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> v = load_some<n>(a.x.at, from * a.x.stride + c, FLOAT32);
    UNROLL for (int e = 0; e < n; e++) v.v[e] = v.v[e] * p;
    store_some<n>(a.rows.at, row * a.rows.stride + c, FLOAT32, v);
  });
}

// Block (x, y) has token x.
KERNEL_BLOCKS(combine, 256, 4, combine_arguments) {
  const int64_t token = block_x();
  const int32_t *rows = rows_of_slots(a.table) + token * a.table.slots;
  each_some(a.y.cols, in_fours(a.y, FLOAT32) && in_fours(a.rows, FLOAT32), [&a, token, rows](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> sum;
    if (a.accumulate) sum = load_some<n>(a.y.at, token * a.y.stride + c, FLOAT32);
    else
      UNROLL for (int e = 0; e < n; e++) sum.v[e] = 0.0f;
    UNROLL_4 for (int s = 0; s < (int)a.table.slots; s++) {
      const floats<n> v = load_some<n>(a.rows.at, rows[s] * a.rows.stride + c, FLOAT32);
      const float p = a.p.at ? row_of<const float>(a.p, token)[s] : 1.0f;
      UNROLL for (int e = 0; e < n; e++) sum.v[e] = fma_rn(v.v[e], p, sum.v[e]);
    }
    store_some<n>(a.y.at, token * a.y.stride + c, FLOAT32, sum);
  });
}

// Half a warp has a row, so that a sum is that of 16 lanes.
KERNEL(combine_backward, 256, combine_backward_arguments) {
  const int64_t row = block_x() * 16 + thread() / 16;
  const bool have = row < a.drows.rows;
  const int slot = have ? slots_of_rows(a.table)[row] : 0;
  const int64_t token = slot / a.table.slots, s = slot % a.table.slots, cols = have ? a.drows.cols : 0;
  float *d = row_of<float>(a.drows, have ? row : 0), sum = 0.0f, p = have ? row_of<const float>(a.p, token)[s] : 0.0f;
  const float *h = row_of<const float>(a.h, have ? row : 0);
  each_held<16, 8>((int64_t)(thread() % 16), cols, [=](int64_t c) { return two_floats{d[c], h[c]}; }, [&](int64_t c, const two_floats &v) {
    sum = fma_rn(v.a, v.b, sum);
    d[c] = v.a * p;
  });
  sum = lanes_sum(sum);
  if (have && thread() % 16 == 0) row_of<float>(a.dp, token)[s] = sum;
}
