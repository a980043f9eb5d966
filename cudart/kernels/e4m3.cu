// Weights in eight bits: writing them, reading rows of them back as an embedding, and expanding parts of them for products of many rows.
#include "e4m3.h"

// Rows of one group have equal scales, and each writes them.
KERNEL(pack_e4m3, 256, pack_e4m3_arguments) {
  const e4m3_weight w = e4m3_of(a.w);
  const int across = (w.in + w.columns - 1) / w.columns, row = (int)(a.row + block_x());
  unsigned char *to = memory<unsigned char>(e4m3_row(w, row));
  const unsigned char *from = memory<const unsigned char>(a.codes) + block_x() * w.in;
  EACH_COLUMN(c, w.in) to[c] = from[c];
  if (block_y() > 0) return;
  for (int s = thread(); s < across; s += 256) memory<float>(e4m3_scales(w, row))[s] = memory<const float>(a.scales)[block_x() * across + s];
}

KERNEL(expand_e4m3, 256, expand_e4m3_arguments) {
  const e4m3_weight w = e4m3_of(a.w);
  const int row = (int)(a.row + block_x());
  const unsigned char *from = memory<const unsigned char>(e4m3_row(w, row)) + a.column;
  const float *scales = memory<const float>(e4m3_scales(w, row));
  bfloat16 *to = memory<bfloat16>(a.to.at) + block_x() * a.to.pitch;
  for (int c = (int)(block_y() * 256 + thread()) * 16; c < a.to.pitch; c += (int)blocks_y() * 256 * 16) {
    const int column = (int)a.column + c;
    const e4m3_values v = e4m3_expanded(*(const e4m3_chunk *)(from + c), [&](int i) { return column + i < w.in ? scales[w.power >= 0 ? column >> w.power : (column + i) / w.columns] : 1.0f; });
    *(e4m3_chunk *)(to + c) = v.half[0];
    if (c + 8 < a.to.pitch) *(e4m3_chunk *)(to + c + 8) = v.half[1];
  }
}

// y[r] = row ids[r] of w, or zeros if that is negative.
KERNEL(gather_e4m3, 256, gather_arguments) {
  const e4m3_weight w = e4m3_of(a.w);
  float *y = row_of<float>(a.y, block_x());
  const int row = memory<const int32_t>(a.ids)[block_x()];
  EACH_COLUMN(c, a.y.cols) y[c] = row < 0 ? 0.0f : widen(narrow(e4m3_number(memory<const unsigned char>(e4m3_row(w, row))[c]) * e4m3_scale(w, row, (int)c)));
}
