// Weights: writing them in the layout of products, row by row or in blocks, and reading rows of them back as an embedding. The base is frozen, so there is no backward.
#include "blocks.h"

// Rows [row, row + rows) of w from contiguous elements of source_type.
KERNEL(pack_rows, 256, pack_arguments) {
  int64_t r = block_x();
  EACH_COLUMN(c, a.w.in) store_as(a.w.at, place_in(a.w, a.type, a.row + r, c), a.type, load_as_float(a.source, r * a.w.in + c, a.source_type));
}

// The whole of each job's w from a float32 matrix. Block (x, y): y is the job, x walks over its units, each PIECE columns of a row, or as many narrower rows as have no more elements.
KERNEL(repack, 256, repack_arguments) {
  const repack_job &j = memory<const repack_job>(a.jobs)[block_y()];
  int64_t across = (j.w.in + PIECE - 1) / PIECE, down = across > 1 ? 1 : PIECE / j.w.in;
  for (int64_t i = block_x(); i < (j.w.out + down - 1) / down * across; i += blocks_x()) {
    int64_t row = i / across * down, from = i % across * PIECE;
    int rows = (int)(j.w.out - row < down ? j.w.out - row : down), cols = (int)(j.w.in - from < PIECE ? j.w.in - from : PIECE);
    for (int e = thread(); e < rows * cols; e += 256) {
      int64_t r = row + e / cols, c = from + e % cols;
      store_as(j.w.at, place_in(j.w, j.type, r, c), j.type, row_of<const float>(j.source, r)[c]);
    }
  }
}

// y[r] = row ids[r] of w, or zeros if that is negative.
KERNEL(gather_rows, 256, gather_arguments) {
  float *y = row_of<float>(a.y, block_x());
  int64_t row = memory<const int32_t>(a.ids)[block_x()];
  EACH_COLUMN(c, a.y.cols) y[c] = row < 0 ? 0.0f : load_as_float(a.w.at, place_in(a.w, a.type, row, c), element_type(a.type));
}
