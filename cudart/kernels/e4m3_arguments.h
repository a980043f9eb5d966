// The arguments of kernels for weights in eight bits, beside those of the products.
#pragma once

// Of a weight in eight bits (e4m3.h), pitch is for how many columns it has a scale.
// Rows [row, row + rows) of w from contiguous numbers, and scales for each of them, one for each run of columns.
typedef struct { weight w; uint64_t codes, scales; int64_t row, rows; } pack_e4m3_arguments;
// to, of bfloat16, from the rows and columns of w that begin at row and column, a multiple of 16.
typedef struct { weight w, to; int64_t row, column; } expand_e4m3_arguments;
