// Pages of keys and values: writing rows of a batch into them, clearing and copying one.
#include "attention.h"

KERNEL(write_pages, 256, write_pages_arguments) {
  int64_t slot = memory<const int64_t>(a.slots)[block_x()];
  if (slot < 0) return;
  const float *k = row_of<const float>(a.k, block_x()), *v = row_of<const float>(a.v, block_x());
  EACH_COLUMN(c, a.k.cols) {
    int64_t to = page_part(a.c, a.layer, slot / PAGE_KEYS, c / a.c.dim) + slot % PAGE_KEYS * a.c.dim + c % a.c.dim;
    store_as(a.c.at, to, a.c.type, k[c]);
    store_as(a.c.at, to + a.c.heads * PAGE_KEYS * a.c.dim, a.c.type, v[c]);
  }
}

// Page to of every layer (block x) becomes a copy of page from, or zeros.
KERNEL(copy_page, 256, copy_page_arguments) {
  int64_t to = page_part(a.c, block_x(), a.to, 0), from = page_part(a.c, block_x(), a.from, 0);
  EACH_COLUMN(i, 2 * a.c.heads * PAGE_KEYS * a.c.dim) store_as(a.c.at, to + i, a.c.type, a.from < 0 ? 0.0f : load_as_float(a.c.at, from + i, a.c.type));
}
