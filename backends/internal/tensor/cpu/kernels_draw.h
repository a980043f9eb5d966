// Draws of tokens, see tensor.Drawer. Included once per instruction set. All sums are of integers and all choices are by exact comparisons, so the order in which a row is looked at does not show: every
// instruction set gives the same tokens, and package sample, which does it by sorting, gives them too.
//
// Nothing is sorted here. What top-k and top-p leave is found as a threshold: few candidates first, by a pass of vector comparisons with a bound that is known to be low enough, then the exact one of these digit by digit.

enum { WEIGHED = 256 };     // columns whose weights are summed together: no lane's sum leaves 32 bits
enum { GROUPS_PER_KEPT = 4 }; // groups of columns for each token that top-k leaves; the more there are, the fewer candidates

// weight is a probability in units of 2⁻⁴⁴, cut off; at most 2 counts.
INLINE uint64_t weight(float p) { return p > 0.0f ? (uint64_t)(int64_t)((p < 2.0f ? p : 2.0f) * 0x1p44f) : 0; }

// weigh is the sum of weight over at most WEIGHED columns. Vectors convert to 32 bits only, so it goes in two parts: units of 2⁻²⁰, and of the rest, which is exact, units of 2⁻⁴⁴.
INLINE uint64_t weigh(const float *p, int64_t cols) {
  vi high[PARTS] = {0}, low[PARTS] = {0};
  EACH_16(cols) {
    lanes x = LOAD(p);
    EACH_PART {
      vf units = vmin(vmax(x.v[i], vset(0.0f)), vset(2.0f)) * vset(0x1p20f); // in this order a NaN becomes 0
      vi whole = __builtin_convertvector(units, vi);
      high[i] += whole;
      low[i] += __builtin_convertvector((units - (vf)__builtin_convertvector(whole, vf)) * vset(0x1p24f), vi);
    }
  }
  uint64_t h = 0, l = 0;
  for (int i = 0; i < PARTS; i++)
    for (int lane = 0; lane < LANES; lane++) h += (uint32_t)high[i][lane], l += (uint32_t)low[i][lane];
  return (h << 24) + l;
}

// A candidate is a column with the key of its logit above it: larger keys are likelier, a NaN is the least likely, and the zeros are equal.
INLINE uint64_t candidate(float logit, int64_t column) {
  union { float f; uint32_t u; } v = {logit};
  uint32_t key = v.u;
  if (key == 0x80000000) key = 0;
  key = (key & 0x7fffffff) > 0x7f800000 ? 0 : key & 0x80000000 ? ~key : key | 0x80000000;
  return (uint64_t)key << 32 | (uint32_t)column;
}

// at_least makes candidates of the columns at which x is at least bound, in ascending order, and gives their number. More than the exact comparison would give may come, as denormals count as zero.
INLINE int64_t at_least(uint64_t *to, const float *x, float bound, const float *logits, int64_t cols) {
  int64_t count = 0;
  EACH_16(cols) {
    lanes v = n == 16 ? lload(x + at) : lload_some(x + at, n, __builtin_nanf(""));
    uint32_t found = 0;
    EACH_PART found |= vmask(v.v[i] >= vset(bound)) << i * LANES;
    for (; found; found &= found - 1) {
      int64_t column = at + __builtin_ctz(found);
      to[count++] = candidate(logits[column], column);
    }
  }
  return count;
}

INLINE int64_t likeliest(const float *logits, int64_t cols) {
  lanes m = lset(-__builtin_inff());
  EACH_16(cols) m = lmax(m, n == 16 ? lload(logits + at) : lload_some(logits + at, n, -__builtin_inff()));
  vf top = vset(lmax1(m));
  EACH_16(cols) {
    lanes v = n == 16 ? lload(logits + at) : lload_some(logits + at, n, __builtin_nanf(""));
    uint32_t found = 0;
    EACH_PART found |= vmask(v.v[i] == top) << i * LANES;
    if (found) return at + __builtin_ctz(found);
  }
  return 0; // a row of NaN
}

// threshold gives the key with which the running sum over n candidates, the largest keys first, reaches need; that is left with what those of this key have to give. The sum counts the candidates or, with probs, their
// weights; it reaches need. c is overwritten. The digits are of the distance from the least key: candidates are often so close to each other that they share the first bits of their keys.
INLINE uint32_t threshold(uint64_t *c, int64_t n, const float *probs, uint64_t *need) {
  uint32_t least = ~0u, greatest = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t key = (uint32_t)(c[i] >> 32);
    least = key < least ? key : least;
    greatest = key > greatest ? key : greatest;
  }
  int bits = greatest > least ? 32 - __builtin_clz(greatest - least) : 0;
  while (bits > 0 && n > 1) {
    uint64_t of[256] = {0};
    int shift = bits > 8 ? bits - 8 : 0;
    for (int64_t i = 0; i < n; i++) of[((uint32_t)(c[i] >> 32) - least) >> shift] += probs ? weight(probs[(uint32_t)c[i]]) : 1;
    uint32_t digit = (1u << (bits - shift)) - 1;
    for (; digit > 0 && of[digit] < *need; digit--) *need -= of[digit];
    int64_t left = 0;
    for (int64_t i = 0; i < n; i++) {
      uint64_t own = c[i];
      c[left] = own;
      left += ((uint32_t)(own >> 32) - least) >> shift == digit;
    }
    n = left;
    least += digit << shift;
    bits = shift;
  }
  return n == 1 ? (uint32_t)(c[0] >> 32) : least;
}

// keep leaves, of n candidates in ascending order of columns, those before which the running sum, the likeliest first and of equal ones the lower columns, has not reached need. It gives their number. other has room for n.
INLINE int64_t keep(uint64_t *c, int64_t n, uint64_t *other, const float *probs, uint64_t need) {
  memcpy(other, c, (size_t)n * 8);
  uint32_t key = threshold(other, n, probs, &need);
  int64_t left = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t own = (uint32_t)(c[i] >> 32);
    if (own < key || (own == key && !need)) continue;
    if (own == key) {
      uint64_t w = probs ? weight(probs[(uint32_t)c[i]]) : 1;
      need -= w < need ? w : need;
    }
    c[left++] = c[i];
  }
  return left;
}

// top leaves the k likeliest columns as candidates in c, in ascending order. other has room for as many as there are columns.
INLINE int64_t top(uint64_t *c, uint64_t *other, const float *logits, int64_t cols, int64_t k) {
  int64_t n = 0, step = k < cols ? cols / (GROUPS_PER_KEPT * k) : 0; // vectors of 16 columns, whose greatest, lane by lane, are those of 16 groups
  if (step > 1) {
    int64_t groups = 0;
    for (int64_t from = 0; from < cols; from += 16 * step) {
      const float *x = logits + from;
      lanes m = lset(-__builtin_inff());
      EACH_16(cols - from < 16 * step ? cols - from : 16 * step) m = lmax(m, n == 16 ? lload(x + at) : lload_some(x + at, n, -__builtin_inff()));
      float greatest[16];
      lstore(greatest, m);
      for (int i = 0; i < 16; i++) other[groups++] = candidate(greatest[i], 0);
    }
    if (groups >= k) {
      uint64_t need = (uint64_t)k;
      uint32_t key = threshold(other, groups, NULL, &need); // k columns at least are as likely
      union { uint32_t u; float f; } bound = {key & 0x80000000 ? key & 0x7fffffff : ~key};
      n = at_least(c, logits, bound.f, logits, cols);
    }
  }
  if (n < k) // too few columns for groups, or NaN
    for (n = 0; n < cols; n++) c[n] = candidate(logits[n], n);
  return n > k ? keep(c, n, other, NULL, (uint64_t)k) : n;
}

// share is the least weight that is a share of total, at least 1.
INLINE uint64_t share(double of, uint64_t total) {
  double exact = of * (double)total;
  uint64_t least = (uint64_t)exact;
  least += (double)least < exact;
  return least ? least : 1;
}

// sums gives the total weight of a row, and that of every WEIGHED columns.
INLINE uint64_t sums(uint64_t *parts, const float *probs, int64_t cols) {
  uint64_t total = 0;
  for (int64_t from = 0; from < cols; from += WEIGHED) total += *parts++ = weigh(probs + from, cols - from < WEIGHED ? cols - from : WEIGHED);
  return total;
}

INLINE int64_t draw(const draw_settings *d, const float *logits, const float *probs, int64_t cols, uint64_t *c, uint64_t *other) {
  if (d->top_k == 1) return likeliest(logits, cols);
  if (d->top_k <= 0 && d->top_p >= 1 && d->min_p <= 0) {
    uint64_t total = sums(c, probs, cols), target = (uint64_t)(d->u * (double)total), sum = 0;
    if (target >= total) return likeliest(logits, cols);
    int64_t part = 0;
    while (sum + c[part] <= target) sum += c[part++];
    for (int64_t i = part * WEIGHED;; i++)
      if ((sum += weight(probs[i])) > target) return i;
  }
  int64_t n = 0;
  uint64_t total = 0;
  if (d->top_k > 0) {
    n = top(c, other, logits, cols, d->top_k < cols ? d->top_k : cols);
    for (int64_t i = 0; i < n; i++) total += weight(probs[(uint32_t)c[i]]);
  } else {
    total = sums(other, probs, cols);
  }
  uint64_t need = share(d->top_p, total);
  if (d->top_p < 1 && need <= total) {
    if (d->top_k <= 0) { // columns below the bound weigh, all together, less than may be left out
      n = at_least(c, probs, (float)((total - need) / (uint64_t)cols) * 0x1p-44f, logits, cols);
      total = 0;
      for (int64_t i = 0; i < n; i++) total += weight(probs[(uint32_t)c[i]]);
      if (total < need) // the bound was rounded up
        n = at_least(c, probs, 0.0f, logits, cols);
    }
    n = keep(c, n, other, probs, need);
  }
  int64_t best = -1;
  if (d->min_p > 0) {
    best = likeliest(logits, cols);
    double least = d->min_p * (double)probs[best];
    if (d->top_k <= 0 && d->top_p >= 1) n = at_least(c, probs, (float)least * 0.9999f, logits, cols);
    int64_t left = 0;
    for (int64_t i = 0; i < n; i++)
      if ((uint32_t)c[i] == best || (double)probs[(uint32_t)c[i]] >= least) c[left++] = c[i];
    n = left;
  }
  total = 0;
  for (int64_t i = 0; i < n; i++) total += weight(probs[(uint32_t)c[i]]);
  uint64_t target = (uint64_t)(d->u * (double)total), sum = 0;
  for (int64_t i = 0; i < n; i++)
    if ((sum += weight(probs[(uint32_t)c[i]])) > target) return (uint32_t)c[i];
  return best < 0 ? likeliest(logits, cols) : best; // nothing has weight
}

// A unit is a row with a mask: the columns that have no bit in it are set. a = x, index = rows, heads = words of a mask, values = masks
static void mask_row(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  const uint64_t *mask = (const uint64_t *)j->values + unit * j->heads;
  float *x = row_of(j->a, j->index[unit]);
  vi bit;
  for (int lane = 0; lane < LANES; lane++) bit[lane] = 1 << lane;
  for (int64_t word = 0; word < j->heads; word++, x += 64) {
    int64_t n = j->a.cols - 64 * word < 64 ? j->a.cols - 64 * word : 64;
    uint64_t gone = ~mask[word];
    if (n < 64) {
      for (gone &= ((uint64_t)1 << n) - 1; gone; gone &= gone - 1) x[__builtin_ctzll(gone)] = -__builtin_inff();
      continue;
    }
    for (int64_t at = 0; gone; at += LANES, gone >>= LANES)
      vstore(x + at, vselect((((vi){0} + (int32_t)(gone & ((1u << LANES) - 1))) & bit) != 0, vset(-__builtin_inff()), vload(x + at)));
  }
}

// A unit is one row. a = tokens and their logits, b = logits, c = probs, values = a draw_settings for every row.
static void draw_token(const void *job, int64_t unit, worker *w) {
  const rows_job *j = job;
  int64_t cols = j->b.cols;
  const float *logits = row_of(j->b, unit);
  uint64_t *c = w->memory;
  int64_t token = draw((const draw_settings *)j->values + unit, logits, row_of(j->c, unit), cols, c, c + cols);
  float *to = row_of(j->a, unit);
  to[0] = (float)token;
  to[1] = logits[token];
}
