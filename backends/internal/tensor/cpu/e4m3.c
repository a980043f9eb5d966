// Weights of eight bits: numbers of the type E4M3, of which PANEL rows × a group of columns have one scale. They become the bfloat16 numbers nearest to their products with it.
//
// Rounding does not depend on the exponent, so that sixteen products say all: the line before a group has, for a number's fraction f, those of 2⁻⁶ · f/8, which numbers without an exponent are, and behind these those of
// 2⁻⁷ · (1 + f/8); first the low bytes of all sixteen, then the high ones. The other numbers are the last eight with their own exponent added to the product's.
#include "device.h"

#include <string.h>

enum { PRODUCTS = 16 };

// products_of is a group's line.
static void products_of(float scale, uint8_t line[2 * PRODUCTS]) {
  for (int i = 0; i < PRODUCTS; i++) {
    float number = i < 8 ? (float)i * 0x1p-9f : (float)i * 0x1p-10f;
    uint16_t bits = round_bf16(number * scale);
    line[i] = (uint8_t)bits, line[PRODUCTS + i] = (uint8_t)(bits >> 8);
  }
}

// bits_of is the bfloat16 that a number is. What is beyond all of them is none that this may be asked for.
static uint16_t bits_of(const uint8_t line[2 * PRODUCTS], uint8_t code) {
  int at = (code & 7) | (code & 0x78 ? 8 : 0);
  return (uint16_t)((line[at] | line[PRODUCTS + at] << 8) + ((code & 0x78) << 4) + ((code & 0x80) << 8));
}

// largest_of is the largest number without its sign that is finite with a scale: 0x7f is none.
static uint8_t largest_of(float scale) {
  uint8_t code = 0x7e; // 448
  for (;; code--) {
    float number = (float)(8 + (code & 7)) * (float)(1u << (code >> 3)) * 0x1p-10f;
    if (code < 8 || (round_bf16(number * scale) & 0x7fff) < 0x7f80) return code;
  }
}

// place_of is where element i of a step is that a column has: see kernels_e4m3.h.
static int64_t place_of(int64_t column, int64_t i) { return column % 16 / 4 * 16 + column / 16 * 8 + column % 4 * 2 + i; }

typedef struct {
  matrix m;
  int64_t row, n;
  const uint8_t *codes;
  const float *scales;
  int *failed;
} pack_job;

// A unit is the rows that fall into one panel.
static void pack_unit(const void *job, int64_t unit, worker *w) {
  (void)w;
  const pack_job *j = job;
  const int64_t panel = j->row / PANEL + unit, in = j->m.in, across = div_up(in, j->m.columns);
  const int64_t from = panel * PANEL < j->row ? j->row : panel * PANEL, to = (panel + 1) * PANEL < j->row + j->n ? (panel + 1) * PANEL : j->row + j->n;
  for (int64_t g = 0; g < across; g++) {
    const float *scale = j->scales + (from - j->row) * across + g;
    uint8_t *group = (uint8_t *)weights_at(j->m, panel, g * j->m.columns / 2), *line = group, had[2 * PRODUCTS], zeros[2 * PRODUCTS] = {0};
    const uint8_t most = largest_of(*scale);
    memcpy(had, line, sizeof had);
    products_of(*scale, line);
    bool same = !memcmp(had, zeros, sizeof had) || !memcmp(had, line, sizeof had), finite = true;
    for (int64_t r = from; r < to; r++) {
      same = same && scale[(r - from) * across] == *scale;
      const uint8_t *codes = j->codes + (r - j->row) * in;
      const int64_t first = g * j->m.columns, last = first + j->m.columns < in ? first + j->m.columns : in;
      for (int64_t k = first; k < last; k++) {
        finite = finite && (codes[k] & 0x7f) <= most;
        group[(1 + (k - first) / 2) * E4M3_STEP + place_of(r % PANEL, k % 2)] = codes[k];
      }
    }
    if (!same) __atomic_store_n(j->failed, 2, __ATOMIC_RELAXED);
    else if (!finite) __atomic_store_n(j->failed, 1, __ATOMIC_RELAXED);
  }
}

int op_pack_e4m3(device *d, matrix m, int64_t row, int64_t n, const uint8_t *codes, const float *scales) {
  int failed = 0;
  pack_job j = {m, row, n, codes, scales, &failed};
  threads_run(d->t, pack_unit, &j, (row + n - 1) / PANEL - row / PANEL + 1, (double)n * (double)m.in);
  return failed;
}

void read_e4m3(matrix m, int64_t row, float *to) {
  for (int64_t k = 0; k < m.in; k += m.columns) {
    const uint8_t *group = (const uint8_t *)weights_at(m, row / PANEL, k / 2);
    for (int64_t i = 0; i < m.columns && k + i < m.in; i++) to[k + i] = widen_bf16(bits_of(group, group[(1 + i / 2) * E4M3_STEP + place_of(row % PANEL, i % 2)]));
  }
}
