// How the factors of matrix products lie in memory, and the packing that brings them there: rows in strips for the kernels that read them, weights in panels. Included once per instruction set.

#define TILE_COLUMNS (TILE_VECTORS * LANES)

// One pair of bfloat16 products: odd element first, then even. This is what vdpbf16ps does. A packed row has PAIR_WORDS words of 32 bits per pair: the pair itself,
// or its two elements widened.
#ifdef BF16_DOT
enum { PAIR_WORDS = 1 };
typedef __m512bh vpair;
#define vpair_load(p) ((vpair)_mm512_loadu_si512(p))
#define vpair_rows(a, r, rows) ((vpair)_mm512_set1_epi32(((const int32_t *)(a))[r]))
#define vdot(c, a, b) _mm512_dpbf16_ps(c, a, b)
#define vdot_words(c, a, b) vdot(c, (vpair)(a), (vpair)(b)) // of words that are pairs
#define vpair_half_of(word, i) (word)
#define vpair_half(p, i) vload(p)                           // not used: a pair is one word
#else
enum { PAIR_WORDS = 2 };
typedef struct {
  vf odd, even;
} vpair;
INLINE vpair vpair_load(const float *p) {
  vi u = (vi)vload(p);
  return (vpair){(vf)(u & ((vi){0} + (int32_t)0xffff0000)), (vf)(u << 16)};
}
#define vpair_rows(a, r, rows) ((vpair){vset((a)[r]), vset((a)[(rows) + (r)])})
#define vdot(c, a, b) vfma((a).even, (b).even, vfma((a).odd, (b).odd, c))
#define vdot_words(c, a, b) (c) // not used: a word is an element
INLINE vf vpair_half_of(vf word, const int i) { return i ? (vf)((vi)word & ((vi){0} + (int32_t)0xffff0000)) : (vf)((vi)word << 16); }
#define vpair_half(p, i) ((i) ? vpair_load(p).odd : vpair_load(p).even)
#endif

// turn_wide writes rows with the inner axis outside: to[d·width + r], zero for r from rows to width. width is a multiple of 4.
static void turn_wide(const float *from, int64_t stride, int64_t rows, int64_t dim, int64_t width, float *to) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float *f = from + r * stride;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      v4 a = *(const v4 *)(f + d), b = *(const v4 *)(f + stride + d), c = *(const v4 *)(f + 2 * stride + d), e = *(const v4 *)(f + 3 * stride + d);
      v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      v4 ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
      float *t = to + d * width + r;
      *(v4 *)t = __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5);
      *(v4 *)(t + width) = __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7);
      *(v4 *)(t + 2 * width) = __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5);
      *(v4 *)(t + 3 * width) = __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7);
    }
    for (; d < dim; d++)
      for (int64_t i = 0; i < 4; i++) to[d * width + r + i] = f[i * stride + d];
  }
  for (; r < width; r++)
    for (int64_t d = 0; d < dim; d++) to[d * width + r] = r < rows ? from[r * stride + d] : 0.0f;
}

// turn_back_to is turn_wide the other way round: y[r·stride + k] = c[k·width + r]; past the caches if past says so, and y is aligned then.
INLINE void turn_back_to(const bool past, const float *c, int64_t width, int64_t rows, int64_t columns, float *y, int64_t stride) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    int64_t k = 0;
    for (; k + 4 <= columns; k += 4) {
      const float *f = c + k * width + r;
      v4 a = *(const v4 *)f, b = *(const v4 *)(f + width), d = *(const v4 *)(f + 2 * width), e = *(const v4 *)(f + 3 * width);
      v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      v4 de0 = __builtin_shufflevector(d, e, 0, 4, 1, 5), de1 = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      float *t = y + r * stride + k;
      store4(past, t, __builtin_shufflevector(ab0, de0, 0, 1, 4, 5));
      store4(past, t + stride, __builtin_shufflevector(ab0, de0, 2, 3, 6, 7));
      store4(past, t + 2 * stride, __builtin_shufflevector(ab1, de1, 0, 1, 4, 5));
      store4(past, t + 3 * stride, __builtin_shufflevector(ab1, de1, 2, 3, 6, 7));
    }
    for (; k < columns; k++)
      for (int64_t i = 0; i < 4; i++) y[(r + i) * stride + k] = c[k * width + r + i];
  }
  for (; r < rows; r++)
    for (int64_t k = 0; k < columns; k++) y[r * stride + k] = c[k * width + r];
}
static void turn_back(const float *c, int64_t width, int64_t rows, int64_t columns, float *y, int64_t stride) { turn_back_to(false, c, width, rows, columns, y, stride); }
static void turn_back_past(const float *c, int64_t width, int64_t rows, int64_t columns, float *y, int64_t stride) { turn_back_to(true, c, width, rows, columns, y, stride); }
// turn_rows writes up to TILE_ROWS rows of dim words of 32 bits with the inner axis outside: to[d·TILE_ROWS + r].
static void turn_rows(const float *from, int64_t stride, int64_t rows, int64_t dim, float *to) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      const float *f = from + r * stride + d;
      v4 a = *(const v4 *)f, b = *(const v4 *)(f + stride), c = *(const v4 *)(f + 2 * stride), e = *(const v4 *)(f + 3 * stride);
      v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      v4 ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
      float *t = to + d * TILE_ROWS + r;
      *(v4 *)t = __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5);
      *(v4 *)(t + TILE_ROWS) = __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7);
      *(v4 *)(t + 2 * TILE_ROWS) = __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5);
      *(v4 *)(t + 3 * TILE_ROWS) = __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7);
    }
    for (; d < dim; d++)
      for (int64_t i = r; i < r + 4; i++) to[d * TILE_ROWS + i] = from[i * stride + d];
  }
  for (; r + 2 <= rows; r += 2) {
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      const float *f = from + r * stride + d;
      v4 a = *(const v4 *)f, b = *(const v4 *)(f + stride);
      float *t = to + d * TILE_ROWS + r;
      *(v2 *)t = __builtin_shufflevector(a, b, 0, 4);
      *(v2 *)(t + TILE_ROWS) = __builtin_shufflevector(a, b, 1, 5);
      *(v2 *)(t + 2 * TILE_ROWS) = __builtin_shufflevector(a, b, 2, 6);
      *(v2 *)(t + 3 * TILE_ROWS) = __builtin_shufflevector(a, b, 3, 7);
    }
    for (; d < dim; d++)
      for (int64_t i = r; i < r + 2; i++) to[d * TILE_ROWS + i] = from[i * stride + d];
  }
  for (; r < rows; r++)
    for (int64_t d = 0; d < dim; d++) to[d * TILE_ROWS + r] = from[r * stride + d];
}

// pick copies n columns, from k on, of picked rows from first on side by side, SOME_COLUMNS apart.
enum { SOME_COLUMNS = 64 };
INLINE void pick(view x, int64_t first, int64_t rows, int64_t k, int64_t n, float *to) {
  for (int64_t r = 0; r < rows; r++) memcpy(to + r * SOME_COLUMNS, (const float *)picked_row(x, first + r) + k, (size_t)n * 4);
}

// Packing of rows into strips. A unit is one strip of rows_per_unit rows; a = x, b = the strips (addr).
static void pack_strip_f32(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t first = unit * j->rows_per_unit, rows = j->a.rows - first < j->rows_per_unit ? j->a.rows - first : j->rows_per_unit, depth = j->a.cols;
  float *to = (float *)j->b.addr + unit * TILE_ROWS * depth;
  for (int64_t k = 0; k < depth; k += SOME_COLUMNS) { // so that the strip's lines stay near
    int64_t n = depth - k < SOME_COLUMNS ? depth - k : SOME_COLUMNS;
    if (j->a.index) {
      float picked[TILE_ROWS * SOME_COLUMNS];
      pick(j->a, first, rows, k, n, picked);
      turn_rows(picked, SOME_COLUMNS, rows, n, to + k * TILE_ROWS);
    } else turn_rows(row_of(j->a, first) + k, j->a.stride, rows, n, to + k * TILE_ROWS);
  }
}
static void pack_strip_bf16(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  enum { SOME = 64 };
  int64_t first = unit * j->rows_per_unit, rows = j->a.rows - first < j->rows_per_unit ? j->a.rows - first : j->rows_per_unit, in = j->a.cols, words = (in + 1) / 2 * PAIR_WORDS;
  float *to = (float *)j->b.addr + unit * TILE_ROWS * words;
  for (int64_t k0 = 0; k0 < in; k0 += SOME) {
    int64_t n = in - k0 < SOME ? in - k0 : SOME, some = (n + 1) / 2 * PAIR_WORDS;
    union { uint32_t u[TILE_ROWS][SOME]; float f[TILE_ROWS * SOME]; } pairs;
    for (int64_t r = 0; r < rows; r++) {
      uint32_t *x = pairs.u[r]; // bits of the rounded elements as float32
      if (j->a.type == BFLOAT16) {
        const uint16_t *from = (const uint16_t *)picked_row(j->a, first + r) + k0;
        for (int64_t k = 0; k < n; k++) x[k] = (uint32_t)from[k] << 16;
      } else {
        const uint32_t *from = (const uint32_t *)picked_row(j->a, first + r) + k0;
        for (int64_t k = 0; k < n; k++) x[k] = round_bits(from[k]);
      }
      for (int64_t k = n; k < SOME; k++) x[k] = 0;
      if (PAIR_WORDS == 1)
        for (int64_t k = 0; k < SOME / 2; k++) x[k] = x[2 * k + 1] | x[2 * k] >> 16;
      else
        for (int64_t k = 0; k < SOME; k += 4) {
          v4 *two = (v4 *)(x + k);
          *two = __builtin_shufflevector(*two, *two, 1, 0, 3, 2);
        }
    }
    turn_rows(pairs.f, SOME, rows, some, to + k0 / 2 * PAIR_WORDS * TILE_ROWS);
  }
}
// Their rows are packed in chunks of FEW_CHUNK words: chunk 0 of every row, then chunk 1, so that the kernel walks through them with one pointer and packing turns nothing. A word is an element or, where there is
// an instruction for them, a pair. The last chunk is filled up with zeros. Strips of rows_per_unit rows lie one after another. A unit is one row; a = x, b = the packed rows (addr), type = the weights'.
static int64_t few_words(int64_t in, bool pairs) { return div_up(pairs ? (in + 1) / 2 * PAIR_WORDS : in, FEW_CHUNK) * FEW_CHUNK; } // of a packed row
INLINE void pack_chunks(const rows_job *j, int64_t row, const bool half, const bool pairs) { // half: x is bfloat16
  enum { MOST = 2 * FEW_CHUNK };
  const int64_t each = pairs && PAIR_WORDS == 1 ? MOST : FEW_CHUNK; // elements of a chunk
  const int64_t first = row - row % j->rows_per_unit, rows = j->a.rows - first < j->rows_per_unit ? j->a.rows - first : j->rows_per_unit;
  uint32_t *to = (uint32_t *)j->b.addr + first * few_words(j->a.cols, pairs) + (row - first) * FEW_CHUNK;
  for (int64_t k0 = 0; k0 < j->a.cols; k0 += each, to += rows * FEW_CHUNK) {
    int64_t n = j->a.cols - k0 < each ? j->a.cols - k0 : each;
    const char *from = half ? (const char *)((const uint16_t *)picked_row(j->a, row) + k0) : (const char *)((const float *)picked_row(j->a, row) + k0);
    uint32_t some[MOST] = {0}, x[MOST];
    if (n < each) from = memcpy(some, from, (size_t)n * (half ? 2 : 4));
    if (half)
      for (int k = 0; k < each; k++) x[k] = (uint32_t)((const uint16_t *)from)[k] << 16;
    else
      for (int k = 0; k < each; k += LANES) vstore(x + k, pairs ? vround(vload((const float *)from + k)) : vload((const float *)from + k));
    for (int k = 0; k < FEW_CHUNK; k++) to[k] = each == FEW_CHUNK ? x[k] : x[2 * k + 1] | x[2 * k] >> 16;
  }
}
static void pack_few(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  if (j->a.type == BFLOAT16) pack_chunks(j, unit, true, true);
  else if (j->type == BFLOAT16) pack_chunks(j, unit, false, true);
  else pack_chunks(j, unit, false, false);
}
// Packing of rows for it. A unit is TILE_COLUMNS rows: [inner axis][TILE_COLUMNS], or pairs of the inner axis in one word where there is an instruction for them; without it
// bfloat16 values are float32 in their own order. a = x, b = the packed rows (addr).
static void pack_across_f32(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t first = unit * TILE_COLUMNS, rows = j->a.rows - first < TILE_COLUMNS ? j->a.rows - first : TILE_COLUMNS, depth = j->a.cols;
  float *to = (float *)j->b.addr + unit * TILE_COLUMNS * depth;
  for (int64_t k = 0; k < depth; k += SOME_COLUMNS) { // so that the lines stay near
    int64_t n = depth - k < SOME_COLUMNS ? depth - k : SOME_COLUMNS;
    if (j->a.index) {
      float picked[TILE_COLUMNS * SOME_COLUMNS];
      pick(j->a, first, rows, k, n, picked);
      turn_wide(picked, SOME_COLUMNS, rows, n, TILE_COLUMNS, to + k * TILE_COLUMNS);
    } else turn_wide(row_of(j->a, first) + k, j->a.stride, rows, n, TILE_COLUMNS, to + k * TILE_COLUMNS);
  }
}
static void pack_across_bf16(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  enum { SOME = 64, PER_WORD = PAIR_WORDS == 1 ? 2 : 1 };
  int64_t first = unit * TILE_COLUMNS, rows = j->a.rows - first < TILE_COLUMNS ? j->a.rows - first : TILE_COLUMNS, in = j->a.cols;
  int64_t words = (in + 1) / 2 * PAIR_WORDS;
  float *to = (float *)j->b.addr + unit * TILE_COLUMNS * words;
  for (int64_t k0 = 0; k0 < in; k0 += SOME) {
    int64_t n = in - k0 < SOME ? in - k0 : SOME, some = (n + 1) / 2 * PAIR_WORDS;
    union { uint32_t u[TILE_COLUMNS][SOME]; float f[TILE_COLUMNS * SOME]; } t;
    for (int64_t r = 0; r < rows; r++) {
      uint32_t *x = t.u[r]; // bits of the rounded elements as float32
      if (j->a.type == BFLOAT16) {
        const uint16_t *from = (const uint16_t *)picked_row(j->a, first + r) + k0;
        for (int64_t k = 0; k < n; k++) x[k] = (uint32_t)from[k] << 16;
        for (int64_t k = n; k < SOME; k++) x[k] = 0;
      } else {
        const uint32_t *from = (const uint32_t *)picked_row(j->a, first + r) + k0;
        if (k0 + SOME < in)
          for (int64_t k = 0; k < SOME; k += 16) ASK(from + SOME + k); // rows are far from each other: no processor sees by itself what comes next
        for (int64_t k = 0; k < n; k++) x[k] = round_bits(from[k]);
        for (int64_t k = n; k < SOME; k++) x[k] = 0;
      }
      if (PER_WORD == 2)
        for (int64_t k = 0; k < SOME / 2; k++) x[k] = x[2 * k + 1] | x[2 * k] >> 16;
    }
    turn_wide(t.f, SOME, rows, some, TILE_COLUMNS, to + k0 / PER_WORD * TILE_COLUMNS);
  }
}

// Packing of weights from float32 masters. A unit is up to REPACK_PANELS panels × REPACK_DEPTH elements of the inner axis of one of the matrices. A panel's rows behind the last one are zero.
static void repack(const void *job, int64_t unit, worker *w) {
  (void)w;
  const repack_job *j = job;
  int64_t low = 0, high = j->n; // the last matrix that begins at unit or before
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (j->parts[middle].first_unit <= unit) low = middle;
    else high = middle;
  }
  const repack_part *p = j->parts + low;
  enum { SOME = 64 };
  const bool pairs = p->to.type == BFLOAT16;
  int64_t in = p->to.in, panels = div_up(p->to.out, PANEL), words = pairs ? (in + 1) / 2 : in, chunks = div_up(in, REPACK_DEPTH);
  int64_t p0 = (unit - p->first_unit) / chunks * REPACK_PANELS, p1 = p0 + REPACK_PANELS < panels ? p0 + REPACK_PANELS : panels;
  int64_t from = (unit - p->first_unit) % chunks * REPACK_DEPTH, to = from + REPACK_DEPTH < in ? from + REPACK_DEPTH : in;
  for (int64_t panel = p0; panel < p1; panel++) {
    int64_t first = panel * PANEL, rows = p->to.out - first < PANEL ? p->to.out - first : PANEL;
    float *y = (float *)p->to.addr + panel * words * PANEL;
    for (int64_t k0 = from; k0 < to; k0 += SOME) {
      int64_t n = to - k0 < SOME ? to - k0 : SOME;
      if (!pairs) {
        turn_wide(row_of(p->from, first) + k0, p->from.stride, rows, n, PANEL, y + k0 * PANEL);
        continue;
      }
      union { uint32_t u[PANEL][SOME]; float f[PANEL * SOME]; } t;
      for (int64_t r = 0; r < rows; r++) {
        uint32_t *x = t.u[r];
        const uint32_t *row = (const uint32_t *)(row_of(p->from, first + r) + k0);
        if (k0 + SOME < to)
          for (int64_t k = 0; k < SOME; k += 16) ASK(row + SOME + k);
        for (int64_t k = 0; k < n; k++) x[k] = round_bits(row[k]);
        for (int64_t k = n; k < SOME; k++) x[k] = 0;
        for (int64_t k = 0; k < SOME / 2; k++) x[k] = x[2 * k + 1] | x[2 * k] >> 16;
      }
      turn_wide(t.f, SOME, rows, (n + 1) / 2, PANEL, y + k0 / 2 * PANEL);
    }
  }
}
