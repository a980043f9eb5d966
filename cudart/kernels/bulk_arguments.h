// The arguments of bulk.cu, and how matrices lie there.
//
// Blocks: a matrix of bfloat16 whose rows and columns are multiples of 64 lies in blocks of 64 × 64, 8 KiB each, one after another along 64 rows; the next 64 rows follow. So it takes what it takes row by row, and 64 rows begin where they
// do row by row. In a block a row has 128 bytes, and its chunk c of 8 elements lies at chunk c XOR row mod 8 (warpgroup.h), so that what a copy brings is what products read, of the matrix and of its transpose.
#pragma once

enum {
  BLOCK_SIDE = 64,
  BLOCK_BYTES = 8192,
  BULK_STORE = 0,   // y = the chain's value
  BULK_ADD = 1,     // y = add's element + the chain's value
  BULK_NARROW = 2,  // y, of bfloat16, = the chain's value
};

// y = x · wᵀ, or x · w where a kernel is transposed, in blocks: w as a weight, x rows of blocks, the last of them of zeros where rows is no multiple of 128. With accumulate chains begin with what y holds, of float32. With a tail.at, row by
// row, a chain goes on over that and tail_x, bfloat16 at multiples of 16 bytes whose columns between the rank and the next multiple of 8 are zero, of one of them at least. y's rows begin at multiples of 8 bytes.
typedef struct { view y, add, tail_x; uint64_t x; weight w, tail; int64_t rows; int32_t accumulate, result; } bulk_arguments;
// hidden = gate · sigmoid(gate) · up, of products of the same rows with two weights of one shape; each may have a tail. hidden, and gate and up where there is room for them, are stored as bfloat16.
typedef struct { view hidden, kept_gate, kept_up, gate_tail_x, up_tail_x; uint64_t x; weight gate, up, gate_tail, up_tail; int64_t rows; } bulk_gated_arguments;
// y is x in blocks, rounded: x's columns are a multiple of 64, and rows behind x's, to a multiple of 128, are zero.
typedef struct { view x; uint64_t y; int64_t rows; int32_t x_type, reserved; } narrow_blocks_arguments;
