// The device as the operations see it.
#ifndef TINSMITH_CPU_DEVICE_H
#define TINSMITH_CPU_DEVICE_H

#include "jobs.h"
#include "threads.h"

struct device {
  const kernels *k;
  threads *t;
  int64_t linear_rows; // see product_job
  bool permutes_bytes;
  uintptr_t shared; // scratch that all threads of one operation see
  int64_t shared_bytes;
  struct part *parts; // of an operation on several matrices (products.c)
  int64_t parts_room;
  void *lists; // of an operation's products by expert (experts.c)
  int64_t lists_bytes;
  int64_t operations; // counts those whose rows every thread packs for itself
};

// shared_memory gives the device's scratch, at least so many bytes of undefined content; NULL when there is none. It lasts until the next call.
void *shared_memory(device *d, int64_t bytes);

// run_rows runs a job over rows of a. cost is nanoseconds per element of one thread.
int run_rows(device *d, unit_function f, rows_job *j, double cost);

// read_e4m3 writes a row of a matrix in eight bits as float32 (e4m3.c).
void read_e4m3(matrix m, int64_t row, float *to);

#endif
