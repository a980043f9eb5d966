// Weights in eight bits. An element is a number of the type E4M3 (a sign, four bits of exponent, three of fraction) times a scale in float32, rounded once to bfloat16: that bfloat16 is what products and embeddings take.
//
// A weight lies in groups of 32 rows: the numbers row by row, each row filled up with zeros to a multiple of 16, then the group's scales, one for each run of columns, filled up to a multiple of 16 bytes.
#pragma once
#include "arithmetic.h"

// Sixteen numbers of a row, from a column that is a multiple of 16 on, and eight values of bfloat16.
struct alignas(16) e4m3_chunk { uint32_t words[4]; };

// e4m3_weight is a weight as the kernels read it. power is that of columns, the length of a run, if it is a power of two and no chunk is in two runs; else -1.
struct e4m3_weight {
  uint64_t at;
  int out, in, columns, power;
  int64_t row_bytes, group_bytes;
};

INLINE e4m3_weight e4m3_of(const weight &w) {
  e4m3_weight e = {w.at, (int)w.out, (int)w.in, (int)w.pitch, -1, (w.in + 15) / 16 * 16, 0};
  const int across = (e.in + e.columns - 1) / e.columns;
  e.group_bytes = E4M3_ROWS * e.row_bytes + (across + 3) / 4 * 16;
  for (int p = 4; p < 31; p++)
    if (e.columns == 1 << p) e.power = p;
  return e;
}

INLINE uint64_t e4m3_group(const e4m3_weight &w, int row) { return w.at + row / E4M3_ROWS * w.group_bytes; }
INLINE uint64_t e4m3_row(const e4m3_weight &w, int row) { return e4m3_group(w, row) + row % E4M3_ROWS * w.row_bytes; }
INLINE uint64_t e4m3_scales(const e4m3_weight &w, int row) { return e4m3_group(w, row) + E4M3_ROWS * w.row_bytes; }
INLINE float e4m3_scale(const e4m3_weight &w, int row, int column) { return memory<const float>(e4m3_scales(w, row))[column / w.columns]; }

// e4m3_number gives the number that the lowest eight bits of code are. Bits of a normal one are those of a float32 with another bias; one below them has the exponent of the least normal one, without its leading one. Codes that are no number are not
// packed.
INLINE float e4m3_number(uint32_t code) {
  const uint32_t magnitude = (code & 0x7f) << 20;
  const float normal = bits<float>(magnitude + (120u << 23)), below = bits<float>(magnitude + (121u << 23)) - 0x1p-6f;
  return bits<float>(bits<uint32_t>(magnitude < 8u << 20 ? below : normal) | (code & 0x80) << 24);
}

// e4m3_expanded gives the values of a chunk: its first eight and its last. scale(i) is that of element i.
struct e4m3_values {
  e4m3_chunk half[2];
};
template <class F> INLINE e4m3_values e4m3_expanded(const e4m3_chunk &from, F scale) {
  e4m3_values to;
  UNROLL for (int i = 0; i < 16; i += 2) {
    const uint32_t codes = from.words[i / 4] >> i % 4 * 8;
    to.half[i / 8].words[i % 8 / 2] = narrow_two(e4m3_number(codes) * scale(i), e4m3_number(codes >> 8) * scale(i + 1));
  }
  return to;
}
