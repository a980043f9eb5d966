// A driver without a GPU: its devices have the properties of known GPUs, memory that only lists are kept in, and kernels that compute nothing.
#pragma once
#include "driver.h"

// absent_driver fills a zeroed driver. It has a device for each of absent_gpus, in their order.
void absent_driver(driver *d);
enum { ABSENT_GPUS = 4 };
typedef struct absent_gpu {
  const char *name;
  int major, minor, multiprocessors, shared; // shared: most dynamic shared memory of a block
  size_t memory;
} absent_gpu;
extern const absent_gpu absent_gpus[ABSENT_GPUS];
// absent_memory is where the memory at an address of a device of this driver really is.
const void *absent_memory(uint64_t address);
