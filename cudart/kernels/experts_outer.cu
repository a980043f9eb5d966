// Gradients of adapters on experts: outer products over the rows of each.
#include "experts.h"
#include "outer_product.h"

// Every expert has as many blocks, in all jobs as many as in that with the most. An expert without rows keeps what its g holds, or gets zeros.
KERNEL_BLOCKS(outer_routed, OUTER_THREADS, 4, outer_routed_arguments) {
  SHARED(float, ns[OUTER_PLACES][OUTER_NARROW]) __attribute__((aligned(16)));
  SHARED(float, ws[OUTER_PLACES][OUTER_WIDE]) __attribute__((aligned(16)));
  routed_outer_job j;
  if (a.jobs) j = value_at<routed_outer_job>(a.jobs + block_y() * sizeof(routed_outer_job));
  else if (block_y() == 0) j = a.own[0];
  else j = a.own[1];
  const int expert = (int)a.table.from + (int)(block_x() / a.tiles), number = (int)(block_x() % a.tiles);
  const int p = (int)j.a.cols, q = (int)j.b.cols;
  const bool turned = p > q;
  const int narrow = turned ? q : p, wide = turned ? p : q;
  // The tiles of 32 of the narrow side; at its end there may be half as many, or a quarter, of twice the wide side.
  outer_tile t = {0, 0, 0, 5};
  int left = number;
  for (;; t.narrow += 1 << t.power) {
    if (t.narrow >= narrow) return;
    while (t.power > 3 && narrow - t.narrow <= 1 << (t.power - 1)) t.power--;
    const int across = OUTER_TILE >> t.power, have = (wide + across - 1) / across;
    if (left < have) {
      t.wide = left * across;
      break;
    }
    left -= have;
  }
  const expert_rows rows = rows_of_expert(a.table, expert, j.from, j.to);
  if (rows.first == rows.end && !j.first) return;
  const view g = {j.g.at + (uint64_t)expert * p * j.g.stride * sizeof(float), p, q, j.g.stride};
  const int64_t count = rows.end - rows.first;
  if (turned) outer_chain<true>(ns, ws, g, side_of(j.b, rows.first, t.narrow), side_of(j.a, rows.first, t.wide), count, t, j.first, false);
  else outer_chain<false>(ns, ws, g, side_of(j.a, rows.first, t.narrow), side_of(j.b, rows.first, t.wide), count, t, j.first, false);
}
