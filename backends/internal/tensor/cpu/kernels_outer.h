// Outer products: the gradients of weights by the rows that went through them. Included once per instruction set.

// ask_for_sums asks for what a tile of outer adds to: g may not have been touched since another pass. Tiles are counted from a unit's first one on; those behind its last are the next unit's. along: g's rows are a
// panel's columns and lie one behind another.
enum { SUMS_AHEAD = 2 };
INLINE void ask_for_sums(const product_job *j, bool along, int64_t first, int64_t height, int64_t tile) {
  int64_t each = div_up(along ? PANEL : height, TILE_ROWS), at = first + tile / each * PANEL, r = tile % each * TILE_ROWS;
  if (along) {
    int64_t rows = PANEL - r < TILE_ROWS ? PANEL - r : TILE_ROWS;
    for (int64_t i = 0; i < rows * height; i += LINE) ASK(row_of(j->y, at + r) + i);
  } else if (at < j->y.cols) {
    for (int64_t i = r; i < r + TILE_ROWS && i < height; i++) ASK(row_of(j->y, i) + at), ASK(row_of(j->y, i) + at + LINE);
  }
}

// wide_ahead is where the rows lie that are copied next: from m0 on if the unit has those, else the first ones of the unit that this thread probably has next. It sets how many panels of them there are.
INLINE const float *wide_ahead(const product_job *j, int64_t unit, int64_t m0, int64_t *stride, int64_t *panels) {
  if (m0 >= j->x.rows) m0 = 0, unit += j->units_ahead;
  for (; j && unit >= j->units; j = j->after) unit -= j->units;
  *stride = *panels = 0;
  if (!j) return NULL;
  int64_t first = unit * j->panels_per_unit * PANEL, left = div_up(j->w.in - first, PANEL);
  *stride = j->w.out, *panels = left < j->panels_per_unit ? left : j->panels_per_unit;
  return (const float *)j->w.addr + m0 * j->w.out + first;
}

// A unit is panels_per_unit times PANEL columns of g. y = g, x = a, w.addr = b with w.out its stride. When turned the roles are exchanged: x = b, w.addr = a, and a unit is rows of g; a product's two factors
// commute, so the bits are the same. Those rows are written as they are where they have whole halves of tiles, else g is turned for it, and a unit is one panel. Gradients go past the caches where they can (j's past) if a single block makes them whole.
static void outer(const void *job, int64_t unit, worker *w) {
  const product_job *j = job;
  int64_t width = j->turned ? j->y.rows : j->y.cols, height = j->turned ? j->y.cols : j->y.rows;
  int64_t first = unit * j->panels_per_unit * PANEL, all = width - first < j->panels_per_unit * PANEL ? width - first : j->panels_per_unit * PANEL, panels = div_up(all, PANEL);
  bool rows_whole = j->turned && height % HALF_TILE == 0, aside = j->turned && !rows_whole;
  float *t = w->memory, *others = t + panels * OUTER_DEPTH * PANEL; // others: what is summed apart, a panel's tiles one behind another
  float *sums = others + (j->apart ? panels * height * PANEL : 0);  // PANEL columns of g when it is turned
  const bool past = j->past && j->x.rows <= OUTER_DEPTH;
  if (aside && !past) {
    for (int64_t t = 0; t < PANEL; t += TILE_ROWS) ask_for_sums(j, true, first + SUMS_AHEAD * PANEL, height, t / TILE_ROWS);
    if (j->accumulate) turn_wide(row_of(j->y, first), j->y.stride, all, height, PANEL, sums);
  }
  const int64_t second = j->x.rows - j->apart; // the row with which the chain apart begins
  for (int64_t m0 = 0, depth; m0 < j->x.rows; m0 += depth) {
    const bool apart = m0 >= second, zero = apart ? m0 == second : m0 == 0 && !j->accumulate;
    const int64_t left = (apart ? j->x.rows : second) - m0;
    depth = left < OUTER_DEPTH ? left : OUTER_DEPTH;
    const bool done = apart && depth == left;
    for (int64_t m = 0; m < depth; m++) { // all panels of a row at once: the next row is far
      const float *b = (const float *)j->w.addr + (m0 + m) * j->w.out + first;
      for (int64_t p = 0; p < panels; p++, b += PANEL) {
        float *to = t + (p * OUTER_DEPTH + m) * PANEL;
        int64_t columns = all - p * PANEL;
        if (columns >= PANEL) memcpy(to, b, PANEL * 4);
        else memcpy(to, b, (size_t)columns * 4), memset(to + columns, 0, (size_t)(PANEL - columns) * 4);
      }
    }
    int64_t ahead_stride, lines, line = 0; // of a row, and how many of them have been asked for: a tile asks for one of every row
    const float *ahead = wide_ahead(j, unit, m0 + depth, &ahead_stride, &lines);
    lines *= PANEL / LINE;
    for (int64_t p = 0; p < panels; p++) {
      const float *panel = t + p * OUTER_DEPTH * PANEL;
      int64_t at = first + p * PANEL, columns = width - at < PANEL ? width - at : PANEL, tall = rows_whole ? columns : height;
      for (int64_t r = 0; r < tall; r += TILE_ROWS) {
        int64_t rows = tall - r < TILE_ROWS ? tall - r : TILE_ROWS;
        const float *a = rows_whole ? panel + r : row_of(j->x, m0) + r, *b = rows_whole ? row_of(j->x, m0) : panel;
        int64_t a_stride = rows_whole ? PANEL : j->x.stride, b_stride = rows_whole ? j->x.stride : PANEL;
        float *c = aside ? sums + r * PANEL : rows_whole ? row_of(j->y, at + r) : row_of(j->y, r) + at;
        int64_t ldc = aside ? PANEL : j->y.stride, across = aside ? PANEL : rows_whole ? height : columns;
        float *y = c;
        const int64_t ldy = ldc;
        if (apart) c = others + p * height * PANEL + r * (rows_whole ? height : PANEL), ldc = rows_whole ? height : PANEL;
        if (m0 == 0 && !aside && !past) ask_for_sums(j, rows_whole, first, height, p * div_up(tall, TILE_ROWS) + r / TILE_ROWS + SUMS_AHEAD);
        const bool asks = line < lines;
        if (past && !aside && across % HALF_TILE == 0) depth_outside_past(rows, a, a_stride, b, b_stride, depth, c, ldc, across, true, (const char *)(asks ? ahead + line * LINE : b), asks ? ahead_stride * 4 : 0), line += asks;
        else if (asks) depth_outside_asking(rows, a, a_stride, b, b_stride, depth, c, ldc, across, zero, (const char *)(ahead + line++ * LINE), ahead_stride * 4);
        else depth_outside(rows, a, a_stride, b, b_stride, depth, c, ldc, across, zero, NULL, 0);
        if (done) add_tile(y, ldy, c, ldc, rows, across);
      }
    }
  }
  if (aside) (past ? turn_back_past : turn_back)(sums, PANEL, all, height, row_of(j->y, first), j->y.stride);
  if (past) past_done();
}
