// Products of rows with the matrices of their experts. Tiles of rows are an expert's, so a block reads one matrix, and of experts that nobody has chosen nothing is read. The chain of an element is that of the plain products.
#include "experts_product.h"
#include "product_float32.h"

// The launch chooses by how many rows an expert has on average (experts.go).
#define ROUTED_BF16(rows, columns, row_warps, column_warps, depth, x_places, w_places, blocks) \
  KERNEL_BLOCKS(routed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_in_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, false>(a); } \
  KERNEL_BLOCKS(routed_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_in_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, true>(a); }
ROUTED_BF16(16, 32, 1, 2, 64, 4, 12, 3)
ROUTED_BF16(64, 96, 2, 2, 64, 3, 5, 2)
ROUTED_BF16(128, 128, 2, 4, 32, 4, 4, 1)

template <bool transposed> INLINE void routed_in_float32(const routed_arguments &a) {
  routed_tile t;
  if (!tile_of_block<transposed>(t, a, TILE, TILE, sizeof(float))) return;
  const int64_t columns = transposed ? t.w.in : t.w.out, depth = transposed ? t.w.out : t.w.in;
  const view y = {t.j.y.at, t.rows.end, columns, t.j.y.stride};
  const operand left = {memory<const float>(t.j.x.at), t.j.x.stride, 1, t.j.gathered ? tokens_of_rows(a.table) : nullptr};
  const operand right = {memory<const float>(t.w.at), transposed ? 1 : t.w.pitch, transposed ? t.w.pitch : 1, nullptr};
  product_64x64(y, t.rows.first, t.column, left, right, depth, t.j.accumulate != 0, [&](float v) { return finished(v, t.j); });
}
KERNEL_BLOCKS(routed_float32, PRODUCT_THREADS, 2, routed_arguments) { routed_in_float32<false>(a); }
KERNEL_BLOCKS(routed_transposed_float32, PRODUCT_THREADS, 2, routed_arguments) { routed_in_float32<true>(a); }
