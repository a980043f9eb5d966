// The operations: each puts its arguments into a job, cuts it into units and has the threads run it with the chosen kernels.
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
extern const kernels kernels_sse2, kernels_avx2, kernels_avx512, kernels_avx512bf16, kernels_amx;

#ifndef EMULATE_AVX512
// tiles_granted tells whether this process may use tiles: their state is large, so that Linux saves it only for those who have asked. It
// holds for all threads, and asking again changes nothing.
static bool tiles_granted(void) {
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
// has_tiles tells whether the processor has AMX with bfloat16.
static bool has_tiles(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) && (d & 1u << 24);
}
#endif
#else
extern const kernels kernels_neon;
#endif

static const kernels *find_kernels(const char *isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  bool dot = avx512 && __builtin_cpu_supports("avx512bf16");
#ifdef EMULATE_AVX512
  avx512 = dot = avx2;
  bool tiles = avx2;
#else
  bool tiles = avx512 && has_tiles() && tiles_granted();
#endif
  const struct {
    const kernels *k;
    bool available;
  } all[] = {{&kernels_amx, tiles}, {&kernels_avx512bf16, dot}, {&kernels_avx512, avx512}, {&kernels_avx2, avx2}, {&kernels_sse2, true}};
#else
  const struct {
    const kernels *k;
    bool available;
  } all[] = {{&kernels_neon, true}};
#endif
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].available && (!*isa || !strcmp(isa, all[i].k->isa))) return all[i].k;
  return NULL;
}

#if defined(__x86_64__)
// dot_pays tells whether this processor does bfloat16 pairs faster with its instruction for them than with two multiply-adds. On AMD's it is twice as fast, on Intel's
// (Sapphire and Emerald Rapids) half as fast; the bits are the same. It takes some microseconds.
static bool dot_pays(void) {
  float sink = 0;
  rows_job j = {.a = {.addr = (uintptr_t)&sink}, .x = 0.25f};
  int64_t best[2] = {INT64_MAX, INT64_MAX};
  for (int i = 0; i < 10; i++) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    (i % 2 ? kernels_avx512.peak_bf16 : kernels_avx512bf16.peak_bf16)(&j, 0, NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    int64_t took = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
    if (took < best[i % 2]) best[i % 2] = took;
  }
  return best[0] < best[1];
}
#endif

bool isa_available(const char *isa) { return find_kernels(isa) != NULL; }

device *device_new(int count, const char *isa) {
  const kernels *k = find_kernels(isa);
#if defined(__x86_64__)
  if (k == &kernels_avx512bf16 && !*isa && !dot_pays()) k = &kernels_avx512;
#endif
  device *d = k ? calloc(1, sizeof *d) : NULL;
  if (!d) return NULL;
  d->k = k;
#if defined(__x86_64__)
  d->permutes_bytes = __builtin_cpu_supports("avx512vbmi");
  // On two processors of a Zen 4 one row went at 46 GB/s, and at 34 from four panels at once; on Intel's, several panels were faster. Eight rows went straight on as well there, and more on a Zen 5, which multiplies twice as fast
  // (and is known here by what only it has): 42 GB/s, else 31.
  if (__builtin_cpu_is("amd")) d->linear_rows = MAX_TILE_ROWS;
  if (d->linear_rows && !__builtin_cpu_supports("avx512vp2intersect")) d->linear_rows = 8;
#ifdef EMULATE_AVX512
  d->linear_rows = d->linear_rows ? 0 : MAX_TILE_ROWS; // the way that this processor does not take is for tests as well
#endif
#endif
  d->t = threads_new(count);
  if (!d->t) return free(d), NULL;
  return d;
}
void device_free(device *d) {
  threads_free(d->t);
  free(d->parts);
  free(d->lists);
  if (d->shared) memory_free(d->shared, d->shared_bytes);
  memory_trim(0);
  free(d);
}
const char *device_isa(const device *d) { return d->k->isa; }
const char *device_arithmetic(const device *d) { return d->k->arithmetic; }
const char *device_arithmetic_float32(const device *d) { return d->k->arithmetic_float32 ? d->k->arithmetic_float32 : d->k->arithmetic; }

void *shared_memory(device *d, int64_t bytes) {
  if (d->shared_bytes < bytes) {
    if (d->shared) memory_free(d->shared, d->shared_bytes);
    d->shared = memory_new(bytes, false);
    d->shared_bytes = d->shared ? bytes : 0;
  }
  return (void *)d->shared;
}

// Rows.

enum { UNIT_ELEMENTS = 16384 };
int run_rows(device *d, unit_function f, rows_job *j, double cost) {
  int64_t rows = j->a.rows, cols = j->a.cols;
  if (!rows || !cols) return 0;
  j->rows_per_unit = UNIT_ELEMENTS / cols > 1 ? UNIT_ELEMENTS / cols : 1;
  threads_run(d->t, f, j, div_up(rows, j->rows_per_unit), (double)rows * (double)cols * cost);
  return 0;
}
// flatten sees contiguous views of one shape as rows of 4096 elements when that divides, so that one long row is cut too.
enum { WIDE = 4096 };
static void flatten(view **v, int n) {
  int64_t rows = v[0]->rows, cols = v[0]->cols;
  for (int i = 0; i < n; i++)
    if (v[i]->rows > 1 && v[i]->stride != cols) return;
  if (!rows || rows * cols % WIDE) return;
  for (int i = 0; i < n; i++) v[i]->rows = rows * cols / WIDE, v[i]->cols = v[i]->stride = WIDE;
}

int op_upload(device *d, view dst, const float *src) {
  (void)d;
  for (int64_t r = 0; r < dst.rows; r++) memcpy(row_of(dst, r), src + r * dst.cols, (size_t)dst.cols * 4);
  return 0;
}
int op_download(device *d, float *dst, int64_t pitch, view src) {
  (void)d;
  for (int64_t r = 0; r < src.rows; r++) memcpy(dst + r * pitch, row_of(src, r), (size_t)src.cols * 4);
  return 0;
}
int op_zero(device *d, view dst) {
  (void)d;
  size_t size = dst.type == BFLOAT16 ? 2 : 4;
  for (int64_t r = 0; r < dst.rows; r++) memset((char *)dst.addr + (size_t)(r * dst.stride) * size, 0, (size_t)dst.cols * size);
  return 0;
}
int op_round(device *d, view dst, view src) {
  rows_job j = {.a = dst, .b = src};
  flatten((view *[]){&j.a, &j.b}, 2);
  return run_rows(d, d->k->round, &j, 0.5);
}
int op_add(device *d, view dst, view src) {
  rows_job j = {.a = dst, .b = src};
  flatten((view *[]){&j.a, &j.b}, 2);
  return run_rows(d, d->k->add, &j, 0.3);
}
int op_scale(device *d, view dst, float factor, int type) {
  rows_job j = {.a = dst, .x = factor, .type = type};
  flatten((view *[]){&j.a}, 1);
  return run_rows(d, d->k->scale, &j, 0.3);
}
int op_add_row(device *d, view dst, view row) {
  rows_job j = {.a = dst, .b = row};
  return run_rows(d, d->k->add_row, &j, 0.3);
}
int op_rmsnorm(device *d, view y, view x, view weight, float eps) {
  rows_job j = {.a = y, .b = x, .c = weight, .x = eps};
  return run_rows(d, d->k->rmsnorm, &j, 0.4);
}
int op_rmsnorm_backward(device *d, view dx, view dy, view x, view weight, float eps, bool accumulate) {
  rows_job j = {.a = dx, .b = dy, .c = x, .d = weight, .x = eps, .flag = accumulate};
  return run_rows(d, d->k->rmsnorm_backward, &j, 0.8);
}
int op_rope(device *d, view x, const int32_t *positions, view table, int64_t heads, bool inverse) {
  rows_job j = {.a = x, .b = table, .index = positions, .heads = heads, .flag = inverse};
  return run_rows(d, d->k->rope, &j, 0.3);
}
int op_swiglu(device *d, view y, view gate, view up) {
  rows_job j = {.a = y, .b = gate, .c = up};
  flatten((view *[]){&j.a, &j.b, &j.c}, 3);
  return run_rows(d, d->k->swiglu, &j, 1);
}
int op_swiglu_backward(device *d, view dgate, view dup, view dy, view gate, view up) {
  rows_job j = {.a = dgate, .b = dup, .c = dy, .d = gate, .e = up};
  flatten((view *[]){&j.a, &j.b, &j.c, &j.d, &j.e}, 5);
  return run_rows(d, d->k->swiglu_backward, &j, 1.5);
}

// Tiles are counted from where a segment begins, so that whoever has whole segments has the same tiles.
int op_logsumexp(device *d, view lse, view logits, segments cut) {
  if (!logits.rows) return 0;
  if (!cut.count) cut = (segments){1, {(int32_t)logits.cols}};
  int64_t tiles = 0, count = 0;
  for (int64_t s = 0, from = 0; s < cut.count; from = cut.ends[s++]) tiles += div_up(cut.ends[s] - from, VOCABULARY_TILE);
  vocabulary_tile *list = shared_memory(d, tiles * (int64_t)sizeof *list + logits.rows * tiles * 8);
  if (!list) return -1;
  for (int64_t s = 0, from = 0; s < cut.count; s++)
    for (int64_t columns; from < cut.ends[s]; from += columns) {
      columns = cut.ends[s] - from < VOCABULARY_TILE ? cut.ends[s] - from : VOCABULARY_TILE;
      list[count++] = (vocabulary_tile){from, columns, s};
    }
  rows_job j = {.a = logits, .heads = tiles, .tiles = list, .values = (float *)(list + tiles)};
  threads_run(d->t, d->k->logsumexp_tile, &j, logits.rows * tiles, (double)logits.rows * (double)logits.cols * 0.8);
  j.a = lse;
  return run_rows(d, d->k->logsumexp_merge, &j, 20.0 * (double)tiles);
}
int op_softmax(device *d, view p, view logits, view lse) {
  rows_job j = {.a = p, .b = logits, .c = lse};
  return run_rows(d, d->k->softmax, &j, 0.6);
}
int op_softmax_gradient(device *d, view logits, view lse, const int32_t *targets, const float *c, int64_t k) {
  rows_job j = {.a = logits, .b = lse, .index = targets, .values = c, .heads = k};
  return run_rows(d, d->k->softmax_gradient, &j, 0.6);
}

// Few elements, and on the caller: so denormals are not flushed, and an element becomes what the same arithmetic in Go makes of it.
int op_adjust_elements(device *d, view x, const adjustment *list, int64_t n) {
  (void)d;
  for (int64_t i = 0; i < n; i++) {
    const adjustment *a = &list[i];
    float *to = row_of(x, a->row) + a->column, v = *to;
    v = v > 0 ? v / a->divisor : v * a->divisor;
    v -= a->less;
    *to = v + a->more;
  }
  return 0;
}
int op_mask_columns(device *d, view x, const int32_t *rows, const uint64_t *bits, int64_t n) {
  rows_job j = {.a = x, .index = rows, .values = (const float *)bits, .heads = div_up(x.cols, 64)};
  threads_run(d->t, d->k->mask_row, &j, n, (double)n * (double)x.cols * 0.1);
  return 0;
}
int op_draw_tokens(device *d, view dst, view logits, view probs, const draw_settings *draws) {
  if (threads_reserve(d->t, logits.cols * 16)) return -1;
  rows_job j = {.a = dst, .b = logits, .c = probs, .values = (const float *)draws};
  threads_run(d->t, d->k->draw_token, &j, logits.rows, (double)logits.rows * (double)logits.cols * 0.3);
  return 0;
}

// sum_tiles adds the sums of n tiles, which lie so many apart.
static double sum_tiles(const double *sums, int64_t n, int64_t apart) {
  double s[SUM_LANES] = {0};
  for (int64_t i = 0; i < n; i++) s[i % SUM_LANES] += sums[i * apart];
  for (int width = SUM_LANES / 2; width > 0; width >>= 1)
    for (int i = 0; i < width; i++) s[i] += s[i + width];
  return s[0];
}
int op_sum_squares(device *d, view x, double *sum) {
  *sum = 0;
  if (!x.rows || !x.cols) return 0;
  int64_t tiles = div_up(x.cols, SUM_TILE);
  double *sums = shared_memory(d, x.rows * tiles * 8);
  if (!sums) return -1;
  rows_job j = {.a = x, .heads = tiles, .sums = sums, .rows_per_unit = SUM_TILES};
  threads_run(d->t, d->k->sum_squares, &j, div_up(x.rows * tiles, SUM_TILES), (double)x.rows * (double)x.cols * 0.3);
  *sum = sum_tiles(sums, x.rows * tiles, 1);
  return 0;
}
int op_adamw(device *d, view new_p, view new_m, view new_v, view p, view m, view v, view g, adamw_step s, bool sum_gradient, double *sums, double *pieces) {
  view t[7] = {new_p, new_m, new_v, p, m, v, g};
  const int64_t whole = p.cols / WIDE * WIDE, tiles = div_up(p.cols, SUM_TILE);
  for (int i = 0; i < ADAMW_SUMS; i++) sums[i] = 0;
  if (!p.rows || !p.cols) return 0;
  double *each = shared_memory(d, p.rows * tiles * ADAMW_SUMS * 8);
  if (!each) return -1;
  if (p.rows == 1 && whole && whole < p.cols) { // what does not divide is a job of its own, so that one long row is cut all the same
    view rest[7];
    for (int i = 0; i < 7; i++) rest[i] = t[i], rest[i].addr += (uintptr_t)whole * 4, rest[i].cols -= whole, t[i].cols = whole;
    rows_job j = {.a = rest[0], .values = (const float *)rest, .step = s, .flag = sum_gradient, .heads = 1, .sums = each + (tiles - 1) * ADAMW_SUMS};
    run_rows(d, d->k->adamw, &j, 2);
  }
  rows_job j = {.values = (const float *)t, .step = s, .flag = sum_gradient, .heads = div_up(t[0].cols, SUM_TILE), .sums = each};
  if (t[0].cols % SUM_TILE == 0) { // pieces of a row are tiles of it, in their order
    flatten((view *[]){t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6}, 7);
    j.heads = div_up(t[0].cols, SUM_TILE);
  }
  j.a = t[0];
  run_rows(d, d->k->adamw, &j, 2);
  for (int i = 0; i < ADAMW_SUMS; i++) sums[i] = sum_tiles(each + i, i == 3 && !sum_gradient ? 0 : p.rows * tiles, ADAMW_SUMS);
  for (int64_t i = 0; pieces && i < p.rows * tiles; i++) pieces[i] = each[i * ADAMW_SUMS];
  return 0;
}

// Weights.

typedef struct {
  matrix m;
  int64_t row, n;
  int source;             // FLOAT32, BFLOAT16 or FLOAT16
  const char *data;
} pack_job;
enum { FLOAT16 = 3 };

static float widen_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  union { uint32_t u; float f; } v;
  if (exponent == 31) v.u = sign | 0x7f800000 | fraction << 13;
  else if (exponent) v.u = sign | (exponent + 112) << 23 | fraction << 13;
  else { // zero and denormals: fraction · 2⁻²⁴, exact
    v.f = (float)fraction * 0x1p-24f;
    v.u |= sign;
  }
  return v.f;
}
// The functions below are made once per source and type: a choice per element would cost more than the packing.
#define INLINE static inline __attribute__((always_inline))
INLINE uint32_t pack_read(const pack_job *j, const int source, int64_t n, int64_t k) { // the element's bits as float32
  union { float f; uint32_t u; } v;
  uint16_t h;
  if (source == FLOAT32) return memcpy(&v.u, j->data + (n * j->m.in + k) * 4, 4), v.u;
  memcpy(&h, j->data + (n * j->m.in + k) * 2, 2);
  if (source == BFLOAT16) return (uint32_t)h << 16;
  v.f = widen_f16(h);
  return v.u;
}
INLINE void pack_rows(const pack_job *j, int64_t panel, int64_t from, int64_t to, const int source, const int type) {
  int64_t in = j->m.in, words = type == FLOAT32 ? in : (in + 1) / 2, step = type == FLOAT32 ? 1 : 2;
  uint32_t *y = (uint32_t *)j->m.addr + panel * words * PANEL;
  for (int64_t k = 0; k < in; k += step, y += PANEL)
    for (int64_t r = from; r < to; r++) {
      uint32_t x = pack_read(j, source, r - j->row, k);
      if (type == BFLOAT16) x = round_bits(x) >> 16 | (k + 1 < in ? round_bits(pack_read(j, source, r - j->row, k + 1)) & 0xffff0000 : 0);
      y[r % PANEL] = x;
    }
}
// A unit is the rows that fall into one panel.
static void pack_unit(const void *job, int64_t unit, worker *w) {
  (void)w;
  const pack_job *j = job;
  int64_t panel = j->row / PANEL + unit, from = panel * PANEL < j->row ? j->row : panel * PANEL;
  int64_t to = (panel + 1) * PANEL < j->row + j->n ? (panel + 1) * PANEL : j->row + j->n;
  bool pairs = j->m.type == BFLOAT16;
  switch (j->source) {
  case FLOAT32: pairs ? pack_rows(j, panel, from, to, FLOAT32, BFLOAT16) : pack_rows(j, panel, from, to, FLOAT32, FLOAT32); break;
  case BFLOAT16: pairs ? pack_rows(j, panel, from, to, BFLOAT16, BFLOAT16) : pack_rows(j, panel, from, to, BFLOAT16, FLOAT32); break;
  default: pairs ? pack_rows(j, panel, from, to, FLOAT16, BFLOAT16) : pack_rows(j, panel, from, to, FLOAT16, FLOAT32);
  }
}
int op_pack(device *d, matrix m, int64_t row, int64_t n, int source, const void *data) {
  if (!n) return 0;
  pack_job j = {m, row, n, source, data};
  threads_run(d->t, pack_unit, &j, (row + n - 1) / PANEL - row / PANEL + 1, (double)n * (double)m.in);
  return 0;
}
int op_repack(device *d, const matrix_source *list, int64_t n) {
  repack_part *parts = shared_memory(d, n * (int64_t)sizeof *parts);
  if (!parts) return -1;
  int64_t count = 0, units = 0;
  double elements = 0;
  for (int64_t i = 0; i < n; i++) {
    matrix m = list[i].to;
    if (!m.out || !m.in) continue;
    parts[count++] = (repack_part){m, list[i].from, units};
    units += div_up(div_up(m.out, PANEL), REPACK_PANELS) * div_up(m.in, REPACK_DEPTH);
    elements += (double)m.out * (double)m.in;
  }
  repack_job j = {parts, count};
  if (count) threads_run(d->t, d->k->repack, &j, units, elements * 0.3);
  return 0;
}

typedef struct {
  view dst;
  matrix m;
  const int32_t *ids;
} gather_job;
static void gather_unit(const void *job, int64_t unit, worker *w) {
  (void)w;
  const gather_job *j = job;
  int64_t id = j->ids[unit], in = j->m.in, pairs = (in + 1) / 2;
  float *y = row_of(j->dst, unit);
  if (id < 0) {
    memset(y, 0, (size_t)in * 4);
  } else if (j->m.type == E4M3) {
    read_e4m3(j->m, id, y);
  } else if (j->m.type == FLOAT32) {
    const float *p = (const float *)j->m.addr + id / PANEL * in * PANEL + id % PANEL;
    for (int64_t k = 0; k < in; k++) y[k] = p[k * PANEL];
  } else {
    const uint16_t *p = (const uint16_t *)j->m.addr + (id / PANEL * pairs * PANEL + id % PANEL) * 2;
    for (int64_t k = 0; k < in; k++) y[k] = widen_bf16(p[k / 2 * PANEL * 2 + k % 2]);
  }
}
int op_gather(device *d, view dst, matrix m, const int32_t *ids) {
  gather_job j = {dst, m, ids};
  if (dst.rows) threads_run(d->t, gather_unit, &j, dst.rows, (double)dst.rows * (double)m.in * 2);
  return 0;
}

typedef struct {
  view dst, src;
  const element *at;
} gather_elements_job;
enum { ELEMENTS_PER_UNIT = 256 };
static void gather_elements_unit(const void *job, int64_t unit, worker *w) {
  (void)w;
  const gather_elements_job *j = job;
  float *y = row_of(j->dst, 0);
  for (int64_t i = unit * ELEMENTS_PER_UNIT; i < j->dst.cols && i < (unit + 1) * ELEMENTS_PER_UNIT; i++)
    y[i] = j->at[i].column < 0 ? 0.0f : row_of(j->src, j->at[i].row)[j->at[i].column];
}
int op_gather_elements(device *d, view dst, view src, const element *at) {
  gather_elements_job j = {dst, src, at};
  threads_run(d->t, gather_elements_unit, &j, div_up(dst.cols, ELEMENTS_PER_UNIT), (double)dst.cols * 20);
  return 0;
}

// Attention.

static int64_t block_elements(const cache *p) { return PAGE * (p->head_dim + p->padded_dim) * p->heads; }
int op_zero_page(device *d, cache p, int64_t page) {
  (void)d;
  size_t size = (size_t)block_elements(&p) * (p.type == BFLOAT16 ? 2 : 4);
  for (int64_t l = 0; l < p.layers; l++) memset((char *)p.addr + (size_t)(l * p.count + page) * size, 0, size);
  return 0;
}

int op_discard_pages(device *d, cache p, int64_t first, int64_t count) {
  (void)d;
  size_t size = (size_t)block_elements(&p) * (p.type == BFLOAT16 ? 2 : 4);
  uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
  for (int64_t l = 0; l < p.layers; l++) {
    uintptr_t from = p.addr + (size_t)(l * p.count + first) * size, to = from + (size_t)count * size;
    from = (from + mask) & ~mask, to &= ~mask;
    if (from < to && madvise((void *)from, to - from, MADV_DONTNEED)) return 1;
  }
  return 0;
}

int op_copy_page(device *d, cache p, int64_t to, int64_t from) {
  (void)d;
  size_t size = (size_t)block_elements(&p) * (p.type == BFLOAT16 ? 2 : 4);
  for (int64_t l = 0; l < p.layers; l++) memmove((char *)p.addr + (size_t)(l * p.count + to) * size, (char *)p.addr + (size_t)(l * p.count + from) * size, size);
  return 0;
}

typedef struct {
  cache p;
  int64_t layer;
  view k, v;
  const sequence *sequences;
  const int32_t *pages;
} write_job;
static void write_element(const cache *p, int64_t at, float x) {
  if (p->type == FLOAT32) ((float *)p->addr)[at] = x;
  else ((uint16_t *)p->addr)[at] = round_bf16(x);
}
static void write_unit(const void *job, int64_t unit, worker *w) { // one head of one row
  (void)w;
  const write_job *j = job;
  const cache *p = &j->p;
  int64_t head = unit % p->heads, index = unit / p->heads;
  const sequence *s = j->sequences;
  while (index >= s->count) index -= s->count, s++;
  int64_t position = s->first + index, page = j->pages[s->first_page + position / PAGE], i = position % PAGE;
  int64_t at = (j->layer * p->count + page) * block_elements(p);
  const float *k = row_of(j->k, s->row + index) + head * p->head_dim, *v = row_of(j->v, s->row + index) + head * p->head_dim;
  for (int64_t d = 0; d < p->head_dim; d++) {
    write_element(p, at + (head * p->head_dim + d) * PAGE + i, k[d]);
    write_element(p, at + p->heads * PAGE * p->head_dim + (head * PAGE + i) * p->padded_dim + d, v[d]);
  }
}
static int64_t count_rows(const sequence *s, int64_t n) {
  int64_t rows = 0;
  for (int64_t i = 0; i < n; i++) rows += s[i].count;
  return rows;
}
int op_write_pages(device *d, cache p, int64_t layer, view k, view v, const sequence *s, int64_t n, const int32_t *pages) {
  write_job j = {p, layer, k, v, s, pages};
  int64_t units = count_rows(s, n) * p.heads;
  if (units) threads_run(d->t, write_unit, &j, units, (double)units * (double)p.head_dim * 10); // an element of a key is a line of its own
  return 0;
}
// rows_alone tells whether the kernels for single rows do these.
static bool rows_alone(const device *d, const cache *p, int64_t group) { return group <= d->k->tile_rows && p->padded_dim % (ROW_VECTORS * d->k->lanes) == 0; }

int op_attention(device *d, view o, view lse, view q, cache p, int64_t layer, const sequence *s, int64_t n, const int32_t *pages, int64_t query_heads, float scale) {
  int64_t group = query_heads / p.heads, width = 1, longest = 0, keys = 0, most = 0; // keys: of all single rows; most: key heads of a unit of those
  for (int64_t i = 0; i < n; i++) {
    longest = s[i].count > longest ? s[i].count : longest;
    if (s[i].count == 1) keys += s[i].first + 1 - first_seen(s + i, s[i].first);
  }
  while (width < PAGE && width < longest && width * 2 * group <= PAGE) width *= 2;
  attention_job j = {.o = o, .lse = lse, .q = q, .p = p, .layer = layer, .query_heads = query_heads, .positions_per_block = width,
                     .straight = d->linear_rows > 0, .sequences = s, .n = n, .pages = pages, .scale = scale};
  if (rows_alone(d, &p, group)) j.unit_keys = div_up(keys, 4 * threads_count(d->t)); // more heads are longer pieces of memory, but all threads have some
  int64_t units = 0;
  double work = 0;
  for (int64_t i = 0; i < n; i++) {
    units += attention_units(&j, s + i);
    most = row_heads(&j, s + i) > most ? row_heads(&j, s + i) : most;
    work += (double)s[i].count * ((double)s[i].first + 0.5 * (double)s[i].count) * (double)q.cols * 0.05;
  }
  int64_t items = width * group, block = PAGE * (p.head_dim + p.padded_dim) + items * (PAGE + 4 + 2 * p.padded_dim) + (items + MAX_TILE_ROWS) * p.head_dim;
  int64_t rows = most * (group * (PAGE + 4 + 2 * p.padded_dim) + MAX_TILE_ROWS * p.head_dim);
  if (threads_reserve(d->t, 4 * (block > rows ? block : rows))) return -1;
  threads_run(d->t, d->k->attention, &j, units, work);
  return 0;
}
int op_attention_backward(device *d, view dq, view dk, view dv, view dout, view o, view lse, view q, cache p, int64_t layer, const sequence *s, int64_t n,
                          const int32_t *pages, int64_t query_heads, float scale) {
  if (!n) return 0;
  int64_t heads = dk.cols / p.head_dim, group = query_heads / heads, longest = 0;
  double work = 0;
  for (int64_t i = 0; i < n; i++) {
    longest = s[i].count > longest ? s[i].count : longest;
    work += (double)(s[i].keys_to - s[i].keys_from) * (double)(s[i].rows_to - s[i].rows_from) * (double)q.cols * 0.12; // at the most
  }
  if (threads_reserve(d->t, 4 * ((6 * PAGE + 3 * BACKWARD_ITEMS + MAX_TILE_ROWS) * p.padded_dim + 2 * BACKWARD_ITEMS * PAGE + longest * group))) return -1;
  attention_job j = {.dq = dq, .dk = dk, .dv = dv, .dout = dout, .o = o, .lse = lse, .q = q, .p = p, .layer = layer, .query_heads = query_heads,
                     .sequences = s, .n = n, .pages = pages, .scale = scale};
  threads_run(d->t, d->k->attention_backward, &j, n * heads, work);
  return 0;
}

// Ceilings.

int64_t op_peak(device *d, int type) {
  float sink = 0;
  rows_job j = {.a = {.addr = (uintptr_t)&sink}, .x = 0.25f};
  int64_t units = threads_count(d->t) * 160; // some milliseconds: a thread may take one to get a processor of its own
  threads_run(d->t, type == BFLOAT16 ? d->k->peak_bf16 : d->k->peak_f32, &j, units, 1e9);
  return 2 * units * (type == BFLOAT16 ? d->k->peak_pairs : PEAK_STEPS * d->k->peak_chains * d->k->lanes);
}
void op_read(device *d, uintptr_t memory, int64_t mib, bool ahead) {
  float sink = 0;
  rows_job j = {.a = {.addr = memory}, .b = {.addr = (uintptr_t)&sink}, .flag = ahead};
  threads_run(d->t, d->k->peak_read, &j, mib, 1e9);
}
double op_clock(const device *d) {
  struct timespec t;
  clock_gettime(threads_count(d->t) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
