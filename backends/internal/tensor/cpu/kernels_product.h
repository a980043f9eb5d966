// Matrix products. Every output element is one chain of fused multiply-adds over the inner axis in ascending order; vectors run over columns, so neither the
// number of rows nor any cut changes a bit. Included once per instruction set.

#define TILE_COLUMNS (TILE_VECTORS * LANES)

// tile_f32 does R rows × TILE_COLUMNS columns over depth: c (+)= a · b, a[r·ar + k·ak], b[k·bk + column]. R is a constant where this is inlined, so that the sums
// stay in registers.
INLINE void tile_f32(const int R, const float *a, int64_t ar, int64_t ak, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc, bool zero) {
  vf s[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
    vf x[TILE_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) x[v] = vload(b + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      vf y = vset(a[r * ar]);
#pragma GCC unroll 4
      for (int v = 0; v < TILE_VECTORS; v++) s[r][v] = vfma(y, x[v], s[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) vstore(c + r * ldc + v * LANES, s[r][v]);
}

// One pair of bfloat16 products: odd element first, then even. This is what vdpbf16ps does.
#ifdef BF16_DOT
typedef __m512bh vpair;
#define vpair_load(p) ((vpair)_mm512_loadu_si512(p))
#define vpair_set(u) ((vpair)_mm512_set1_epi32((int)(u)))
#define vdot(c, a, b) _mm512_dpbf16_ps(c, a, b)
#else
typedef struct {
  vf odd, even;
} vpair;
INLINE vpair vpair_load(const uint32_t *p) {
  vi u = (vi)vload(p);
  return (vpair){(vf)(u & (vi)((vi){0} + (int32_t)0xffff0000)), (vf)(u << 16)};
}
INLINE vpair vpair_set(uint32_t u) {
  union { uint32_t u; float f; } odd = {u & 0xffff0000}, even = {u << 16};
  return (vpair){vset(odd.f), vset(even.f)};
}
#define vdot(c, a, b) vfma((a).even, (b).even, vfma((a).odd, (b).odd, c))
#endif

// tile_bf16 is tile_f32 for pairs; ar, ak, bk and depth count pairs.
INLINE void tile_bf16(const int R, const uint32_t *a, int64_t ar, int64_t ak, const uint32_t *b, int64_t bk, int64_t depth, float *c, int64_t ldc, bool zero) {
  vf s[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) s[r][v] = zero ? vset(0.0f) : vload(c + r * ldc + v * LANES);
  for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
    vpair x[TILE_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) x[v] = vpair_load(b + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      vpair y = vpair_set(a[r * ar]);
#pragma GCC unroll 4
      for (int v = 0; v < TILE_VECTORS; v++) s[r][v] = vdot(s[r][v], y, x[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < TILE_VECTORS; v++) vstore(c + r * ldc + v * LANES, s[r][v]);
}

#if TILE_ROWS == 12
#define TILE_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define TILE_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

// block_f32 does any number of columns for up to TILE_ROWS rows. b must be readable up to a multiple of TILE_COLUMNS columns; c is written up to columns.
static void block_f32(int64_t rows, const float *a, int64_t ar, int64_t ak, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero) {
  float edge[TILE_ROWS * TILE_COLUMNS];
  for (int64_t n = 0; n < columns; n += TILE_COLUMNS) {
    float *out = c + n;
    int64_t ld = ldc, some = columns - n;
    if (some < TILE_COLUMNS) { // work in a full tile beside
      memset(edge, 0, sizeof edge);
      if (!zero)
        for (int64_t r = 0; r < rows; r++) memcpy(edge + r * TILE_COLUMNS, out + r * ldc, (size_t)some * 4);
      out = edge, ld = TILE_COLUMNS;
    }
    switch (rows) {
#define CASE(R) case R: tile_f32(R, a, ar, ak, b + n, bk, depth, out, ld, zero); break;
      TILE_CASES(CASE)
#undef CASE
    }
    if (some < TILE_COLUMNS)
      for (int64_t r = 0; r < rows; r++) memcpy(c + n + r * ldc, edge + r * TILE_COLUMNS, (size_t)some * 4);
  }
}
static void block_bf16(int64_t rows, const uint32_t *a, int64_t ar, int64_t ak, const uint32_t *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero) {
  float edge[TILE_ROWS * TILE_COLUMNS];
  for (int64_t n = 0; n < columns; n += TILE_COLUMNS) {
    float *out = c + n;
    int64_t ld = ldc, some = columns - n;
    if (some < TILE_COLUMNS) {
      memset(edge, 0, sizeof edge);
      if (!zero)
        for (int64_t r = 0; r < rows; r++) memcpy(edge + r * TILE_COLUMNS, out + r * ldc, (size_t)some * 4);
      out = edge, ld = TILE_COLUMNS;
    }
    switch (rows) {
#define CASE(R) case R: tile_bf16(R, a, ar, ak, b + n, bk, depth, out, ld, zero); break;
      TILE_CASES(CASE)
#undef CASE
    }
    if (some < TILE_COLUMNS)
      for (int64_t r = 0; r < rows; r++) memcpy(c + n + r * ldc, edge + r * TILE_COLUMNS, (size_t)some * 4);
  }
}

// A unit is one panel, for all rows. x holds float32, or pairs when w is bfloat16.
static void matmul(const void *job, int64_t unit, worker *w) {
  (void)w;
  const product_job *j = job;
  int64_t first = unit * PANEL, columns = j->w.out - first < PANEL ? j->w.out - first : PANEL;
  bool pairs = j->w.type == BFLOAT16;
  int64_t depth = pairs ? (j->w.in + 1) / 2 : j->w.in;
  const uint32_t *panel = (const uint32_t *)j->w.addr + unit * depth * PANEL; // a pair is as large as a float32
  for (int64_t r = 0; r < j->y.rows; r += TILE_ROWS) {
    int64_t rows = j->y.rows - r < TILE_ROWS ? j->y.rows - r : TILE_ROWS;
    const float *x = row_of(j->x, r);
    float *y = row_of(j->y, r) + first;
    if (pairs) block_bf16(rows, (const uint32_t *)x, j->x.stride, 1, panel, PANEL, depth, y, j->y.stride, columns, !j->accumulate);
    else block_f32(rows, x, j->x.stride, 1, (const float *)panel, PANEL, depth, y, j->y.stride, columns, !j->accumulate);
  }
}

// A unit is PANEL columns of dx. Blocks of the panels are transposed into the worker's memory. y = dx, x = dy.
static void matmul_transposed(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  int64_t first = unit * PANEL, columns = j->w.in - first < PANEL ? j->w.in - first : PANEL, out = j->w.out;
  if (j->w.type == FLOAT32) {
    float *t = w->memory;
    for (int64_t n0 = 0; n0 < out; n0 += DEPTH) {
      int64_t depth = out - n0 < DEPTH ? out - n0 : DEPTH;
      for (int64_t n = 0; n < depth; n++) {
        const float *panel = (const float *)j->w.addr + (n0 + n) / PANEL * j->w.in * PANEL + (n0 + n) % PANEL;
        for (int64_t k = 0; k < PANEL; k++) t[n * PANEL + k] = k < columns ? panel[(first + k) * PANEL] : 0.0f;
      }
      for (int64_t r = 0; r < j->y.rows; r += TILE_ROWS) {
        int64_t rows = j->y.rows - r < TILE_ROWS ? j->y.rows - r : TILE_ROWS;
        block_f32(rows, row_of(j->x, r) + n0, j->x.stride, 1, t, PANEL, depth, row_of(j->y, r) + first, j->y.stride, columns, n0 == 0 && !j->accumulate);
      }
    }
    return;
  }
  uint16_t *t = w->memory;
  int64_t pairs = (j->w.in + 1) / 2;
  for (int64_t n0 = 0; n0 < out; n0 += 2 * DEPTH) {
    int64_t some = out - n0 < 2 * DEPTH ? out - n0 : 2 * DEPTH, depth = (some + 1) / 2;
    for (int64_t n = 0; n < 2 * depth; n++) {
      const uint16_t *panel = (const uint16_t *)j->w.addr + (n0 + n) / PANEL * pairs * PANEL * 2 + (n0 + n) % PANEL * 2;
      for (int64_t k = 0; k < PANEL; k++)
        t[(n / 2 * PANEL + k) * 2 + n % 2] = k < columns && n < some ? panel[(first + k) / 2 * PANEL * 2 + (first + k) % 2] : 0;
    }
    for (int64_t r = 0; r < j->y.rows; r += TILE_ROWS) {
      int64_t rows = j->y.rows - r < TILE_ROWS ? j->y.rows - r : TILE_ROWS;
      block_bf16(rows, (const uint32_t *)row_of(j->x, r) + n0 / 2, j->x.stride, 1, (const uint32_t *)t, PANEL, depth, row_of(j->y, r) + first, j->y.stride, columns,
                 n0 == 0 && !j->accumulate);
    }
  }
}

// A unit is PANEL columns of g. y = g, x = a, w.addr = b with w.out its stride and w.in its columns.
static void outer(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  int64_t first = unit * PANEL, columns = j->y.cols - first < PANEL ? j->y.cols - first : PANEL;
  float *t = w->memory;
  for (int64_t m0 = 0; m0 < j->x.rows; m0 += DEPTH) {
    int64_t depth = j->x.rows - m0 < DEPTH ? j->x.rows - m0 : DEPTH;
    for (int64_t m = 0; m < depth; m++) {
      memcpy(t + m * PANEL, (const float *)j->w.addr + (m0 + m) * j->w.out + first, (size_t)columns * 4);
      memset(t + m * PANEL + columns, 0, (size_t)(PANEL - columns) * 4);
    }
    for (int64_t p = 0; p < j->y.rows; p += TILE_ROWS) {
      int64_t rows = j->y.rows - p < TILE_ROWS ? j->y.rows - p : TILE_ROWS;
      block_f32(rows, row_of(j->x, m0) + p, 1, j->x.stride, t, PANEL, depth, row_of(j->y, p) + first, j->y.stride, columns, false);
    }
  }
}
