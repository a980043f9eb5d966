// The C side of the CPU device: what Go calls, and what the kernels of an instruction set offer. Go passes memory addresses as integers.
#ifndef TINSMITH_CPU_KERNELS_H
#define TINSMITH_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PANEL = 32, PAGE = 64, RESTART = 2048 }; // columns of a weight panel, positions of a page, keys after which a running softmax restarts

enum { FLOAT32 = 1, BFLOAT16 = 2, E4M3 = 3 }; // as tensor.DType; the last one of matrices alone, see tensor.E4M3Device

// view is a tensor: rows × cols elements, row r beginning stride elements after row r-1. The rows of a product may be picked: with an index, a list of int32_t, row r is where row index[r] would be.
typedef struct {
  uintptr_t addr;
  int64_t rows, cols, stride;
  int32_t type;
  uintptr_t index;
} view;

// matrix is a packed weight: out × in elements in panels of PANEL rows of the weight, the inner axis inside.
//   float32:  panel[in][PANEL]           bfloat16: panel[(in+1)/2][PANEL][2], an odd inner axis padded with zero
//   e4m3: for each group of columns elements of the inner axis a line of what its scale makes of the numbers (e4m3.c), then [pairs of the group][PANEL][2] in the order of kernels_e4m3.h
typedef struct {
  uintptr_t addr;
  int64_t out, in;
  int32_t type;
  int32_t columns; // of e4m3; even
} matrix;

// cache is the memory of attention pages. Layer l, page p begin at ((l · count + p) · 2 · heads) blocks; a block is heads K parts, then heads V parts,
// K as [headDim][PAGE], V as [PAGE][padded headDim].
typedef struct {
  uintptr_t addr;
  int64_t layers, count, heads, head_dim, padded_dim;
  int32_t type;
} cache;

// sequence is a tensor.AttentionRun; its page numbers begin at pages[first_page].
typedef struct {
  int64_t row, count, first, first_page;
  int64_t keys_from, keys_to, rows_from, rows_to; // of the backward pass
  int64_t window; // positions that a row sees at most, its own among them; 0: all
} sequence;

typedef struct {
  double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
  double correction1, root_correction2; // 1 - beta1^step, √(1 - beta2^step)
} adamw_step;

// segments is tensor.Segments.
enum { MAX_SEGMENTS = 8 };
typedef struct {
  int64_t count;
  int32_t ends[MAX_SEGMENTS];
} segments;

// product is y (+)= x · w, or transposed dx (+)= dy · w with y = dx and x = dy: a tensor.Multiplication, or one group of rows. y and x may have more columns than the product.
typedef struct {
  view y, x;
  matrix w;
  float factor; // 0: elements are not finished
  int32_t round;
  bool accumulate, transposed;
  segments cut;
  bool continues; // the chains of the last one before it that does not
} product;

// matrix_source is a tensor.MatrixSource.
typedef struct {
  matrix to;
  view from;
} matrix_source;

// outer_product is a tensor.OuterProduct.
typedef struct {
  view g, a, b;
  bool first;
  int64_t apart;
} outer_product;

// table is a tensor.Table; words is where its integers are.
typedef struct {
  uintptr_t words;
  int64_t tokens, slots, experts;
  int64_t from, to; // experts that products go over
} table;

// routed_group is a tensor.RoutedGroup: w is the first expert's matrix, and each one's begins apart bytes after the one before.
typedef struct {
  int64_t from, to;
  matrix w;
  int64_t apart;
  float factor;
  int32_t round;
} routed_group;

// routed_product is a tensor.RoutedProduct; its groups end before groups_end in the list of all.
typedef struct {
  view y, x;
  int64_t groups_end;
  bool gathered, accumulate, transposed;
  segments cut;
  bool continues; // the product before it
} routed_product;

// routed_outer is a tensor.RoutedOuter.
typedef struct {
  view g, a, b;
  int64_t from, to;
  bool first;
} routed_outer;

// element is a tensor.Element.
typedef struct {
  int32_t row, column;
} element;

// adjustment and draw_settings are tensor.Adjustment and tensor.Draw.
typedef struct {
  int32_t row, column;
  float divisor, less, more;
} adjustment;
typedef struct {
  double u, top_p, min_p;
  int64_t top_k;
} draw_settings;

typedef struct device device;

// device_new starts threads-1 threads (the caller is one). isa is "" for the best that the processor has. NULL: unknown or not available isa, or no memory.
device *device_new(int threads, const char *isa);
void device_free(device *d);
const char *device_isa(const device *d);
// device_arithmetic names the bits of all operations, device_arithmetic_float32 those of operations without weights of fewer bits.
const char *device_arithmetic(const device *d), *device_arithmetic_float32(const device *d);
// isa_available tells whether this processor runs the kernels of a name.
bool isa_available(const char *isa);

// memory_new gives memory, zeroed if it is to be cleared, 64-byte aligned, in huge pages where the system has them; 0 when there is none.
uintptr_t memory_new(int64_t bytes, bool cleared);
void memory_free(uintptr_t addr, int64_t bytes); // with the size that it was asked for; some is kept for the next of that size
void memory_trim(int64_t most);                  // gives back to the system what is kept beyond so many bytes
void memory_copy(uintptr_t to, uintptr_t from, int64_t bytes); // from any thread

// state_run is a tensor.StateRun, delta_inputs is a tensor.DeltaInputs.
typedef struct {
  int64_t row, count, slot;
} state_run;
typedef struct {
  view mixed, a, b, a_log, bias;
  int64_t key_heads, value_heads, key_dim, value_dim;
} delta_inputs;

// The operations, see package tensor. They return 0, or -1 when scratch memory cannot be had.
int op_upload(device *d, view dst, const float *src);
int op_download(device *d, float *dst, int64_t pitch, view src); // rows of dst begin pitch elements apart
int op_pack(device *d, matrix m, int64_t row, int64_t n, int source, const void *data);
// op_pack_e4m3 is tensor.E4M3Device's PackE4M3: 1 says that a number is not finite with its scale, 2 that rows of a panel have different scales.
int op_pack_e4m3(device *d, matrix m, int64_t row, int64_t n, const uint8_t *codes, const float *scales);
int op_repack(device *d, const matrix_source *list, int64_t n);
int op_gather(device *d, view dst, matrix m, const int32_t *ids);
int op_gather_elements(device *d, view dst, view src, const element *at);
int op_products(device *d, const product *products, int64_t n);
int op_stages(device *d, const product *products, const int64_t *ends, int64_t stages); // stage i's products end before ends[i]
int op_outers(device *d, const outer_product *products, int64_t n);
int op_route(device *d, view choice, view p, view logits, bool normalise);
int op_route_backward(device *d, view dlogits, view dp, view p, view choice, view logits, bool normalise);
int op_dispatch(device *d, table t, view choice);
int op_routed(device *d, table t, const routed_product *products, int64_t n, const routed_group *groups);
int op_outer_routed(device *d, table t, const routed_outer *products, int64_t n);
int op_spread(device *d, view rows, view x, view p, table t, bool gathered); // p without an address: 1
int op_combine(device *d, view y, view rows, view p, table t, bool accumulate);
int op_combine_backward(device *d, view dp, view drows, view h, view p, table t, segments cut);
int op_sink(device *d, view o, view lse, view sinks);
int op_swiglu_clamped(device *d, view y, view gate, view up, float alpha, float limit);
int op_swiglu_clamped_backward(device *d, view dgate, view dup, view dy, view gate, view up, float alpha, float limit);
int op_add_routed(device *d, view rows, view bias, table t);
int op_add_routed_backward(device *d, view dp, view dy, view bias, view choice);
int op_round(device *d, view dst, view src);
int op_add(device *d, view dst, view src);
int op_scale(device *d, view dst, float factor, int type);
int op_add_row(device *d, view dst, view row);
int op_zero(device *d, view dst);
int op_rmsnorm(device *d, view y, view x, view weight, float eps);
int op_rmsnorm_backward(device *d, view dx, view dy, view x, view weight, float eps, bool accumulate);
int op_rope(device *d, view x, const int32_t *positions, view table, int64_t heads, bool inverse);
int op_swiglu(device *d, view y, view gate, view up);
int op_swiglu_backward(device *d, view dgate, view dup, view dy, view gate, view up);
int op_conv(device *d, view y, view x, view weight, view tails, const state_run *runs, int64_t n);
int op_conv_backward(device *d, view dx, view dy, view x, view weight, const state_run *runs, int64_t n);
int op_delta_rule(device *d, view o, delta_inputs in, view states, const state_run *runs, int64_t n);
int op_delta_rule_backward(device *d, view dmixed, view da, view db, view dout, delta_inputs in, const state_run *runs, int64_t n);
int op_gated_norm(device *d, view y, view x, view z, view weight, float eps);
int op_gated_norm_backward(device *d, view dx, view dz, view dy, view x, view z, view weight, float eps);
int op_sigmoid_gate(device *d, view y, view x, view gate);
int op_sigmoid_gate_backward(device *d, view dx, view dgate, view dy, view x, view gate);
int op_zero_page(device *d, cache p, int64_t page);
int op_copy_page(device *d, cache p, int64_t to, int64_t from);
int op_discard_pages(device *d, cache p, int64_t first, int64_t count);
int op_write_pages(device *d, cache p, int64_t layer, view k, view v, const sequence *s, int64_t n, const int32_t *pages);
int op_attention(device *d, view o, view lse, view q, cache p, int64_t layer, const sequence *s, int64_t n, const int32_t *pages, int64_t query_heads, float scale);
int op_attention_backward(device *d, view dq, view dk, view dv, view dout, view o, view lse, view q, cache p, int64_t layer, const sequence *s, int64_t n,
                          const int32_t *pages, int64_t query_heads, float scale);
int op_logsumexp(device *d, view lse, view logits, segments cut);
int op_softmax(device *d, view p, view logits, view lse);
int op_softmax_gradient(device *d, view logits, view lse, const int32_t *targets, const float *c, int64_t k);
int op_adjust_elements(device *d, view x, const adjustment *list, int64_t n);
int op_mask_columns(device *d, view x, const int32_t *rows, const uint64_t *bits, int64_t n);
int op_draw_tokens(device *d, view dst, view logits, view probs, const draw_settings *draws);
int op_sum_squares(device *d, view x, double *sum);
// op_adamw gives the sums of squares of what it writes and, with sum_gradient, of g: four, in this order, the last 0 without. At pieces, unless NULL, it gives those of every tile of new_p.
int op_adamw(device *d, view new_p, view new_m, view new_v, view p, view m, view v, view g, adamw_step s, bool sum_gradient, double *sums, double *pieces);

// op_peak runs multiply-adds of a type that only the arithmetic limits and gives how many floating-point operations they were; op_read reads memory once, requesting in advance or not.
int64_t op_peak(device *d, int type);
void op_read(device *d, uintptr_t memory, int64_t mib, bool ahead);
// op_clock gives seconds: the calling thread's processor time when it is the device's only thread, else the time that passes.
double op_clock(const device *d);

#endif
