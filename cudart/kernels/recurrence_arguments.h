// The arguments of the kernels of layers with a state; included by arguments.h.
#pragma once

enum {
  CONV_ROWS = 32,      // of a run that a block of a convolution takes
  CONV_BACK_ROWS = 64, // and one of its gradient, see tensor.ConvBackwardScratch
  MAX_CONV_WIDTH = 8,  // see tensor.MaxConvWidth
  MAX_DELTA_DIM = 256, // see tensor.MaxDeltaDim
  DELTA_COLUMNS = 32,  // of a state that a block takes
  DELTA_CHUNK = 32,    // rows of a chunk of the backward pass
  DELTA_GATES = 160,   // float32 elements of a chunk's gates, see delta_backward.cu
};

// A sequence's rows [row, row + count) of a batch; slot is where its state lies, -1: it begins with zeros and leaves none. Where states are kept on the way, the first is the kept-th.
typedef struct {
  int64_t row, count, slot, kept;
} state_run;

// Rows [from, to) of a run in a convolution; with keep the block also writes the run's last rows to its slot.
typedef struct {
  int32_t run, from, to, keep;
} conv_tile;

typedef struct { view y, x, weight, tails; uint64_t runs, tiles; } conv_arguments;
// keep of a tile is which edge it has, -1: none. An edge is the rows of dy that follow the tile's, as many as see those, [width - 1][columns].
typedef struct { view dx, dy, x, weight; uint64_t runs, tiles, edges; } conv_backward_arguments;

// See tensor.DeltaInputs.
typedef struct {
  view mixed, a, b, a_log, bias;
  int64_t key_heads, value_heads, key_dim, value_dim;
} delta_inputs;
// Without o.at states are only read, and those before rows 0, every, 2·every … count of each run are written to kept: [number][value head][key_dim][value_dim].
typedef struct { delta_inputs in; view o, states; uint64_t runs, kept; int64_t every; } delta_arguments;

// A chunk of the backward pass: rows [row, row + count).
typedef struct {
  int64_t row, count;
} delta_chunk;
// Chunks [first, first + count) of a sequence, one behind another. Without last their gradient by the state after them is in carry; with first_of the one before them is nobody's.
typedef struct {
  int32_t first, count, last, first_of;
} delta_span;
// Memory of chunks, by chunk: normed are [32][key head][queries, keys], of a value head gates, states before it and the gradients by states after it, Δ and dR of 32 × value_dim, w of 32 × key_dim.
typedef struct {
  delta_inputs in;
  view dmixed, da, db, dout;
  uint64_t chunks, spans, normed, gates, before, after, delta, dr, w, carry;
} delta_backward_arguments;

typedef struct { view y, x, z; uint64_t scale; float eps; int32_t reserved; } gated_norm_arguments;
typedef struct { view dx, dz, dy, x, z; uint64_t scale; float eps; int32_t reserved; } gated_norm_backward_arguments;
typedef struct { view y, x, gate; } sigmoid_gate_arguments;
typedef struct { view dx, dgate, dy, x, gate; } sigmoid_gate_backward_arguments;
