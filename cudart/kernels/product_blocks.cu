// Products by warps with bfloat16 weights in blocks: those of few rows, and of experts. Chains are those of product_bfloat16.cu, and so are tiles; only where a weight's chunks come from is another place. Tails are row by row.
#include "experts_product.h"

// The shapes are those of product_bfloat16.cu and experts_product.cu.
#define PRODUCT_BLOCKS(rows, columns, row_warps, column_warps, depth, x_places, w_places, blocks) \
  KERNEL_BLOCKS(product_blocks_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { \
    product_of_tiles<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, false, AS_AXIS>(a); \
  } \
  KERNEL_BLOCKS(product_blocks_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { \
    product_of_tiles<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, true, AS_AXIS>(a); \
  }
PRODUCT_BLOCKS(16, 32, 1, 2, 64, 4, 12, 3)
PRODUCT_BLOCKS(32, 32, 2, 2, 64, 4, 10, 3)
PRODUCT_BLOCKS(64, 32, 2, 2, 64, 4, 12, 2)
PRODUCT_BLOCKS(64, 96, 2, 2, 64, 3, 5, 2)
PRODUCT_BLOCKS(128, 128, 2, 4, 32, 4, 4, 1)

#define ROUTED_BLOCKS(rows, columns, row_warps, column_warps, depth, x_places, w_places, blocks) \
  KERNEL_BLOCKS(routed_blocks_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { \
    routed_in_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, false, IN_BLOCKS>(a); \
  } \
  KERNEL_BLOCKS(routed_blocks_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { \
    routed_in_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, true, IN_BLOCKS>(a); \
  }
ROUTED_BLOCKS(16, 32, 1, 2, 64, 4, 12, 3)
ROUTED_BLOCKS(64, 96, 2, 2, 64, 3, 5, 2)
ROUTED_BLOCKS(128, 128, 2, 4, 32, 4, 4, 1)
