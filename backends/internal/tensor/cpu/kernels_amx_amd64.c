// Products of bfloat16 weights by tiles, for amd64 with AMX; everything else is avx512's. An output is c = c + (e + o) for each group
// of AMX_GROUP elements of the inner axis: e is the chain of multiply-adds from zero over the group's even elements, o the one over its
// odd ones. Groups are counted from where a segment of the inner axis begins, in each product of those that continue one another, and a
// last one that is not whole is filled up with zeros, so that neither the number of rows nor any cut changes a bit. Subnormal factors and
// sums are zero.
//
// Tiles 0 to 3 are sums: two of rows × two of columns, which are a panel's. 4 and 5 are rows, 6 and 7 weights. A unit gives them their
// shapes and releases them in the end, so that a thread that is not within one has none to save.
#ifdef EMULATE_AVX512
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#include "amx.h"
#include "vector_avx512.h"
#include "lanes.h"
#include "kernels_e4m3.h"
#include "kernels_turn.h"
#include "kernels_requests.h"
#ifdef EMULATE_AVX512
#include "tiles_amx_emulated.h"
#else
#include "tiles_amx.h"
#endif

// Of a panel's weights: a step is a pair of the inner axis; the first half of it is one tile's columns.
enum { STEP_BYTES = PANEL * 4, GROUP_STEPS = AMX_GROUP / 2, GROUP_BYTES = GROUP_STEPS * STEP_BYTES, HALF_BYTES = STEP_BYTES / 2 };

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

// A unit's sums lie beside y until they are whole, a strip's of one panel together: rows of y are often a multiple of 4 KiB apart, and a
// tile of such rows has room in few places of the first-level cache.
enum { SUMS = AMX_STRIP * PANEL, LINE_BYTES = LINE * 4 };

// unit_sums has PARTIAL_SUMS times the sums of a unit, or once if there are no segments.
typedef struct {
  float *at;
  int64_t strips, panels;
} unit_sums;
INLINE float *sums_of(const unit_sums *u, int64_t i, int64_t strip, int64_t panel) { return u->at + ((i * u->panels + panel) * u->strips + strip) * SUMS; }

// addition is sums of a segment that are complete, and those of the segments before it that become whole with them: where the sum goes,
// and what is added from the last one on. It is done piece by piece while tiles are multiplied.
typedef struct {
  const float *own, *others[PARTIAL_SUMS];
  float *to;
  int64_t count, done; // of others, and of SUMS
} addition;
static addition segments_added(const unit_sums *u, int64_t s, int64_t strip, int64_t panel, const float *own) {
  const int64_t at = partial_sum(s);
  addition a = {.own = own, .count = sums_after(s)};
  for (int64_t n = 0; n < a.count; n++) a.others[n] = sums_of(u, at - 1 - n, strip, panel);
  a.to = sums_of(u, at - a.count, strip, panel);
  return a;
}
INLINE void add_some(addition *a, int64_t n) { // n is a multiple of LANES; all sums of a that has none are done
  const int64_t end = a->done + n < SUMS ? a->done + n : SUMS;
  for (; a->done < end; a->done += LANES) {
    vf sum = vload(a->own + a->done);
    for (int64_t k = 0; k < a->count; k++) sum = vload(a->others[k] + a->done) + sum;
    vstore(a->to + a->done, sum);
  }
}
static const addition nothing = {.done = SUMS};

// bring_in waits for the weights of up to BROUGHT groups from b on, and asks for those behind them. A tile that is loaded from memory holds
// up the loads after it, while so many loads of vectors wait together.
enum { BROUGHT = 2, BROUGHT_AHEAD = 1024 };
INLINE void bring_in(const char *b, int64_t groups) {
  vi all = {0};
  const char *end = b + (groups < BROUGHT ? groups : BROUGHT) * GROUP_BYTES;
  for (; b < end; b += STEP_BYTES) {
    ASK(b + BROUGHT_AHEAD), ASK(b + BROUGHT_AHEAD + LINE_BYTES);
    all |= (vi)vload(b) | (vi)vload(b + LINE_BYTES);
  }
  WAIT_FOR(all);
}

// weights_expanded writes depth elements of the inner axis of a panel, from k on, as steps of bfloat16 pairs, and zeros as far as the last
// group goes.
static void weights_expanded(const product_job *q, int64_t panel, int64_t k, int64_t depth, char *to) {
  const int64_t steps = div_up(depth, 2), whole = div_up(depth, AMX_GROUP) * GROUP_STEPS;
  if (q->w.type == E4M3) expand_e4m3(q->w, panel, k / 2, steps, (float *)to, q->permutes_bytes);
  else memcpy(to, weights_at(q->w, panel, k / 2), (size_t)(steps * STEP_BYTES));
  memset(to + steps * STEP_BYTES, 0, (size_t)((whole - steps) * STEP_BYTES));
}

// eights are depth elements of the inner axis of a panel of weights, from k on, that are of eight bits or not whole groups; some of them at
// a time are expanded to scratch.
typedef struct {
  const product_job *q;
  int64_t panel, k, depth;
  char *scratch;
} eights;
enum { EXPANDED = 2 }; // groups

// NEAR weights are in the caches, FAR ones in memory, and EIGHT ones are expanded on the way.
enum { NEAR, FAR, EIGHT };

// multiply does the rows of one tile, or of two that lie after bytes apart, by groups of weights of one panel; b's pairs lie one after
// another, or are e's. The sums begin with what is in from, or with zero, and go to to. With every group it asks for some of the lines that
// soon is about, and does a share of what is to be added.
INLINE void multiply(const bool two, const int kind, const char *a, int64_t after, const char *b, const eights *e, int64_t groups, bool zero, place from,
                     place to, requests *soon, addition *add) {
  const int64_t share = groups ? div_up(SUMS / LANES, groups) * LANES : 0;
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
    if (kind == FAR && g % BROUGHT == 0) bring_in(b, groups - g);
    if (kind == EIGHT && g % EXPANDED == 0) {
      const int64_t left = e->depth - g * AMX_GROUP;
      weights_expanded(e->q, e->panel, e->k + g * AMX_GROUP, left < EXPANDED * AMX_GROUP ? left : EXPANDED * AMX_GROUP, e->scratch);
      b = e->scratch;
    }
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
    ask_some(soon);
    ask_some(soon + 1);
    add_some(add, share);
  }
  TILE_STORE(0, to.at, to.stride * 4);
  TILE_STORE(1, to.at + AMX_ROWS, to.stride * 4);
  if (two) {
    TILE_STORE(2, to.at + AMX_ROWS * to.stride, to.stride * 4);
    TILE_STORE(3, to.at + AMX_ROWS * to.stride + AMX_ROWS, to.stride * 4);
  }
}

// segment_end is where segment s of an inner axis of so many elements ends, and segment_start where it begins.
static int64_t segment_end(const product_job *q, int64_t s, int64_t elements) { return s + 1 == q->cut.count ? elements : q->cut.ends[s]; }
static int64_t segment_start(const product_job *q, int64_t s) { return s ? q->cut.ends[s - 1] : 0; }

// Packed rows lie in blocks of the inner axis, BLOCK_GROUPS groups but for a segment's last: in a block tile after tile, and of a tile
// group after group. What is multiplied at once lies together then, however long rows are.
enum { BLOCK_GROUPS = AMX_DEPTH / AMX_GROUP };
// packed_block is where a tile's groups lie in a block from some element on; next is the distance of the next tile's.
typedef struct {
  const char *at;
  int64_t next;
} packed_block;
// packed_at finds those of segment s, of an inner axis of so many elements, from the segment's element at on.
static packed_block packed_at(const product_job *q, int64_t s, int64_t elements, int64_t at, int64_t tile) {
  const int64_t tiles_in_all = div_up(q->packed_rows, AMX_ROWS), own = div_up(segment_end(q, s, elements) - segment_start(q, s), AMX_GROUP);
  const int64_t first = at / AMX_DEPTH * BLOCK_GROUPS, within = at % AMX_DEPTH / AMX_GROUP;
  const int64_t groups = own - first < BLOCK_GROUPS ? own - first : BLOCK_GROUPS;
  segments before = q->cut;
  before.count = s;
  const char *block = (const char *)q->strips + (amx_groups(&before) + first) * tiles_in_all * AMX_TILE_BYTES;
  return (packed_block){block + (tile * groups + within) * AMX_TILE_BYTES, groups * AMX_TILE_BYTES};
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

// pack_amx packs the rows of one tile. a = x, b = the packed rows (addr), cut = the inner axis.
void pack_amx(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  const int64_t first = unit * AMX_ROWS, rows = j->a.rows - first < AMX_ROWS ? j->a.rows - first : AMX_ROWS, tiles_in_all = div_up(j->a.rows, AMX_ROWS);
  for (int64_t r = 0; r < rows; r++) {
    const char *row = (const char *)picked_row(j->a, first + r);
    char *block = (char *)j->b.addr + r * AMX_GROUP * 2;
    for (int64_t s = 0, k = 0; s < j->cut.count; s++)
      while (k < j->cut.ends[s]) {
        const int64_t end = k + AMX_DEPTH < j->cut.ends[s] ? k + AMX_DEPTH : j->cut.ends[s], groups = div_up(end - k, AMX_GROUP);
        char *to = block + unit * groups * AMX_TILE_BYTES;
        block += tiles_in_all * groups * AMX_TILE_BYTES;
        for (int64_t n; k < end; k += n, to += AMX_TILE_BYTES) {
          n = end - k < AMX_GROUP ? end - k : AMX_GROUP;
          if (j->a.type == BFLOAT16) memcpy(to, row + 2 * k, (size_t)n * 2), memset(to + 2 * n, 0, (size_t)(AMX_GROUP - n) * 2);
          else round_group((const float *)row + k, n, to);
        }
      }
  }
}

// weights_turned is the same of the transposed product: depth rows of the matrix from n on, for PANEL of its columns from group times
// PANEL on. It gives where the first one is.
static char *weights_turned(const product_job *q, int64_t group, int64_t n, int64_t depth, char *to) {
  enum { STEPS = PANEL / 2 };
  const int64_t skipped = n % PANEL, first = group * STEPS, left = steps_of(q->w) - first, have = left < STEPS ? left : STEPS;
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
  packed_block rows; // of the first strip
  int64_t s;         // segment
  bool zero, last;   // whether its sums begin, and whether they end
} step;

// run_block multiplies rows [row, end) of y by groups of weights of one panel, which lie at b.
static void run_block(const step *k, const unit_sums *u, int64_t row, int64_t end, int64_t panel, const char *b, int64_t groups, requests *soon) {
  const bool adds = k->last && sums_after(k->s) > 0;
  _Alignas(64) float own[2][SUMS]; // of this strip and of the one before it
  addition before = nothing;
  int64_t above = AMX_ROWS, below = AMX_ROWS; // rows of the shapes
  for (int64_t strip = 0; row < end; row += AMX_STRIP, strip++) {
    const int64_t rows = end - row < AMX_STRIP ? end - row : AMX_STRIP, first = rows < AMX_ROWS ? rows : AMX_ROWS, second = rows - first;
    if (first != above || (second && second != below)) shape(above = first, below = second);
    const char *a = k->rows.at + 2 * strip * k->rows.next;
    const place from = {sums_of(u, partial_sum(k->s), strip, panel), PANEL}, to = adds ? (place){own[strip % 2], PANEL} : from;
    if (second) multiply(true, NEAR, a, k->rows.next, b, NULL, groups, k->zero, from, to, soon, &before);
    else multiply(false, NEAR, a, 0, b, NULL, groups, k->zero, from, to, soon, &before);
    add_some(&before, SUMS); // what is left without groups
    if (adds) before = segments_added(u, k->s, strip, panel, own[strip % 2]);
  }
  add_some(&before, SUMS);
  if (above != AMX_ROWS || below != AMX_ROWS) shape(AMX_ROWS, AMX_ROWS);
}

// read_sums reads what a unit's sums begin with: rows [row, end) of y, all its columns from first on.
static void read_sums(const product_job *j, const unit_sums *u, int64_t row, int64_t end, int64_t first, int64_t all) {
  for (int64_t r = row; r < end; r++)
    for (int64_t p = 0; p < u->panels; p++) {
      float *sums = sums_of(u, 0, (r - row) / AMX_STRIP, p) + (r - row) % AMX_STRIP * PANEL;
      const int64_t columns = all - first - p * PANEL;
      memcpy(sums, row_of(j->y, r) + first + p * PANEL, (size_t)(columns < PANEL ? columns : PANEL) * 4);
    }
}
// write_sums writes them there in the end; past the caches if past says so.
INLINE void write_sums(const product_job *j, const unit_sums *u, int64_t row, int64_t end, int64_t first, int64_t all, const bool past) {
  for (int64_t r = row; r < end; r++)
    for (int64_t p = 0; p < u->panels; p++) {
      float *y = row_of(j->y, r) + first + p * PANEL;
      const float *sums = sums_of(u, 0, (r - row) / AMX_STRIP, p) + (r - row) % AMX_STRIP * PANEL;
      const int64_t columns = all - first - p * PANEL;
      if (columns < PANEL) memcpy(y, sums, (size_t)columns * 4);
      else if (past) vstore_past(y, vload(sums)), vstore_past(y + LANES, vload(sums + LANES));
      else vstore(y, vload(sums)), vstore(y + LANES, vload(sums + LANES));
    }
}

// in_a_run are lines that lie one after another.
static requests in_a_run(const void *from, int64_t lines) { return (requests){.next = from, .count = lines, .in_run = INT64_MAX, .left = INT64_MAX}; }
// rows_after are the lines of a unit's packed rows from an element of a segment on; behind its last element, those of the next segment.
static requests rows_after(const product_job *q, int64_t s, int64_t elements, int64_t at, int64_t row, int64_t strips) {
  while (s < q->cut.count && at >= segment_end(q, s, elements) - segment_start(q, s)) s++, at = 0;
  if (s == q->cut.count) return (requests){0};
  const packed_block b = packed_at(q, s, elements, at, (q->first_row + row) / AMX_ROWS);
  return in_a_run(b.at, 2 * strips * b.next / LINE_BYTES);
}
static int64_t step_bytes(matrix w) { return w.type == E4M3 ? E4M3_STEP : STEP_BYTES; }
// weights_after are those of a block of a panel from element at on; behind the last element, the first ones of panel next.
static requests weights_after(const product_job *q, int64_t panel, int64_t at, int64_t next) {
  if (at >= q->w.in) panel = next, at = 0;
  if (panel >= div_up(q->w.out, PANEL)) return (requests){0};
  const int64_t left = q->w.in - at, depth = left < AMX_DEPTH ? left : AMX_DEPTH;
  return in_a_run(weights_at(q->w, panel, at / 2), depth / 2 * step_bytes(q->w) / LINE_BYTES);
}
// turned_after are the weights of PANEL columns of the transposed product from row at of the matrix on.
static requests turned_after(const product_job *q, int64_t group, int64_t at) {
  const int64_t left = q->w.out - at, depth = left < AMX_DEPTH ? left : AMX_DEPTH, first = group * PANEL / 2, steps = steps_of(q->w) - first;
  if (left <= 0 || steps <= 0) return (requests){0};
  const int64_t run = (steps < PANEL / 2 ? steps : PANEL / 2) * step_bytes(q->w) / LINE_BYTES;
  requests r = in_a_run(weights_at(q->w, at / PANEL, first), div_up(depth, PANEL) * run);
  r.in_run = r.left = run, r.skip = panel_bytes(q->w) / 4 - run * LINE;
  return r;
}

// A unit is a block of strips × some panels; columns come first in its number. Of the transposed product y = dx, and a panel is PANEL
// columns of it: blocks of the weights are turned for all rows.
INLINE void run_unit(const product_job *j, int64_t unit, worker *w, const bool transposed) {
  const int64_t all = transposed ? j->w.in : j->w.out, panels = div_up(all, PANEL), chunks = div_up(panels, j->panels_per_unit);
  const int64_t p0 = unit % chunks * j->panels_per_unit, p1 = p0 + j->panels_per_unit < panels ? p0 + j->panels_per_unit : panels;
  const int64_t most = j->strips_per_unit * AMX_STRIP, row = unit / chunks * most, end = row + most < j->y.rows ? row + most : j->y.rows;
  const int64_t strips = div_up(end - row, AMX_STRIP);
  char *scratch = w->memory;
  const unit_sums u = {(float *)(scratch + AMX_SCRATCH / 2 * STEP_BYTES), strips, p1 - p0};
  if (j->accumulate) read_sums(j, &u, row, end, p0 * PANEL, all);
  shape(AMX_ROWS, AMX_ROWS);
  for (int64_t s = 0; s < j->cut.count; s++) {
    step k = {.s = s, .zero = s > 0 || !j->accumulate};
    const product_job *last = j; // that has elements in the segment
    for (const product_job *q = j; q; q = q->continued)
      if (segment_end(q, s, transposed ? q->w.out : q->w.in) > segment_start(q, s)) last = q;
    for (const product_job *q = j;; q = q->continued) {
      const int64_t elements = transposed ? q->w.out : q->w.in, begin = segment_start(q, s), stop = segment_end(q, s, elements);
      const bool direct = !transposed && q->w.type == BFLOAT16;
      int64_t at = begin;
      do { // once without any elements as well: the sums are still written
        int64_t depth = stop - at < AMX_DEPTH ? stop - at : AMX_DEPTH;
        if (direct && depth > AMX_GROUP) depth -= depth % AMX_GROUP;
        if (depth <= 0 && q != last) break;
        if (depth > 0) k.rows = packed_at(q, s, elements, at - begin, (q->first_row + row) / AMX_ROWS);
        k.last = q == last && at + depth >= stop;
        const int64_t groups = depth > 0 ? div_up(depth, AMX_GROUP) : 0;
        // While a block is multiplied, what comes after it is asked for, a share at each group: the weights of the next one, and the
        // rows of those that have other elements of the inner axis.
        requests soon[2] = {0};
        if (groups) soon[1] = rows_after(q, s, elements, at - begin + depth, row, strips);
        if (groups) soon[1].some = div_up(soon[1].count, groups * strips * (p1 - p0));
        for (int64_t p = p0; p < p1; p++) {
          const char *b = NULL;
          if (groups) {
            const int64_t next = p + 1 < p1 ? p + 1 : p0, there = p + 1 < p1 ? at : at + depth;
            soon[0] = transposed ? turned_after(q, next, there) : weights_after(q, next, there, p1);
            soon[0].some = div_up(soon[0].count, groups * strips);
            b = scratch;
            if (transposed) b = weights_turned(q, p, at, depth, scratch);
            else if (direct && depth % AMX_GROUP == 0) b = weights_at(q->w, p, at / 2);
            else weights_expanded(q, p, at, depth, scratch);
          }
          run_block(&k, &u, row, end, p - p0, b, groups, soon);
        }
        k.zero = false;
        at += depth;
      } while (at < stop);
      if (q == last) break;
    }
  }
  TILES_RELEASE();
  if (j->past) write_sums(j, &u, row, end, p0 * PANEL, all, true), past_done();
  else write_sums(j, &u, row, end, p0 * PANEL, all, false);
}
void matmul_amx(const void *job, int64_t unit, worker *w) { run_unit(job, unit, w, false); }
void matmul_amx_transposed(const void *job, int64_t unit, worker *w) { run_unit(job, unit, w, true); }

// Weights of eight bits for one or two rows go through vectors: they become pairs in registers, and nothing is written in between. The sums
// are those of tiles: chains over the even and the odd elements of each group, added to what is there.
enum { VECTOR_ROWS = 2, PANEL_VECTORS = PANEL / LANES };

// by_vectors does R rows by depth elements of the inner axis of one panel of such weights, from k on. x is the rows' bfloat16 numbers
// widened, AMX_DEPTH apart and with zeros behind the last.
INLINE void by_vectors(const int R, const product_job *j, int64_t panel, int64_t k, int64_t depth, const float *x, bool zero, float *sums,
                       const bool look_up) {
  enum { SOON = 2048 };
  const vi upper = (vi){0} + (int32_t)0xffff0000;
  const int64_t scaled = j->w.columns / 2, end = (k + depth + 1) / 2; // steps that have one scale, and where the last one ends
  e4m3_products products = {0};
  e4m3_numbers numbers = {0};
  vf s[VECTOR_ROWS][PANEL_VECTORS], even[VECTOR_ROWS][PANEL_VECTORS], odd[VECTOR_ROWS][PANEL_VECTORS];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
      s[r][v] = zero ? vset(0.0f) : vload(sums + r * PANEL + v * LANES);
      even[r][v] = odd[r][v] = vset(0.0f);
    }
  const char *from = NULL;
  for (int64_t step = k / 2, left = GROUP_STEPS; step < end;) {
    if (!from || step % scaled == 0) {
      const char *line = weights_at(j->w, panel, step - step % scaled);
      if (look_up) numbers = e4m3_numbers_at(line);
      else products = e4m3_products_at(line);
      from = line + (1 + step % scaled) * E4M3_STEP;
    }
    int64_t some = scaled - step % scaled;
    some = some < left ? some : left;
    some = some < end - step ? some : end - step;
    step += some, left -= some;
    for (; some > 0; some--, from += E4M3_STEP, x += 2) {
      vf pairs[PANEL_VECTORS];
      ASK(from + SOON);
      if (look_up) e4m3_look_up(numbers, from, pairs);
      else e4m3_step(products, from, pairs);
      UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        vf low = (vf)((vi)pairs[v] << 16), high = (vf)((vi)pairs[v] & upper);
        UNROLL for (int r = 0; r < R; r++) {
          even[r][v] = vfma(vset(x[r * AMX_DEPTH]), low, even[r][v]);
          odd[r][v] = vfma(vset(x[r * AMX_DEPTH + 1]), high, odd[r][v]);
        }
      }
    }
    if (left && step < end) continue;
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        const vf none = vset(0.0f); // what a group is filled up with: it makes a negative zero a positive one
        if (left) even[r][v] = vfma(none, none, even[r][v]), odd[r][v] = vfma(none, none, odd[r][v]);
        s[r][v] = s[r][v] + (even[r][v] + odd[r][v]);
        even[r][v] = odd[r][v] = none;
      }
    left = GROUP_STEPS;
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) vstore(sums + r * PANEL + v * LANES, s[r][v]);
}
static void rows_by_vectors(const product_job *j, int64_t panel, int64_t k, int64_t depth, packed_block a, bool zero, float *sums) {
  float x[VECTOR_ROWS * AMX_DEPTH];
  for (int64_t g = 0; g < div_up(depth, AMX_GROUP); g++)
    for (int64_t r = 0; r < j->y.rows; r++) {
      const uint16_t *from = (const uint16_t *)(a.at + g * AMX_TILE_BYTES) + r * AMX_GROUP;
      for (int i = 0; i < AMX_GROUP; i++) x[r * AMX_DEPTH + g * AMX_GROUP + i] = widen_bf16(from[i]);
    }
#define ROWS(R)                                                                              \
  case R:                                                                                    \
    if (j->permutes_bytes) by_vectors(R, j, panel, k, depth, x, zero, sums, true);           \
    else by_vectors(R, j, panel, k, depth, x, zero, sums, false);                            \
    return;
  switch (j->y.rows) { ROWS(1) ROWS(2) }
#undef ROWS
}

// some_of is how many of PANEL columns of a panel an output has, in bytes.
static size_t some_of(const product_job *j, int64_t panel) {
  const int64_t left = j->w.out - panel * PANEL;
  return (size_t)(left < PANEL ? left : PANEL) * 4;
}

// few_of_panel does all rows by a panel; sums is where their sums begin, and where they are in the end.
static void few_of_panel(const product_job *j, int64_t p, float *sums, char *scratch) {
  const int64_t rows = j->y.rows, second = rows - AMX_ROWS;
  const bool direct = j->w.type == BFLOAT16, alone = j->packed_rows <= AMX_ROWS; // alone: a row's groups lie one after another
  const bool vectors = !direct && rows <= VECTOR_ROWS;
  _Alignas(64) float own[SUMS];
  const unit_sums u = {sums, 1, 1};
  addition none = nothing;
  for (int64_t s = 0, at = 0; s < j->cut.count; s++) {
    const int64_t begin = at, stop = segment_end(j, s, j->w.in);
    const bool adds = sums_after(s) > 0;
    bool zero = s > 0 || !j->accumulate;
    const place to = {adds ? own : sums_of(&u, partial_sum(s), 0, 0), PANEL};
    do { // once without any elements as well
      int64_t depth = stop - at;
      if (direct && depth > AMX_GROUP) depth -= depth % AMX_GROUP;
      if ((!alone || vectors) && depth > AMX_DEPTH) depth = AMX_DEPTH;
      const int64_t groups = depth > 0 ? div_up(depth, AMX_GROUP) : 0;
      const packed_block a = groups ? packed_at(j, s, j->w.in, at - begin, j->first_row / AMX_ROWS) : (packed_block){0};
      const eights e = {j, p, at, depth, scratch};
      requests soon[2] = {0};
      if (direct && depth % AMX_GROUP == 0) {
        const char *b = groups ? weights_at(j->w, p, at / 2) : NULL;
        if (second > 0) multiply(true, FAR, a.at, a.next, b, NULL, groups, zero, to, to, soon, &none);
        else multiply(false, FAR, a.at, 0, b, NULL, groups, zero, to, to, soon, &none);
      } else if (vectors) {
        rows_by_vectors(j, p, at, depth, a, zero, to.at);
      } else { // those of bfloat16 are the last ones, which are filled up
        if (second > 0) multiply(true, EIGHT, a.at, a.next, NULL, &e, groups, zero, to, to, soon, &none);
        else multiply(false, EIGHT, a.at, 0, NULL, &e, groups, zero, to, to, soon, &none);
      }
      zero = false;
      at += depth;
    } while (at < stop);
    if (adds) {
      addition all = segments_added(&u, s, 0, 0, own);
      add_some(&all, SUMS);
    }
  }
}

// A unit of few rows, AMX_STRIP at most, is some panels, whose weights are read once, at the speed of memory. Rows of y lie in places far
// from each other, most often not in the caches: going to each of them for every panel takes as long as several times their bytes of
// weights. So what panels give lies side by side until there is much of it.
void matmul_amx_few(const void *job, int64_t unit, worker *w) {
  (void)w;
  enum { TOGETHER = 16 }; // panels
  const product_job *j = job;
  const int64_t panels = div_up(j->w.out, PANEL), rows = j->y.rows, first = rows < AMX_ROWS ? rows : AMX_ROWS;
  const int64_t p0 = unit * j->panels_per_unit, p1 = p0 + j->panels_per_unit < panels ? p0 + j->panels_per_unit : panels;
  _Alignas(64) float sums[PARTIAL_SUMS * SUMS], all[TOGETHER * SUMS];
  _Alignas(64) char scratch[AMX_SCRATCH / 2 * STEP_BYTES];
  shape(first, rows - first);
  for (int64_t p = p0, end; p < p1; p = end) {
    end = p + TOGETHER < p1 ? p + TOGETHER : p1;
    for (int64_t r = 0; j->accumulate && r < rows; r++)
      for (int64_t q = p; q < end; q++) memcpy(all + ((q - p) * rows + r) * PANEL, row_of(j->y, r) + q * PANEL, some_of(j, q));
    for (int64_t q = p; q < end; q++) {
      float *to = all + (q - p) * rows * PANEL;
      const size_t bytes = (size_t)rows * PANEL * 4;
      if (j->accumulate) memcpy(sums, to, bytes);
      few_of_panel(j, q, sums, scratch);
      memcpy(to, sums, bytes); // tiles are stored to sums, which is always near: storing them elsewhere takes long
    }
    for (int64_t r = 0; r < rows; r++)
      for (int64_t q = p; q < end; q++) memcpy(row_of(j->y, r) + q * PANEL, all + ((q - p) * rows + r) * PANEL, some_of(j, q));
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
