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

// masked gives lanes from .. from+15 of a row of scores: a where the key is one of the first keys, else fill.
INLINE lanes masked(lanes a, int64_t from, int64_t keys, float fill) {
  static const float index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  lanes k = lload(index);
  vf end = vset((float)(keys - from)), other = vset(fill);
  EACH_PART a.v[i] = vselect((vi)(k.v[i] < end), a.v[i], other);
  return a;
}

// soften turns a row of PAGE dot products into probabilities relative to the running maximum *top, which it raises; the row's sum goes to *sum, and the factor for what was
// summed before comes back.
INLINE float soften(float *s, float scale, int64_t keys, float *top, float *sum) {
  lanes a[PAGE / 16], factor = lset(scale);
  UNROLL for (int i = 0; i < PAGE / 16; i++) {
    a[i] = lmul(lload(s + 16 * i), factor);
    if (keys < PAGE) a[i] = masked(a[i], 16 * i, keys, -__builtin_inff());
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

// wanted are the lines of a part that is read after the one that is being multiplied.
typedef struct {
  const char *from;
  int64_t each, asked; // lines of a quarter, and those that have been requested
} wanted;
INLINE wanted want(const uint16_t *part, int64_t elements) { return (wanted){(const char *)part, div_up(elements, 4 * 32), 0}; }
// ask_next requests one of the wanted lines, from each quarter of them in turn: a processor's own look-ahead follows every page of memory by itself.
INLINE void ask_next(wanted *w) {
  if (w->asked >= 4 * w->each) return;
  ASK(w->from + (w->asked % 4 * w->each + w->asked / 4) * 64);
  w->asked++;
}

// half_tile does R rows × 4 vectors of columns over depth, as tile does, from bfloat16 elements as they are stored.
typedef uint16_t vhalf __attribute__((vector_size(2 * LANES), aligned(2)));
enum { HALF_VECTORS = 4, HALF_COLUMNS = HALF_VECTORS * LANES, HALF_ROWS = LANES == 16 ? 4 : 2 };
INLINE void half_tile(const int R, const float *a, int64_t ar, int64_t ak, const uint16_t *b, int64_t bk, int64_t depth, float *c, int64_t ldc, bool zero, wanted *next) {
  vf s[HALF_ROWS][HALF_VECTORS];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < HALF_VECTORS; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
    UNROLL for (int i = 0; i < HALF_COLUMNS; i += 32) ask_next(next);
    vf x[HALF_VECTORS];
    UNROLL for (int v = 0; v < HALF_VECTORS; v++) x[v] = (vf)(__builtin_convertvector(*(const vhalf *)(b + v * LANES), vi) << 16);
    UNROLL for (int r = 0; r < R; r++) {
      vf y = vset(a[r * ar]);
      UNROLL for (int v = 0; v < HALF_VECTORS; v++) s[r][v] = vfma(y, x[v], s[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < HALF_VECTORS; v++) vstore(c + r * ldc + v * LANES, s[r][v]);
}
// half_block does any number of rows and of columns that is a multiple of HALF_COLUMNS.
static void half_block(int64_t rows, const float *a, int64_t ar, int64_t ak, const uint16_t *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero, wanted *next) {
  for (int64_t n = 0; n < columns; n += HALF_COLUMNS)
    for (int64_t r = 0; r < rows;) {
      const float *x = a + r * ar;
      float *y = c + r * ldc + n;
#if LANES == 16
      if (rows - r >= 4) half_tile(4, x, ar, ak, b + n, bk, depth, y, ldc, zero, next), r += 4;
      else
#endif
      if (rows - r >= 2) half_tile(2, x, ar, ak, b + n, bk, depth, y, ldc, zero, next), r += 2;
      else half_tile(1, x, ar, ak, b + n, bk, depth, y, ldc, zero, next), r++;
    }
}

// A unit is one key head of a block of positions_per_block positions, cut at their multiples, so that all of a block see the same pages.
static void attention(const void *job, int64_t unit, worker *w) {
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim, width = j->positions_per_block;
  int64_t head = unit % heads, block = unit / heads;
  const sequence *s = j->sequences;
  for (;; s++) { // few sequences
    int64_t blocks = (s->first + s->count - 1) / width - s->first / width + 1;
    if (block < blocks) break;
    block -= blocks;
  }
  int64_t from = (s->first / width + block) * width, to = from + width, end = s->first + s->count;
  if (from < s->first) from = s->first;
  if (to > end) to = end;
  int64_t items = (to - from) * group, most = width * group, strips = div_up(items, TILE_ROWS), row = s->row + from - s->first;
  bool direct = p->type == BFLOAT16 && to - from == 1 && items <= TILE_ROWS && wide % HALF_COLUMNS == 0; // a step of decoding: turning and widening pages would cost more than the products

  const uint16_t *stored = (const uint16_t *)p->addr; // when direct
  if (direct) {
    wanted first = want(stored + part_at(p, j->layer, j->pages[s->first_page], head), PAGE * dim);
    while (first.asked < 4 * first.each) ask_next(&first);
  }
  float *kpart = w->memory, *vpart = kpart + PAGE * dim, *score = vpart + PAGE * wide, *o = score + most * PAGE, *total = o + most * wide;
  float *top = total + most * wide, *sum = top + most, *total_top = sum + most, *total_sum = total_top + most, *q = total_sum + most;
  for (int64_t i = 0; i < strips; i++) {
    int64_t n = items - i * TILE_ROWS < TILE_ROWS ? items - i * TILE_ROWS : TILE_ROWS;
    for (int64_t r = 0; r < n; r++) { // gathered in total, which is free until the first restart
      int64_t item = i * TILE_ROWS + r;
      memcpy(total + r * wide, row_of(j->q, row + item / group) + (head * group + item % group) * dim, (size_t)dim * 4);
    }
    turn_rows(total, wide, n, dim, q + i * TILE_ROWS * dim);
  }
  memset(o, 0, (size_t)(items * wide) * 4);
  for (int64_t i = 0; i < items; i++) top[i] = -__builtin_inff(), sum[i] = 0.0f;

  for (int64_t k0 = 0; k0 < to; k0 += PAGE) {
    if (k0 % RESTART == 0 && k0 > 0) { // the running softmax begins anew; the part that ended is put with those before it
      for (int64_t i = 0; i < items; i++) {
        float *t = total + i * wide, *part = o + i * wide;
        if (k0 == RESTART) {
          memcpy(t, part, (size_t)wide * 4), total_top[i] = top[i], total_sum[i] = sum[i];
        } else {
          float next = total_top[i] > top[i] ? total_top[i] : top[i], x = exp1(total_top[i] - next), y = exp1(top[i] - next);
          for (int64_t d = 0; d < wide; d++) t[d] = t[d] * x + part[d] * y;
          total_sum[i] = total_sum[i] * x + sum[i] * y, total_top[i] = next;
        }
        top[i] = -__builtin_inff(), sum[i] = 0.0f;
      }
      memset(o, 0, (size_t)(items * wide) * 4);
    }
    int64_t page = j->pages[s->first_page + k0 / PAGE];
    if (direct) { // one position, so all items see the same keys
      int64_t keys = to - k0 < PAGE ? to - k0 : PAGE, more = to - k0 - PAGE;
      const uint16_t *k = stored + part_at(p, j->layer, page, head), *v = stored + part_at(p, j->layer, page, heads + head);
      wanted next = want(v, keys * wide), after = {0};
      if (more > 0) after = want(stored + part_at(p, j->layer, j->pages[s->first_page + k0 / PAGE + 1], head), PAGE * dim);
      half_block(items, q, 1, TILE_ROWS, k, PAGE, dim, score, PAGE, div_up(keys, HALF_COLUMNS) * HALF_COLUMNS, true, &next);
      for (int64_t r = 0; r < items; r++) {
        float fix = soften(score + r * PAGE, j->scale, keys, top + r, sum + r);
        if (fix != 1.0f)
          for (int64_t d = 0; d < wide; d++) o[r * wide + d] *= fix;
      }
      half_block(items, score, PAGE, 1, v, wide, keys, o, wide, wide, false, &after);
      continue;
    }
    const float *k = read_part(p, j->layer, page, head, kpart), *v = read_part(p, j->layer, page, heads + head, vpart);
    for (int64_t i0 = 0; i0 < items; i0 += TILE_ROWS) { // all scores first, while K is near, then V
      int64_t n = items - i0 < TILE_ROWS ? items - i0 : TILE_ROWS, see = from + (i0 + n - 1) / group - k0 + 1, last = see < PAGE ? see : PAGE;
      depth_outside(n, q + i0 * dim, TILE_ROWS, k, PAGE, dim, score + i0 * PAGE, PAGE, div_up(last, TILE_COLUMNS) * TILE_COLUMNS, true, NULL, 0);
    }
    for (int64_t i0 = 0; i0 < items; i0 += TILE_ROWS) {
      int64_t n = items - i0 < TILE_ROWS ? items - i0 : TILE_ROWS, keys[MAX_TILE_ROWS] = {0};
      for (int64_t r = 0; r < n; r++) {
        int64_t see = from + (i0 + r) / group - k0 + 1;
        keys[r] = see < PAGE ? see : PAGE;
      }
      float *strip = score + i0 * PAGE, *out = o + i0 * wide;
      for (int64_t r = 0; r < n; r++) {
        float fix = soften(strip + r * PAGE, j->scale, keys[r], top + i0 + r, sum + i0 + r);
        if (fix != 1.0f)
          for (int64_t d = 0; d < wide; d++) out[r * wide + d] *= fix;
      }
      // All rows of the strip see the first keys; those after are for the rows that see them, and touch no other: what they hold may not be a number.
      scores_inside(n, strip, 0, v, wide, keys[0], out, wide, wide, false, NULL, 0);
      for (int64_t key = keys[0], r = 0; key < keys[n - 1]; key++) {
        while (keys[r] <= key) r++;
        scores_inside(n - r, strip + r * PAGE + key, 0, v + key * wide, wide, 1, out + r * wide, wide, wide, false, NULL, 0);
      }
    }
  }

  for (int64_t i = 0; i < items; i++) {
    float *part = o + i * wide;
    if (to > RESTART) {
      float *t = total + i * wide, next = total_top[i] > top[i] ? total_top[i] : top[i], x = exp1(total_top[i] - next), y = exp1(top[i] - next);
      for (int64_t d = 0; d < wide; d++) part[d] = t[d] * x + part[d] * y;
      sum[i] = total_sum[i] * x + sum[i] * y, top[i] = next;
    }
    int64_t h = head * group + i % group;
    float *out = row_of(j->o, row + i / group) + h * dim, divisor = sum[i];
    for (int64_t d = 0; d < dim; d++) out[d] = part[d] / divisor;
    if (j->lse.addr) row_of(j->lse, row + i / group)[h] = top[i] + log1(sum[i]);
  }
}

// A unit is one key head of one sequence: dk and dv of that head for a range of keys, and their share of dq of its query heads. dk and dv are chains over the items in order, dq over the keys.
static void attention_backward(const void *job, int64_t unit, worker *w) {
  enum { ITEMS = BACKWARD_ITEMS };
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim, head = unit % heads;
  const sequence *s = j->sequences + unit / heads;
  int64_t all = s->count * group;
  float *kpart = w->memory, *vpart = kpart + PAGE * wide, *kt = vpart + PAGE * wide, *vt = kt + PAGE * wide, *dk = vt + PAGE * wide, *dv = dk + PAGE * wide;
  float *q = dv + PAGE * wide, *dout = q + ITEMS * wide, *dq = dout + ITEMS * wide, *packed = dq + ITEMS * wide, *pr = packed + MAX_TILE_ROWS * wide;
  float *ds = pr + ITEMS * PAGE, *delta = ds + ITEMS * PAGE;
#define ITEM(v, i) (row_of(v, s->row + (i) / group) + (head * group + (i) % group) * dim)
  for (int64_t i = 0; i < all; i++) {
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
    const float *k = read_part(p, j->layer, page, head, kpart), *v = read_part(p, j->layer, page, heads + head, vpart);
    for (int64_t i = 0; i < PAGE; i++) // K as [key][dim], V as [dim][key]
      for (int64_t d = 0; d < dim; d++) kt[i * wide + d] = k[d * PAGE + i], vt[d * PAGE + i] = v[i * wide + d];
    memset(dk, 0, (size_t)(2 * PAGE * wide) * 4);
    for (int64_t i0 = k0 * group; i0 < all; i0 += ITEMS) {
      int64_t items = all - i0 < ITEMS ? all - i0 : ITEMS;
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
        int64_t item = i0 + r, see = item / group - k0 + 1, keys = see < PAGE ? see : PAGE;
        lanes scale = lset(j->scale), lse = lset(-row_of(j->lse, s->row + item / group)[head * group + item % group]), minus = lset(-delta[item]);
        for (int i = 0; i < PAGE; i += 32) {
          float *pp = pr + r * PAGE + i, *dd = ds + r * PAGE + i;
          lanes e[2] = {ladd(lmul(lload(pp), scale), lse), ladd(lmul(lload(pp + 16), scale), lse)};
          lexp_two(e);
          for (int k = 0; k < 2; k++) {
            lanes g = lmul(lmul(e[k], ladd(lload(dd + 16 * k), minus)), scale);
            if (keys < PAGE) e[k] = masked(e[k], i + 16 * k, keys, 0.0f), g = masked(g, i + 16 * k, keys, 0.0f);
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
