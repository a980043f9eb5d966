// The causal convolution of layers with a state: a column is a thread's, which goes through rows with those before in registers. A sum is one chain over the rows that a row sees, the oldest first.
#include "gates.h"

enum { CONV_THREADS = 256, CONV_HELD = 8 }; // and rows that are asked for at once

// window is what a row sees of a column, the newest last, and the weights of that; the first are not used where the width is less.
struct window {
  float seen[MAX_CONV_WIDTH], weight[MAX_CONV_WIDTH];
};

INLINE void conv_weights(window &w, const view &weight, int64_t c) {
  UNROLL for (int i = 0; i < MAX_CONV_WIDTH; i++) {
    int at = i - (MAX_CONV_WIDTH - (int)weight.rows);
    w.weight[i] = at >= 0 ? row_of<const float>(weight, at)[c] : 0.0f, w.seen[i] = 0.0f;
  }
}
INLINE void conv_shift(window &w, float next) {
  UNROLL for (int i = 1; i < MAX_CONV_WIDTH; i++) w.seen[i - 1] = w.seen[i];
  w.seen[MAX_CONV_WIDTH - 1] = next;
}
INLINE float conv_sum(const window &w, int width) {
  float s = 0.0f;
  UNROLL for (int i = 0; i < MAX_CONV_WIDTH; i++)
    if (i >= MAX_CONV_WIDTH - width) s = fma_rn(w.weight[i], w.seen[i], s);
  return s;
}

// conv: block (x, y) has a tile's rows and 256 columns. Of a run in one tile the block that reads what was before the run also writes what is behind it; those of several have a tile without rows for that, in a launch that follows.
KERNEL(conv, CONV_THREADS, conv_arguments) {
  const conv_tile tile = memory<const conv_tile>(a.tiles)[block_x()];
  const state_run run = memory<const state_run>(a.runs)[tile.run];
  int64_t c = block_y() * CONV_THREADS + thread(), cols = a.x.cols;
  if (c >= cols) return;
  const int width = (int)a.weight.rows;
  float *tail = run.slot >= 0 ? row_of<float>(a.tails, run.slot) + c : nullptr;
  auto at = [&](int64_t r) { // the row of the run, or one before it
    if (r >= 0) return row_of<const float>(a.x, run.row + r)[c];
    return tail ? tail[(r + width - 1) * cols] : 0.0f;
  };
  window w;
  conv_weights(w, a.weight, c);
  if (tile.from < tile.to)
    UNROLL for (int i = 1; i < MAX_CONV_WIDTH; i++)
      if (i > MAX_CONV_WIDTH - width) w.seen[i] = at(tile.from - (MAX_CONV_WIDTH - i));
  for (int64_t from = tile.from; from < tile.to; from += CONV_HELD) {
    float next[CONV_HELD];
    UNROLL for (int e = 0; e < CONV_HELD; e++) next[e] = from + e < tile.to ? row_of<const float>(a.x, run.row + from + e)[c] : 0.0f;
    UNROLL for (int e = 0; e < CONV_HELD; e++) here(next[e]);
    UNROLL for (int e = 0; e < CONV_HELD; e++)
      if (from + e < tile.to) {
        conv_shift(w, next[e]);
        row_of<float>(a.y, run.row + from + e)[c] = silu(conv_sum(w, width));
      }
  }
  if (!tile.keep || !tail) return;
  float last[MAX_CONV_WIDTH];
  UNROLL for (int i = 0; i < MAX_CONV_WIDTH - 1; i++) last[i] = i < width - 1 ? at(run.count - width + 1 + i) : 0.0f;
  UNROLL for (int i = 0; i < MAX_CONV_WIDTH - 1; i++)
    if (i < width - 1) tail[i * cols] = last[i];
}

// conv_edges keeps what of dy the tiles' last rows need of the next tiles, which overwrite it where dx is dy. Block (x, y) has a tile's edge and 256 columns.
KERNEL(conv_edges, CONV_THREADS, conv_backward_arguments) {
  const conv_tile tile = memory<const conv_tile>(a.tiles)[block_x()];
  const state_run run = memory<const state_run>(a.runs)[tile.run];
  const int64_t c = block_y() * CONV_THREADS + thread(), cols = a.x.cols, rows = a.weight.rows - 1;
  if (tile.keep < 0 || c >= cols) return;
  float *to = memory<float>(a.edges) + tile.keep * rows * cols + c;
  for (int64_t r = tile.to; r < tile.to + rows && r < run.count; r++, to += cols) *to = row_of<const float>(a.dy, run.row + r)[c];
}

// conv_backward: block (x, y) has a tile's rows of dx and 256 columns. A row's gradient is a chain over the rows that saw it, the latest first. dx may be dy: a thread writes a row when it has read all that it needs of it.
KERNEL(conv_backward, CONV_THREADS, conv_backward_arguments) {
  const conv_tile tile = memory<const conv_tile>(a.tiles)[block_x()];
  const state_run run = memory<const state_run>(a.runs)[tile.run];
  const int64_t c = block_y() * CONV_THREADS + thread(), cols = a.x.cols;
  if (c >= cols) return;
  const int width = (int)a.weight.rows;
  const float *edge = memory<const float>(a.edges) + tile.keep * (width - 1) * cols + c;
  window w;
  conv_weights(w, a.weight, c);
  UNROLL for (int i = 1; i < MAX_CONV_WIDTH; i++) {
    const int r = tile.from - (MAX_CONV_WIDTH - i);
    if (i > MAX_CONV_WIDTH - width && r >= 0) w.seen[i] = row_of<const float>(a.x, run.row + r)[c];
  }
  float first[MAX_CONV_WIDTH], slopes[MAX_CONV_WIDTH]; // the weights from the first on; the slopes of the latest rows, the newest first
  UNROLL for (int i = 0; i < MAX_CONV_WIDTH; i++) first[i] = i < width ? row_of<const float>(a.weight, i)[c] : 0.0f, slopes[i] = 0.0f;
  const int64_t end = tile.to + width - 1; // rows that see one of the tile's are before it
  for (int64_t from = tile.from; from < end; from += CONV_HELD) {
    float x[CONV_HELD], dy[CONV_HELD];
    UNROLL for (int e = 0; e < CONV_HELD; e++) {
      const int64_t r = from + e;
      const bool have = r < end && r < run.count;
      x[e] = have ? row_of<const float>(a.x, run.row + r)[c] : 0.0f;
      dy[e] = r < tile.to ? row_of<const float>(a.dy, run.row + r)[c] : have ? edge[(r - tile.to) * cols] : 0.0f;
    }
    UNROLL for (int e = 0; e < CONV_HELD; e++) here(x[e]), here(dy[e]);
    UNROLL for (int e = 0; e < CONV_HELD; e++) {
      const int64_t r = from + e, to = r - width + 1;
      conv_shift(w, x[e]);
      const float slope = r < run.count ? dy[e] * silu_slope(conv_sum(w, width)) : 0.0f;
      UNROLL for (int i = MAX_CONV_WIDTH - 1; i > 0; i--) slopes[i] = slopes[i - 1];
      slopes[0] = slope;
      if (to < tile.from || to >= tile.to) continue;
      float s = 0.0f; // row to is the oldest that row r sees
      UNROLL for (int i = 0; i < MAX_CONV_WIDTH; i++)
        if (i < width) s = fma_rn(first[i], slopes[i], s);
      row_of<float>(a.dx, run.row + to)[c] = s;
    }
  }
}
