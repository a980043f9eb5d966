// Attention over pages of PAGE keys, forward and backward. Scores are a chain over the head's dimension, outputs a chain over the keys up to the row's own
// position. Included once per instruction set.
//
// The query heads of one key head are taken together: an item is one query row and one such head, items are in the order of positions, heads inside. Every item is
// computed by itself, so the cut into blocks and strips changes nothing.

// part_at is the element of the cache at which one head's K (part = head) or V (part = heads + head) of a page begins.
static int64_t part_at(const cache *p, int64_t layer, int64_t page, int64_t part) {
  int64_t k = PAGE * p->head_dim, v = PAGE * p->padded_dim, at = (layer * p->count + page) * (k + v) * p->heads;
  return at + (part < p->heads ? part * k : p->heads * k + (part - p->heads) * v);
}

// read_part gives a part as float32: where it is, or widened into t.
static const float *read_part(const cache *p, int64_t layer, int64_t page, int64_t part, float *t) {
  int64_t n = PAGE * (part < p->heads ? p->head_dim : p->padded_dim), at = part_at(p, layer, page, part);
  if (p->type == FLOAT32) return (const float *)p->addr + at;
  const uint16_t *from = (const uint16_t *)p->addr + at;
  for (int64_t i = 0; i < n; i += 32) {
    ASK(from + i + 1024);
    for (int64_t k = i; k < i + 32; k++) t[k] = widen_bf16(from[k]);
  }
  return t;
}

// seen is the keys [low, end) of a page that an item sees.
typedef struct {
  int64_t low, end;
} seen;
INLINE bool sees_all(seen s) { return s.end == PAGE && !s.low; }
// seen_of is what the row at a position sees of the page that begins at key k0; of one that it does not reach, no more than end.
INLINE seen seen_of(const sequence *s, int64_t position, int64_t k0) {
  int64_t low = first_seen(s, position) - k0, end = position - k0 + 1;
  return (seen){low > 0 ? low : 0, end < PAGE ? end : PAGE};
}

// masked gives lanes from .. from+15 of a row of scores: a where the key is one of those that are seen, else fill.
INLINE lanes masked(lanes a, int64_t from, seen s, float fill) {
  static const float index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  lanes k = lload(index);
  vf low = vset((float)(s.low - from)), end = vset((float)(s.end - from)), other = vset(fill);
  EACH_PART a.v[i] = vselect((vi)(k.v[i] < end) & (vi)(k.v[i] >= low), a.v[i], other);
  return a;
}

// soften turns a row of PAGE dot products into probabilities relative to the running maximum *top, which it raises; the row's sum goes to *sum, and the factor for what was
// summed before comes back.
INLINE float soften(float *s, float scale, seen keys, float *top, float *sum) {
  lanes a[PAGE / 16], factor = lset(scale);
  UNROLL for (int i = 0; i < PAGE / 16; i++) {
    a[i] = lmul(lload(s + 16 * i), factor);
    if (!sees_all(keys)) a[i] = masked(a[i], 16 * i, keys, -__builtin_inff());
  }
  float m = lmax1(lmax(lmax(a[0], a[1]), lmax(a[2], a[3]))), next = *top > m ? *top : m, fix = exp1(*top - next);
  lanes minus = lset(-next);
  UNROLL for (int i = 0; i < PAGE / 16; i += 2) {
    a[i] = ladd(a[i], minus), a[i + 1] = ladd(a[i + 1], minus);
    lexp_two(a + i);
    lstore(s + 16 * i, a[i]), lstore(s + 16 * i + 16, a[i + 1]);
  }
  *sum = *sum * fix + lsum(ladd(ladd(a[0], a[1]), ladd(a[2], a[3])));
  *top = next;
  return fix;
}

// running is the softmax of some items under way: the outputs and sums up to now since the last restart, relative to the greatest score, and those of all parts before.
typedef struct {
  float *o, *total, *top, *sum, *total_top, *total_sum;
} running;

// begin_running has it in memory of n · (2 · wide + 4) elements, of which total is free until the first restart.
static running begin_running(float *memory, int64_t n, int64_t wide) {
  running r = {.o = memory, .total = memory + n * wide};
  r.top = r.total + n * wide, r.sum = r.top + n, r.total_top = r.sum + n, r.total_sum = r.total_top + n;
  memset(r.o, 0, (size_t)(n * wide) * 4);
  for (int64_t i = 0; i < n; i++) r.top[i] = -__builtin_inff(), r.sum[i] = 0.0f;
  return r;
}

// join puts what was summed before together with the part that has ended, in t, whose greatest score and sum it gives. to may be either.
INLINE void join(const running *r, int64_t i, int64_t wide, float *to, float *top, float *sum) {
  const float *t = r->total + i * wide, *part = r->o + i * wide;
  float next = r->total_top[i] > r->top[i] ? r->total_top[i] : r->top[i], x = exp1(r->total_top[i] - next), y = exp1(r->top[i] - next);
  for (int64_t d = 0; d < wide; d++) to[d] = t[d] * x + part[d] * y;
  *sum = r->total_sum[i] * x + r->sum[i] * y, *top = next;
}

// restart begins it anew for keys from k0 on.
static void restart(running *r, int64_t n, int64_t wide, int64_t k0) {
  for (int64_t i = 0; i < n; i++) {
    float *t = r->total + i * wide;
    if (k0 > RESTART) join(r, i, wide, t, r->total_top + i, r->total_sum + i);
    else memcpy(t, r->o + i * wide, (size_t)wide * 4), r->total_top[i] = r->top[i], r->total_sum[i] = r->sum[i];
    r->top[i] = -__builtin_inff(), r->sum[i] = 0.0f;
  }
  memset(r->o, 0, (size_t)(n * wide) * 4);
}

// soften_item softens an item's scores of a page, of which it sees some keys.
INLINE void soften_item(running *r, int64_t i, int64_t wide, float *score, float scale, seen keys) {
  float fix = soften(score, scale, keys, r->top + i, r->sum + i), *o = r->o + i * wide;
  if (fix != 1.0f)
    for (int64_t d = 0; d < wide; d++) o[d] *= fix;
}

// restarts tells whether the running softmax of rows that see keys below to has restarted: within a window it never does.
INLINE bool restarts(const sequence *s, int64_t to) { return to > RESTART && !s->window; }

// put_item writes an item's output, which has parts or has not, as query head h of a row.
INLINE void put_item(const attention_job *j, running *r, int64_t i, bool parts, int64_t row, int64_t h) {
  int64_t dim = j->p.head_dim, wide = j->p.padded_dim;
  float *part = r->o + i * wide, *out = row_of(j->o, row) + h * dim;
  if (parts) join(r, i, wide, part, r->top + i, r->sum + i);
  float divisor = r->sum[i];
  for (int64_t d = 0; d < dim; d++) out[d] = part[d] / divisor;
  if (j->lse.addr) row_of(j->lse, row)[h] = r->top[i] + log1(r->sum[i]);
}

// Attention of a single row, a step of decoding: turning and widening pages would cost more than the products. Elements are multiplied as they are stored, of several key heads after each other, whose parts of a page are one
// piece of memory.

// wanted are the lines of a part that is read after the one that is being multiplied.
typedef struct {
  const char *from;
  int64_t each, asked; // lines of a quarter, and those that have been requested
} wanted;
INLINE wanted want(bool straight, const char *part, int64_t bytes) { return straight ? (wanted){0} : (wanted){part, div_up(bytes, 4 * 64), 0}; }
// ask_next requests one of the wanted lines, from each quarter of them in turn: a processor's own look-ahead follows every page of memory by itself.
INLINE void ask_next(wanted *w) {
  if (w->asked >= 4 * w->each) return;
  ASK(w->from + (w->asked % 4 * w->each + w->asked / 4) * 64);
  w->asked++;
}

// Columns that go at once. Those of bfloat16 elements come from words of two: the even ones of two vectors, then the odd ones, which is the order that products leave them in.
enum { ROW_COLUMNS = ROW_VECTORS * LANES, ROW_ITEMS = LANES == 16 ? 4 : 2 };
typedef vi vi_stored __attribute__((aligned(2)));

// in_order brings columns that were left so into their order.
static void in_order(float *x, int64_t columns) {
  float apart[2 * LANES];
  for (int64_t c = 0; c < columns; c += 2 * LANES) {
    memcpy(apart, x + c, sizeof apart);
    for (int i = 0; i < LANES; i++) x[c + 2 * i] = apart[i], x[c + 2 * i + 1] = apart[LANES + i];
  }
}

// row_tile does R items × ROW_COLUMNS columns over depth: the item's factors at a, one behind another at distance ak, those of items at distance ar; weights at b, bk elements apart.
INLINE void row_tile(const int R, const bool half, const float *a, int64_t ar, int64_t ak, const char *b, int64_t bk, int64_t depth, float *c, int64_t ldc, bool zero, wanted *next) {
  const int bytes = half ? 2 : 4;
  vf s[ROW_ITEMS][ROW_VECTORS];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  for (int64_t k = 0; k < depth; k++, a += ak, b += bk * bytes) {
    UNROLL for (int i = 0; i < ROW_COLUMNS * bytes; i += 64) ask_next(next);
    vf x[ROW_VECTORS];
    UNROLL for (int v = 0; v < ROW_VECTORS; v += 2) {
      if (half) {
        vi two = *(const vi_stored *)(b + v * LANES * bytes);
        x[v] = (vf)(two << 16), x[v + 1] = (vf)(two & (int32_t)0xffff0000);
      } else x[v] = vload((const float *)b + v * LANES), x[v + 1] = vload((const float *)b + (v + 1) * LANES);
    }
    UNROLL for (int r = 0; r < R; r++) {
      vf y = vset(a[r * ar]);
      UNROLL for (int v = 0; v < ROW_VECTORS; v++) s[r][v] = vfma(y, x[v], s[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) vstore(c + r * ldc + v * LANES, s[r][v]);
}
// row_block does any number of items and of columns that is a multiple of ROW_COLUMNS.
INLINE void row_block(const bool half, int64_t items, const float *a, int64_t ar, int64_t ak, const char *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero, wanted *next) {
  for (int64_t n = 0; n < columns; n += ROW_COLUMNS, b += ROW_COLUMNS * (half ? 2 : 4))
    for (int64_t r = 0; r < items;) {
      const float *x = a + r * ar;
      float *y = c + r * ldc + n;
#if LANES == 16
      if (items - r >= 4) row_tile(4, half, x, ar, ak, b, bk, depth, y, ldc, zero, next), r += 4;
      else
#endif
      if (items - r >= 2) row_tile(2, half, x, ar, ak, b, bk, depth, y, ldc, zero, next), r += 2;
      else row_tile(1, half, x, ar, ak, b, bk, depth, y, ldc, zero, next), r++;
    }
}

// A processor that reads memory fastest straight on is asked for nothing where as many heads as this make a piece long enough. The values of so many keys are read for all columns before those of the next.
enum { STRAIGHT_HEADS = 4, STRAIGHT_KEYS = 16 };
INLINE void scores_of(const bool half, int64_t items, const float *q, const char *k, int64_t dim, float *score, int64_t keys, wanted *next) {
  row_block(half, items, q, 1, TILE_ROWS, k, PAGE, dim, score, PAGE, div_up(keys, ROW_COLUMNS) * ROW_COLUMNS, true, next);
}
INLINE void values_of(const bool half, int64_t items, const float *score, const char *v, int64_t wide, float *o, int64_t keys, bool straight, wanted *next) {
  int64_t most = straight ? STRAIGHT_KEYS : PAGE;
  for (int64_t key = 0, n; key < keys; key += n, v += n * wide * (half ? 2 : 4)) {
    n = keys - key < most ? keys - key : most;
    row_block(half, items, score + key, PAGE, 1, v, wide, n, o, wide, wide, false, next);
  }
}

// attention_row does key heads [first, end) of the only row of a sequence.
INLINE void attention_row(const bool half, const attention_job *j, const sequence *s, int64_t first, int64_t end, worker *w) {
  const cache *p = &j->p;
  const int bytes = half ? 2 : 4;
  const bool straight = j->straight && end - first >= STRAIGHT_HEADS;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim, to = s->first + 1, items = (end - first) * group;
  bool parts = restarts(s, to);
  float *q = w->memory, *score = q + (end - first) * dim * TILE_ROWS;
  running r = begin_running(score + items * PAGE, items, wide);
  for (int64_t h = first; h < end; h++) turn_rows(row_of(j->q, s->row) + h * group * dim, dim, group, dim, q + (h - first) * dim * TILE_ROWS);
  const char *stored = (const char *)p->addr;
  const int32_t *pages = j->pages + s->first_page;
  for (int64_t k0 = first_seen(s, s->first) / PAGE * PAGE; k0 < to; k0 += PAGE) {
    if (parts && k0 % RESTART == 0 && k0 > 0) restart(&r, items, wide, k0);
    seen some = seen_of(s, s->first, k0);
    int64_t keys = some.end, low = some.low, page = pages[k0 / PAGE], k_bytes = PAGE * dim * bytes, v_bytes = PAGE * wide * bytes;
    const char *k = stored + part_at(p, j->layer, page, first) * bytes, *v = stored + part_at(p, j->layer, page, heads + first) * bytes;
    for (int64_t h = 0; h < end - first; h++) {
      wanted next = first + h + 1 < end ? want(straight, k + (h + 1) * k_bytes, k_bytes) : want(straight, v, keys * wide * bytes);
      scores_of(half, group, q + h * dim * TILE_ROWS, k + h * k_bytes, dim, score + h * group * PAGE, keys, &next);
    }
    for (int64_t i = 0; i < items; i++) {
      if (half) in_order(score + i * PAGE, PAGE);
      soften_item(&r, i, wide, score + i * PAGE, j->scale, some);
    }
    for (int64_t h = 0; h < end - first; h++) {
      wanted next = {0};
      if (first + h + 1 < end) next = want(straight, v + (h + 1) * v_bytes, keys * wide * bytes);
      else if (k0 + PAGE < to) next = want(straight, stored + part_at(p, j->layer, pages[k0 / PAGE + 1], first) * bytes, k_bytes);
      values_of(half, group, score + h * group * PAGE + low, v + h * v_bytes + low * wide * bytes, wide, r.o + h * group * wide, keys - low, straight, &next);
    }
  }
  for (int64_t i = 0; i < items; i++) {
    if (half) in_order(r.o + i * wide, wide);
    if (half && parts) in_order(r.total + i * wide, wide);
    put_item(j, &r, i, parts, s->row, first * group + i);
  }
}
static void attention_row_f32(const attention_job *j, const sequence *s, int64_t first, int64_t end, worker *w) { attention_row(false, j, s, first, end, w); }
static void attention_row_bf16(const attention_job *j, const sequence *s, int64_t first, int64_t end, worker *w) { attention_row(true, j, s, first, end, w); }

// A unit is one key head of a block of positions_per_block positions, cut at their multiples, so that all of a block see the same pages; or, of a sequence that has only one, several key heads (row_heads).
static void attention(const void *job, int64_t unit, worker *w) {
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim, width = j->positions_per_block;
  const sequence *s = j->sequences;
  for (;; s++) { // few sequences
    int64_t units = attention_units(j, s);
    if (unit < units) break;
    unit -= units;
  }
  int64_t together = row_heads(j, s);
  if (together) {
    int64_t first = unit * together, end = first + together < heads ? first + together : heads;
    if (p->type == BFLOAT16) attention_row_bf16(j, s, first, end, w);
    else attention_row_f32(j, s, first, end, w);
    return;
  }
  int64_t head = unit % heads, block = unit / heads, from = (s->first / width + block) * width, to = from + width, last = s->first + s->count;
  if (from < s->first) from = s->first;
  if (to > last) to = last;
  int64_t items = (to - from) * group, most = width * group, strips = div_up(items, TILE_ROWS), row = s->row + from - s->first;

  float *kpart = w->memory, *vpart = kpart + PAGE * dim, *score = vpart + PAGE * wide, *q = score + most * PAGE;
  running r = begin_running(q + (most + TILE_ROWS) * dim, items, wide);
  for (int64_t i = 0; i < strips; i++) {
    int64_t n = items - i * TILE_ROWS < TILE_ROWS ? items - i * TILE_ROWS : TILE_ROWS;
    for (int64_t k = 0; k < n; k++) { // gathered in total
      int64_t item = i * TILE_ROWS + k;
      memcpy(r.total + k * wide, row_of(j->q, row + item / group) + (head * group + item % group) * dim, (size_t)dim * 4);
    }
    turn_rows(r.total, wide, n, dim, q + i * TILE_ROWS * dim);
  }

  bool parts = restarts(s, to);
  for (int64_t k0 = first_seen(s, from) / PAGE * PAGE; k0 < to; k0 += PAGE) {
    if (parts && k0 % RESTART == 0 && k0 > 0) restart(&r, items, wide, k0);
    int64_t page = j->pages[s->first_page + k0 / PAGE];
    const float *k = read_part(p, j->layer, page, head, kpart), *v = read_part(p, j->layer, page, heads + head, vpart);
    int64_t reach = (k0 + PAGE - 1 + s->window - from) * group, those = s->window && reach < items ? reach : items; // items that see some of the page
    for (int64_t i0 = 0; i0 < those; i0 += TILE_ROWS) { // all scores first, while K is near, then V
      int64_t n = those - i0 < TILE_ROWS ? those - i0 : TILE_ROWS, see = from + (i0 + n - 1) / group - k0 + 1, last = see < PAGE ? see : PAGE;
      depth_outside(n, q + i0 * dim, TILE_ROWS, k, PAGE, dim, score + i0 * PAGE, PAGE, div_up(last, TILE_COLUMNS) * TILE_COLUMNS, true, NULL, 0);
    }
    for (int64_t i0 = 0; i0 < those; i0 += TILE_ROWS) {
      int64_t n = those - i0 < TILE_ROWS ? those - i0 : TILE_ROWS;
      seen keys[MAX_TILE_ROWS] = {0};
      float *strip = score + i0 * PAGE, *out = r.o + i0 * wide;
      for (int64_t i = 0; i < n; i++) {
        keys[i] = seen_of(s, from + (i0 + i) / group, k0);
        soften_item(&r, i0 + i, wide, strip + i * PAGE, j->scale, keys[i]);
      }
      // Keys go to the rows that see them, [a, b), and touch no other: what they hold may not be a number.
      for (int64_t key = keys[0].low, a = 0, b = 0, next; key < keys[n - 1].end; key = next) {
        while (b < n && keys[b].low <= key) b++;
        while (a < b && keys[a].end <= key) a++;
        next = a < b ? keys[a].end : PAGE;
        if (b < n && keys[b].low < next) next = keys[b].low;
        if (a < b) scores_inside(b - a, strip + a * PAGE + key, 0, v + key * wide, wide, next - key, out + a * wide, wide, wide, false, NULL, 0);
      }
    }
  }
  for (int64_t i = 0; i < items; i++) put_item(j, &r, i, parts, row + i / group, head * group + i % group);
}

// A unit is one key head of one sequence, or a part of its query heads where dk has parts: dk and dv of that for a range of keys, and their share of dq of these query heads, for a range of rows. dk and dv are chains over the items in order, dq over the keys.
static void attention_backward(const void *job, int64_t unit, worker *w) {
  enum { ITEMS = BACKWARD_ITEMS };
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t dim = p->head_dim, wide = p->padded_dim, heads = j->dk.cols / dim, group = j->query_heads / heads, head = unit % heads, key_head = head / (heads / p->heads);
  const sequence *s = j->sequences + unit / heads;
  int64_t all = s->rows_to * group;
  float *kpart = w->memory, *vpart = kpart + PAGE * wide, *kt = vpart + PAGE * wide, *vt = kt + PAGE * wide, *dk = vt + PAGE * wide, *dv = dk + PAGE * wide;
  float *q = dv + PAGE * wide, *dout = q + ITEMS * wide, *dq = dout + ITEMS * wide, *packed = dq + ITEMS * wide, *pr = packed + MAX_TILE_ROWS * wide;
  float *ds = pr + ITEMS * PAGE, *delta = ds + ITEMS * PAGE;
#define ITEM(v, i) (row_of(v, s->row + (i) / group) + (head * group + (i) % group) * dim)
  for (int64_t i = s->rows_from * group; i < all; i++) {
    if (!s->keys_from) memset(ITEM(j->dq, i), 0, (size_t)dim * 4);
    if (i < s->keys_from * group) continue; // no key of the range is seen
    const float *a = ITEM(j->dout, i), *b = ITEM(j->o, i);
    lanes dot = lset(0.0f);
    EACH_16(dim) dot = lfma(LOAD(a), LOAD(b), dot);
    delta[i] = lsum(dot);
  }
  memset(kt, 0, (size_t)(PAGE * wide) * 4);
  memset(q, 0, (size_t)(3 * ITEMS * wide) * 4); // columns from dim to wide stay zero
  for (int64_t k0 = s->keys_from; k0 < s->keys_to; k0 += PAGE) {
    int64_t page = j->pages[s->first_page + k0 / PAGE], present = s->count - k0 < PAGE ? s->count - k0 : PAGE;
    if (s->rows_to <= k0) break; // these rows do not see it
    const float *k = read_part(p, j->layer, page, key_head, kpart), *v = read_part(p, j->layer, page, p->heads + key_head, vpart);
    for (int64_t i = 0; i < PAGE; i++) // K as [key][dim], V as [dim][key]
      for (int64_t d = 0; d < dim; d++) kt[i * wide + d] = k[d * PAGE + i], vt[d * PAGE + i] = v[i * wide + d];
    int64_t reach = (k0 + PAGE - 1 + s->window) * group, those = s->window && reach < all ? reach : all; // items from those on see none of the page
    memset(dk, 0, (size_t)(2 * PAGE * wide) * 4);
    for (int64_t i = 0; i < present && s->rows_from > k0; i++) { // the chains go on
      memcpy(dk + i * wide, row_of(j->dk, s->row + k0 + i) + head * dim, (size_t)dim * 4);
      memcpy(dv + i * wide, row_of(j->dv, s->row + k0 + i) + head * dim, (size_t)dim * 4);
    }
    for (int64_t i0 = (s->rows_from > k0 ? s->rows_from : k0) * group; i0 < those; i0 += ITEMS) {
      int64_t items = those - i0 < ITEMS ? those - i0 : ITEMS;
      for (int64_t i = 0; i < items; i++) {
        memcpy(q + i * wide, ITEM(j->q, i0 + i), (size_t)dim * 4);
        memcpy(dout + i * wide, ITEM(j->dout, i0 + i), (size_t)dim * 4);
        memcpy(dq + i * wide, ITEM(j->dq, i0 + i), (size_t)dim * 4);
      }
      // Each product for all items in turn, so that the one matrix stays near.
      for (int64_t r0 = 0; r0 < items; r0 += TILE_ROWS) {
        int64_t n = items - r0 < TILE_ROWS ? items - r0 : TILE_ROWS;
        turn_rows(q + r0 * wide, wide, n, dim, packed);
        depth_outside(n, packed, TILE_ROWS, k, PAGE, dim, pr + r0 * PAGE, PAGE, PAGE, true, NULL, 0);
      }
      for (int64_t r0 = 0; r0 < items; r0 += TILE_ROWS) {
        int64_t n = items - r0 < TILE_ROWS ? items - r0 : TILE_ROWS;
        turn_rows(dout + r0 * wide, wide, n, dim, packed);
        depth_outside(n, packed, TILE_ROWS, vt, PAGE, dim, ds + r0 * PAGE, PAGE, PAGE, true, NULL, 0);
      }
      for (int64_t r = 0; r < items; r++) {
        int64_t item = i0 + r;
        seen keys = seen_of(s, item / group, k0);
        lanes scale = lset(j->scale), lse = lset(-row_of(j->lse, s->row + item / group)[head * group + item % group]), minus = lset(-delta[item]);
        for (int i = 0; i < PAGE; i += 32) {
          float *pp = pr + r * PAGE + i, *dd = ds + r * PAGE + i;
          lanes e[2] = {ladd(lmul(lload(pp), scale), lse), ladd(lmul(lload(pp + 16), scale), lse)};
          lexp_two(e);
          for (int k = 0; k < 2; k++) {
            lanes g = lmul(lmul(e[k], ladd(lload(dd + 16 * k), minus)), scale);
            if (!sees_all(keys)) e[k] = masked(e[k], i + 16 * k, keys, 0.0f), g = masked(g, i + 16 * k, keys, 0.0f);
            lstore(pp + 16 * k, e[k]);
            lstore(dd + 16 * k, g);
          }
        }
      }
      for (int64_t r0 = 0; r0 < items; r0 += TILE_ROWS)
        scores_inside(items - r0 < TILE_ROWS ? items - r0 : TILE_ROWS, ds + r0 * PAGE, 0, kt, wide, present, dq + r0 * wide, wide, wide, false, NULL, 0);
      for (int64_t key = 0; key < present; key += TILE_ROWS) {
        int64_t n = present - key < TILE_ROWS ? present - key : TILE_ROWS;
        depth_outside(n, pr + key, PAGE, dout, wide, items, dv + key * wide, wide, wide, false, NULL, 0);
        depth_outside(n, ds + key, PAGE, q, wide, items, dk + key * wide, wide, wide, false, NULL, 0);
      }
      for (int64_t i = 0; i < items; i++) memcpy(ITEM(j->dq, i0 + i), dq + i * wide, (size_t)dim * 4);
    }
    for (int64_t i = 0; i < present; i++) {
      memcpy(row_of(j->dk, s->row + k0 + i) + head * dim, dk + i * wide, (size_t)dim * 4);
      memcpy(row_of(j->dv, s->row + k0 + i) + head * dim, dv + i * wide, (size_t)dim * 4);
    }
  }
#undef ITEM
}
