// The gated delta rule, token by token. Columns of a state are independent of each other, so they go in tiles, and a tile stays near for DELTA_CHUNK rows. Included once per instruction set.
//
// A state lies in its slot head by head, and there tile by tile: [tile][row][columns of the tile]. In a worker's memory a tile has DELTA_TILE columns and a multiple of four rows, filled up with zeros.

enum { DELTA_VECTORS = LANES == 16 ? 2 : 1 }; // that go at once, so that eight sums of each and what they are multiplied with stay in registers

// vlog1p is ln(1+x) for x >= 0.
INLINE vf vlog1p(vf x) {
  vf u = x + vset(1.0f);
  return vlog(u) + (x - (u - vset(1.0f))) / u;
}

// prepared is what the rows of a chunk are multiplied with: of a value head, with its key head's queries and keys.
typedef struct {
  float *q, *k;   // normed, rows of wide elements, zeros behind the last
  float *qk;      // the product of a row's query and key
  float *g, *e;   // decay: the exponent and the factor
  float *beta;
  float *v, *o;   // of a tile: rows of DELTA_TILE
  int64_t wide;
} prepared;

INLINE prepared delta_memory(const delta_inputs *in, float *memory) {
  prepared p = {.wide = round_up(in->key_dim, DELTA_TILE), .q = memory};
  p.k = p.q + DELTA_CHUNK * p.wide, p.qk = p.k + DELTA_CHUNK * p.wide, p.g = p.qk + DELTA_CHUNK, p.e = p.g + DELTA_CHUNK, p.beta = p.e + DELTA_CHUNK;
  p.v = p.beta + 3 * DELTA_CHUNK, p.o = p.v + DELTA_CHUNK * DELTA_TILE;
  return p;
}

// normed writes x · (Σx²+1e-6)^-½ · factor, and gives what x was multiplied with.
INLINE float normed(float *y, const float *x, int64_t cols, float factor) {
  lanes s = lset(0.0f);
  EACH_16(cols) {
    lanes v = LOAD(x);
    s = lfma(v, v, s);
  }
  float inverse = 1.0f / sqrt1(lsum(s) + 1e-6f) * factor;
  lanes f = lset(inverse);
  EACH_16(cols) STORE(y, lmul(LOAD(x), f));
  return inverse;
}

// delta_gates computes the gates of n rows of a value head.
static void delta_gates(const delta_inputs *in, int64_t row, int64_t n, int64_t head, const prepared *p) {
  float a[DELTA_CHUNK] = {0}, b[DELTA_CHUNK] = {0};
  for (int64_t t = 0; t < n; t++) a[t] = row_of(in->a, row + t)[head], b[t] = row_of(in->b, row + t)[head];
  vf bias = vset(row_of(in->bias, 0)[head]), rate = vset(-exp1(row_of(in->a_log, 0)[head]));
  for (int64_t t = 0; t < n; t += LANES) {
    vf y = vload(a + t) + bias, soft = vlog1p(vexp(vmin(vset(21.0f), y)));
    soft = vselect((vi)(y > vset(20.0f)), y, soft);
    vf g = rate * soft;
    vstore(p->g + t, g);
    vstore(p->e + t, vexp(g));
    vstore(p->beta + t, vset(1.0f) / (vset(1.0f) + vexp(vset(0.0f) - vload(b + t))));
  }
}

// delta_prepare does it for n rows.
static void delta_prepare(const delta_inputs *in, int64_t row, int64_t n, int64_t head, const prepared *p) {
  int64_t dim = in->key_dim, key_head = head / (in->value_heads / in->key_heads), keys = in->key_heads * dim;
  float root = 1.0f / sqrt1((float)dim);
  for (int64_t t = 0; t < n; t++) {
    const float *x = row_of(in->mixed, row + t) + key_head * dim;
    float *q = p->q + t * p->wide, *k = p->k + t * p->wide;
    normed(q, x, dim, root), normed(k, x + keys, dim, 1.0f);
    lanes s = lset(0.0f);
    EACH_16(dim) s = lfma(LOAD(q), LOAD(k), s);
    p->qk[t] = lsum(s);
  }
  delta_gates(in, row, n, head, p);
}

// delta_row goes through V vectors of a tile once: update brings it on by a row's e, k and δ, look gives m and p of the row after it.
INLINE void delta_row(const int V, const bool update, const bool look, const bool queries, float *s, int64_t rows, const float *k, vf e, const vf *delta, const float *next_k, const float *next_q, vf *m, vf *p) {
  vf a[4][DELTA_VECTORS], b[4][DELTA_VECTORS];
  UNROLL for (int c = 0; c < 4; c++)
    UNROLL for (int v = 0; v < V; v++) a[c][v] = b[c][v] = vset(0.0f);
  for (int64_t i = 0; i < rows; i += 4, s += 4 * DELTA_TILE)
    UNROLL for (int c = 0; c < 4; c++) {
      vf x[DELTA_VECTORS];
      UNROLL for (int v = 0; v < V; v++) x[v] = vload(s + c * DELTA_TILE + v * LANES);
      if (update) {
        vf y = vset(k[i + c]);
        UNROLL for (int v = 0; v < V; v++) x[v] = vfma(y, delta[v], e * x[v]);
        UNROLL for (int v = 0; v < V; v++) vstore(s + c * DELTA_TILE + v * LANES, x[v]);
      }
      if (look) {
        vf y = vset(next_k[i + c]);
        UNROLL for (int v = 0; v < V; v++) a[c][v] = vfma(y, x[v], a[c][v]);
        if (queries) {
          y = vset(next_q[i + c]);
          UNROLL for (int v = 0; v < V; v++) b[c][v] = vfma(y, x[v], b[c][v]);
        }
      }
    }
  if (!look) return;
  UNROLL for (int v = 0; v < V; v++) {
    m[v] = (a[0][v] + a[2][v]) + (a[1][v] + a[3][v]);
    p[v] = (b[0][v] + b[2][v]) + (b[1][v] + b[3][v]);
  }
}

// delta_columns takes a tile through n prepared rows; p->v has their values, and p->o gets the outputs if they are wanted.
INLINE void delta_columns(const bool outputs, const prepared *p, int64_t n, float *tile, int64_t rows) {
  enum { V = DELTA_VECTORS };
  for (int64_t at = 0; at < DELTA_TILE; at += V * LANES) {
    float *s = tile + at;
    vf m[V], pq[V], delta[V];
    delta_row(V, false, true, outputs, s, rows, NULL, vset(0.0f), delta, p->k, p->q, m, pq);
    for (int64_t t = 0; t < n; t++) {
      vf e = vset(p->e[t]), beta = vset(p->beta[t]), minus = vset(-p->e[t]), qk = vset(p->qk[t]);
      const float *v = p->v + t * DELTA_TILE + at, *k = p->k + t * p->wide;
      UNROLL for (int i = 0; i < V; i++) delta[i] = beta * vfma(minus, m[i], vload(v + i * LANES));
      if (outputs) {
        UNROLL for (int i = 0; i < V; i++) vstore(p->o + t * DELTA_TILE + at + i * LANES, vfma(qk, delta[i], e * pq[i]));
      }
      if (t + 1 < n) delta_row(V, true, true, outputs, s, rows, k, e, delta, k + p->wide, p->q + (t + 1) * p->wide, m, pq);
      else delta_row(V, true, false, outputs, s, rows, k, e, delta, NULL, NULL, m, pq);
    }
  }
}
static void delta_columns_outputs(const prepared *p, int64_t n, float *tile, int64_t rows) { delta_columns(true, p, n, tile, rows); }
static void delta_columns_alone(const prepared *p, int64_t n, float *tile, int64_t rows) { delta_columns(false, p, n, tile, rows); }

// delta_values brings the values of n rows of a head, columns from on, to p->v.
INLINE void delta_values(const delta_inputs *in, int64_t row, int64_t n, int64_t head, int64_t from, int64_t some, const prepared *p) {
  int64_t at = 2 * in->key_heads * in->key_dim + head * in->value_dim + from;
  if (some < DELTA_TILE) memset(p->v, 0, (size_t)(n * DELTA_TILE) * 4);
  for (int64_t t = 0; t < n; t++) memcpy(p->v + t * DELTA_TILE, row_of(in->mixed, row + t) + at, (size_t)some * 4);
}

static void delta_rule(const void *job, int64_t unit, worker *w) {
  const delta_job *j = job;
  const delta_inputs *in = &j->in;
  int64_t tiles = delta_tiles(in), parts = div_up(tiles, j->tiles_per_unit), head = unit / parts % in->value_heads;
  int64_t first = unit % parts * j->tiles_per_unit, last = first + j->tiles_per_unit < tiles ? first + j->tiles_per_unit : tiles;
  const state_run *run = j->runs + unit / parts / in->value_heads;
  int64_t dim = in->value_dim, rows = round_up(in->key_dim, 4), size = delta_tile_size(in);
  prepared p = delta_memory(in, w->memory);
  float *tile[2 * MAX_DELTA_DIM / DELTA_TILE], *own = p.o + DELTA_CHUNK * DELTA_TILE;
  if (p.wide > in->key_dim) memset(p.q, 0, (size_t)(2 * DELTA_CHUNK * p.wide) * 4);
  float *slot = run->slot < 0 ? NULL : row_of(j->states, run->slot) + head * in->key_dim * dim;
  for (int64_t i = first; i < last; i++) { // a whole tile is worked on where it is
    int64_t some = dim - i * DELTA_TILE < DELTA_TILE ? dim - i * DELTA_TILE : DELTA_TILE;
    float *from = slot ? slot + i * DELTA_TILE * in->key_dim : NULL;
    if (from && some == DELTA_TILE && rows == in->key_dim) {
      tile[i] = from;
      continue;
    }
    tile[i] = own + (i - first) * size;
    memset(tile[i], 0, (size_t)size * 4);
    for (int64_t r = 0; from && r < in->key_dim; r++) memcpy(tile[i] + r * DELTA_TILE, from + r * some, (size_t)some * 4);
  }
  for (int64_t t = 0; t < run->count; t += DELTA_CHUNK) {
    int64_t n = run->count - t < DELTA_CHUNK ? run->count - t : DELTA_CHUNK, row = run->row + t;
    delta_prepare(in, row, n, head, &p);
    for (int64_t i = first; i < last; i++) {
      int64_t from = i * DELTA_TILE, some = dim - from < DELTA_TILE ? dim - from : DELTA_TILE;
      delta_values(in, row, n, head, from, some, &p);
      delta_columns_outputs(&p, n, tile[i], rows);
      for (int64_t r = 0; r < n; r++) memcpy(row_of(j->o, row + r) + head * dim + from, p.o + r * DELTA_TILE, (size_t)some * 4);
    }
  }
  for (int64_t i = first; slot && i < last; i++) {
    int64_t some = dim - i * DELTA_TILE < DELTA_TILE ? dim - i * DELTA_TILE : DELTA_TILE;
    float *to = slot + i * DELTA_TILE * in->key_dim;
    if (tile[i] == to) continue;
    for (int64_t r = 0; r < in->key_dim; r++) memcpy(to + r * some, tile[i] + r * DELTA_TILE, (size_t)some * 4);
  }
}
