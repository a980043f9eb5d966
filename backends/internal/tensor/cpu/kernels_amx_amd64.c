// Products of bfloat16 weights by tiles, for amd64 with AMX; everything else is avx512's. An output is c = c + (e + o) for each group of AMX_GROUP elements of the inner axis: e is the chain of multiply-adds from zero over the
// group's even elements, o the one over its odd ones. Groups are counted from where a segment of the inner axis begins, in each product of those that continue one another, and a last one that is not whole is filled up
// with zeros, so that neither the number of rows nor any cut changes a bit. Subnormal factors and sums are zero.
//
// Tiles 0 to 3 are sums: two of rows × two of columns, or two panels' columns for rows of one tile. 4 and 5 are rows, 6 and 7 weights. A unit gives them their shapes and releases them in the end, so that a thread that is not
// within one has none to save.
#ifdef EMULATE_AVX512
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#include "amx.h"
#include "vector_avx512.h"
#include "lanes.h"
#include "kernels_sums.h"
#include "kernels_e4m3.h"
#include "kernels_turn.h"
#ifdef EMULATE_AVX512
#include "tiles_amx_emulated.h"
#else
#include "tiles_amx.h"
#endif

enum { STEP_BYTES = PANEL * 4, GROUP_STEPS = AMX_GROUP / 2, GROUP_BYTES = GROUP_STEPS * STEP_BYTES, HALF_BYTES = STEP_BYTES / 2 }; // of weights: of a pair of the inner axis, and so many pairs; HALF_BYTES: of a tile's columns

// shape gives the tiles of sums and rows their numbers of rows: above is the first ones', below the second ones'.
static void shape(int64_t above, int64_t below) {
  tile_shapes t = {.palette = 1};
  const int64_t rows[8] = {above, above, below, below, above, below, AMX_ROWS, AMX_ROWS};
  for (int i = 0; i < 8; i++) t.row_bytes[i] = 64, t.rows[i] = (uint8_t)(rows[i] ? rows[i] : AMX_ROWS);
  TILE_SHAPES(&t);
}

// place is where sums of PANEL columns lie, rows stride elements apart.
typedef struct {
  float *at;
  int64_t stride;
} place;

// multiply does the rows of one tile, or of two that lie after bytes apart, by groups of weights of one panel; b's pairs lie one after another. The sums begin with what is in from, or with zero, and go to to. With every group it asks
// for so many lines of memory from ahead on.
INLINE void multiply(const bool two, const char *a, int64_t after, const char *b, int64_t groups, bool zero, place from, place to, const char *ahead, int64_t lines) {
  if (zero) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, from.at, from.stride * 4);
    TILE_LOAD(1, from.at + AMX_ROWS, from.stride * 4);
    if (two) {
      TILE_LOAD(2, from.at + AMX_ROWS * from.stride, from.stride * 4);
      TILE_LOAD(3, from.at + AMX_ROWS * from.stride + AMX_ROWS, from.stride * 4);
    }
  }
  for (int64_t g = 0; g < groups; g++, a += AMX_TILE_BYTES, b += GROUP_BYTES) {
    TILE_LOAD(6, b, STEP_BYTES);
    TILE_LOAD(4, a, AMX_GROUP * 2);
    TILE_LOAD(7, b + HALF_BYTES, STEP_BYTES);
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 7);
    if (two) {
      TILE_LOAD(5, a + after, AMX_GROUP * 2);
      TILE_DOT(2, 5, 6);
      TILE_DOT(3, 5, 7);
    }
    for (int64_t i = 0; i < lines; i++, ahead += 64) ASK_SECOND(ahead);
  }
  TILE_STORE(0, to.at, to.stride * 4);
  TILE_STORE(1, to.at + AMX_ROWS, to.stride * 4);
  if (two) {
    TILE_STORE(2, to.at + AMX_ROWS * to.stride, to.stride * 4);
    TILE_STORE(3, to.at + AMX_ROWS * to.stride + AMX_ROWS, to.stride * 4);
  }
}

// multiply_panels does the rows of one tile by groups of two panels, the second one's weights after bytes behind the first one's and its sums PANEL columns on. b is asked for in advance.
INLINE void multiply_panels(const char *a, const char *b, int64_t after, int64_t groups, bool zero, place from, place to) {
  enum { NEAR = 4096 };
  if (zero) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, from.at, from.stride * 4);
    TILE_LOAD(1, from.at + AMX_ROWS, from.stride * 4);
    TILE_LOAD(2, from.at + PANEL, from.stride * 4);
    TILE_LOAD(3, from.at + PANEL + AMX_ROWS, from.stride * 4);
  }
  for (int64_t g = 0; g < groups; g++, a += AMX_TILE_BYTES, b += GROUP_BYTES) {
    for (int i = 0; i < GROUP_BYTES; i += 64) ASK(b + NEAR + i), ASK(b + after + NEAR + i);
    TILE_LOAD(4, a, AMX_GROUP * 2);
    TILE_LOAD(6, b, STEP_BYTES);
    TILE_LOAD(7, b + HALF_BYTES, STEP_BYTES);
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(6, b + after, STEP_BYTES);
    TILE_LOAD(7, b + after + HALF_BYTES, STEP_BYTES);
    TILE_DOT(2, 4, 6);
    TILE_DOT(3, 4, 7);
  }
  TILE_STORE(0, to.at, to.stride * 4);
  TILE_STORE(1, to.at + AMX_ROWS, to.stride * 4);
  TILE_STORE(2, to.at + PANEL, to.stride * 4);
  TILE_STORE(3, to.at + PANEL + AMX_ROWS, to.stride * 4);
}

// edge is a place for sums beside those that have fewer columns than a panel.
typedef struct {
  float sums[AMX_STRIP * PANEL];
} edge;
static void copy_sums(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, (size_t)columns * 4);
}

// segment_end is where segment s of an inner axis of so many elements ends, and segment_start where it begins.
static int64_t segment_end(const product_job *q, int64_t s, int64_t elements) { return s + 1 == q->cut.count ? elements : q->cut.ends[s]; }
static int64_t segment_start(const product_job *q, int64_t s) { return s ? q->cut.ends[s - 1] : 0; }
// groups_before is how many groups of packed rows lie before segment s.
static int64_t groups_before(const product_job *q, int64_t s) {
  segments before = q->cut;
  before.count = s;
  return amx_groups(&before);
}

// round_group writes the n numbers at x, AMX_GROUP at most, as bfloat16, and zeros behind them.
INLINE void round_group(const float *x, int64_t n, char *to) {
  float some[AMX_GROUP] = {0};
  uint16_t upper[2 * LANES];
  for (int i = 0; i < 2 * LANES; i++) upper[i] = (uint16_t)(2 * i + 1);
  if (n < AMX_GROUP) x = memcpy(some, x, (size_t)n * 4);
  __m512i a = (__m512i)vround(vload(x)), b = (__m512i)vround(vload(x + LANES));
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, _mm512_loadu_si512(upper), b));
}

// pack_amx packs the rows of one tile: for each group of the inner axis, in the order of the segments that cut has, AMX_ROWS rows of AMX_GROUP numbers. a = x, b = the packed rows (addr), cut = the inner axis.
void pack_amx(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  const int64_t first = unit * AMX_ROWS, rows = j->a.rows - first < AMX_ROWS ? j->a.rows - first : AMX_ROWS;
  char *tiles_at = (char *)j->b.addr + unit * amx_groups(&j->cut) * AMX_TILE_BYTES;
  for (int64_t r = 0; r < rows; r++) {
    const char *row = (const char *)picked_row(j->a, first + r);
    char *to = tiles_at + r * AMX_GROUP * 2;
    for (int64_t s = 0, k = 0; s < j->cut.count; s++)
      for (int64_t n; k < j->cut.ends[s]; k += n, to += AMX_TILE_BYTES) {
        n = j->cut.ends[s] - k < AMX_GROUP ? j->cut.ends[s] - k : AMX_GROUP;
        if (j->a.type == BFLOAT16) memcpy(to, row + 2 * k, (size_t)n * 2), memset(to + 2 * n, 0, (size_t)(AMX_GROUP - n) * 2);
        else round_group((const float *)row + k, n, to);
      }
  }
}

// weights_expanded writes depth elements of the inner axis of a panel, from k on, as steps of bfloat16 pairs, and zeros as far as the last group goes.
static void weights_expanded(const product_job *q, int64_t panel, int64_t k, int64_t depth, char *to) {
  const int64_t steps = div_up(depth, 2), whole = div_up(depth, AMX_GROUP) * GROUP_STEPS;
  if (q->w.type == E4M3) expand_e4m3(q->w, panel, k / 2, steps, (float *)to, q->permutes_bytes);
  else memcpy(to, weights_at(q->w, panel, k / 2), (size_t)(steps * STEP_BYTES));
  memset(to + steps * STEP_BYTES, 0, (size_t)((whole - steps) * STEP_BYTES));
}

// weights_turned is the same of the transposed product: depth rows of the matrix from n on, for PANEL of its columns from group times PANEL on. It gives where the first one is.
static char *weights_turned(const product_job *q, int64_t group, int64_t n, int64_t depth, char *to) {
  enum { STEPS = PANEL / 2 };
  const int64_t skipped = n % PANEL, first = group * STEPS, all = steps_of(q->w), have = all - first < STEPS ? all - first : STEPS;
  float beside[STEPS * PANEL];
  for (int64_t at = n - skipped; at < n + depth; at += PANEL) {
    const char *from = weights_at(q->w, at / PANEL, first);
    if (q->w.type == E4M3) expand_e4m3(q->w, at / PANEL, first, have, beside, q->permutes_bytes);
    else if (have < STEPS) memcpy(beside, from, (size_t)(have * STEP_BYTES));
    if (have < STEPS) memset(beside + have * PANEL, 0, (size_t)((STEPS - have) * STEP_BYTES));
    if (q->w.type == E4M3 || have < STEPS) from = (const char *)beside;
    transpose_bf16((const uint64_t *)from, STEPS, (uint64_t *)(to + (at - n + skipped) / 2 * STEP_BYTES));
  }
  to += skipped / 2 * STEP_BYTES;
  const int64_t steps = div_up(depth, 2), whole = div_up(depth, AMX_GROUP) * GROUP_STEPS;
  memset(to + steps * STEP_BYTES, 0, (size_t)((whole - steps) * STEP_BYTES));
  if (depth % 2) // what is behind the last row is another's
    for (int i = 0; i < PANEL; i++) ((uint32_t *)(to + (steps - 1) * STEP_BYTES))[i] &= 0xffff;
  return to;
}

// step is what a unit's rows are multiplied by at the moment.
typedef struct {
  const product_job *q;       // whose rows
  const partial_sums *sums;
  int64_t s, first_group;     // segment, and the first of its groups
  bool zero, last;            // whether its sums begin, and whether they end
} step;

// add_segments adds the sums of the segments that segment s, whose own are in own, makes whole, for one strip and panel.
static void add_segments(const partial_sums *sums, int64_t s, int64_t row, int64_t rows, int64_t column, int64_t columns, place own) {
  const int64_t at = partial_sum(s), count = sums_after(s), to = at - count;
  const float *others[PARTIAL_SUMS];
  int64_t strides[PARTIAL_SUMS];
  for (int64_t i = 0; i < count; i++) others[i] = sum_at(sums, at - 1 - i, row, column), strides[i] = at - 1 - i ? sums->stride : sums->y.stride;
  float *y = sum_at(sums, to, row, column);
  const int64_t stride = to ? sums->stride : sums->y.stride;
  for (int64_t r = 0; r < rows; r++)
    EACH_16(columns) {
      lanes sum = LOAD(own.at + r * own.stride);
      for (int64_t i = 0; i < count; i++) sum = ladd(LOAD(others[i] + r * strides[i]), sum);
      STORE(y + r * stride, sum);
    }
}

// run_block multiplies rows [row, end) of y by groups of weights of one panel, which lie at b.
static void run_block(const step *k, int64_t row, int64_t end, int64_t column, int64_t columns, const char *b, int64_t groups, const char *ahead, int64_t lines) {
  const product_job *q = k->q;
  const int64_t at = partial_sum(k->s), tile_bytes = amx_groups(&q->cut) * AMX_TILE_BYTES;
  const bool adds = k->last && sums_after(k->s) > 0;
  int64_t above = AMX_ROWS, below = AMX_ROWS; // rows of the shapes
  for (; row < end; row += AMX_STRIP) {
    const int64_t rows = end - row < AMX_STRIP ? end - row : AMX_STRIP, first = rows < AMX_ROWS ? rows : AMX_ROWS, second = rows - first;
    if (first != above || (second && second != below)) shape(above = first, below = second);
    const char *a = (const char *)q->strips + (q->first_row + row) / AMX_ROWS * tile_bytes + k->first_group * AMX_TILE_BYTES;
    edge own, beside;
    place from = {sum_at(k->sums, at, row, column), at ? k->sums->stride : k->sums->y.stride}, to = from;
    if (!at && columns < PANEL) {
      if (!k->zero) copy_sums(beside.sums, PANEL, from.at, from.stride, rows, columns);
      to = from = (place){beside.sums, PANEL};
    }
    if (adds) to = (place){own.sums, PANEL};
    if (second) multiply(true, a, tile_bytes, b, groups, k->zero, from, to, ahead, lines);
    else multiply(false, a, 0, b, groups, k->zero, from, to, ahead, lines);
    if (adds) add_segments(k->sums, k->s, row, rows, column, columns, to);
    else if (!at && columns < PANEL) copy_sums(sum_at(k->sums, 0, row, column), k->sums->y.stride, beside.sums, PANEL, rows, columns);
    ahead += groups * lines * 64;
  }
  if (above != AMX_ROWS || below != AMX_ROWS) shape(AMX_ROWS, AMX_ROWS);
}

// A unit is a block of strips × some panels; columns come first in its number. Of the transposed product y = dx, and a panel is PANEL columns of it: blocks of the weights are turned for all rows.
INLINE void run_unit(const product_job *j, int64_t unit, worker *w, const bool transposed) {
  const int64_t all = transposed ? j->w.in : j->w.out, panels = div_up(all, PANEL), chunks = div_up(panels, j->panels_per_unit);
  const int64_t p0 = unit % chunks * j->panels_per_unit, p1 = p0 + j->panels_per_unit < panels ? p0 + j->panels_per_unit : panels;
  const int64_t s0 = unit / chunks * j->strips_per_unit, row = s0 * AMX_STRIP, end = row + j->strips_per_unit * AMX_STRIP < j->y.rows ? row + j->strips_per_unit * AMX_STRIP : j->y.rows;
  const int64_t strips = div_up(end - row, AMX_STRIP);
  char *scratch = w->memory;
  const partial_sums sums = {.y = j->y, .beside = (float *)(scratch + AMX_SCRATCH / 2 * STEP_BYTES), .row = row, .column = p0 * PANEL, .stride = (p1 - p0) * PANEL, .size = strips * AMX_STRIP * (p1 - p0) * PANEL};
  shape(AMX_ROWS, AMX_ROWS);
  for (int64_t s = 0; s < j->cut.count; s++) {
    step k = {.sums = &sums, .s = s, .zero = s > 0 || !j->accumulate};
    const product_job *last = j; // that has elements in the segment
    for (const product_job *q = j; q; q = q->continued)
      if (segment_end(q, s, transposed ? q->w.out : q->w.in) > segment_start(q, s)) last = q;
    for (const product_job *q = j;; q = q->continued) {
      const int64_t begin = segment_start(q, s), stop = segment_end(q, s, transposed ? q->w.out : q->w.in);
      const bool direct = !transposed && q->w.type == BFLOAT16;
      k.q = q;
      int64_t at = begin;
      do { // once without any elements as well: the sums are still written
        int64_t depth = stop - at < AMX_DEPTH ? stop - at : AMX_DEPTH;
        if (direct && depth > AMX_GROUP) depth -= depth % AMX_GROUP;
        if (depth <= 0 && q != last) break;
        k.first_group = groups_before(q, s) + (at - begin) / AMX_GROUP;
        k.last = q == last && at + depth >= stop;
        const int64_t groups = div_up(depth, AMX_GROUP);
        for (int64_t p = p0; p < p1; p++) {
          const char *b = scratch, *ahead = NULL;
          int64_t lines = 0;
          if (depth <= 0) b = NULL;
          else if (transposed) b = weights_turned(q, p, at, depth, scratch);
          else {
            if (direct && depth % AMX_GROUP == 0) b = weights_at(q->w, p, at / 2);
            else weights_expanded(q, p, at, depth, scratch);
            const int64_t bytes = groups * GROUP_BYTES / (direct ? 1 : 2);
            if (p + 1 < p1) ahead = weights_at(q->w, p + 1, at / 2);
            else if (at + depth < stop) ahead = weights_at(q->w, p0, (at + depth) / 2);
            if (ahead) lines = div_up(bytes / 64, strips * groups);
          }
          run_block(&k, row, end, p * PANEL, all - p * PANEL < PANEL ? all - p * PANEL : PANEL, b, groups, ahead, lines);
        }
        k.zero = false;
        at += depth;
      } while (at < stop);
      if (q == last) break;
    }
  }
  TILES_RELEASE();
}
void matmul_amx(const void *job, int64_t unit, worker *w) { run_unit(job, unit, w, false); }
void matmul_amx_transposed(const void *job, int64_t unit, worker *w) { run_unit(job, unit, w, true); }

// A unit of few rows, AMX_STRIP at most, is some panels, whose weights are read once, at the speed of memory: of two panels at once where the rows are those of one tile.
void matmul_amx_few(const void *job, int64_t unit, worker *w) {
  (void)w;
  const product_job *j = job;
  enum { SUMS = AMX_STRIP * PANEL }; // of a panel's rows, or of two panels'
  const int64_t panels = div_up(j->w.out, PANEL), whole = j->w.out / PANEL, rows = j->y.rows, first = rows < AMX_ROWS ? rows : AMX_ROWS, second = rows - first;
  const int64_t p0 = unit * j->panels_per_unit, p1 = p0 + j->panels_per_unit < panels ? p0 + j->panels_per_unit : panels;
  const int64_t tile_bytes = amx_groups(&j->cut) * AMX_TILE_BYTES;
  const char *rows_at = (const char *)j->strips + j->first_row / AMX_ROWS * tile_bytes;
  _Alignas(64) float beside[PARTIAL_SUMS * SUMS];
  _Alignas(64) char scratch[2 * AMX_SCRATCH / 2 * STEP_BYTES];
  shape(first, second ? second : first);
  for (int64_t p = p0, some; p < p1; p += some) {
    some = !second && p + 2 <= p1 && p + 2 <= whole ? 2 : 1;
    const int64_t width = some * PANEL, columns = j->w.out - p * PANEL < width ? j->w.out - p * PANEL : width;
    place y = {row_of(j->y, 0) + p * PANEL, j->y.stride};
    const partial_sums sums = {.y = j->y, .beside = beside, .column = p * PANEL, .stride = width, .size = SUMS};
    for (int64_t s = 0, at = 0; s < j->cut.count; s++) {
      const int64_t begin = at, stop = segment_end(j, s, j->w.in), sum = partial_sum(s);
      bool zero = s > 0 || !j->accumulate;
      const bool adds = sums_after(s) > 0;
      place own = {adds || columns < width ? beside + (PARTIAL_SUMS - 1) * SUMS : sum_at(&sums, sum, 0, p * PANEL), 0};
      own.stride = adds || columns < width || sum ? width : y.stride;
      place from = own;
      if (!zero) {
        from = y;
        if (columns < width) copy_sums(own.at, width, y.at, y.stride, rows, columns), from = own;
      }
      do {
        const bool direct = j->w.type == BFLOAT16;
        int64_t depth = stop - at;
        if (direct && depth > AMX_GROUP) depth -= depth % AMX_GROUP;
        if (!direct && depth > AMX_DEPTH) depth = AMX_DEPTH;
        const char *a = rows_at + (groups_before(j, s) + (at - begin) / AMX_GROUP) * AMX_TILE_BYTES, *b = scratch;
        const int64_t groups = depth > 0 ? div_up(depth, AMX_GROUP) : 0;
        int64_t after = AMX_SCRATCH / 2 * STEP_BYTES;
        if (groups && direct && depth % AMX_GROUP == 0) b = weights_at(j->w, p, at / 2), after = panel_bytes(j->w);
        else if (groups)
          for (int64_t i = 0; i < some; i++) weights_expanded(j, p + i, at, depth, scratch + i * after);
        if (some == 2) multiply_panels(a, b, after, groups, zero, from, own);
        else if (second) multiply(true, a, tile_bytes, b, groups, zero, from, own, b + 4096, b == scratch ? 0 : GROUP_BYTES / 64);
        else multiply(false, a, 0, b, groups, zero, from, own, b + 4096, b == scratch ? 0 : GROUP_BYTES / 64);
        from = own, zero = false;
        at += depth;
      } while (at < stop);
      if (adds) add_segments(&sums, s, 0, rows, p * PANEL, columns, own);
      else if (columns < width) copy_sums(sum_at(&sums, sum, 0, p * PANEL), sum ? width : y.stride, own.at, width, rows, columns);
    }
  }
  TILES_RELEASE();
}

// peak_amx runs AMX_PEAK_TILES products of tiles that nothing but the arithmetic limits.
void peak_amx(const void *job, int64_t unit, worker *w) {
  (void)unit, (void)w;
  const rows_job *j = job;
  float sums[AMX_ROWS * AMX_ROWS] = {0};
  char factors[AMX_TILE_BYTES] = {0};
  shape(AMX_ROWS, AMX_ROWS);
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  TILE_LOAD(4, factors, AMX_GROUP * 2);
  TILE_LOAD(6, factors, AMX_GROUP * 2);
  for (int k = 0; k < AMX_PEAK_TILES / 4; k++) {
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 6);
    TILE_DOT(2, 4, 6);
    TILE_DOT(3, 4, 6);
  }
  TILE_STORE(0, sums, AMX_ROWS * 4);
  TILES_RELEASE();
  if (sums[0] == 12345.0f) *(float *)j->a.addr = sums[0];
}
