// Products of bfloat16 weights by tiles (AMX): what the operations and the table of kernels know of kernels_amx_amd64.c.
#ifndef TINSMITH_CPU_AMX_H
#define TINSMITH_CPU_AMX_H

#include "jobs.h"

enum { AMX_ROWS = 16, AMX_GROUP = 32 };                 // rows of a tile, and elements of the inner axis that it has
enum { AMX_STRIP = 2 * AMX_ROWS };                      // rows that are multiplied at once; so many at most are few
enum { AMX_TILE_BYTES = AMX_ROWS * AMX_GROUP * 2 };     // of packed rows
enum { AMX_DEPTH = 256 };                               // inner axis of a block of weights, in elements; whole panels
enum { AMX_SCRATCH = AMX_DEPTH + 2 * AMX_GROUP };       // of which a worker's memory has room for PANEL columns, in bfloat16

enum { AMX_PEAK_TILES = PEAK_STEPS, AMX_PEAK_PAIRS = AMX_PEAK_TILES * AMX_ROWS * AMX_ROWS * AMX_GROUP }; // of a unit of the ceiling

// amx_groups is how many groups the inner axis has: each segment begins with a new one, and its last one is filled up with zeros.
static inline int64_t amx_groups(const segments *cut) {
  int64_t n = 0;
  for (int64_t s = 0, from = 0; s < cut->count; from = cut->ends[s++]) n += div_up(cut->ends[s] - from, AMX_GROUP);
  return n;
}

void pack_amx(const void *job, int64_t unit, worker *w);
void matmul_amx(const void *job, int64_t unit, worker *w);
void matmul_amx_few(const void *job, int64_t unit, worker *w);
void matmul_amx_transposed(const void *job, int64_t unit, worker *w);
void peak_amx(const void *job, int64_t unit, worker *w);

#endif
