// Products with weights in eight bits by warps: the launches of product_bfloat16.cu, without second inner axes.
#include "product_e4m3.h"

template <class S, bool transposed> INLINE void e4m3_product_of_tiles(const products_arguments &all) {
  using P = product_e4m3<S, transposed>;
  const block_product own = product_of_block(all);
  const product_arguments &a = all.of[own.product];
  if constexpr (asks_early<S, transposed>()) {
    P::ask_for_numbers(a, own.across * S::columns);
    wait_for_launch();
  }
  const block_group b = group_of_block(a, S::rows, own.down);
  const int64_t i0 = b.first, j0 = own.across * S::columns, rows = b.g.to, columns = transposed ? b.g.w.in : b.g.w.out;
  if (j0 >= columns) return;
  P::tile(a.y, a.accumulate, i0, rows, j0, columns, axis_of<transposed>(a.x, a.x_type, b.g.w, true), b.g.w,
          [&](bfloat16 *to, const inner_axis &of, int me) { P::bring_rows(to, of, i0, rows, me); }, [&](float v) { return finished(v, b.g); });
}

// Of numbers a block has under way 22, 14, 14, 18 and 12 KiB, each standing for twice as much of bfloat16.
#define PRODUCT_E4M3(rows, columns, row_warps, column_warps, depth, places, blocks) \
  KERNEL_BLOCKS(product_e4m3_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { e4m3_product_of_tiles<e4m3_shape<rows, columns, row_warps, column_warps, depth, places>, false>(a); } \
  KERNEL_BLOCKS(product_e4m3_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, products_arguments) { e4m3_product_of_tiles<e4m3_shape<rows, columns, row_warps, column_warps, depth, places>, true>(a); }
PRODUCT_E4M3(16, 32, 1, 2, 64, 12, 3)
PRODUCT_E4M3(32, 32, 2, 2, 64, 8, 3)
PRODUCT_E4M3(64, 32, 2, 2, 64, 8, 2)
PRODUCT_E4M3(64, 96, 2, 2, 64, 4, 2)
PRODUCT_E4M3(128, 128, 2, 4, 32, 4, 1)
