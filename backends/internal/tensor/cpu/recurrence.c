// The operations of layers with a state, see tensor.Recurrence: each puts its arguments into a job, cuts it into units and has the threads run it.
#include "device.h"

static int64_t state_rows(const state_run *runs, int64_t n) {
  int64_t rows = 0;
  for (int64_t i = 0; i < n; i++) rows += runs[i].count;
  return rows;
}

int op_conv(device *d, view y, view x, view weight, view tails, const state_run *runs, int64_t n) {
  conv_job j = {.y = y, .x = x, .weight = weight, .tails = tails, .runs = runs};
  threads_run(d->t, d->k->conv, &j, n * div_up(x.cols, CONV_TILE), (double)state_rows(runs, n) * (double)x.cols * 1.5);
  return 0;
}
int op_conv_backward(device *d, view dx, view dy, view x, view weight, const state_run *runs, int64_t n) {
  conv_job j = {.y = dx, .dy = dy, .x = x, .weight = weight, .runs = runs};
  threads_run(d->t, d->k->conv_backward, &j, n * div_up(x.cols, CONV_TILE), (double)state_rows(runs, n) * (double)x.cols * 2.5);
  return 0;
}

// delta_work is about how many nanoseconds one thread takes for so many rows of all heads, when it takes so many for an element of a state.
static double delta_work(const delta_inputs *in, int64_t rows, double each) {
  return (double)rows * (double)in->value_heads * (double)in->key_dim * (double)in->value_dim * each;
}
int op_delta_rule(device *d, view o, delta_inputs in, view states, const state_run *runs, int64_t n) {
  int64_t tiles = delta_tiles(&in), units = n * in.value_heads;
  delta_job j = {.in = in, .o = o, .states = states, .runs = runs, .tiles_per_unit = units < 4 * threads_count(d->t) ? 1 : tiles};
  if (threads_reserve(d->t, 4 * (delta_prepared_size(&in) + delta_state_size(&in)))) return -1;
  threads_run(d->t, d->k->delta_rule, &j, units * div_up(tiles, j.tiles_per_unit), delta_work(&in, state_rows(runs, n), 0.1));
  return 0;
}
int op_delta_rule_backward(device *d, view dmixed, view da, view db, view dout, delta_inputs in, const state_run *runs, int64_t n) {
  delta_job j = {.in = in, .dmixed = dmixed, .da = da, .db = db, .dout = dout, .runs = runs};
  int64_t longest = 0;
  for (int64_t i = 0; i < n; i++) longest = runs[i].count > longest ? runs[i].count : longest;
  if (threads_reserve(d->t, 4 * delta_backward_size(&in, longest))) return -1;
  threads_run(d->t, d->k->delta_rule_backward, &j, n * in.key_heads, delta_work(&in, state_rows(runs, n), 0.5));
  return 0;
}

int op_gated_norm(device *d, view y, view x, view z, view weight, float eps) {
  rows_job j = {.a = y, .b = x, .c = z, .d = weight, .x = eps};
  return run_rows(d, d->k->gated_norm, &j, 1.4);
}
int op_gated_norm_backward(device *d, view dx, view dz, view dy, view x, view z, view weight, float eps) {
  rows_job j = {.a = dx, .b = dz, .c = dy, .d = x, .e = z, .values = row_of(weight, 0), .x = eps};
  return run_rows(d, d->k->gated_norm_backward, &j, 2);
}
int op_sigmoid_gate(device *d, view y, view x, view gate) {
  rows_job j = {.a = y, .b = x, .c = gate};
  return run_rows(d, d->k->sigmoid_gate, &j, 1);
}
int op_sigmoid_gate_backward(device *d, view dx, view dgate, view dy, view x, view gate) {
  rows_job j = {.a = dx, .b = dgate, .c = dy, .d = x, .e = gate};
  return run_rows(d, d->k->sigmoid_gate_backward, &j, 1.5);
}
