// Weights: writing them in the layout of products, and reading rows of them back as an embedding. The base is frozen, so there is no backward.
#include "arithmetic.h"

// Rows [row, row + rows) of w from contiguous elements of source_type.
KERNEL(pack_rows, 256, pack_arguments) {
  int64_t r = block_x();
  EACH_COLUMN(c, a.w.in) store_as(a.w.at, (a.row + r) * a.w.pitch + c, a.type, load_as_float(a.source, r * a.w.in + c, a.source_type));
}

// The whole of w from a float32 matrix.
KERNEL(repack, 256, repack_arguments) {
  const float *x = row_of<const float>(a.source, block_x());
  EACH_COLUMN(c, a.w.in) store_as(a.w.at, block_x() * a.w.pitch + c, a.type, x[c]);
}

// y[r] = row ids[r] of w.
KERNEL(gather_rows, 256, gather_arguments) {
  float *y = row_of<float>(a.y, block_x());
  int64_t row = memory<const int32_t>(a.ids)[block_x()];
  EACH_COLUMN(c, a.y.cols) y[c] = load_as_float(a.w.at, row * a.w.pitch + c, a.type);
}
