// Products with bfloat16 weights by warps.
//
// A launch has several products that do not depend on each other, of which each block has a tile of one: small ones leave most multiprocessors without a block, and take as long as their chain.
#include "product_bfloat16.h"

template <class S, bool transposed> INLINE void product_of_tiles(const products_arguments &all) {
  using P = product_bf16<S, transposed>;
  const block_product own = product_of_block(all);
  const product_arguments &a = all.of[own.product];
  const block_group b = group_of_block(a, S::rows, own.down);
  int64_t i0 = b.first, j0 = own.across * S::columns, rows = b.g.to, columns = transposed ? b.g.w.in : b.g.w.out;
  if (j0 >= columns) return;
  const inner_axis first = first_axis<transposed>(a, b.g);
  int tiles = (first.depth + S::depth - 1) / S::depth; // that are to be multiplied
  if (!first.last) tiles += ((int)(transposed ? b.g.tail.out : b.g.tail.in) + S::depth - 1) / S::depth;
  P::tile(a.y, a.accumulate, i0, rows, j0, columns, first, tiles, [&](inner_axis &of, int places) { return go_on<transposed>(of, places, a, b.g); },
          [&](bfloat16 *to, const inner_axis &of, int me) { P::bring_rows(to, of, i0, rows, me); }, [&](float v) { return finished(v, b.g); });
}

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
