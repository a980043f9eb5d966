// Products with bfloat16 weights by warps.
//
// A launch has several products that do not depend on each other, of which each block has a tile of one: small ones leave most multiprocessors without a block, and take as long as their chain.
#include "product_bfloat16.h"

// The launch chooses among the shapes, and has the shared memory that each takes (product.go): no more than 99 KiB, which all devices have. The last number is how many blocks a multiprocessor of Hopper has room for. Of
// weights a block has under way 44, 28, 44 and 48 KiB in the first four shapes: 64 × 32 outputs of 4,096 are 128 blocks. That of 32 × 32 is also for an adapter's products of many rows, where it is the rows that come from memory: of these it has
// 24 KiB under way.
#define PRODUCT_BF16(rows, columns, row_warps, column_warps, depth, x_places, w_places, blocks) \
  KERNEL_BLOCKS(product_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { product_of_tiles<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, false>(a); } \
  KERNEL_BLOCKS(product_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { product_of_tiles<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, true>(a); }
PRODUCT_BF16(16, 32, 1, 2, 64, 4, 12, 3)
PRODUCT_BF16(32, 32, 2, 2, 64, 7, 8, 3)
PRODUCT_BF16(64, 32, 2, 2, 64, 4, 12, 2)
PRODUCT_BF16(64, 96, 2, 2, 64, 3, 5, 2)
PRODUCT_BF16(128, 128, 2, 4, 32, 4, 4, 1)
