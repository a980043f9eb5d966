// The arguments of every kernel: one structure each, passed by value. Read by the kernels, by the Go package (through cgo) and by the shim, so sizes and
// offsets agree by construction. Addresses are integers; counts are of elements, not bytes.
#pragma once
#ifdef __CUDA__
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#else
#include <stdint.h>
#endif

enum {
  PAGE_KEYS = 64,        // positions of a page of keys and values, and keys of an attention block
  RESTART_KEYS = 2048,   // the running softmax begins anew after this many
  PIECE = 1024,          // elements that one block of an element-wise kernel takes from a row
  SUM_PIECE = 4096,      // elements of a row of one partial sum of squares
  SUM_LANES = 16,        // threads that take it
  SUM_PIECES = 16,       // pieces of a block
  NARROW_ROW = 256,      // rows up to this many columns are one warp's in the norms
  FLOAT32 = 1, BFLOAT16 = 2, FLOAT16 = 3, E4M3 = 4, BFLOAT16_BLOCKS = 5, // see bulk_arguments.h
  E4M3_ROWS = 32,        // of a weight in eight bits that have scales in common, see e4m3.h
  FEW_ROUTED = 2,        // routed products that come with the arguments of a launch
  MOST_PRODUCTS = 6,     // of one launch: of q, k and v, and of their adapters
  LOSS_LINEAR = 1, LOSS_RATIO = 2, LOSS_CLIPPED = 3, LOSS_QUADRATIC = 4, LOSS_DATUM = 5, // see tensor.LossForm
};

// A matrix in memory: element (r, c) is at + (r·stride + c)·size.
typedef struct {
  uint64_t at;
  int64_t rows, cols, stride;
} view;

// A weight of out × in elements, row by row, a row beginning every pitch elements (a multiple of 8); what lies between in and pitch is zero.
typedef struct {
  uint64_t at;
  int64_t out, in, pitch;
} weight;

// Pages of keys and values: [layer][page][keys of every head, then values of every head][64][dim].
typedef struct {
  uint64_t at;
  int64_t pages, heads, dim;
  int32_t type, reserved;
} cache;

// A sequence's part of a batch: rows [row, row+count) at positions from first; its page list begins at pages[first_page]. The backward pass takes keys [keys_from, keys_to) and rows [rows_from, rows_to) of it. A row sees window
// positions at most, its own among them, without restarts; 0: all.
typedef struct {
  int64_t row, count, first, first_page, keys_from, keys_to, rows_from, rows_to, window;
} sequence;

// Rows [from, to) of a batch and the weight that is theirs. With a factor other than 0 a finished element is multiplied by it and rounded to the values of type. Where tail.at is not 0 (bfloat16 only), an element's chain
// goes on over a second inner axis, of the launch's tail_x and of tail, which has as many outputs as w.
typedef struct {
  int64_t from, to;
  weight w;
  float factor;
  int32_t type;
  weight tail;
} row_group;

// One block's rows in a product of groups: those of a group from the row-th on.
typedef struct {
  int32_t group, row;
} product_tile;

typedef struct {
  view g, a, b;
  char first; // 1: the chain starts from zero, whatever g holds
  int64_t apart; // so many rows, the last ones, are a chain of their own, whose sum is added to g
} outer_product_job;

// The same by groups of rows (outer_group.cu): a.rows, of which the first of the last apart groups begins the chain of its own.
typedef struct {
  int32_t first, count;
} outer_rows;
typedef struct {
  view g, a, b;
  uint64_t groups; // count of outer_rows
  int32_t count, apart, first, reserved;
} outer_group_job;

// One block of an outer product: the tile that begins at these elements of the narrow and the wide side of a job's g, and has 2^power of the narrow one: 8, 16 or 32. The narrow side is g's rows unless these are more than
// its columns.
typedef struct {
  int32_t job, narrow, wide, power;
} outer_tile;

// One block's work in attention: items (a row and a query head of one group, row by row) of a sequence from item on; or a page of it in the backward pass.
typedef struct {
  int32_t sequence, item;
} attention_tile;

// A place in a matrix; column -1 is none.
typedef struct {
  int32_t row, column;
} element;

typedef struct { view y, x; } two_views;
typedef struct { view y, x; int32_t y_type, x_type; } round_arguments;
typedef struct { view y; float factor; int32_t type; } scale_arguments;
typedef struct { view y; int32_t type, reserved; } fill_arguments;
typedef struct { weight w; uint64_t source; int64_t row, rows; int32_t source_type, type; } pack_arguments;
typedef struct { weight w; view source; int32_t type, reserved; } repack_job;
typedef struct { uint64_t jobs; } repack_arguments;
typedef struct { view y; weight w; uint64_t ids; int32_t type, reserved; } gather_arguments;
typedef struct { view y, x; uint64_t at; } gather_elements_arguments;
typedef struct { view y, x, add; uint64_t scale; float eps; int32_t y_type; } norm_arguments; // add.at may be 0
typedef struct { view dx, dy, x; uint64_t scale; float eps; int32_t accumulate; } norm_backward_arguments;
typedef struct { view x; uint64_t positions; view table; int64_t heads; int32_t inverse, reserved; } rope_arguments;
typedef struct { view y, gate, up, kept_gate, kept_up; int32_t y_type, from_type; } swiglu_arguments; // kept_gate.at may be 0; from_type is gate's and up's
typedef struct { view dgate, dup, dy, gate, up; int32_t from_type, reserved; } swiglu_backward_arguments;
// Of a clamped gated product, see tensor.SinkDevice.
typedef struct { swiglu_arguments of; float alpha, limit; } swiglu_clamped_arguments;
typedef struct { swiglu_backward_arguments of; float alpha, limit; } swiglu_clamped_backward_arguments;
// y (+)= x · wᵀ, or x · w when transposed, for groups of rows. x has x_type, w the type of the kernel. Without tiles there is one group, only. frozen says
// so, and that no launch writes its w: it may be asked for while others run.
typedef struct { view y, x, tail_x; row_group only; uint64_t groups, tiles; int32_t accumulate, x_type, tail_type, frozen; } product_arguments;
// The blocks of one of several products in a launch end before end, and begin where those of the one before end. A tile of columns has down of them, one for each tile of rows; the next tile of columns follows.
typedef struct { int32_t end, down; } product_blocks;
// Products in one launch, none of which reads or writes what another writes. Places that are not used have no blocks.
typedef struct { product_arguments of[MOST_PRODUCTS]; product_blocks blocks[MOST_PRODUCTS]; } products_arguments;
typedef struct { uint64_t jobs, tiles; } outer_arguments;
typedef struct { view lse, logits; } log_sum_exp_arguments;
typedef struct { view p, logits, lse; } softmax_arguments;
typedef struct { view logits, lse; uint64_t targets, coefficients; int64_t k; } softmax_gradient_arguments;

// One target's term of a loss; row is that of its logits, datum that of its datum's ratio.
typedef struct {
  double low, high, beta;
  float weight, recorded;
  int32_t row, form, datum, reserved;
} loss_term;
// ratios are doubles.
typedef struct { view slopes, values, lse; uint64_t ratios, terms; } differentiate_arguments;
// A position that counts in its datum's ratio: which log-probability is its own, and which was recorded. Those of datum d end before ends[d].
typedef struct {
  int32_t column;
  float recorded;
} ratio_position;
typedef struct { view logprobs; uint64_t ratios, positions, ends; } datum_ratios_arguments;

// A change to one logit: x / divisor where x > 0 and x · divisor elsewhere, then less and more.
typedef struct {
  int32_t row, column;
  float divisor, less, more;
} adjustment;
typedef struct { view x; uint64_t list; int64_t count; } adjust_arguments;
// Masks of rows: rows are int32, bits uint64, words for each mask.
typedef struct { view x; uint64_t rows, bits; int64_t words; } mask_arguments;
// How a row's token is drawn: its number in [0, 1), and what is left of the row (top_p 1, min_p 0 and top_k 0: all).
typedef struct {
  double u, top_p, min_p;
  int64_t top_k;
} draw;
typedef struct { view y, logits, probs; uint64_t draws; } draw_arguments;

// A matrix whose squares are summed: the sums of its pieces, row by row, are partial[first, first + count). most is the largest norm of a gradient, for its factor; 0: any.
typedef struct {
  view x;
  int64_t first, count;
  double most;
} sum_squares_job;
typedef struct { uint64_t jobs, partial, sums, factors; } sum_squares_arguments; // factors may be 0

// One adapter's arena in an AdamW step. The scalars have been combined in float64: decay = 1 - rate·weight decay, minus_rate = -rate / (1 - beta1^t),
// root = √(1 - beta2^t). The gradient is multiplied by the job's element of factors.
typedef struct {
  view new_p, new_m, new_v, p, m, v, g;
  float beta1, rest1, beta2, rest2, decay, minus_rate, eps, root;
} adamw_job;
typedef struct { uint64_t jobs, factors; } adamw_arguments;

// slots[row] is page·64 + place, or -1 for a row of no sequence.
typedef struct { cache c; view k, v; uint64_t slots; int64_t layer; } write_pages_arguments;
typedef struct { cache c; int64_t layers, to, from; } copy_page_arguments; // from -1: zeros
typedef struct {
  view kept, o, lse, q; // lse.at may be 0; where kept.at is not, the result goes there as bfloat16, and o has totals of parts only (tensor cores)
  cache c;
  uint64_t sequences, tiles, pages;
  uint64_t parts; // split kernels: results of parts, [item of the batch][part][dim + 2]
  int64_t layer, group, part_count;
  float scale;
  int32_t q_type; // bfloat16 for the kernels with tensor cores only
} attention_arguments;
typedef struct {
  view dq, dk, dv, dout, o, lse, q;
  cache c;
  uint64_t sequences, tiles, pages, delta; // delta: rows × query heads
  int64_t layer, group;
  float scale;
  int32_t type; // to whose values dout is rounded in products
  int32_t q_type, o_type;
} attention_backward_arguments;
// A sink of each head behind attention: o is multiplied, lse becomes that with the sink; with a kept.at the product goes there, as bfloat16.
typedef struct { view kept, o, lse, sinks; } sink_arguments;
// Mixtures of experts, see tensor.Table: words are int32, where the rows of each expert begin and where those of the last one end; then the token of each row, its slot (token·slots + slot), and the row of each slot.
// Products are for experts [from, to).
typedef struct { uint64_t words; int64_t tokens, slots, experts, from, to; } expert_table;
typedef struct { view choice, p, logits; int32_t normalise, reserved; } route_arguments; // choice is int32
typedef struct { view dlogits, dp, p, choice, logits; int32_t normalise, reserved; } route_backward_arguments;
typedef struct { expert_table table; view choice; } dispatch_arguments;
// In these p.at may be 0: all are 1.
typedef struct { expert_table table; view rows, x, p; int32_t gathered, reserved; } spread_arguments;
typedef struct { expert_table table; view y, rows, p; int32_t accumulate, reserved; } combine_arguments;
typedef struct { expert_table table; view dp, drows, h, p; } combine_backward_arguments;
// bias has a row for each expert.
typedef struct { expert_table table; view rows, bias; } add_routed_arguments;
typedef struct { view dp, dy, bias, choice; } add_routed_backward_arguments; // choice is int32
// y (+)= x · wᵀ, or x · w when transposed, for rows of tokens [first, end) of a table: w is the matrix of expert 0, that of expert e begins e·apart elements later. Gathered, x has a row for each token.
typedef struct {
  view y, x;
  weight w;
  int64_t apart;
  int32_t first, end;
  float factor;
  int32_t round, x_type;
  char gathered, accumulate;
} routed_job;
// Block (x, y) has of job y the tile of rows x % down and the tile of columns x / down. Without an address the jobs, at most FEW_ROUTED, are own.
typedef struct { expert_table table; routed_job own[FEW_ROUTED]; uint64_t jobs; int64_t down; } routed_arguments;
// g has the matrices of all experts below each other.
typedef struct {
  view g, a, b;
  int32_t from, to; // tokens
  char first; // 1: the chains start from zero, whatever g holds
} routed_outer_job;
// Block (x, y) has of job y the tile x % tiles of expert from + x / tiles. Without an address the jobs, at most FEW_ROUTED, are own.
typedef struct { expert_table table; routed_outer_job own[FEW_ROUTED]; uint64_t jobs; int64_t tiles; } outer_routed_arguments;
// Heads before attention: q = queries, keys and values go to pages (see write_pages_arguments). A scale is of a norm of every head, 0: none. kept_queries.at and kept_keys.at may be 0.
typedef struct {
  view q, queries, keys, values, kept_queries, kept_keys, table;
  uint64_t query_scale, key_scale, positions, slots;
  cache c;
  int64_t layer, query_heads;
  float query_eps, key_eps;
  int32_t q_type, reserved;
} heads_arguments;
// The gradient of it: dq and dk, in place; queries and keys matter where their norm's scale is.
typedef struct {
  view dq, dk, queries, keys, table;
  uint64_t query_scale, key_scale, positions;
  int64_t query_heads, key_heads;
  float query_eps, key_eps;
  int32_t query_type, key_type; // of queries and keys
} heads_backward_arguments;

#include "recurrence_arguments.h"
#include "e4m3_arguments.h"

#include "bulk_arguments.h"
