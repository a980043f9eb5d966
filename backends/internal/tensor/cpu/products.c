// Matrix products: one matrix or many in one operation, each for its own rows. The rows are packed for the kernels first, then all parts are cut into units that the threads
// share, so that many small products cost about what one large one does.
#include "amx.h"
#include "device.h"

#include <stdlib.h>
#include <string.h>

// part is one matrix's product with one range of rows.
typedef struct part {
  unit_function pack, multiply;
  rows_job rows;
  product_job product;
  int64_t packed_bytes, packs; // packs: units of packing
  int64_t first_pack, first_unit; // of all parts' before this one
  int64_t strip_rows, panel_columns, chunks; // how units are cut
  int64_t within; // rows of the first strip before its own first one
  int64_t columns;
  float factor;
  int round;
  bool few;        // its rows are those of few_rows or their like: weights are read once
  bool shared;     // whether it reads rows that another part has packed:
  int64_t owner;   // this one, before it; else itself
  int64_t own_at;  // where each thread's own packed rows begin in its memory
} part;

typedef struct {
  const part *parts;
  int64_t n;
  int64_t own; // the operation's number, when every thread packs the rows for itself
} parts_job;

static void pack_part(const void *job, int64_t unit, worker *w) {
  const parts_job *j = job;
  int64_t low = 0, high = j->n; // the last part that begins at unit or before
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (j->parts[middle].first_pack <= unit) low = middle;
    else high = middle;
  }
  const part *p = j->parts + low;
  p->pack(&p->rows, unit - p->first_pack, w);
}

// finish multiplies what a unit has computed by the part's factor and rounds it.
static void finish(const part *p, int64_t unit) {
  const product_job *j = &p->product;
  int64_t c0 = unit % p->chunks * j->panels_per_unit * p->panel_columns, c1 = c0 + j->panels_per_unit * p->panel_columns;
  int64_t r0 = unit / p->chunks * j->strips_per_unit * p->strip_rows - p->within, r1 = r0 + j->strips_per_unit * p->strip_rows;
  if (c1 > p->columns) c1 = p->columns;
  if (r0 < 0) r0 = 0;
  if (r1 > j->y.rows) r1 = j->y.rows;
  for (int64_t r = r0; r < r1; r++) {
    float *y = row_of(j->y, r);
    for (int64_t c = c0; c < c1; c++) y[c] *= p->factor;
    if (p->round == BFLOAT16)
      for (int64_t c = c0; c < c1; c++) ((uint32_t *)y)[c] = round_bits(((uint32_t *)y)[c]);
  }
}
// multiply_own is p's multiply with rows that the thread packs for itself when it first meets them. Its memory begins with a byte for each part, which tells whether that has happened.
static void multiply_own(const parts_job *j, const part *p, int64_t unit, worker *w) {
  unsigned char *done = w->memory;
  if (w->packed != j->own) memset(done, 0, (size_t)j->n), w->packed = j->own;
  const part *o = j->parts + p->owner;
  product_job product = p->product;
  product.strips = (const float *)((char *)w->memory + o->own_at);
  if (!done[p->owner]) {
    rows_job rows = o->rows;
    rows.b.addr = (uintptr_t)product.strips;
    for (int64_t i = 0; i < o->packs; i++) o->pack(&rows, i, w);
    done[p->owner] = 1;
  }
  p->multiply(&product, unit, w);
}

static void multiply_part(const void *job, int64_t unit, worker *w) {
  const parts_job *j = job;
  int64_t low = 0, high = j->n;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (j->parts[middle].first_unit <= unit) low = middle;
    else high = middle;
  }
  const part *p = j->parts + low;
  if (j->own) multiply_own(j, p, unit - p->first_unit, w);
  else p->multiply(&p->product, unit - p->first_unit, w);
  if (p->factor != 0.0f) finish(p, unit - p->first_unit);
}

enum { BLOCK_ROWS = 240, TRANSPOSED_BLOCK_ROWS = 516 }; // rows whose strips over DEPTH stay in the second-level cache; more where weights must be turned for each block
// The transposed product with rows in the lanes: rows and columns of dx whose sums stay in the second-level cache beside the weights over DEPTH; and from which sizes on it
// is faster than turning the weights, because the lanes are full and turning dx is small beside its chains. Units have all these columns where there are so many, since each reads
// all of dy: behind the vocabulary that is more memory than the weights.
enum { ACROSS_ROWS = 512, ACROSS_COLUMNS = 264, ACROSS_FROM_ROWS = 12, ACROSS_FROM_DEPTH = 128 };
enum { LEAST_PANELS = 4, MOST_PANELS = 64 };
enum { ACROSS_CUT_ROWS = 512, MOST_CUT_PANELS = 64, CUT_SUMS_BYTES = 512 << 10 }; // the same where the inner axis has segments, whose sums are beside y: these stay in the second-level cache
enum { FEW_BYTES = 256 << 10, STRAIGHT_BYTES = 128 << 10 }; // of weights of a unit where there are few rows, about, so that threads end together; the second where one panel after the other is read
static const int64_t STRIP_BYTES = 256 << 20; // of packed rows at a time
// Gradients of one operation, and outputs of a product by tiles, from which on they are written past the caches: they would drive out what
// the pass is about to read, and come back only when much else has been.
static const int64_t PAST_BYTES = 2 << 20;

// cut chooses the units: blocks of at most block strips, as even as can be, times chunks of least to most panels, about share of them. It gives their number.
static int64_t cut(part *p, int64_t strips, int64_t block, int64_t panels, int64_t least, int64_t most, int64_t share) {
  int64_t blocks = div_up(strips, block), each = div_up(panels, div_up(share, blocks));
  each = each < least ? least : each > most ? most : each;
  p->chunks = div_up(panels, each);
  if (blocks * p->chunks < share) blocks = div_up(share, p->chunks) < strips ? div_up(share, p->chunks) : strips;
  p->product.panels_per_unit = each;
  p->product.strips_per_unit = div_up(strips, blocks);
  return div_up(strips, p->product.strips_per_unit) * p->chunks;
}

static view rows_of(view v, int64_t from, int64_t to) {
  if (v.index) v.index += (uintptr_t)from * sizeof(int32_t);
  else v.addr += (uintptr_t)(from * v.stride) * (v.type == BFLOAT16 ? 2 : 4);
  v.rows = to - from;
  return v;
}

// shares tells whether the rows of a part are packed as those of owner or are some of these, as they are where each adapter's rows are some of those that the model's weight has. It has the part read them there.
static bool shares(const kernels *k, part *p, const part *owner) {
  view a = p->rows.a, b = owner->rows.a;
  if (p->pack != owner->pack || p->rows.type != owner->rows.type || a.cols != b.cols || a.type != b.type) return false;
  if (a.index != b.index) return false;
  const bool tiles = p->pack == k->pack_amx;
  if (tiles && memcmp(&p->rows.cut, &owner->rows.cut, sizeof p->rows.cut)) return false; // rows in tiles have groups that begin with segments
  if (a.addr == b.addr && a.rows == b.rows && (a.stride == b.stride || a.rows == 1)) return p->strip_rows == owner->strip_rows;
  if (a.index) return false;
  int64_t row = a.stride * (a.type == BFLOAT16 ? 2 : 4), distance = (int64_t)(a.addr - b.addr);
  if (a.stride != b.stride || a.addr < b.addr || distance % row || distance / row + a.rows > b.rows) return false;
  int64_t first = distance / row;
  if (p->multiply == k->matmul_across && first % owner->strip_rows) return false; // rows in the lanes: they begin with a strip
  if (tiles && first % AMX_ROWS) return false;
  p->product.first_row = first, p->product.packed_rows = b.rows, p->product.strip_rows = owner->strip_rows;
  if (p->multiply != k->matmul_few && !tiles) p->strip_rows = owner->strip_rows, p->within = first % owner->strip_rows;
  return true;
}

// Units of products by tiles: rows and panels whose sums stay in the second-level cache, so many that each brings in little of the rows
// and of the weights for what it multiplies. There are fewer where weights are turned for each block of rows.
enum { AMX_BLOCK_ROWS = 512, AMX_LEAST_PANELS = 8, AMX_MOST_PANELS = 16 };
// Of few rows: weights of a unit at most, so that its outputs are written in long runs (matmul_amx_few).
enum { AMX_FEW_BYTES = 1 << 20 };

// prepare_amx is prepare where there are tiles, for weights of bfloat16.
static int64_t prepare_amx(const device *d, part *p, const product *g, bool head, view y, view x, int64_t share, const part *owner) {
  const kernels *k = d->k;
  const bool few = !g->transposed && y.rows <= AMX_STRIP;
  segments inner = {1, {(int32_t)x.cols}};
  if (g->cut.count) inner.count = g->cut.count, memcpy(inner.ends, g->cut.ends, sizeof inner.ends[0] * (size_t)inner.count);
  const int64_t packs = div_up(y.rows, AMX_ROWS), bytes = packs * amx_groups(&inner) * AMX_TILE_BYTES + 64;
  *p = (part){.pack = k->pack_amx, .multiply = few ? k->matmul_amx_few : g->transposed ? k->matmul_amx_transposed : k->matmul_amx,
              .rows = {.a = x, .rows_per_unit = AMX_ROWS, .type = BFLOAT16, .cut = inner},
              .product = {.y = y, .w = g->w, .strip_rows = AMX_STRIP, .accumulate = g->accumulate, .packed_rows = y.rows, .cut = inner},
              .packed_bytes = bytes, .packs = packs, .strip_rows = AMX_STRIP, .panel_columns = PANEL, .columns = y.cols,
              .factor = g->factor, .round = g->round, .few = few};
  p->product.permutes_bytes = d->permutes_bytes;
  p->product.past = !g->accumulate && g->factor == 0.0f && y.rows * y.cols * 4 >= PAST_BYTES && y.addr % 64 == 0 && y.stride % k->lanes == 0;
  p->shared = owner && shares(k, p, owner);
  if (p->shared) p->packs = 0, p->packed_bytes = 0;
  if (head) return 0;
  const int64_t panels = div_up(p->columns, PANEL), strips = div_up(y.rows, AMX_STRIP);
  if (few) {
    int64_t each = div_up(panels, share), most = AMX_FEW_BYTES / (panel_bytes(g->w) + 1);
    each = each > most ? most : each;
    each = each < 1 ? 1 : each;
    return cut(p, strips, strips, panels, each, each, 1);
  }
  const int64_t most = inner.count > 1 ? AMX_LEAST_PANELS : AMX_MOST_PANELS;
  return cut(p, strips, AMX_BLOCK_ROWS / AMX_STRIP, panels, AMX_LEAST_PANELS, most, div_up(share, g->transposed ? 4 : 2));
}

// prepare makes the part of rows [from, to) of a product, all but where the packed rows are, with about share of the units. It gives their number. owner is the part whose rows it may share, NULL if there is none; head the part whose chains it continues, whose units do its work.
static int64_t prepare(const device *d, part *p, const product *g, const part *head, int64_t from, int64_t to, int64_t share, const part *owner) {
  const kernels *k = d->k;
  matrix w = g->w;
  view y = rows_of(g->y, from, to), x = rows_of(g->x, from, to);
  bool accumulate = g->accumulate, transposed = g->transposed;
  y.cols = transposed ? w.in : w.out, x.cols = transposed ? w.out : w.in;
  if (in_pairs(w) && k->matmul_amx) return prepare_amx(d, p, g, head != NULL, y, x, share, owner);
  bool pairs = in_pairs(w), across = head ? head->multiply == k->matmul_across : transposed && y.rows >= ACROSS_FROM_ROWS && w.out >= ACROSS_FROM_DEPTH;
  int64_t few_strips = div_up(y.rows, k->tile_rows);
  bool few = !transposed && few_strips <= (w.type == E4M3 ? 1 : FEW_STRIPS) && k->few_rows(div_up(y.rows, few_strips));
  int64_t depth = pairs ? (x.cols + 1) / 2 * k->pair_words : x.cols, width = across ? k->tile_columns : k->tile_rows;
  if (few) depth = div_up(depth, FEW_CHUNK) * FEW_CHUNK;
  int64_t strips = div_up(y.rows, width), strip_rows = across ? width : div_up(y.rows, strips); // even ones: a tile of few rows has too few chains to keep the multipliers busy
  *p = (part){.rows = {.a = x, .rows_per_unit = strip_rows, .type = pairs ? BFLOAT16 : FLOAT32}, .product = {.y = y, .w = w, .strip_rows = strip_rows, .accumulate = accumulate, .packed_rows = y.rows},
              .packed_bytes = ((few ? y.rows : strips * width) * depth * 4 + 127) / 64 * 64, .packs = few ? y.rows : strips, .strip_rows = strip_rows, .panel_columns = across ? k->tile_rows : PANEL, .columns = y.cols, .factor = g->factor, .round = g->round, .few = few};
  p->product.cut = g->cut, p->product.permutes_bytes = d->permutes_bytes;
  if (!g->cut.count) p->product.cut = (segments){1, {(int32_t)x.cols}};
  int64_t panels = div_up(p->columns, p->panel_columns);
  if (across) p->pack = pairs ? k->pack_across_bf16 : k->pack_across_f32, p->multiply = k->matmul_across;
  else if (few) p->pack = k->pack_few, p->multiply = k->matmul_few, p->product.linear_rows = d->linear_rows;
  else p->pack = pairs ? k->pack_strip_bf16 : k->pack_strip_f32, p->multiply = transposed ? k->matmul_transposed : k->matmul;
  p->shared = owner && shares(k, p, owner);
  if (p->shared) p->packs = 0, p->packed_bytes = 0;
  if (head) return 0;
  const bool whole = p->product.cut.count == 1;
  if (across) return cut(p, strips, (whole ? ACROSS_ROWS : ACROSS_CUT_ROWS) / width, panels, ACROSS_COLUMNS / k->tile_rows, ACROSS_COLUMNS / k->tile_rows, div_up(share, 2));
  if (few) {
    bool straight = y.rows <= d->linear_rows;
    int64_t together = straight ? 1 : FEW_PANELS, each = div_up(panels, share * together), most = div_up(straight ? STRAIGHT_BYTES : FEW_BYTES, together * (panel_bytes(w) + 1));
    if (each > most) each = most;
    return cut(p, strips, strips, panels, each * together, each * together, 1);
  }
  strips = div_up(p->within + y.rows, p->strip_rows);
  int64_t block = (transposed ? TRANSPOSED_BLOCK_ROWS : BLOCK_ROWS) / width, most = whole ? MOST_PANELS : MOST_CUT_PANELS;
  if (!whole) { // of a small product a unit may have all columns
    int64_t near = CUT_SUMS_BYTES / ((strips < block ? strips : block) * p->strip_rows * PANEL * 4 * (PARTIAL_SUMS - 1));
    most = near < LEAST_PANELS ? LEAST_PANELS : near < most ? near : most;
  }
  return cut(p, strips, block, panels, LEAST_PANELS, most, share);
}

static part *parts_memory(device *d, int64_t n) {
  if (d->parts_room < n) {
    part *p = realloc(d->parts, (size_t)n * sizeof *p);
    if (!p) return NULL;
    d->parts = p, d->parts_room = n;
  }
  return d->parts;
}

// chain tells parts what comes after each of their units.
static void chain(const device *d, part *parts, int64_t n) {
  for (int64_t i = 0; i < n; i++) parts[i].product.units_ahead = threads_count(d->t), parts[i].product.after = i + 1 < n ? &parts[i + 1].product : NULL;
}

// product_cost is about how many nanoseconds one thread takes; weights come from memory.
static double product_cost(double rows, double out, double in) { return rows * out * in * 0.02 + out * in * 0.12; }

enum { OWN_PACKING = 8000 }; // nanoseconds of packing few rows up to which every thread does it for itself: one meeting of the threads fewer

// sums_bytes is the memory that a thread needs for a unit of a part beside its packed rows: for weights that it turns or gathers, and for sums of segments.
static int64_t sums_bytes(const kernels *k, const part *p) {
  const product_job *j = &p->product;
  int64_t beside = j->cut.count > 1 ? PARTIAL_SUMS - 1 : 0, rows = j->strips_per_unit * p->strip_rows, columns = j->panels_per_unit * p->panel_columns;
  if (p->pack == k->pack_amx) return AMX_SCRATCH * PANEL * 2 + (beside + 1) * rows * columns * 4;
  if (p->multiply == k->matmul_across) return columns * (DEPTH + (beside + 1) * rows) * 4;
  int64_t weights = p->multiply == k->matmul_transposed ? (DEPTH + 2 * PANEL) * PANEL : j->w.type == E4M3 ? DEPTH * PANEL : 0;
  return (beside * rows * columns + weights) * 4;
}

// set_end is behind the last product that continues the one at i; i + 1 if none does. inner is the length of all their inner axes.
static int64_t set_end(const product *products, int64_t n, int64_t i, int64_t *inner) {
  int64_t end = i + 1;
  *inner = products[i].transposed ? products[i].w.out : products[i].w.in;
  if (products[i].transposed) for (int64_t k = end; k < n; k++) {
    bool same = products[k].y.addr == products[i].y.addr;
    if (products[k].continues != same) break; // another product begins to write it, or one continues another set
    if (same) end = k + 1, *inner += products[k].w.out;
  }
  return end;
}

// any_continues tells whether some product continues another one.
static bool any_continues(const product *products, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (products[i].continues) return true;
  return false;
}

// in_pieces runs products that continue one another, and what stands between them, in pieces of rows, if all are for the same rows and their packed rows would take too much memory. It gives how many products it has run, negative for an error.
static int64_t in_pieces(device *d, const product *products, int64_t n) {
  int64_t inner, end = set_end(products, n, 0, &inner), rows = products[0].y.rows, most = STRIP_BYTES / (inner * 4 + 1);
  most = most < BLOCK_ROWS ? BLOCK_ROWS : most / 96 * 96;
  if (end == 1 || rows <= most) return 0;
  product some[8];
  int64_t count = 0;
  for (int64_t i = 0; i < end; i++)
    if (i == 0 || products[i].continues) {
      if (count == 8) return 0;
      some[count++] = products[i];
    }
  for (int64_t from = 0; from < rows; from += most) {
    int64_t to = from + most < rows ? from + most : rows;
    product piece[8];
    for (int64_t i = 0; i < count; i++) piece[i] = some[i], piece[i].y = rows_of(some[i].y, from, to), piece[i].x = rows_of(some[i].x, from, to);
    if (op_products(d, piece, count)) return -1;
  }
  for (int64_t i = 0; i < end; i++)
    if (i > 0 && !products[i].continues && op_products(d, products + i, 1)) return -1;
  return end;
}

int op_products(device *d, const product *products, int64_t n) {
  part *parts = parts_memory(d, n);
  if (!parts) return -1;
  double all = 0;
  for (int64_t i = 0; i < n; i++) all += product_cost((double)products[i].y.rows, (double)products[i].w.out, (double)products[i].w.in);
  int64_t next = 0, done = 0; // done: rows of this product
  const bool sets = any_continues(products, n);
  while (next < n) {
    int64_t run_apart = done || !sets ? 0 : in_pieces(d, products + next, n - next);
    if (run_apart < 0 || !(parts = parts_memory(d, n))) return -1;
    if (next += run_apart, next == n) break;
    int64_t owner = 0; // of the rows that are packed last
    bool all_few = true, once = true; // once: few rows in one strip, so that weights are read once
    int64_t count = 0, bytes = 0, packs = 0, units = 0, own = 0;
    int64_t head = -1, until = 0; // of products that continue one another: the part of the first one, and where the last one ends
    double packing = 0, cost = 0;
    for (; next < n; next++, done = 0) {
      const product *g = products + next;
      int64_t out = g->transposed ? g->w.in : g->w.out, in = g->transposed ? g->w.out : g->w.in, rows = g->y.rows - done;
      if (!rows || !out) continue;
      double own_cost = product_cost((double)rows, (double)out, (double)in);
      int64_t share = 1 + (int64_t)((double)threads_count(d->t) * 7.999 * own_cost / all); // of the units, by cost
      part *p = parts + count;
      const bool first = next >= until && !g->continues;
      int64_t inner = in, end = sets && first ? set_end(products, n, next, &inner) : 0;
      const bool joined = end > next + 1 || g->continues;
      int64_t more = prepare(d, p, g, g->continues ? parts + head : NULL, done, done + rows, share, count && !joined ? parts + owner : NULL);
      const bool few = p->few, tiles = p->pack == d->k->pack_amx;
      int64_t room = (STRIP_BYTES - bytes) / (inner * (tiles ? 2 : 4) + 1);
      if (!p->shared && rows > room && (first || !joined) && next >= until) {
        if (count > 0) break;
        if (room < BLOCK_ROWS) room = BLOCK_ROWS;
        if (!joined) {
          rows = div_up(rows, div_up(rows, room)); // pieces of equal size, because weights are read, and some turned, once per piece
          rows = div_up(rows, 96) * 96 < g->y.rows - done ? div_up(rows, 96) * 96 : g->y.rows - done; // whole strips of any width
          own_cost = product_cost((double)rows, (double)out, (double)in);
          more = prepare(d, p, g, NULL, done, done + rows, 1 + (int64_t)((double)threads_count(d->t) * 7.999 * own_cost / all), NULL);
        }
      }
      if (end > next + 1) head = count, until = end;
      if (g->continues) {
        product_job *before = &parts[head].product;
        while (before->continued) before = (product_job *)before->continued;
        before->continued = &p->product;
      }
      count++;
      if (!p->shared) owner = count - 1;
      p->owner = owner, p->own_at = bytes;
      all_few = all_few && few, once = once && few && rows <= (tiles ? AMX_STRIP : d->k->tile_rows);
      p->first_pack = packs, p->first_unit = units, p->product.units = more;
      packs += p->packs, units += more, bytes += p->packed_bytes;
      if (!p->shared) packing += (double)rows * (double)in * (few || tiles ? 0.2 : in_pairs(g->w) ? 1 : 0.5);
      cost += own_cost;
      int64_t need = few || g->continues ? 0 : sums_bytes(d->k, p);
      own = need > own ? need : own;
      if (done += rows, done < g->y.rows) break;
    }
    if (!count) break;
    chain(d, parts, count);
    void (*run)(threads *, unit_function, const void *, int64_t, double) = once ? threads_run_ranges : threads_run;
    if (all_few && packing < OWN_PACKING) {
      int64_t flags = div_up(count, 64) * 64;
      if (threads_reserve(d->t, flags + bytes)) return -1;
      for (int64_t i = 0; i < count; i++) parts[i].own_at += flags;
      parts_job j = {parts, count, ++d->operations};
      run(d->t, multiply_part, &j, units, cost);
      continue;
    }
    char *packed = shared_memory(d, bytes);
    if (!packed || threads_reserve(d->t, own)) return -1;
    for (int64_t i = 0; i < count; i++) {
      char *at = packed + parts[parts[i].owner].own_at;
      parts[i].rows.b.addr = (uintptr_t)at;
      parts[i].product.strips = (const float *)at;
    }
    parts_job j = {parts, count, 0};
    threads_run(d->t, pack_part, &j, packs, packing);
    run(d->t, multiply_part, &j, units, cost);
  }
  return 0;
}

int op_stages(device *d, const product *products, const int64_t *ends, int64_t stages) {
  for (int64_t i = 0, from = 0; i < stages; from = ends[i++])
    if (op_products(d, products + from, ends[i] - from)) return -1;
  return 0;
}

enum { OUTER_PANELS = 4 }; // of a unit of outer products at most

// may_pass tells whether g's rows lie where kernels can write past the caches: whole vectors of them and, where g is turned, four columns.
static bool may_pass(const kernels *k, view g, bool turned) {
  int64_t words = turned && g.cols % (k->tile_columns / 2) ? 4 : k->lanes;
  return g.addr % (uintptr_t)(words * 4) == 0 && g.stride % words == 0;
}

int op_outers(device *d, const outer_product *products, int64_t n) {
  part *parts = parts_memory(d, n);
  if (!parts) return -1;
  int64_t count = 0, units = 0, height = 0, apart = 0, panels = 0, bytes = 0; // apart: the most rows of a tile that is summed apart; bytes: of gradients that are not read
  double cost = 0;
  for (int64_t i = 0; i < n; i++) {
    view g = products[i].g, a = products[i].a, b = products[i].b;
    if (!g.rows || !g.cols || !a.rows) continue;
    bool turned = g.cols < g.rows; // vectors run along the longer side, or panels do
    view rows = turned ? b : a, wide = turned ? a : b;
    parts[count++] = (part){.multiply = d->k->outer, .product = {.y = g, .x = rows, .w = {wide.addr, wide.stride, wide.cols, FLOAT32}, .turned = turned, .accumulate = !products[i].first, .apart = products[i].apart, .past = products[i].first && !products[i].apart && may_pass(d->k, g, turned)}};
    int64_t narrow = turned ? g.cols : g.rows;
    if (turned && narrow > height) height = narrow;
    if (products[i].apart && narrow > apart) apart = narrow;
    if (products[i].first) bytes += g.rows * g.cols * 4;
    panels += div_up(wide.cols, PANEL);
    cost += product_cost((double)a.rows, (double)g.rows, (double)g.cols);
  }
  if (!count) return 0;
  int64_t most = panels / (threads_count(d->t) * 8);
  most = most < 1 ? 1 : most > OUTER_PANELS ? OUTER_PANELS : most;
  for (int64_t i = 0; i < count; i++) {
    product_job *j = &parts[i].product;
    j->panels_per_unit = j->turned && j->y.cols % (d->k->tile_columns / 2) ? 1 : most;
    j->past = j->past && bytes >= PAST_BYTES;
    parts[i].first_unit = units;
    units += j->units = div_up(j->w.in, j->panels_per_unit * PANEL);
  }
  chain(d, parts, count);
  parts_job j = {parts, count, 0};
  if (threads_reserve(d->t, (most * (OUTER_DEPTH + apart) + height) * PANEL * 4)) return -1;
  threads_run(d->t, multiply_part, &j, units, cost);
  return 0;
}
