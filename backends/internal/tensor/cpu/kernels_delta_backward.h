// The backward pass of the gated delta rule, in chunks of DELTA_CHUNK rows from the end of a sequence: what the recurrence did within a chunk are products of small matrices. Included once per instruction set.
//
// Of a chunk, with S the state before it and D the gradient by the state after it, rows of K and Q normed, G the sums of the decays' exponents from its first row on, γ = e^G, E[i][j] = e^(G[i]-G[j]) for j <= i, λ[j] = e^(G[last]-G[j]):
//   L = β·E·(K·Kᵀ) below the diagonal, X = V - γ·(K·S), (I+L)·Δ = β·X, P = E·(Q·Kᵀ), and then O = γ·(Q·S) + P·Δ, S' = γ[last]·S + Kᵀ·(λ·Δ).
// Exponents of differences are never above 0, so nothing overflows. The gradients are those of these formulas; their sums have an order of their own, which is fixed.

// products_inside is c (+)= a·b for a by rows of DELTA_CHUNK elements, products_outside for a by columns: element (r, k) is a[k·stride + r].
static void products_inside(int64_t rows, const float *a, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero) {
  for (int64_t r = 0; r < rows; r += TILE_ROWS)
    scores_inside(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, a + r * PAGE, 0, b, bk, depth, c + r * ldc, ldc, columns, zero, NULL, 0);
}
static void products_outside(int64_t rows, const float *a, int64_t stride, const float *b, int64_t bk, int64_t depth, float *c, int64_t ldc, int64_t columns, bool zero) {
  for (int64_t r = 0; r < rows; r += TILE_ROWS)
    depth_outside(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, a + r, stride, b, bk, depth, c + r * ldc, ldc, columns, zero, NULL, 0);
}

// turned writes rows × columns, multiples of four, the other way round.
static void turned(const float *from, int64_t stride, int64_t rows, int64_t columns, float *to, int64_t to_stride) {
  for (int64_t k = 0; k < rows; k += 4)
    for (int64_t n = 0; n < columns; n += 4) {
      const float *f = from + k * stride + n;
      v4 a = *(const v4 *)f, b = *(const v4 *)(f + stride), c = *(const v4 *)(f + 2 * stride), d = *(const v4 *)(f + 3 * stride);
      v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      v4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float *t = to + n * to_stride + k;
      *(v4 *)t = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
      *(v4 *)(t + to_stride) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
      *(v4 *)(t + 2 * to_stride) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
      *(v4 *)(t + 3 * to_stride) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
    }
}

// scaled writes rows times a factor each; y may be x.
INLINE void scaled(float *y, const float *x, const float *factors, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    vf f = vset(factors[r]);
    for (int64_t c = 0; c < columns; c += LANES) vstore(y + r * columns + c, vload(x + r * columns + c) * f);
  }
}
INLINE float row_dot(const float *a, const float *b, int64_t columns) { // columns are a multiple of 16
  lanes s = lset(0.0f);
  for (int64_t c = 0; c < columns; c += 16) s = lfma(lload(a + c), lload(b + c), s);
  return lsum(s);
}

enum { SQUARE = DELTA_CHUNK * DELTA_CHUNK };

// chunk is a worker's memory for one. Rows and columns that the sequence or its heads do not have are zero.
typedef struct {
  prepared p;
  int64_t keys, values;                              // columns, multiples of DELTA_TILE
  float *state;                                      // D by rows of values
  float *turned_state, *turned_before;               // of D and S, by rows of keys
  float *e, *l, *pp, *kk, *dl, *dp, *m;              // squares
  float *kt, *qt, *dq, *dk;                          // keys
  float *v, *x, *d, *dr, *dout, *ks, *qs, *scratch;  // values
  float *turned_rows;                                // of any of these
  float *gamma, *lambda, *dbeta, *dg;
} chunk;

static chunk chunk_memory(const delta_inputs *in, float *memory) {
  chunk c = {.p = delta_memory(in, memory), .keys = round_up(in->key_dim, DELTA_TILE), .values = round_up(in->value_dim, DELTA_TILE)};
  float *at = memory + delta_prepared_size(in);
  float **states[] = {&c.state, &c.turned_state, &c.turned_before}, **squares[] = {&c.e, &c.l, &c.pp, &c.kk, &c.dl, &c.dp, &c.m};
  float **keys[] = {&c.kt, &c.qt, &c.dq, &c.dk}, **values[] = {&c.v, &c.x, &c.d, &c.dr, &c.dout, &c.ks, &c.qs, &c.scratch, &c.turned_rows};
  float **rows[] = {&c.gamma, &c.lambda, &c.dbeta, &c.dg};
  for (size_t i = 0; i < 3; i++) *states[i] = at, at += c.keys * c.values;
  for (size_t i = 0; i < DELTA_SQUARES; i++) *squares[i] = at, at += SQUARE;
  for (size_t i = 0; i < 4; i++) *keys[i] = at, at += DELTA_CHUNK * c.keys;
  for (size_t i = 0; i < DELTA_VALUES; i++) *values[i] = at, at += DELTA_CHUNK * c.values;
  for (size_t i = 0; i < 4; i++) *rows[i] = at, at += 2 * DELTA_CHUNK;
  return c;
}

// with_state is c (+)= a·S, a by columns of 64, for a state in tiles.
static void with_state(const delta_inputs *in, int64_t n, const float *a, const float *s, float *c, int64_t values) {
  for (int64_t i = 0; i < delta_tiles(in); i++)
    products_outside(n, a, DELTA_CHUNK, s + i * delta_tile_size(in), DELTA_TILE, in->key_dim, c + i * DELTA_TILE, values, DELTA_TILE, true);
}

// chunk_forward computes what the gradients need of a chunk of n rows: L, P, E, K·Kᵀ, X, Δ, γ, λ, K·S and Q·S.
static void chunk_forward(const delta_job *j, int64_t row, int64_t n, int64_t head, const float *s, chunk *c) {
  const delta_inputs *in = &j->in;
  int64_t keys = c->keys, values = c->values, at = 2 * in->key_heads * in->key_dim + head * in->value_dim;
  memset(c->p.q + n * keys, 0, (size_t)((DELTA_CHUNK - n) * keys) * 4);
  memset(c->p.k + n * keys, 0, (size_t)((DELTA_CHUNK - n) * keys) * 4);
  delta_prepare(in, row, n, head, &c->p);
  for (int64_t t = 0; t < n; t++) {
    memcpy(c->v + t * values, row_of(in->mixed, row + t) + at, (size_t)in->value_dim * 4);
    memcpy(c->dout + t * values, row_of(j->dout, row + t) + head * in->value_dim, (size_t)in->value_dim * 4);
  }
  double sums[DELTA_CHUNK], sum = 0; // differences of float32 sums would be as coarse as the sums
  for (int64_t t = 0; t < n; t++) sums[t] = sum += (double)c->p.g[t];
  for (int64_t t = n; t < DELTA_CHUNK; t++) sums[t] = sum;
  for (int64_t t = 0; t < DELTA_CHUNK; t++) c->gamma[t] = (float)sums[t], c->lambda[t] = (float)(sum - sums[t]);
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < DELTA_CHUNK; k++) c->e[i * DELTA_CHUNK + k] = k <= i ? (float)(sums[i] - sums[k]) : -200.0f;
  for (int64_t i = 0; i < DELTA_CHUNK; i += LANES) vstore(c->gamma + i, vexp(vload(c->gamma + i))), vstore(c->lambda + i, vexp(vload(c->lambda + i)));
  for (int64_t i = 0; i < n * DELTA_CHUNK; i += LANES) {
    vf x = vload(c->e + i);
    vstore(c->e + i, vselect((vi)(x > vset(-199.0f)), vexp(x), vset(0.0f)));
  }
  turned(c->p.k, keys, DELTA_CHUNK, keys, c->kt, DELTA_CHUNK);
  turned(c->p.q, keys, DELTA_CHUNK, keys, c->qt, DELTA_CHUNK);
  products_outside(n, c->kt, DELTA_CHUNK, c->kt, DELTA_CHUNK, in->key_dim, c->kk, DELTA_CHUNK, DELTA_CHUNK, true);
  products_outside(n, c->qt, DELTA_CHUNK, c->kt, DELTA_CHUNK, in->key_dim, c->pp, DELTA_CHUNK, DELTA_CHUNK, true);
  with_state(in, n, c->kt, s, c->ks, values);
  with_state(in, n, c->qt, s, c->qs, values);
  for (int64_t i = 0; i < n; i++) {
    vf beta = vset(c->p.beta[i]), minus = vset(-c->gamma[i]);
    for (int64_t k = 0; k < DELTA_CHUNK; k += LANES) {
      int64_t ik = i * DELTA_CHUNK + k;
      vf e = vload(c->e + ik);
      vstore(c->pp + ik, e * vload(c->pp + ik));
      vstore(c->l + ik, beta * (e * vload(c->kk + ik)));
    }
    for (int64_t k = i; k < DELTA_CHUNK; k++) c->l[i * DELTA_CHUNK + k] = 0.0f;
    for (int64_t k = 0; k < values; k += LANES) {
      vf x = vfma(minus, vload(c->ks + i * values + k), vload(c->v + i * values + k));
      vstore(c->x + i * values + k, x);
      vstore(c->d + i * values + k, beta * x);
    }
  }
  for (int64_t i = 1; i < n; i++) // (I+L)⁻¹, row by row
    for (int64_t k = 0; k < values; k += 32) {
      vf s[32 / LANES];
      UNROLL for (int v = 0; v < 32 / LANES; v++) s[v] = vload(c->d + i * values + k + v * LANES);
      for (int64_t r = 0; r < i; r++) {
        vf minus = vset(-c->l[i * DELTA_CHUNK + r]);
        UNROLL for (int v = 0; v < 32 / LANES; v++) s[v] = vfma(minus, vload(c->d + r * values + k + v * LANES), s[v]);
      }
      UNROLL for (int v = 0; v < 32 / LANES; v++) vstore(c->d + i * values + k + v * LANES, s[v]);
    }
}

// square_row adds to the sums of W = dP·P + dL·L and makes M and dP·E of a row: columns up to its own of dP, and before it of dL.
INLINE void square_row(chunk *c, int64_t i, lanes *rows, lanes *beta_sum, float *columns) {
  int64_t at = i * DELTA_CHUNK;
  vf beta = vset(c->p.beta[i]);
  for (int64_t k = 0; k < DELTA_CHUNK; k++) {
    if (k >= i) c->dl[at + k] = 0.0f;
    if (k > i) c->dp[at + k] = 0.0f;
  }
  for (int64_t k = 0; k < DELTA_CHUNK; k += 16) {
    lanes e = lload(c->e + at + k), dl = lload(c->dl + at + k), dp = lload(c->dp + at + k), dle, zero = lset(0.0f);
    EACH_PART dl.v[i] = zero.v[i] - dl.v[i]; // dL = -(dR·Δᵀ)
    dle = lmul(dl, e);
    *beta_sum = lfma(dle, lload(c->kk + at + k), *beta_sum);
    lanes weights = lfma(dp, lload(c->pp + at + k), lmul(dl, lload(c->l + at + k))), b;
    EACH_PART b.v[i] = beta;
    if (i >= k && i < k + 16) { // the diagonal is of a row and of a column, with opposite signs
      float each[16];
      lstore(each, weights);
      each[i - k] = 0.0f;
      weights = lload(each);
    }
    *rows = ladd(*rows, weights);
    lstore(columns + k, ladd(lload(columns + k), weights));
    lstore(c->m + at + k, lmul(dle, b));
    lstore(c->dp + at + k, lmul(dp, e));
  }
}

// chunk_backward turns c->state, the gradient by the state after a chunk of n rows, into that by the state before it, and leaves the gradients by its normed queries and keys, values, β and g in c.
static void chunk_backward(const delta_inputs *in, int64_t n, const float *s, chunk *c) {
  enum { C = DELTA_CHUNK };
  int64_t keys = c->keys, values = c->values, tiles = delta_tiles(in), rows = round_up(n, 4);
  const float *beta = c->p.beta;
  for (int64_t i = 0; i < tiles; i++) turned(s + i * delta_tile_size(in), DELTA_TILE, round_up(in->key_dim, 4), DELTA_TILE, c->turned_before + i * DELTA_TILE * keys, keys);
  turned(c->state, values, keys, values, c->turned_state, keys);
  // dΔ = Pᵀ·dO + λ·(K·D), dR = (I+L)⁻ᵀ·dΔ
  products_outside(n, c->kt, C, c->state, values, in->key_dim, c->dr, values, values, true);
  scaled(c->dr, c->dr, c->lambda, n, values);
  products_outside(n, c->pp, C, c->dout, values, n, c->dr, values, values, false);
  for (int64_t i = n - 2; i >= 0; i--)
    for (int64_t k = 0; k < values; k += 32) {
      vf x[32 / LANES];
      UNROLL for (int v = 0; v < 32 / LANES; v++) x[v] = vload(c->dr + i * values + k + v * LANES);
      for (int64_t r = n - 1; r > i; r--) {
        vf minus = vset(-c->l[r * C + i]);
        UNROLL for (int v = 0; v < 32 / LANES; v++) x[v] = vfma(minus, vload(c->dr + r * values + k + v * LANES), x[v]);
      }
      UNROLL for (int v = 0; v < 32 / LANES; v++) vstore(c->dr + i * values + k + v * LANES, x[v]);
    }
  // dL = -dR·Δᵀ and dP = dO·Δᵀ
  float *turned_d = c->scratch;
  turned(c->d, values, rows, values, turned_d, C);
  turned(c->dr, values, rows, values, c->turned_rows, C);
  products_outside(n, c->turned_rows, C, turned_d, C, in->value_dim, c->dl, C, C, true);
  turned(c->dout, values, rows, values, c->turned_rows, C);
  products_outside(n, c->turned_rows, C, turned_d, C, in->value_dim, c->dp, C, C, true);
  // dQ = γ·(dO·Sᵀ) + (dP·E)·K, whose first part is made while dO is turned
  products_outside(n, c->turned_rows, C, c->turned_before, keys, in->value_dim, c->dq, keys, keys, true);
  scaled(c->dq, c->dq, c->gamma, n, keys);
  // dK begins with λ·(Δ·Dᵀ), which G needs too
  products_outside(n, turned_d, C, c->turned_state, keys, in->value_dim, c->dk, keys, keys, true);
  scaled(c->dk, c->dk, c->lambda, n, keys);
  float columns[C] = {0}, by_row[C], last = 0.0f;
  for (int64_t i = 0; i < n; i++) {
    lanes sums = lset(0.0f), beta_sum = lset(0.0f);
    square_row(c, i, &sums, &beta_sum, columns);
    c->dbeta[i] = row_dot(c->dr + i * values, c->x + i * values, values) + lsum(beta_sum);
    by_row[i] = lsum(sums);
  }
  scaled(c->dr, c->dr, beta, n, values); // dX, which is dV
  for (int64_t i = 0; i < n; i++) {
    float kept = i + 1 < n ? row_dot(c->p.k + i * keys, c->dk + i * keys, keys) : 0.0f; // the last one's would be added and taken away
    float state = row_dot(c->dout + i * values, c->qs + i * values, values) - row_dot(c->dr + i * values, c->ks + i * values, values);
    c->dg[i] = (by_row[i] - columns[i]) + (c->gamma[i] * state - kept);
    last += kept;
  }
  lanes both = lset(0.0f);
  for (int64_t i = 0; i < tiles; i++)
    for (int64_t r = 0; r < in->key_dim; r++)
      for (int64_t k = 0; k < DELTA_TILE; k += 16) both = lfma(lload(s + i * delta_tile_size(in) + r * DELTA_TILE + k), lload(c->state + r * values + i * DELTA_TILE + k), both);
  c->dg[n - 1] += last + c->gamma[n - 1] * lsum(both);
  double sum = 0; // of a whole chunk's terms, which cancel
  for (int64_t i = n - 1; i >= 0; i--) sum += (double)c->dg[i], c->dg[i] = (float)sum;
  products_inside(n, c->dp, c->p.k, keys, n, c->dq, keys, keys, false);
  products_outside(n, c->dp, C, c->p.q, keys, n, c->dk, keys, keys, false);
  products_inside(n, c->m, c->p.k, keys, n, c->dk, keys, keys, false);
  products_outside(n, c->m, C, c->p.k, keys, n, c->dk, keys, keys, false);
  float minus[C];
  for (int64_t i = 0; i < C; i++) minus[i] = -c->gamma[i];
  scaled(c->x, c->dr, minus, n, values); // -γ·dX
  turned(c->x, values, rows, values, c->turned_rows, C);
  products_outside(n, c->turned_rows, C, c->turned_before, keys, in->value_dim, c->dk, keys, keys, false);
  // D = γ[last]·D + Qᵀ·(γ·dO) - Kᵀ·(γ·dX)
  scaled(c->scratch, c->dout, c->gamma, n, values);
  vf all = vset(c->gamma[n - 1]);
  for (int64_t i = 0; i < keys * values; i += LANES) vstore(c->state + i, vload(c->state + i) * all);
  products_outside(in->key_dim, c->p.q, keys, c->scratch, values, n, c->state, values, values, false);
  products_outside(in->key_dim, c->p.k, keys, c->x, values, n, c->state, values, values, false);
}

// replay takes a state through n chunks from a row on, and keeps what it is before each, one behind another.
static void replay(const delta_inputs *in, int64_t row, int64_t rows, int64_t head, float *s, float *kept, const prepared *p) {
  int64_t size = delta_state_size(in);
  for (int64_t t = 0; t < rows; t += DELTA_CHUNK) {
    int64_t n = rows - t < DELTA_CHUNK ? rows - t : DELTA_CHUNK;
    if (kept) memcpy(kept + t / DELTA_CHUNK * size, s, (size_t)size * 4);
    if (kept && t + n >= rows) return; // nobody asks for the state behind them
    delta_prepare(in, row + t, n, head, p);
    for (int64_t i = 0; i < delta_tiles(in); i++) {
      int64_t from = i * DELTA_TILE, some = in->value_dim - from < DELTA_TILE ? in->value_dim - from : DELTA_TILE;
      delta_values(in, row + t, n, head, from, some, p);
      delta_columns_alone(p, n, s + i * delta_tile_size(in), round_up(in->key_dim, 4));
    }
  }
}

// put_chunk writes a chunk's gradients; those by a key head's normed queries and keys are summed over its value heads, of which first is the first.
static void put_chunk(const delta_job *j, int64_t row, int64_t n, int64_t head, bool first, const chunk *c) {
  const delta_inputs *in = &j->in;
  int64_t dim = in->key_dim, key_head = head / (in->value_heads / in->key_heads), keys = in->key_heads * dim;
  float rate = -exp1(row_of(in->a_log, 0)[head]), bias = row_of(in->bias, 0)[head];
  for (int64_t t = 0; t < n; t++) {
    float *to = row_of(j->dmixed, row + t), *dq = to + key_head * dim, *dk = dq + keys;
    const float *q = c->dq + t * c->keys, *k = c->dk + t * c->keys;
    if (first) memcpy(dq, q, (size_t)dim * 4), memcpy(dk, k, (size_t)dim * 4);
    else for (int64_t i = 0; i < dim; i++) dq[i] += q[i], dk[i] += k[i];
    memcpy(to + 2 * keys + head * in->value_dim, c->dr + t * c->values, (size_t)in->value_dim * 4);
    float beta = c->p.beta[t], y = row_of(in->a, row + t)[head] + bias;
    row_of(j->db, row + t)[head] = c->dbeta[t] * (beta * (1.0f - beta));
    row_of(j->da, row + t)[head] = c->dg[t] * rate * (1.0f / (1.0f + exp1(-y)));
  }
}

// norm_gradient turns the gradient by x·inverse, of which inverse is (Σx²+1e-6)^-½·factor, into that by x.
INLINE void norm_gradient(float *d, const float *x, int64_t cols, float factor) {
  lanes s = lset(0.0f), both = lset(0.0f);
  EACH_16(cols) {
    lanes v = LOAD(x);
    s = lfma(v, v, s);
    both = lfma(v, LOAD(d), both);
  }
  float inverse = 1.0f / sqrt1(lsum(s) + 1e-6f), minus = -(lsum(both) * inverse * inverse);
  lanes m = lset(minus), f = lset(inverse * factor);
  EACH_16(cols) STORE(d, lmul(lfma(LOAD(x), m, LOAD(d)), f));
}

static void delta_rule_backward(const void *job, int64_t unit, worker *w) {
  const delta_job *j = job;
  const delta_inputs *in = &j->in;
  int64_t key_head = unit % in->key_heads, group = in->value_heads / in->key_heads, size = delta_state_size(in);
  const state_run *run = j->runs + unit / in->key_heads;
  const int64_t span = REPLAY_CHUNKS * DELTA_CHUNK, spans = div_up(run->count, span);
  chunk c = chunk_memory(in, w->memory);
  // What the sequence and its heads do not fill stays zero: nothing writes there.
  memset(w->memory, 0, (size_t)(c.gamma + 8 * DELTA_CHUNK - (float *)w->memory) * 4);
  float *now = c.gamma + 8 * DELTA_CHUNK, *before_spans = now + size, *before_chunks = before_spans + spans * size;
  for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
    memset(now, 0, (size_t)size * 4);
    for (int64_t i = 0; i < spans; i++) { // two levels, so that a long sequence's states are few
      memcpy(before_spans + i * size, now, (size_t)size * 4);
      if (i + 1 < spans) replay(in, run->row + i * span, span, head, now, NULL, &c.p);
    }
    memset(c.state, 0, (size_t)(c.keys * c.values) * 4);
    for (int64_t i = spans - 1; i >= 0; i--) {
      int64_t from = i * span, rows = run->count - from < span ? run->count - from : span;
      memcpy(now, before_spans + i * size, (size_t)size * 4);
      replay(in, run->row + from, rows, head, now, before_chunks, &c.p);
      for (int64_t t = (rows - 1) / DELTA_CHUNK * DELTA_CHUNK; t >= 0; t -= DELTA_CHUNK) {
        int64_t n = rows - t < DELTA_CHUNK ? rows - t : DELTA_CHUNK, row = run->row + from + t;
        const float *s = before_chunks + t / DELTA_CHUNK * size;
        chunk_forward(j, row, n, head, s, &c);
        chunk_backward(in, n, s, &c);
        put_chunk(j, row, n, head, head == key_head * group, &c);
      }
    }
  }
  float root = 1.0f / sqrt1((float)in->key_dim);
  int64_t keys = in->key_heads * in->key_dim;
  for (int64_t t = 0; t < run->count; t++) {
    float *d = row_of(j->dmixed, run->row + t) + key_head * in->key_dim;
    const float *x = row_of(in->mixed, run->row + t) + key_head * in->key_dim;
    norm_gradient(d, x, in->key_dim, root);
    norm_gradient(d + keys, x + keys, in->key_dim, 1.0f);
  }
}
