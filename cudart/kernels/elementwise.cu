// Element-wise operations on rows.
#include "arithmetic.h"

KERNEL(add, 256, two_views) {
  int64_t row = block_x();
  each_some(a.y.cols, in_fours(a.y, FLOAT32) && in_fours(a.x, FLOAT32), [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> y = load_some<n>(a.y.at, row * a.y.stride + c, FLOAT32), x = load_some<n>(a.x.at, row * a.x.stride + c, FLOAT32);
    UNROLL for (int e = 0; e < n; e++) y.v[e] = y.v[e] + x.v[e];
    store_some<n>(a.y.at, row * a.y.stride + c, FLOAT32, y);
  });
}

// y += x's only row, in every row.
KERNEL(add_row, 256, two_views) {
  float *y = row_of<float>(a.y, block_x());
  const float *x = row_of<const float>(a.x, 0);
  EACH_COLUMN(c, a.y.cols) y[c] = y[c] + x[c];
}

// y = factor · y, rounded to the values of type.
KERNEL(scale, 256, scale_arguments) {
  float *y = row_of<float>(a.y, block_x());
  EACH_COLUMN(c, a.y.cols) y[c] = rounded_to(y[c] * a.factor, a.type);
}

KERNEL(fill_zero, 256, fill_arguments) {
  EACH_COLUMN(c, a.y.cols) store_as(a.y.at, block_x() * a.y.stride + c, a.type, 0.0f);
}

// y[i] = x at at[i], 0 where that is no column.
KERNEL(gather_elements, 256, gather_elements_arguments) {
  float *y = row_of<float>(a.y, 0);
  const element *at = memory<const element>(a.at);
  EACH_COLUMN(c, a.y.cols) y[c] = at[c].column < 0 ? 0.0f : row_of<const float>(a.x, at[c].row)[at[c].column];
}

// y = x in y's type.
KERNEL(round_rows, 256, round_arguments) {
  int64_t row = block_x();
  each_some(a.y.cols, in_fours(a.y, a.y_type) && in_fours(a.x, a.x_type), [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    store_some<n>(a.y.at, row * a.y.stride + c, a.y_type, load_some<n>(a.x.at, row * a.x.stride + c, a.x_type));
  });
}

// narrow_rows rounds rows of x to bfloat16; columns beyond x's are zero. y's are a multiple of 8 and begin at a multiple of 16 bytes, as every row of it.
KERNEL(narrow_rows, 256, round_arguments) {
  bfloat16 *y = row_of<bfloat16>(a.y, block_x());
  for (int64_t c = (block_y() * 256 + thread()) * 8; c < a.y.cols; c += blocks_y() * 256 * 8) {
    struct alignas(16) eight {
      bfloat16 v[8];
    } to;
    struct alignas(16) four {
      float v[4];
    };
    if (a.x_type == FLOAT32 && c + 8 <= a.x.cols && (a.x.at + (uint64_t)(block_x() * a.x.stride + c) * 4) % 16 == 0) {
      const four *from = (const four *)(row_of<const float>(a.x, block_x()) + c);
      UNROLL for (int h = 0; h < 2; h++) {
        const four f = from[h];
        UNROLL for (int i = 0; i < 4; i++) to.v[4 * h + i] = narrow(f.v[i]);
      }
    } else {
      UNROLL for (int i = 0; i < 8; i++) to.v[i] = c + i < a.x.cols ? narrow(load_as_float(a.x.at, block_x() * a.x.stride + c + i, a.x_type)) : 0;
    }
    *(eight *)(y + c) = to;
  }
}
