// What passes between the operations (operations.c), the kernels of an instruction set and the threads: one struct of arguments per kind of job. A job is
// cut into units; a unit is what one thread does at a time, and never more than one thread writes an output element. No cut changes a result.
#ifndef TINSMITH_CPU_JOBS_H
#define TINSMITH_CPU_JOBS_H

#include "kernels.h"

// worker is one thread's own memory. It is grown before a job starts, never inside.
typedef struct {
  void *memory;
  int64_t bytes;
  int64_t packed; // the operation whose rows it has packed for itself in its memory (products.c)
} worker;

typedef void (*unit_function)(const void *job, int64_t unit, worker *w);

// vocabulary_tile is some columns of logits that are reduced together.
typedef struct {
  int64_t from, columns, segment;
} vocabulary_tile;

// rows_job is an operation on rows, or on pieces of one long row when all views are contiguous.
typedef struct {
  view a, b, c, d, e; // destinations first
  int64_t rows_per_unit;
  float x, limit;
  bool flag;
  int type;
  int64_t heads;
  const int32_t *index;
  const float *values;
  double *sums;
  adamw_step step;
  const vocabulary_tile *tiles;
  segments cut; // of a row
} rows_job;

// product_job is y (+)= rows · weights.
typedef struct product_job {
  view y, x;
  matrix w;
  const float *strips; // the rows, packed in strips: float32, or pairs when w is bfloat16
  int64_t strip_rows, strips_per_unit, panels_per_unit;
  int64_t first_row, packed_rows; // which of those that are packed together y's first one is, and how many these are; rows in the lanes begin with a strip
  bool accumulate, turned;
  segments cut; // of the inner axis; at least one
  const struct product_job *continued; // the product that goes on with this one's chains, NULL if there is none
  int64_t apart; // of an outer product
  bool past;     // it may write y past the caches: y is not read, its memory is aligned, and there is much of it
  int64_t units, units_ahead; // a thread's next unit is about so many on, of this product's units or those of the products
  const struct product_job *after; // behind it, NULL behind the last
  bool permutes_bytes; // the processor has instructions for that
  int64_t linear_rows; // few rows: up to so many memory is read fastest straight on, and a panel has chains enough
} product_job;

// repack_job packs weights from float32 masters.
typedef struct {
  matrix to;
  view from;
  int64_t first_unit; // of all matrices' before this one
} repack_part;
typedef struct {
  const repack_part *parts;
  int64_t n;
} repack_job;

typedef struct {
  view o, lse, q;                  // forward: o and lse are written; backward: they are read
  view dq, dk, dv, dout;           // backward
  cache p;
  int64_t layer, query_heads, positions_per_block;
  int64_t unit_keys; // forward: keys of a unit of a sequence with a single row, about, counted for all key heads; 0: such rows are blocks as well
  bool straight;     // memory is read fastest straight on
  const sequence *sequences;
  int64_t n;
  const int32_t *pages;
  float scale;
} attention_job;

// conv_job: a unit is CONV_TILE channels of one run.
typedef struct {
  view y, x, weight, tails; // backward: y = dx, and dy
  view dy;
  const state_run *runs;
} conv_job;

// delta_job: a unit of the forward pass is some tiles of DELTA_TILE columns of a value head's state, of one run; one of the backward pass is a key head with its value heads, of one run.
typedef struct {
  delta_inputs in;
  view o, states;
  view dmixed, da, db, dout; // backward
  const state_run *runs;
  int64_t tiles_per_unit;
} delta_job;

// kernels is one instruction set's table.
typedef struct {
  const char *isa, *arithmetic;
  const char *arithmetic_float32; // with weights of float32, where that is another; else NULL
  int64_t lanes, tile_rows, tile_columns, pair_words, peak_chains;
  int64_t peak_pairs; // multiply-adds of a unit of peak_bf16
  bool (*few_rows)(int64_t rows); // whether matmul_few does so many
  unit_function pack_strip_f32, pack_strip_bf16, pack_few, matmul, matmul_few, matmul_transposed, outer;
  unit_function pack_across_f32, pack_across_bf16, matmul_across; // the transposed product of many rows
  unit_function pack_amx, matmul_amx, matmul_amx_few, matmul_amx_transposed; // products of bfloat16 weights by tiles (amx.h); else NULL
  unit_function repack;
  unit_function rmsnorm, rmsnorm_backward, rope, swiglu, swiglu_backward;
  unit_function add, scale, add_row, round;
  unit_function logsumexp_tile, logsumexp_merge, softmax, softmax_gradient, draw_token, mask_row;
  unit_function route, route_backward, spread, combine, combine_backward;
  unit_function sink, swiglu_clamped, swiglu_clamped_backward, add_routed, add_routed_backward;
  unit_function sum_squares, adamw;
  unit_function attention, attention_backward;
  unit_function conv, conv_backward, delta_rule, delta_rule_backward, gated_norm, gated_norm_backward, sigmoid_gate, sigmoid_gate_backward;
  unit_function peak_f32, peak_bf16, peak_read;
} kernels;

enum { VOCABULARY_TILE = 4096 }; // columns of logits that are reduced together
enum { SUM_TILE = 4096, SUM_LANES = 256, SUM_TILES = 8 }; // elements of a row whose squares are summed together, lanes that take these sums, and tiles of a unit
enum { ADAMW_SUMS = 4 };         // of a tile: of the three that AdamW writes and of the gradient
enum { DEPTH = 256 };            // inner axis of a block of a product
enum { REPACK_PANELS = 16, REPACK_DEPTH = 512 }; // of a unit of repack; the second is even
enum { OUTER_DEPTH = 128 };      // rows of an outer product's factors that stay near
enum { PEAK_STEPS = 5000 };      // of one unit of a ceiling
enum { MAX_TILE_ROWS = 12 };
enum { PARTIAL_SUMS = 4 };       // chains and sums of segments that are held at once: log2(MAX_SEGMENTS) + 1
enum { FEW_CHUNK = 16 };         // words of a packed row that lie together where there are few rows
enum { FEW_STRIPS = 2 };         // of so few rows at most; weights of eight bits are expanded for each, so that there is one
enum { FEW_PANELS = 4 };         // that they multiply in turn; a multiple of the panels that go at once
enum { ROW_VECTORS = 4 };        // of a single row's scores and outputs that go at once
enum { MAX_CONV_WIDTH = 8, CONV_TILE = 256 };
enum { DELTA_TILE = 32, DELTA_CHUNK = 64, MAX_DELTA_DIM = 256 }; // columns of a state that go together, and rows of a sequence
enum { REPLAY_CHUNKS = 32 };     // whose states before them the backward pass has at once
enum { BACKWARD_ITEMS = 48 };    // query rows × heads that attention's backward pass has in hand

// in_pairs tells whether products with a matrix take pairs of bfloat16; steps is how many steps of its inner axis a panel has, and panel_bytes what it takes.
static inline bool in_pairs(matrix w) { return w.type != FLOAT32; }
static inline int64_t steps_of(matrix w) { return in_pairs(w) ? (w.in + 1) / 2 : w.in; }
static inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
enum { E4M3_STEP = 2 * PANEL }; // bytes of a step of a matrix in eight bits, and of the line before each group of them
static inline int64_t panel_bytes(matrix w) { return w.type == E4M3 ? (steps_of(w) + div_up(w.in, w.columns)) * E4M3_STEP : steps_of(w) * PANEL * 4; }
// weights_at is where step k of a panel begins; in eight bits, its group's line if the step is the first one.
static inline const char *weights_at(matrix w, int64_t panel, int64_t k) {
  const char *from = (const char *)w.addr + panel * panel_bytes(w);
  return from + (w.type == E4M3 ? (k + k / (w.columns / 2) + (k % (w.columns / 2) != 0)) * E4M3_STEP : k * PANEL * 4);
}

static inline float *row_of(view v, int64_t r) { return (float *)v.addr + r * v.stride; }
// picked_row is the address of a row of a view that may have an index.
static inline uintptr_t picked_row(view v, int64_t r) {
  if (v.index) r = ((const int32_t *)v.index)[r];
  return v.addr + (uintptr_t)(r * v.stride) * (v.type == BFLOAT16 ? 2 : 4);
}

// Of the delta rule: the elements that its forward and backward passes need of a worker's memory.
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t delta_tile_size(const delta_inputs *in) { return round_up(in->key_dim, 4) * DELTA_TILE; }
static inline int64_t delta_tiles(const delta_inputs *in) { return div_up(in->value_dim, DELTA_TILE); }
static inline int64_t delta_state_size(const delta_inputs *in) { return delta_tiles(in) * delta_tile_size(in); }
enum { DELTA_ROWS = 8 * DELTA_CHUNK + 2 * DELTA_CHUNK * DELTA_TILE }; // gates and what passes between tiles and rows
static inline int64_t delta_prepared_size(const delta_inputs *in) { return 2 * DELTA_CHUNK * round_up(in->key_dim, DELTA_TILE) + DELTA_ROWS; }

enum { DELTA_SQUARES = 7, DELTA_WIDES = 4, DELTA_VALUES = 9 }; // of a chunk: matrices of 64 columns, and of as many as a key and a value have
static inline int64_t delta_backward_size(const delta_inputs *in, int64_t rows) {
  int64_t keys = round_up(in->key_dim, DELTA_TILE), values = round_up(in->value_dim, DELTA_TILE), chunks = div_up(rows, DELTA_CHUNK), square = DELTA_CHUNK * DELTA_CHUNK;
  int64_t kept = (chunks < REPLAY_CHUNKS ? chunks : REPLAY_CHUNKS) + div_up(chunks, REPLAY_CHUNKS) + 1;
  return delta_prepared_size(in) + kept * delta_state_size(in) + 3 * keys * values + DELTA_SQUARES * square + DELTA_CHUNK * (DELTA_WIDES * keys + DELTA_VALUES * values) + 8 * DELTA_CHUNK;
}

// Sums of segments are added as soon as their tree has two of equal size: before segment s there are as many as s has ones, its own chain is the next one, and after it as many are added as s ends with ones.
static inline int64_t partial_sum(int64_t s) { return __builtin_popcountll((unsigned long long)s); }
static inline int64_t sums_after(int64_t s) { return __builtin_ctzll(~(unsigned long long)s); }

// first_seen is the first key that the row at a position of a sequence sees.
static inline int64_t first_seen(const sequence *s, int64_t position) { return s->window && position >= s->window ? position - s->window + 1 : 0; }

// row_heads is how many key heads a unit of a sequence with a single row has; 0: the row is a block.
static inline int64_t row_heads(const attention_job *j, const sequence *s) {
  if (s->count > 1 || !j->unit_keys) return 0;
  int64_t parts = div_up(s->first + 1 - first_seen(s, s->first), j->unit_keys);
  return parts < j->p.heads ? div_up(j->p.heads, parts) : 1;
}
// attention_units is how many units attention has for a sequence.
static inline int64_t attention_units(const attention_job *j, const sequence *s) {
  int64_t width = j->positions_per_block, row = row_heads(j, s);
  if (row) return div_up(j->p.heads, row);
  return ((s->first + s->count - 1) / width - s->first / width + 1) * j->p.heads;
}

// round_bits rounds a float32's bits to those of the nearest bfloat16 value, ties to even; a NaN stays one. Without a branch, so that loops over it become vector code.
static inline uint32_t round_bits(uint32_t u) {
  uint32_t near = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000, nan = (u | 0x00400000) & 0xffff0000;
  return (u & 0x7fffffff) > 0x7f800000 ? nan : near;
}
static inline uint16_t round_bf16(float f) {
  union { float f; uint32_t u; } v = {f};
  return (uint16_t)(round_bits(v.u) >> 16);
}
static inline float widen_bf16(uint16_t b) {
  union { uint32_t u; float f; } v = {(uint32_t)b << 16};
  return v.f;
}


#endif
