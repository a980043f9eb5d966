// Products with float32 weights.
#include "product_float32.h"

// product_of_group has the block's tile of a group: y and x are cut to its rows.
template <bool transposed> INLINE void product_of_group(const product_arguments &a) {
  const block_group b = group_of_block(a, TILE, block_x());
  int64_t columns = transposed ? b.g.w.in : b.g.w.out, depth = transposed ? b.g.w.out : b.g.w.in;
  if (block_y() * TILE >= columns) return;
  view y = a.y;
  y.rows = b.g.to, y.cols = columns;
  operand right = {memory<const float>(b.g.w.at), transposed ? 1 : b.g.w.pitch, transposed ? b.g.w.pitch : 1, nullptr};
  product_64x64(y, b.first, block_y() * TILE, {memory<const float>(a.x.at), a.x.stride, 1, nullptr}, right, depth, a.accumulate != 0, [&b](float v) { return finished(v, b.g); });
}

// y[m,n] (+)= Σk x[m,k]·w[n,k]
KERNEL_BLOCKS(product_float32, PRODUCT_THREADS, 2, product_arguments) { product_of_group<false>(a); }

// y[m,k] (+)= Σn x[m,n]·w[n,k]
KERNEL_BLOCKS(product_transposed_float32, PRODUCT_THREADS, 2, product_arguments) { product_of_group<true>(a); }
