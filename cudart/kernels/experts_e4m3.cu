// Products of rows with the matrices of their experts, in eight bits.
#include "experts_product.h"
#include "product_e4m3.h"

template <class S, bool transposed> INLINE void routed_in_e4m3(const routed_arguments &a) {
  using R = routed_rows<S, transposed>;
  routed_tile t;
  if (!tile_of_block<transposed>(t, a, S::rows, S::columns, 1)) return;
  const typename R::places at = R::places_of(t, a, thread());
  product_e4m3<S, transposed>::tile(t.j.y, t.j.accumulate, t.rows.first, t.rows.end, t.column, transposed ? t.w.in : t.w.out, axis_of<transposed>(t.j.x, t.j.x_type, t.w, true), t.w,
                                    [&](bfloat16 *to, const inner_axis &of, int me) { R::bring_listed(to, of, at, me); }, [&](float v) { return finished(v, t.j); });
}

#define ROUTED_E4M3(rows, columns, row_warps, column_warps, depth, places, blocks) \
  KERNEL_BLOCKS(routed_e4m3_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_in_e4m3<e4m3_shape<rows, columns, row_warps, column_warps, depth, places>, false>(a); } \
  KERNEL_BLOCKS(routed_e4m3_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_in_e4m3<e4m3_shape<rows, columns, row_warps, column_warps, depth, places>, true>(a); }
ROUTED_E4M3(16, 32, 1, 2, 64, 12, 3)
ROUTED_E4M3(64, 96, 2, 2, 64, 4, 2)
ROUTED_E4M3(128, 128, 2, 4, 32, 4, 1)
