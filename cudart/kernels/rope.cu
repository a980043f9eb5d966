// Rotary positions, in place: elements i and i + dim/2 of every head turn by the angle of the row's position. inverse turns back, which is the gradient.
#include "rope.h"

KERNEL(rope, 256, rope_arguments) {
  float *x = row_of<float>(a.x, block_x());
  int64_t half = a.table.cols / 2, head_dim = a.x.cols / a.heads;
  const float *cosines = row_of<const float>(a.table, memory<const int32_t>(a.positions)[block_x()]), *sines = cosines + half;
  EACH_COLUMN(c, a.heads * half) {
    int64_t i = c % half;
    turn(x + c / half * head_dim + i, half, cosines[i], a.inverse ? -sines[i] : sines[i]);
  }
}
