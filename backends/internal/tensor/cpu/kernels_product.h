// Matrix products. Every output element is one chain of fused multiply-adds over the inner axis in ascending order; vectors run over columns, so neither the
// number of rows nor any cut changes a bit. Included once per instruction set.
//
// Rows go in strips of TILE_ROWS, packed with the inner axis outside, so that a tile reads both factors straight through. A block of the inner axis ends by storing the
// chain in y, and the next one picks it up there.

// tile does R rows × V vectors over depth: c (+)= a · b. Element (r, k) of a is a[r·ar + k·ak], row k of b begins at b[k·bk]. Every step asks for what is at
// ahead, which moves on by step bytes. past: c is written past the caches. R, V and most strides are constants where this is inlined, so that the sums stay in registers.
INLINE void tile(const int R, const int V, const bool pairs, const float *a, int64_t ar, int64_t ak, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc,
                 bool zero, const bool past, const char *ahead, int64_t step) {
  vf s[TILE_ROWS][TILE_VECTORS]; // of constant size: an array sized by a parameter would live in memory
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
    if (step) ASK(ahead), ahead += step;
    if (pairs) {
#ifdef BF16_DOT
      vpair x[TILE_VECTORS];
      UNROLL for (int v = 0; v < V; v++) x[v] = vpair_load(b + v * LANES);
      UNROLL for (int r = 0; r < R; r++) {
        vpair y = vpair_rows(a, r, ak / PAIR_WORDS);
        UNROLL for (int v = 0; v < V; v++) s[r][v] = vdot(s[r][v], y, x[v]);
      }
#else
      UNROLL for (int i = 0; i < PAIR_WORDS; i++) { // all odd elements, then all even ones, so that no more than one half of the weights is in registers
        vf x[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++) {
          vpair two = vpair_load(b + v * LANES);
          x[v] = i ? two.even : two.odd;
          IN_REGISTER(x[v]);
        }
        UNROLL for (int r = 0; r < R; r++) {
          vf y = vset(a[i * (ak / PAIR_WORDS) + r]);
          UNROLL for (int v = 0; v < V; v++) s[r][v] = vfma(y, x[v], s[r][v]);
        }
      }
#endif
    } else {
      vf x[TILE_VECTORS];
      UNROLL for (int v = 0; v < V; v++) {
        x[v] = vload(b + v * LANES);
        if (R > 2) IN_REGISTER(x[v]);
      }
      UNROLL for (int r = 0; r < R; r++) {
        vf y = vset(a[r * ar]);
        UNROLL for (int v = 0; v < V; v++) s[r][v] = vfma(y, x[v], s[r][v]);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++)
      if (past) vstore_past(c + r * ldc + v * LANES, s[r][v]);
      else vstore(c + r * ldc + v * LANES, s[r][v]);
}

#if TILE_ROWS == 12
#define TILE_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define TILE_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

// edge is a full tile beside the output, for columns that are not a multiple of the tile's.
typedef struct {
  float tile[TILE_ROWS * TILE_COLUMNS];
} edge;
INLINE void edge_read(edge *e, int64_t rows, const float *c, int64_t ldc, int64_t columns, bool zero) {
  memset(e, 0, sizeof *e);
  if (!zero)
    for (int64_t r = 0; r < rows; r++) memcpy(e->tile + r * TILE_COLUMNS, c + r * ldc, (size_t)columns * 4);
}
INLINE void edge_write(const edge *e, int64_t rows, float *c, int64_t ldc, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) memcpy(c + r * ldc, e->tile + r * TILE_COLUMNS, (size_t)columns * 4);
}

// DEFINE_BLOCK makes a function for any number of columns and up to TILE_ROWS rows. b must be readable up to a multiple of TILE_COLUMNS; c is written up to columns. Where no more than half a tile's columns are
// left, as there are for low ranks, only these are computed.
enum { HALF_TILE = TILE_COLUMNS / 2 };
#define DEFINE_BLOCK(name)                                                                                                                                         \
  static void name(int64_t rows, const float *a, int64_t stride, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns,        \
                   bool zero, const char *ahead, int64_t step) {                                                                                           \
    (void)stride, (void)bk;                                                                                                                                \
    for (int64_t n = 0; n < columns; n += TILE_COLUMNS) {                                                                                                  \
      edge e;                                                                                                                                              \
      float *out = c + n;                                                                                                                                  \
      int64_t ld = ldc, some = columns - n;                                                                                                                \
      const bool beside = some < TILE_COLUMNS && some != HALF_TILE;                                                                                     \
      if (beside) edge_read(&e, rows, out, ldc, some, zero), out = e.tile, ld = TILE_COLUMNS;                                                              \
      if (some > HALF_TILE) switch (rows) { TILE_CASES(name##_CASE) }                                                                                   \
      else switch (rows) { TILE_CASES(name##_HALF) }                                                                                                       \
      if (beside) edge_write(&e, rows, c + n, ldc, some);                                                                                                  \
      ahead += step * depth;                                                                                                                               \
    }                                                                                                                                                      \
  }
#define PACKED_F32(R, V) case R: tile(R, V, false, a, 1, TILE_ROWS, b + n, PANEL, depth, out, ld, zero, false, ahead, step); break;
#define PACKED_BF16(R, V) case R: tile(R, V, true, a, 1, TILE_ROWS * PAIR_WORDS, b + n, PANEL, depth, out, ld, zero, false, ahead, step); break;
#define DEPTH_OUTSIDE(R, V, past, ahead, step) case R: tile(R, V, false, a, 1, stride, b + n, bk, depth, out, ld, zero, past, ahead, step); break;
#define SCORES_INSIDE(R, V) case R: tile(R, V, false, a, PAGE, 1, b + n, bk, depth, out, ld, zero, false, NULL, 0); break;
#define packed_f32_CASE(R) PACKED_F32(R, TILE_VECTORS)
#define packed_f32_HALF(R) PACKED_F32(R, TILE_VECTORS / 2)
#define packed_bf16_CASE(R) PACKED_BF16(R, TILE_VECTORS)
#define packed_bf16_HALF(R) PACKED_BF16(R, TILE_VECTORS / 2)
#define depth_outside_CASE(R) DEPTH_OUTSIDE(R, TILE_VECTORS, false, NULL, 0)
#define depth_outside_HALF(R) DEPTH_OUTSIDE(R, TILE_VECTORS / 2, false, NULL, 0)
#define depth_outside_asking_CASE(R) DEPTH_OUTSIDE(R, TILE_VECTORS, false, ahead, step)
#define depth_outside_asking_HALF(R) DEPTH_OUTSIDE(R, TILE_VECTORS / 2, false, ahead, step)
#define depth_outside_past_CASE(R) DEPTH_OUTSIDE(R, TILE_VECTORS, true, ahead, step)
#define depth_outside_past_HALF(R) DEPTH_OUTSIDE(R, TILE_VECTORS / 2, true, ahead, step)
#define scores_inside_CASE(R) SCORES_INSIDE(R, TILE_VECTORS)
#define scores_inside_HALF(R) SCORES_INSIDE(R, TILE_VECTORS / 2)
DEFINE_BLOCK(packed_f32) // a is a packed strip, b a panel
DEFINE_BLOCK(packed_bf16) // the same in pairs
DEFINE_BLOCK(depth_outside) // a[k·stride + r]
DEFINE_BLOCK(scores_inside) // a[r·PAGE + k]
DEFINE_BLOCK(depth_outside_asking) // depth_outside that asks for memory ahead
DEFINE_BLOCK(depth_outside_past) // this one writes c past the caches; columns are whole halves of tiles

// block is a piece of the inner axis that is multiplied at once: depth steps from k on of product q, in segment s. first and last: of the segment's chain.
typedef struct {
  const product_job *q;
  int64_t s, k, depth;
  bool first, last;
} block;
// steps_before is where segment s of q's inner axis begins, which has total steps of so many elements.
INLINE int64_t steps_before(const product_job *q, int64_t s, int64_t total, int64_t elements) { return s == 0 ? 0 : s == q->cut.count ? total : q->cut.ends[s - 1] / elements; }
// bounded gives the block from k on: it ends where its segment does, and at the latest most steps behind the multiple of unit before k.
INLINE block bounded(const product_job *q, int64_t s, int64_t k, bool first, int64_t total, int64_t elements, int64_t most, int64_t unit) {
  int64_t left = steps_before(q, s + 1, total, elements) - k, room = most - k % unit;
  return (block){q, s, k, left < room ? left : room, first, left <= room && !q->continued};
}
// block_after gives the block behind b of the product j; its q is NULL behind the last. TOTAL is the number of steps of q's inner axis.
#define BLOCK_AFTER(j, b, TOTAL, elements, most, unit) block_after(j, b, (b).q->continued ? TOTAL((b).q->continued) : 0, TOTAL((b).q), TOTAL(j), elements, most, unit)
INLINE block block_after(const product_job *j, block b, int64_t continued, int64_t total, int64_t first, int64_t elements, int64_t most, int64_t unit) {
  int64_t k = b.k + b.depth;
  if (k < steps_before(b.q, b.s + 1, total, elements)) return bounded(b.q, b.s, k, false, total, elements, most, unit);
  if (b.q->continued) return bounded(b.q->continued, b.s, steps_before(b.q->continued, b.s, continued, elements), false, continued, elements, most, unit);
  if (b.s + 1 == j->cut.count) return (block){0};
  return bounded(j, b.s + 1, steps_before(j, b.s + 1, first, elements), true, first, elements, most, unit);
}

// Few rows: the weights are read once, at the speed of memory, from several panels at once to have enough chains and enough requests under way (but see product_job's linear). X(rows, panels)
#if LANES == 16
#define FEW_CASES(X) X(1, 4) X(2, 4) X(3, 4) X(4, 2) X(5, 2) X(6, 2) X(7, 1) X(8, 1) X(9, 1) X(10, 1) X(11, 1) X(12, 1)
#elif LANES == 8
#define FEW_CASES(X) X(1, 3) X(2, 1) X(3, 1)
#elif TILE_VECTORS == 4
#define FEW_CASES(X) X(1, 2) X(2, 1) X(3, 1)
#else
#define FEW_CASES(X) X(1, 1)
#endif
enum { AHEAD = 4096, PANEL_VECTORS = PANEL / LANES }; // AHEAD: bytes of weights asked for in advance

// ask_for requests what stream multiplies later, two lines for the two at p. Where memory is read fastest straight on (linear), the processor looks far enough ahead by itself.
// Else its look-ahead follows every 4 KiB page by itself: the panels of several are pages enough; of a single one, the lines of the 16 KiB after these are requested from four pages in turn. Nothing from limit on is.
INLINE void ask_for(const char *p, const int panels, const bool linear, const char *limit) {
  if (linear) {
    ASK(p + 256), ASK(p + 320);
    return;
  }
  if (panels > 1) {
    ASK(p + AHEAD / panels), ASK(p + AHEAD / panels + 64);
    return;
  }
  enum { PAGES = 4 * 4096 };
  uintptr_t line = (uintptr_t)p / 128 % (PAGES / 128);
  const char *far = p - (uintptr_t)p % PAGES + PAGES + line % 2 * 8192 + line / 2 * 64;
  far = far + 4096 < limit ? far : p;
  ASK_SECOND(far), ASK_SECOND(far + 4096);
  ASK(p + 512), ASK(p + 576);
}

// ask_for_step is ask_for for a step of weights of eight bits, which is one line.
INLINE void ask_for_step(const char *p, const int panels, const bool linear, const char *limit) {
  if (linear || panels > 1) {
    ASK(p + (linear ? 256 : AHEAD / panels));
    return;
  }
  enum { PAGES = 4 * 4096 };
  uintptr_t line = (uintptr_t)p / 64 % (PAGES / 64);
  const char *far = p - (uintptr_t)p % PAGES + PAGES + line % 4 * 4096 + line / 4 * 64;
  ASK_SECOND(far < limit ? far : p);
  ASK(p + 512);
}

// stream does R rows × G whole panels, b the first one's and panel the bytes from one to the next; others are the words of other rows between two chunks of these. No accumulator leaves the registers but the sums of segments. Of bfloat16 weights all odd elements are multiplied before the even ones, so that no more than one half of them is in registers.
INLINE void stream(const int R, const int G, const product_job *j, const bool linear, const int type, const float *a, int64_t others, const char *b, int64_t panel, const char *limit, int64_t depth, float *c, int64_t ldc, bool zero) {
  const bool pairs = type != FLOAT32;
  const int words = pairs ? PAIR_WORDS : 1, bytes = type >= E4M3 ? E4M3_STEP : PANEL * 4; // per step of depth
  const int64_t group = type >= E4M3 ? j->w.columns / 2 : INT64_MAX / 2;
  e4m3_products products[FEW_PANELS] = {0};
  e4m3_numbers numbers[FEW_PANELS] = {0};
  vf s[MAX_TILE_ROWS][16], held[PARTIAL_SUMS - 1][MAX_TILE_ROWS][16];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < G * PANEL_VECTORS; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  int64_t k = 0, chunk = 0, next = type >= E4M3 ? 0 : INT64_MAX; // next: where a group begins
  for (int64_t segment = 0;; segment++) {
    const int64_t stop = steps_before(j, segment + 1, depth, pairs ? 2 : 1);
    while (k < stop) {
      if (k == chunk + FEW_CHUNK / words) chunk = k, a += others;
      int64_t end = chunk + FEW_CHUNK / words < stop ? chunk + FEW_CHUNK / words : stop;
      if (k == next) {
        UNROLL for (int g = 0; g < G; g++)
          if (type == LOOKED_UP) numbers[g] = e4m3_numbers_at(b + g * panel);
          else products[g] = e4m3_products_at(b + g * panel);
        b += bytes, next += group;
      }
      if (type >= E4M3 && next < end) end = next;
      for (; k < end; k++, b += bytes, a += words) {
        UNROLL for (int g = 0; g < G; g++) {
          const char *p = b + g * panel;
          vf step[PANEL_VECTORS];
          if (type < E4M3) ask_for(p, G, linear, limit);
          else ask_for_step(p, G, linear, limit);
          if (type == E4M3) e4m3_step(products[g], p, step);
          if (type == LOOKED_UP) e4m3_look_up(numbers[g], p, step);
          UNROLL for (int i = words - 1; i >= 0; i--) {
            vf x[PANEL_VECTORS];
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
              if (type >= E4M3) x[v] = PAIR_WORDS == 1 ? step[v] : vpair_half_of(step[v], i);
              else x[v] = !pairs || PAIR_WORDS == 1 ? vload((const float *)p + v * LANES) : vpair_half((const float *)p + v * LANES, i);
              IN_REGISTER(x[v]);
            }
            UNROLL for (int r = 0; r < R; r++) {
              vf y = vset(a[r * FEW_CHUNK + i]);
              UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                vf *sum = &s[r][g * PANEL_VECTORS + v];
                *sum = pairs && PAIR_WORDS == 1 ? vdot_words(*sum, y, x[v]) : vfma(y, x[v], *sum);
              }
            }
          }
        }
      }
    }
    int64_t held_here = partial_sum(segment);
    for (int64_t n = sums_after(segment); n > 0; n--) {
      held_here--;
      UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < G * PANEL_VECTORS; v++) s[r][v] = held[held_here][r][v] + s[r][v];
    }
    if (segment + 1 == j->cut.count) break;
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int v = 0; v < G * PANEL_VECTORS; v++) held[held_here][r][v] = s[r][v], s[r][v] = vset(0.0f);
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < G * PANEL_VECTORS; v++) vstore(c + r * ldc + v * LANES, s[r][v]);
}
// stream_f32 and its like run G panels if so many whole ones are left, else one; one, too, where memory is read fastest straight on. They give the number of panels done, 0 if there is no kernel for so many rows. Weights of
// eight bits go two at most at once, because what their numbers are is in registers too; and two where rows are a few, because the chains of one alone wait for each other.
#define PANELS_AT_ONCE(type, G) ((type) < E4M3 ? (G) : LANES < 16 ? 1 : (G) < 2 ? (G) : 2)
#define STREAM_CASE(R, G)                                                                                                               \
  case R:                                                                                                                               \
    if (linear && type >= E4M3 && LANES == 16 && (R == 3 || R == 4) && panels >= 2) return stream(R, 2, j, true, type, a, others, b, panel, limit, depth, c, ldc, zero), 2; \
    if (linear) return stream(R, 1, j, true, type, a, others, b, panel, limit, depth, c, ldc, zero), 1;                                   \
    if (panels >= PANELS_AT_ONCE(type, G)) return stream(R, PANELS_AT_ONCE(type, G), j, false, type, a, others, b, panel, limit, depth, c, ldc, zero), PANELS_AT_ONCE(type, G); \
    return stream(R, 1, j, false, type, a, others, b, panel, limit, depth, c, ldc, zero), 1;
static int64_t stream_f32(const product_job *j, int64_t rows, int64_t panels, bool linear, const float *a, int64_t others, const char *b, int64_t panel, const char *limit, int64_t depth, float *c, int64_t ldc, bool zero) {
  const int type = FLOAT32;
  switch (rows) { FEW_CASES(STREAM_CASE) }
  return 0;
}
static int64_t stream_bf16(const product_job *j, int64_t rows, int64_t panels, bool linear, const float *a, int64_t others, const char *b, int64_t panel, const char *limit, int64_t depth, float *c, int64_t ldc, bool zero) {
  const int type = BFLOAT16;
  switch (rows) { FEW_CASES(STREAM_CASE) }
  return 0;
}
static int64_t stream_e4m3(const product_job *j, int64_t rows, int64_t panels, bool linear, const float *a, int64_t others, const char *b, int64_t panel, const char *limit, int64_t depth, float *c, int64_t ldc, bool zero) {
  const int type = E4M3;
  switch (rows) { FEW_CASES(STREAM_CASE) }
  return 0;
}
#ifdef PERMUTES_BYTES
static int64_t stream_looked_up(const product_job *j, int64_t rows, int64_t panels, bool linear, const float *a, int64_t others, const char *b, int64_t panel, const char *limit, int64_t depth, float *c, int64_t ldc, bool zero) {
  const int type = LOOKED_UP;
  switch (rows) { FEW_CASES(STREAM_CASE) }
  return 0;
}
#else
#define stream_looked_up stream_e4m3
#endif
#define FEW_CASE(R, G) case R:
static bool few_rows(int64_t rows) {
  switch (rows) { FEW_CASES(FEW_CASE) return true; }
  return false;
}

// few_panels does whole panels [at, end) for rows of one strip, and the last one that has columns which y has not.
static void few_panels(const product_job *j, const float *a, int64_t others, int64_t row, int64_t rows, int64_t at, int64_t end, const char *limit) {
  int64_t (*const stream)(const product_job *, int64_t, int64_t, bool, const float *, int64_t, const char *, int64_t, const char *, int64_t, float *, int64_t, bool) =
      j->w.type == E4M3 ? j->permutes_bytes ? stream_looked_up : stream_e4m3 : j->w.type == BFLOAT16 ? stream_bf16 : stream_f32;
  int64_t depth = steps_of(j->w), panel = panel_bytes(j->w), whole = j->w.out / PANEL;
  bool linear = rows <= j->linear_rows;
  while (at < end) {
    const char *b = weights_at(j->w, at, 0);
    float *y = row_of(j->y, row) + at * PANEL;
    if (at < whole) {
      int64_t panels = (end < whole ? end : whole) - at;
      at += stream(j, rows, panels, linear, a, others, b, panel, limit, depth, y, j->y.stride, !j->accumulate);
      continue;
    }
    float beside[MAX_TILE_ROWS * PANEL] = {0};
    size_t some = (size_t)(j->w.out % PANEL) * 4;
    for (int64_t r = 0; r < rows; r++) memcpy(beside + r * PANEL, y + r * j->y.stride, some);
    stream(j, rows, 1, linear, a, others, b, panel, limit, depth, beside, PANEL, !j->accumulate);
    for (int64_t r = 0; r < rows; r++) memcpy(y + r * j->y.stride, beside + r * PANEL, some);
    at++;
  }
}
// A unit is some panels for all rows, in strips for which few_rows is true; strips = the packed rows as pack_few leaves them, of which y's are some. The strips take turns, so that all but the first find the panels in the
// second-level cache.
static void matmul_few(const void *job, int64_t unit, worker *w) {
  (void)w;
  const product_job *j = job;
  int64_t words = few_words(j->w.in, in_pairs(j->w));
  int64_t from = unit * j->panels_per_unit, end = from + j->panels_per_unit, last = div_up(j->w.out, PANEL);
  if (end > last) end = last;
  const char *limit = weights_at(j->w, end, 0);
  for (int64_t at = from; at < end; at += FEW_PANELS)
    for (int64_t row = 0, rows; row < j->y.rows; row += rows) {
      int64_t within = (j->first_row + row) % j->strip_rows, strip = j->first_row + row - within, all = j->packed_rows - strip < j->strip_rows ? j->packed_rows - strip : j->strip_rows;
      rows = j->y.rows - row < all - within ? j->y.rows - row : all - within;
      few_panels(j, j->strips + strip * words + within * FEW_CHUNK, (all - 1) * FEW_CHUNK, row, rows, at, at + FEW_PANELS < end ? at + FEW_PANELS : end, row ? NULL : limit);
    }
}

// strips_of is how many of the packed strips have rows of y.
INLINE int64_t strips_of(const product_job *j) { return div_up(j->first_row % j->strip_rows + j->y.rows, j->strip_rows); }

// run_strips multiplies strips [from, to) of those with rows of y by a block of weights: b as a panel over its depth, in steps of so many packed words. The first one may begin with rows of others.
INLINE void run_strips(const block *k, int64_t k0, bool pairs, int64_t from, int64_t to, int64_t total, const float *b, int64_t depth, const partial_sums *sums, int64_t first, int64_t columns,
                       const char *ahead, int64_t step) {
  const product_job *j = k->q;
  int64_t words = pairs ? PAIR_WORDS : 1, skipped = j->first_row / j->strip_rows, within = j->first_row % j->strip_rows, at = partial_sum(k->s);
  const bool zero = k->first && !j->accumulate;
  for (int64_t s = from; s < to; s++) {
    int64_t before = s ? 0 : within, row = s * j->strip_rows - within + before, most = j->strip_rows - before, rows = j->y.rows - row < most ? j->y.rows - row : most;
    const float *a = j->strips + ((skipped + s) * total + k0) * TILE_ROWS * words + before;
    float *c = sum_at(sums, at, row, first);
    const int64_t stride = at ? sums->stride : sums->y.stride;
    if (s + 1 < to)
      for (int64_t r = rows; r < rows + j->strip_rows && row + r < j->y.rows; r++) ASK(c + r * stride), ASK(c + r * stride + 16);
    if (pairs) packed_bf16(rows, a, 0, b, 0, depth, c, stride, columns, zero, ahead, step);
    else packed_f32(rows, a, 0, b, 0, depth, c, stride, columns, zero, ahead, step);
    ahead += step * depth * div_up(columns, TILE_COLUMNS);
    if (k->last)
      for (int64_t n = 0; n < sums_after(k->s); n++) {
        float *sum = sum_at(sums, at - n - 1, row, first);
        add_tile(sum, at - n - 1 ? sums->stride : sums->y.stride, sum_at(sums, at - n, row, first), sums->stride, rows, columns);
      }
  }
}

// PAIR_DEPTH is how many pairs of the inner axis make a block. Without an instruction for pairs the tile widens them in registers, each pair's odd element before its
// even one; strips are packed in that order too. A block that is turned is widened as it is, and the rest is the float32 product.
#ifdef BF16_DOT
enum { PAIR_DEPTH = DEPTH };
#else
enum { PAIR_DEPTH = DEPTH / 2 };
static void widen_pairs(const float *b, int64_t depth, const char *next, float *to) {
  for (int64_t k = 0; k < depth; k++, b += PANEL, to += 2 * PANEL, next += PANEL * 4) {
    ASK(next), ASK(next + 64);
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
      vpair x = vpair_load(b + v * LANES);
      vstore(to + v * LANES, x.odd);
      vstore(to + PANEL + v * LANES, x.even);
    }
  }
}
#endif

// weights_ahead is where the weights begin that are multiplied after block k0 of a unit: its next block or, behind the last, the first one of the unit that this thread probably has next; else, NULL.
INLINE const char *weights_ahead(const product_job *j, int64_t unit, int64_t p0, int64_t k0, int64_t total) {
  if (k0 < total) return weights_at(j->w, p0, k0);
  unit += j->units_ahead;
  for (; j && unit >= j->units; j = j->after) unit -= j->units;
  if (!j || !j->w.out) return NULL;
  int64_t first = unit % div_up(div_up(j->w.out, PANEL), j->panels_per_unit) * j->panels_per_unit;
  return weights_at(j->w, first, 0);
}

// A unit is a block of strips × some panels; columns come first in its number.
static void matmul(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  const bool pairs = in_pairs(j->w), eight = j->w.type == E4M3; // eight: of bits
  int64_t total = steps_of(j->w), panels = div_up(j->w.out, PANEL), strips = strips_of(j);
  int64_t chunks = div_up(panels, j->panels_per_unit), p0 = unit % chunks * j->panels_per_unit, p1 = p0 + j->panels_per_unit < panels ? p0 + j->panels_per_unit : panels;
  int64_t s0 = unit / chunks * j->strips_per_unit, s1 = s0 + j->strips_per_unit < strips ? s0 + j->strips_per_unit : strips;
  const int64_t most = pairs ? PAIR_DEPTH : DEPTH, elements = pairs ? 2 : 1;
  float *expanded = w->memory;
  const partial_sums sums = sums_beside(j, s0, s1, p0 * PANEL, expanded + (eight ? PAIR_DEPTH * PANEL : 0));
#define TOTAL(q) steps_of((q)->w)
  block k = bounded(j, 0, 0, true, total, elements, most, 1);
  while (k.q) { // at least once: with no inner axis y is still written
    const block after = BLOCK_AFTER(j, k, TOTAL, elements, most, 1);
    for (int64_t p = p0; p < p1; p++) {
      const float *b = (const float *)weights_at(j->w, p, k.k);
      const char *next = p + 1 < p1 ? weights_at(j->w, p + 1, k.k) : weights_ahead(j, unit, p0, after.q ? after.k : total, total);
      int64_t steps = (s1 - s0) * k.depth * (PANEL / TILE_COLUMNS), step = next && steps ? div_up(k.depth * (eight ? E4M3_STEP : PANEL * 4), steps) : 0;
      if (eight) expand_e4m3(j->w, p, k.k, k.depth, expanded, j->permutes_bytes), b = expanded;
      int64_t columns = j->w.out - p * PANEL < PANEL ? j->w.out - p * PANEL : PANEL;
      run_strips(&k, k.k, pairs, s0, s1, total, b, k.depth, &sums, p * PANEL, columns, next, step);
    }
    k = after;
  }
#undef TOTAL
}

// transpose_f32 turns 32 × 32 elements: to[n][k] = from[k][n].
static void transpose_f32(const float *from, int64_t stride, float *to) {
  for (int k = 0; k < PANEL; k += 4) {
    for (int i = 0; i < 4; i++) ASK(from + (PANEL + k + i) * stride), ASK(from + (PANEL + k + i) * stride + 16); // the next block
    for (int n = 0; n < PANEL; n += 4) {
      const float *f = from + k * stride + n;
      v4 a = *(const v4 *)f, b = *(const v4 *)(f + stride), c = *(const v4 *)(f + 2 * stride), d = *(const v4 *)(f + 3 * stride);
      v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      v4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      *(v4 *)(to + (n + 0) * PANEL + k) = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
      *(v4 *)(to + (n + 1) * PANEL + k) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
      *(v4 *)(to + (n + 2) * PANEL + k) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
      *(v4 *)(to + (n + 3) * PANEL + k) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
    }
  }
}
#ifdef BF16_DOT
#include "kernels_turn.h"
#else
// transpose_bf16 is that of kernels_turn.h, element by element.
static void transpose_bf16(const uint64_t *from, int64_t wanted, uint64_t *to) {
  uint64_t t[16][16];
  for (int k = 0; k < 16; k++) {
    ASK(from + (16 + k) * 16), ASK(from + (16 + k) * 16 + 8); // the next block
    for (int n = 0; n < 16; n++) {
      uint64_t x = from[k * 16 + n];
      t[k][n] = (x & 0xffff00000000ffff) | (x & 0xffff0000) << 16 | (x >> 16 & 0xffff0000);
    }
  }
  for (int n = 0; n < 16 && n < wanted; n++)
    for (int k = 0; k < 16; k++) to[n * 16 + k] = t[k][n];
}
#endif

// A unit is a block of strips × some groups of PANEL columns of dx. y = dx; the inner axis is w's rows. Blocks of the panels are turned into the worker's memory, from the panel on in which they begin.
static void matmul_transposed(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  bool pairs = in_pairs(j->w);
  int64_t in = steps_of(j->w); // rows of a panel
  int64_t groups = div_up(j->w.in, PANEL), strips = strips_of(j), per_panel = pairs ? PANEL / 2 : PANEL;
  int64_t chunks = div_up(groups, j->panels_per_unit), g0 = unit % chunks * j->panels_per_unit, g1 = g0 + j->panels_per_unit < groups ? g0 + j->panels_per_unit : groups;
  int64_t s0 = unit / chunks * j->strips_per_unit, s1 = s0 + j->strips_per_unit < strips ? s0 + j->strips_per_unit : strips;
  float *turned = w->memory, *ragged = turned + DEPTH * PANEL, *pairs_turned = ragged + PANEL * PANEL;
  const int64_t most = pairs ? PAIR_DEPTH : DEPTH, elements = pairs ? 2 : 1;
  const partial_sums sums = sums_beside(j, s0, s1, g0 * PANEL, pairs_turned + PANEL * PANEL);
#define TOTAL(q) (pairs ? ((q)->w.out + 1) / 2 : (q)->w.out)
  for (block k = bounded(j, 0, 0, true, TOTAL(j), elements, most, per_panel); k.q; k = BLOCK_AFTER(j, k, TOTAL, elements, most, per_panel)) {
    const int64_t total = TOTAL(k.q), skipped = k.k % per_panel, depth = skipped + k.depth, n0 = k.k - skipped;
    for (int64_t g = g0; g < g1; g++) {
      int64_t first = g * per_panel, have = in - first < per_panel ? in - first : per_panel;
      for (int64_t n = 0; n < depth; n += per_panel) { // the last panel is filled up with zeros, so it can be turned whole
        const float *from = (const float *)weights_at(k.q->w, (n0 + n) / per_panel, first);
        if (k.q->w.type == E4M3) {
          memset(ragged + have * PANEL, 0, sizeof(float) * (size_t)(PANEL - have) * PANEL);
          expand_e4m3(k.q->w, (n0 + n) / per_panel, first, have, ragged, false);
          from = ragged;
        } else if (have < per_panel) {
          memset(ragged, 0, sizeof(float) * PANEL * PANEL);
          from = memcpy(ragged, from, (size_t)(have * PANEL) * 4);
        }
#ifdef BF16_DOT
        (void)pairs_turned;
        if (pairs) transpose_bf16((const uint64_t *)from, depth - n, (uint64_t *)(turned + n * PANEL));
#else
        if (pairs) {
          transpose_bf16((const uint64_t *)from, depth - n, (uint64_t *)pairs_turned);
          widen_pairs(pairs_turned, per_panel, (const char *)pairs_turned, turned + 2 * n * PANEL);
        }
#endif
        else transpose_f32(from, PANEL, turned + n * PANEL);
      }
      int64_t columns = j->w.in - g * PANEL < PANEL ? j->w.in - g * PANEL : PANEL;
      // The weights of the next columns are asked for, those of the first panel: adapters' matrices have no more.
      const char *next = weights_at(k.q->w, n0 / per_panel, first + per_panel);
      int64_t steps = (s1 - s0) * k.depth * (PANEL / TILE_COLUMNS), step = steps ? div_up(per_panel * PANEL * 4, steps) : 0;
#ifndef BF16_DOT
      if (pairs) {
        run_strips(&k, 2 * k.k, false, s0, s1, 2 * total, turned + 2 * skipped * PANEL, 2 * k.depth, &sums, g * PANEL, columns, next, step);
        continue;
      }
#endif
      run_strips(&k, k.k, pairs, s0, s1, total, turned + skipped * PANEL, k.depth, &sums, g * PANEL, columns, next, step);
    }
  }
#undef TOTAL
}

// The gradient by many rows has them in the lanes: a tile is TILE_ROWS columns of dx × TILE_COLUMNS rows, weights are broadcast from where they lie in their panel,
// and only dx itself is turned, when its chains are complete. ACROSS_GROUP words of the inner axis lie side by side in a panel of weights.
#ifdef BF16_DOT
#define across_group(pairs) ((pairs) ? PANEL / 2 : PANEL)
#else
#define across_group(pairs) PANEL
#endif

// tile_across does TILE_ROWS columns of dx × V vectors of rows over depth words: c (+)= a · b. a is groups of [TILE_ROWS][group], b [depth][TILE_COLUMNS], c [TILE_ROWS][TILE_COLUMNS].
// The first group begins with words that are skipped; these count in depth. swapped takes every two words in the order second, first: bfloat16 pairs as float32. With every group it asks for some of the lines that soon is about.
INLINE void tile_across(const int V, const bool dot, const bool swapped, const float *a, int64_t skipped, const float *b, int64_t depth, float *c, bool zero, requests *soon) {
  enum { R = TILE_ROWS };
  (void)dot;
  const int64_t group = across_group(dot);
  vf s[R][TILE_VECTORS];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * TILE_COLUMNS + v * LANES);
  for (int64_t d = 0; d < depth; d += group, a += R * group) {
    int64_t n = depth - d < group ? depth - d : group, k = d ? 0 : skipped;
    ask_some(soon);
    ask_some(soon + 1);
    for (; k + 2 <= n; k += 2, b += 2 * TILE_COLUMNS)
      UNROLL for (int i = 0; i < 2; i++) {
        const int at = swapped ? 1 - i : i;
#ifdef BF16_DOT
        if (dot) {
          vpair x[TILE_VECTORS];
          UNROLL for (int v = 0; v < V; v++) x[v] = vpair_load(b + at * TILE_COLUMNS + v * LANES);
          UNROLL for (int r = 0; r < R; r++) {
            vpair y = vpair_rows(a, r * group + k + at, 0);
            UNROLL for (int v = 0; v < V; v++) s[r][v] = vdot(s[r][v], y, x[v]);
          }
          continue;
        }
#endif
        vf x[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++) x[v] = vload(b + at * TILE_COLUMNS + v * LANES);
        UNROLL for (int r = 0; r < R; r++) {
          vf y = vset(a[r * group + k + at]);
          UNROLL for (int v = 0; v < V; v++) s[r][v] = vfma(y, x[v], s[r][v]);
        }
      }
    for (; k < n; k++, b += TILE_COLUMNS) // the last of an odd number
      UNROLL for (int r = 0; r < R; r++) {
#ifdef BF16_DOT
        if (dot) {
          vpair y = vpair_rows(a, r * group + k, 0);
          UNROLL for (int v = 0; v < V; v++) s[r][v] = vdot(s[r][v], y, vpair_load(b + v * LANES));
          continue;
        }
#endif
        UNROLL for (int v = 0; v < V; v++) s[r][v] = vfma(vset(a[r * group + k]), vload(b + v * LANES), s[r][v]);
      }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++) vstore(c + r * TILE_COLUMNS + v * LANES, s[r][v]);
}
#define ACROSS(name, dot, swapped)                                                                                             \
  static void name(int64_t vectors, const float *a, int64_t skipped, const float *b, int64_t depth, float *c, bool zero, requests *soon) {      \
    if (vectors == TILE_VECTORS) tile_across(TILE_VECTORS, dot, swapped, a, skipped, b, depth, c, zero, soon);                                  \
    else for (int64_t v = 0; v < vectors; v++) tile_across(1, dot, swapped, a, skipped, b + v * LANES, depth, c + v * LANES, zero, soon);       \
  }
ACROSS(across_f32, false, false)
#ifdef BF16_DOT
ACROSS(across_bf16, true, false)
#else
ACROSS(across_bf16, false, true)
#endif

// gather_across copies the weights of TILE_ROWS columns of dx, from first on, and depth words of the inner axis, from n0 on, in groups as tile_across reads them.
INLINE void gather_across(const product_job *j, const bool pairs, int64_t first, int64_t n0, int64_t depth, float *to) {
  const int64_t group = across_group(pairs);
  int64_t have = j->w.in - first < TILE_ROWS ? j->w.in - first : TILE_ROWS;
#ifdef BF16_DOT
  uint16_t half[PANEL];
  for (int i = 0; i < PANEL; i++) half[i] = (uint16_t)(2 * i);
  const __m512i evens = _mm512_loadu_si512(half), odds = _mm512_add_epi16(evens, _mm512_set1_epi16(1));
#endif
  for (int64_t d = 0; d < depth; d += group, to += TILE_ROWS * group) {
    const float *panel = (const float *)weights_at(j->w, (n0 + d) / group, 0);
    float expanded[TILE_ROWS / 2 * PANEL];
    if (j->w.type == E4M3) expand_e4m3(j->w, (n0 + d) / group, first / 2, div_up(have, 2), expanded, false);
    if (have < TILE_ROWS) memset(to, 0, (size_t)(TILE_ROWS * group) * 4);
    if (!pairs) {
      memcpy(to, panel + first * PANEL, (size_t)(have * PANEL) * 4);
      continue;
    }
    for (int64_t k = 0; k < have; k += 2) { // a row of the panel is two columns of dx
      const float *from = j->w.type == E4M3 ? expanded + k / 2 * PANEL : panel + (first + k) / 2 * PANEL;
      float *even = to + k * group, *odd = even + group;
#ifdef BF16_DOT
      __m512i x = _mm512_loadu_si512(from), y = _mm512_loadu_si512(from + LANES);
      _mm512_storeu_si512(even, _mm512_permutex2var_epi16(x, evens, y));
      _mm512_storeu_si512(odd, _mm512_permutex2var_epi16(x, odds, y));
#else
      UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        vpair x = vpair_load(from + v * LANES);
        vstore(even + v * LANES, x.even);
        vstore(odd + v * LANES, x.odd);
      }
#endif
    }
  }
}

// A unit is a block of rows (strips_per_unit times TILE_COLUMNS) × panels_per_unit times TILE_ROWS columns of dx. y = dx, strips = dy as pack_across leaves it.
INLINE void transposed_across(const product_job *j, int64_t unit, worker *w, const bool pairs) {
  const bool dot = pairs && PAIR_WORDS == 1;
  const int64_t words = pairs ? PAIR_WORDS : 1, elements = pairs ? 2 / PAIR_WORDS : 1, group = across_group(dot); // words: of a pair; elements: of a word
  int64_t tiles = div_up(j->w.in, TILE_ROWS), strips = div_up(j->y.rows, TILE_COLUMNS);
  int64_t chunks = div_up(tiles, j->panels_per_unit), t0 = unit % chunks * j->panels_per_unit, t1 = t0 + j->panels_per_unit < tiles ? t0 + j->panels_per_unit : tiles;
  int64_t s0 = unit / chunks * j->strips_per_unit, s1 = s0 + j->strips_per_unit < strips ? s0 + j->strips_per_unit : strips;
  int64_t columns = (t1 * TILE_ROWS < j->w.in ? t1 * TILE_ROWS : j->w.in) - t0 * TILE_ROWS; // of dx
  const int64_t per_row = pairs ? 2 : 1, run = div_up(columns, per_row) * (j->w.type == E4M3 ? 1 : PANEL / LINE); // of a panel: columns of dx in a row, and lines of a unit
  const int64_t size = j->strips_per_unit * j->panels_per_unit * TILE_ROWS * TILE_COLUMNS;
  float *weights = w->memory, *sums = weights + j->panels_per_unit * TILE_ROWS * DEPTH;
#define TOTAL(q) (pairs ? ((q)->w.out + 1) / 2 * words : (q)->w.out)
#define PACKED(q) ((q)->strips + (q)->first_row * TOTAL(q))
  block k = bounded(j, 0, 0, true, TOTAL(j), elements, DEPTH, group);
  while (k.q) {
    const block after = BLOCK_AFTER(j, k, TOTAL, elements, DEPTH, group);
    const int64_t skipped = k.k % group, total = TOTAL(k.q), at = partial_sum(k.s);
    const float *packed = PACKED(k.q);
    for (int64_t t = t0; t < t1; t++) gather_across(k.q, pairs, t * TILE_ROWS, k.k - skipped, skipped + k.depth, weights + (t - t0) * TILE_ROWS * DEPTH);
    // While tiles are computed, what comes after them is asked for, a share at each group: the weights of the next block, and the rows of the next strip or of the next block's first.
    int64_t groups = div_up(skipped + k.depth, group);
    requests soon[2] = {0};
    if (after.depth > 0 && groups > 0) {
      int64_t first = t0 * TILE_ROWS, begin = after.k / group, end = div_up(after.k + after.depth, group);
      soon[0] = (requests){.next = (const float *)weights_at(after.q->w, begin, first / per_row), .count = (end - begin) * run, .in_run = run, .left = run, .skip = panel_bytes(after.q->w) / 4 - run * LINE};
      soon[0].some = div_up(soon[0].count, (s1 - s0) * (t1 - t0) * groups);
    }
    for (int64_t s = s0; s < s1; s++) {
      int64_t rows = j->y.rows - s * TILE_COLUMNS < TILE_COLUMNS ? j->y.rows - s * TILE_COLUMNS : TILE_COLUMNS;
      const float *b = packed + (s * total + k.k) * TILE_COLUMNS;
      bool same = s + 1 < s1; // the next strip is of this block
      if (same) soon[1] = (requests){.next = b + total * TILE_COLUMNS, .count = k.depth * TILE_COLUMNS / LINE, .in_run = INT64_MAX, .left = INT64_MAX};
      else if (after.q) soon[1] = (requests){.next = PACKED(after.q) + (s0 * TOTAL(after.q) + after.k) * TILE_COLUMNS, .count = after.depth * TILE_COLUMNS / LINE, .in_run = INT64_MAX, .left = INT64_MAX};
      else soon[1] = (requests){0};
      if (groups > 0) soon[1].some = div_up(soon[1].count, (t1 - t0) * groups);
      // The strip's sums lie side by side, so that dx is turned for all of its columns at once: whole lines of it, and four columns at a time but for the last.
      float *strip = sums + (s - s0) * j->panels_per_unit * TILE_ROWS * TILE_COLUMNS, *y = row_of(j->y, s * TILE_COLUMNS) + t0 * TILE_ROWS;
      if (k.first && j->accumulate) {
        turn_wide(y, j->y.stride, rows, columns, TILE_COLUMNS, strip);
        memset(strip + columns * TILE_COLUMNS, 0, (size_t)(((t1 - t0) * TILE_ROWS - columns) * TILE_COLUMNS) * 4);
      }
      for (int64_t t = 0; t < t1 - t0; t++) {
        float *c = strip + at * size + t * TILE_ROWS * TILE_COLUMNS;
        (dot ? across_bf16 : pairs ? across_bf16 : across_f32)(div_up(rows, LANES), weights + t * TILE_ROWS * DEPTH, skipped, b, skipped + k.depth, c, k.first && !j->accumulate, soon);
        if (k.last)
          for (int64_t n = 0; n < sums_after(k.s); n++, c -= size) add_tile(c - size, TILE_COLUMNS, c, TILE_COLUMNS, TILE_ROWS, div_up(rows, LANES) * LANES);
      }
      if (!after.q) turn_back(strip, TILE_COLUMNS, rows, columns, y, j->y.stride);
    }
    k = after;
  }
#undef PACKED
#undef TOTAL
}
static void matmul_across(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  if (in_pairs(j->w)) transposed_across(j, unit, w, true);
  else transposed_across(j, unit, w, false);
}
