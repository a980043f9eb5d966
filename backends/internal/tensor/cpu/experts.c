// Mixtures of experts: a token's slots are rows of a table, sorted by expert, and the products of all experts are those of one operation.
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT_ELEMENTS = 16384 };

// run_rows_of is run_rows for rows whose work is that of so many elements each.
static int run_rows_of(device *d, unit_function f, rows_job *j, int64_t elements, double cost) {
  if (!j->a.rows || !elements) return 0;
  j->rows_per_unit = UNIT_ELEMENTS / elements > 1 ? UNIT_ELEMENTS / elements : 1;
  threads_run(d->t, f, j, div_up(j->a.rows, j->rows_per_unit), (double)j->a.rows * (double)elements * cost);
  return 0;
}

int op_route(device *d, view choice, view p, view logits, bool normalise) {
  rows_job j = {.a = choice, .b = p, .c = logits, .flag = normalise};
  return run_rows_of(d, d->k->route, &j, logits.cols, 2);
}
int op_route_backward(device *d, view dlogits, view dp, view p, view choice, view logits, bool normalise) {
  rows_job j = {.a = dlogits, .b = dp, .c = p, .d = choice, .e = logits, .flag = normalise};
  return run_rows_of(d, d->k->route_backward, &j, logits.cols, 1);
}

// The parts of a table.
static int32_t *table_first(table t) { return (int32_t *)t.words; }                              // the first row of each expert, and the number of rows
static int32_t *table_tokens(table t) { return table_first(t) + t.experts + 1; }                 // of rows
static int32_t *table_slots(table t) { return table_tokens(t) + t.tokens * t.slots; }            // of rows
static int32_t *table_rows(table t) { return table_slots(t) + t.tokens * t.slots; }              // of slots

// op_dispatch counts the slots of each expert, then puts them in their places in the order of tokens: a stable sort.
int op_dispatch(device *d, table t, view choice) {
  (void)d;
  int32_t *first = table_first(t), *tokens = table_tokens(t), *slots = table_slots(t), *rows = table_rows(t);
  memset(first, 0, (size_t)(t.experts + 1) * sizeof *first);
  for (int64_t token = 0; token < t.tokens; token++) {
    const int32_t *chosen = (const int32_t *)row_of(choice, token);
    for (int64_t s = 0; s < t.slots; s++)
      if (chosen[s] < 0 || chosen[s] >= t.experts) return 1; // not a choice: nothing may be written by it
      else first[chosen[s] + 1]++;
  }
  for (int64_t e = 0; e < t.experts; e++) first[e + 1] += first[e];
  for (int64_t token = 0; token < t.tokens; token++) { // first[e] is expert e's next row meanwhile
    const int32_t *chosen = (const int32_t *)row_of(choice, token);
    for (int64_t s = 0; s < t.slots; s++) {
      int32_t row = first[chosen[s]]++, slot = (int32_t)(token * t.slots + s);
      tokens[row] = (int32_t)token, slots[row] = slot, rows[slot] = row;
    }
  }
  for (int64_t e = t.experts; e > 0; e--) first[e] = first[e - 1];
  first[0] = 0;
  return 0;
}

// row_of_token is the first of an expert's rows [from, to) that is of a token or a later one.
static int64_t row_of_token(const int32_t *tokens, int64_t from, int64_t to, int64_t token) {
  while (from < to) {
    int64_t middle = (from + to) / 2;
    if (tokens[middle] < token) from = middle + 1;
    else to = middle;
  }
  return from;
}

static view rows_between(view v, int64_t from, int64_t to) {
  v.addr += (uintptr_t)(from * v.stride) * (v.type == BFLOAT16 ? 2 : 4);
  v.rows = to - from;
  return v;
}

static void *lists_memory(device *d, int64_t bytes) {
  if (d->lists_bytes < bytes) {
    void *p = realloc(d->lists, (size_t)bytes);
    if (!p) return NULL;
    d->lists = p, d->lists_bytes = bytes;
  }
  return d->lists;
}

// op_routed has the products of an expert side by side: those that read the same rows pack them once.
int op_routed(device *d, table t, const routed_product *products, int64_t n, const routed_group *groups) {
  const int32_t *first = table_first(t), *tokens = table_tokens(t);
  product *list = lists_memory(d, (t.to - t.from + 1) * products[n - 1].groups_end * (int64_t)sizeof *list);
  if (!list) return -1;
  int64_t count = 0;
  for (int64_t e = t.from; e < t.to; e++) {
    if (first[e] == first[e + 1]) continue;
    for (int64_t i = 0, g = 0; i < n; i++) {
      const routed_product *p = products + i;
      for (; g < p->groups_end; g++) {
        int64_t from = row_of_token(tokens, first[e], first[e + 1], groups[g].from), to = row_of_token(tokens, from, first[e + 1], groups[g].to);
        if (from == to) continue;
        product *q = list + count++;
        *q = (product){.y = rows_between(p->y, from, to), .x = p->x, .w = groups[g].w, .factor = groups[g].factor, .round = groups[g].round, .accumulate = p->accumulate, .transposed = p->transposed, .cut = p->cut, .continues = p->continues};
        q->w.addr += (uintptr_t)(e * groups[g].apart);
        if (p->gathered) q->x.index = (uintptr_t)(tokens + from), q->x.rows = to - from;
        else q->x = rows_between(p->x, from, to);
      }
    }
  }
  return count ? op_products(d, list, count) : 0;
}

int op_outer_routed(device *d, table t, const routed_outer *products, int64_t n) {
  const int32_t *first = table_first(t), *tokens = table_tokens(t);
  outer_product *list = lists_memory(d, (t.to - t.from + 1) * n * (int64_t)sizeof *list);
  if (!list) return -1;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    const routed_outer *p = products + i;
    for (int64_t e = t.from; e < t.to; e++) {
      int64_t from = row_of_token(tokens, first[e], first[e + 1], p->from), to = row_of_token(tokens, from, first[e + 1], p->to);
      view g = rows_between(p->g, e * p->a.cols, (e + 1) * p->a.cols);
      if (from < to) list[count++] = (outer_product){.g = g, .a = rows_between(p->a, from, to), .b = rows_between(p->b, from, to), .first = p->first};
      else if (p->first)
        for (int64_t r = 0; r < g.rows; r++) memset(row_of(g, r), 0, (size_t)g.cols * 4);
    }
  }
  return count ? op_outers(d, list, count) : 0;
}

int op_spread(device *d, view rows, view x, view p, table t, bool gathered) {
  rows_job j = {.a = rows, .b = x, .c = p, .index = table_tokens(t), .heads = t.slots, .flag = gathered};
  return run_rows_of(d, d->k->spread, &j, rows.cols, 0.3);
}
int op_combine(device *d, view y, view rows, view p, table t, bool accumulate) {
  rows_job j = {.a = y, .b = rows, .c = p, .index = table_rows(t), .heads = t.slots, .flag = accumulate};
  return run_rows_of(d, d->k->combine, &j, y.cols * t.slots, 0.3);
}
int op_combine_backward(device *d, view dp, view drows, view h, view p, table t, segments cut) {
  rows_job j = {.a = drows, .b = h, .c = p, .d = dp, .index = table_slots(t), .heads = t.slots, .cut = cut};
  if (!cut.count) j.cut = (segments){1, {(int32_t)drows.cols}};
  return run_rows_of(d, d->k->combine_backward, &j, drows.cols, 0.5);
}

int op_sink(device *d, view o, view lse, view sinks) {
  rows_job j = {.a = o, .b = lse, .c = sinks};
  return run_rows_of(d, d->k->sink, &j, o.cols, 0.5);
}
int op_swiglu_clamped(device *d, view y, view gate, view up, float alpha, float limit) {
  rows_job j = {.a = y, .b = gate, .c = up, .x = alpha, .limit = limit};
  return run_rows_of(d, d->k->swiglu_clamped, &j, y.cols, 1);
}
int op_swiglu_clamped_backward(device *d, view dgate, view dup, view dy, view gate, view up, float alpha, float limit) {
  rows_job j = {.a = dgate, .b = dup, .c = dy, .d = gate, .e = up, .x = alpha, .limit = limit};
  return run_rows_of(d, d->k->swiglu_clamped_backward, &j, dy.cols, 1.5);
}
int op_add_routed(device *d, view rows, view bias, table t) {
  rows_job j = {.a = rows, .b = bias, .index = table_first(t)};
  return run_rows_of(d, d->k->add_routed, &j, rows.cols, 0.3);
}
int op_add_routed_backward(device *d, view dp, view dy, view bias, view choice) {
  rows_job j = {.a = dp, .b = dy, .c = bias, .d = choice};
  return run_rows_of(d, d->k->add_routed_backward, &j, dy.cols * dp.cols, 0.3);
}
