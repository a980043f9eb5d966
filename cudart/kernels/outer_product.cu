// Outer products, any number of them in one launch.
#include "outer_product.h"

// The rows apart are a second chain, from zero, added at the end of the first. With first, the first begins with zero whatever g holds.
KERNEL_BLOCKS(outer_product, OUTER_THREADS, 4, outer_arguments) {
  SHARED(float, ns[OUTER_PLACES][OUTER_NARROW]) __attribute__((aligned(16)));
  SHARED(float, ws[OUTER_PLACES][OUTER_WIDE]) __attribute__((aligned(16)));
  const outer_tile t = memory<const outer_tile>(a.tiles)[block_x()];
  const outer_product_job &j = memory<const outer_product_job>(a.jobs)[t.job];
  const view g = j.g;
  const bool turned = g.rows > g.cols;
  for (int chain = 0; chain < 2; chain++) {
    const bool apart = chain == 1;
    const int64_t from = apart ? j.a.rows - j.apart : 0, rows = apart ? j.apart : j.a.rows - j.apart;
    if (rows <= 0) continue;
    if (turned) outer_chain<true>(ns, ws, g, side_of(j.b, from, t.narrow), side_of(j.a, from, t.wide), rows, t, j.first, apart);
    else outer_chain<false>(ns, ws, g, side_of(j.a, from, t.narrow), side_of(j.b, from, t.wide), rows, t, j.first, apart);
    barrier(); // the rows of this chain have been read by all
  }
}
