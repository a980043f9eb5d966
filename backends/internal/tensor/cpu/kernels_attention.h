// Attention over pages of PAGE keys, forward and backward. Scores are a chain over the head's dimension, outputs a chain over the keys up to the row's own
// position. Included once per instruction set.

// read_part widens one head's K or V part of a page to float32; a float32 part is read where it is.
INLINE const float *read_part(const cache *p, int64_t layer, int64_t page, int64_t part, float *t) {
  int64_t n = PAGE * (part < p->heads ? p->head_dim : p->padded_dim), block = PAGE * (p->head_dim + p->padded_dim) * p->heads;
  int64_t at = (layer * p->count + page) * block + (part < p->heads ? part * PAGE * p->head_dim : p->heads * PAGE * p->head_dim + (part - p->heads) * PAGE * p->padded_dim);
  if (p->type == FLOAT32) return (const float *)p->addr + at;
  const uint16_t *from = (const uint16_t *)p->addr + at;
  for (int64_t i = 0; i < n; i++) t[i] = widen_bf16(from[i]);
  return t;
}

// masked_scores scales a row's scores; lanes of keys after the row's own become -Inf, whatever they held.
INLINE void scale_scores(float *s, float factor, int64_t keys) {
  for (int64_t i = 0; i < PAGE; i++) s[i] = i < keys ? s[i] * factor : -__builtin_inff();
}
INLINE float max64(const float *s) { return lmax1(lmax(lmax(lload(s), lload(s + 16)), lmax(lload(s + 32), lload(s + 48)))); }
INLINE float sum64(const float *s) { return lsum(ladd(ladd(lload(s), lload(s + 16)), ladd(lload(s + 32), lload(s + 48)))); }
INLINE void exp64(float *s, float minus) {
  lanes m = lset(minus);
  for (int i = 0; i < PAGE; i += 16) lstore(s + i, lexp(ladd(lload(s + i), m)));
}

// A unit is one query row and all query heads of one key head.
static void attention(const void *job, int64_t unit, worker *w) {
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim;
  int64_t head = unit % heads, index = unit / heads;
  const sequence *s = j->sequences;
  while (index >= s->count) index -= s->count, s++;
  int64_t position = s->first + index, row = s->row + index;
  float *part = w->memory, *o = part + PAGE * wide, *total = o + wide, score[PAGE];
  for (int64_t h = head * group; h < (head + 1) * group; h++) {
    const float *q = row_of(j->q, row) + h * dim;
    float top = -__builtin_inff(), sum = 0.0f, total_top = 0.0f, total_sum = 0.0f;
    memset(o, 0, (size_t)wide * 4);
    for (int64_t k0 = 0; k0 <= position; k0 += PAGE) {
      if (k0 % RESTART == 0 && k0 > 0) { // put the part that ended with those before it
        if (k0 == RESTART) {
          memcpy(total, o, (size_t)wide * 4), total_top = top, total_sum = sum;
        } else {
          float next = total_top > top ? total_top : top, x = exp1(total_top - next), y = exp1(top - next);
          for (int64_t i = 0; i < wide; i++) total[i] = total[i] * x + o[i] * y;
          total_sum = total_sum * x + sum * y, total_top = next;
        }
        memset(o, 0, (size_t)wide * 4), top = -__builtin_inff(), sum = 0.0f;
      }
      int64_t page = j->pages[s->first_page + k0 / PAGE], keys = position - k0 + 1 < PAGE ? position - k0 + 1 : PAGE;
      const float *k = read_part(p, j->layer, page, head, part);
      depth_outside(1, q, 1, k, PAGE, dim, score, PAGE, PAGE, true, NULL, 0);
      scale_scores(score, j->scale, keys);
      float m = max64(score), next = top > m ? top : m, fix = exp1(top - next);
      exp64(score, -next);
      sum = sum * fix + sum64(score), top = next;
      for (int64_t i = 0; i < wide; i++) o[i] *= fix;
      const float *v = read_part(p, j->layer, page, heads + head, part);
      scores_inside(1, score, 0, v, wide, keys, o, wide, wide, false, NULL, 0);
    }
    if (position >= RESTART) {
      float next = total_top > top ? total_top : top, x = exp1(total_top - next), y = exp1(top - next);
      for (int64_t i = 0; i < wide; i++) o[i] = total[i] * x + o[i] * y;
      sum = total_sum * x + sum * y, top = next;
    }
    float *out = row_of(j->o, row) + h * dim;
    for (int64_t i = 0; i < dim; i++) out[i] = o[i] / sum;
    if (j->lse.addr) row_of(j->lse, row)[h] = top + log1(sum);
  }
}

// A unit is one key head of one sequence: dk and dv of that head, dq of its query heads.
static void attention_backward(const void *job, int64_t unit, worker *w) {
  const attention_job *j = job;
  const cache *p = &j->p;
  int64_t heads = p->heads, group = j->query_heads / heads, dim = p->head_dim, wide = p->padded_dim, head = unit % heads;
  const sequence *s = j->sequences + unit / heads;
  float *kpart = w->memory, *vpart = kpart + PAGE * wide, *kt = vpart + PAGE * wide, *vt = kt + PAGE * wide, *dk = vt + PAGE * wide, *dv = dk + PAGE * wide;
  float *q = dv + PAGE * wide, *dout = q + wide, score[PAGE], dp[PAGE];
  for (int64_t r = 0; r < s->count; r++) memset(row_of(j->dq, s->row + r) + head * group * dim, 0, (size_t)(group * dim) * 4);
  for (int64_t k0 = 0; k0 < s->count; k0 += PAGE) {
    int64_t page = j->pages[s->first_page + k0 / PAGE], present = s->count - k0 < PAGE ? s->count - k0 : PAGE;
    const float *k = read_part(p, j->layer, page, head, kpart), *v = read_part(p, j->layer, page, heads + head, vpart);
    memset(kt, 0, (size_t)(PAGE * wide) * 4); // K as [key][dim], V as [dim][key]
    for (int64_t i = 0; i < PAGE; i++)
      for (int64_t d = 0; d < dim; d++) kt[i * wide + d] = k[d * PAGE + i], vt[d * PAGE + i] = v[i * wide + d];
    memset(dk, 0, (size_t)(2 * PAGE * wide) * 4);
    for (int64_t r = k0; r < s->count; r++) {
      int64_t keys = r - k0 + 1 < PAGE ? r - k0 + 1 : PAGE;
      for (int64_t h = head * group; h < (head + 1) * group; h++) {
        memset(q, 0, (size_t)(2 * wide) * 4);
        memcpy(q, row_of(j->q, s->row + r) + h * dim, (size_t)dim * 4);
        memcpy(dout, row_of(j->dout, s->row + r) + h * dim, (size_t)dim * 4);
        const float *o = row_of(j->o, s->row + r) + h * dim;
        lanes dot = lset(0.0f);
        EACH_16(dim) dot = lfma(LOAD(dout), LOAD(o), dot);
        float delta = lsum(dot);
        depth_outside(1, q, 1, k, PAGE, dim, score, PAGE, PAGE, true, NULL, 0);
        scale_scores(score, j->scale, keys);
        exp64(score, -row_of(j->lse, s->row + r)[h]);
        depth_outside(1, dout, 1, vt, PAGE, dim, dp, PAGE, PAGE, true, NULL, 0);
        for (int64_t i = 0; i < PAGE; i++) dp[i] = i < keys ? score[i] * (dp[i] - delta) * j->scale : 0.0f;
        for (int64_t i = 0; i < keys; i++) { // one row's share of every key
          depth_outside(1, score + i, 1, dout, wide, 1, dv + i * wide, wide, wide, false, NULL, 0);
          depth_outside(1, dp + i, 1, q, wide, 1, dk + i * wide, wide, wide, false, NULL, 0);
        }
        float *out = row_of(j->dq, s->row + r) + h * dim;
        scores_inside(1, dp, 0, kt, wide, keys, out, dim, dim, false, NULL, 0);
      }
    }
    for (int64_t i = 0; i < present; i++) {
      memcpy(row_of(j->dk, s->row + k0 + i) + head * dim, dk + i * wide, (size_t)dim * 4);
      memcpy(row_of(j->dv, s->row + k0 + i) + head * dim, dv + i * wide, (size_t)dim * 4);
    }
  }
}
