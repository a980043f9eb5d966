// NCCL through a table of function pointers, as driver.h has the driver. Types and numbers are those of nccl.h, whose binary interface is stable within version 2.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

typedef int nccl_result;

#define NCCL_FUNCTIONS(X) \
  X(nccl_result, ncclGetVersion, (int *version)) \
  X(const char *, ncclGetErrorString, (nccl_result code)) \
  X(nccl_result, ncclCommInitAll, (void **communicators, int count, const int *devices)) \
  X(nccl_result, ncclCommDestroy, (void *communicator)) \
  X(nccl_result, ncclCommAbort, (void *communicator)) \
  X(nccl_result, ncclAllGather, (const void *from, void *to, size_t count, int type, void *communicator, void *stream)) \
  X(nccl_result, ncclBroadcast, (const void *from, void *to, size_t count, int type, int root, void *communicator, void *stream)) \
  X(nccl_result, ncclSend, (const void *from, size_t count, int type, int peer, void *communicator, void *stream)) \
  X(nccl_result, ncclRecv, (void *to, size_t count, int type, int peer, void *communicator, void *stream)) \
  X(nccl_result, ncclGroupStart, (void)) \
  X(nccl_result, ncclGroupEnd, (void))

typedef struct nccl {
  void *library;
#define NCCL_POINTER(result, name, arguments) result(*name) arguments;
  NCCL_FUNCTIONS(NCCL_POINTER)
#undef NCCL_POINTER
} nccl;

#define NCCL_ONE(result, name, arguments) +1
enum { NCCL_FUNCTION_COUNT = 0 NCCL_FUNCTIONS(NCCL_ONE) };
#undef NCCL_ONE
extern const library_function nccl_functions[NCCL_FUNCTION_COUNT];

nccl_result nccl_version(const nccl *n, int *version); // also of a library that lacks functions
const char *nccl_error_text(const nccl *n, nccl_result code);
// Every function below makes the device's context current first, as those of driver.h do: nccl_init that of one of the group's devices, the others that of the communicator's.
nccl_result nccl_init(const nccl *n, const device *v, void **communicators, int count, const int *devices);
nccl_result nccl_destroy(const nccl *n, const device *v, void *communicator);
nccl_result nccl_abort(const nccl *n, const device *v, void *communicator);
// All values are float32; count is their number. They come after what the device's stream has before them.
nccl_result nccl_all_gather(const nccl *n, const device *v, void *communicator, uint64_t to, uint64_t from, size_t count);
// Part p of from (count values each) goes to rank p, and what rank p sends becomes part p of to.
nccl_result nccl_all_to_all(const nccl *n, const device *v, void *communicator, int ranks, uint64_t to, uint64_t from, size_t count);
nccl_result nccl_broadcast(const nccl *n, const device *v, void *communicator, uint64_t at, size_t count, int root);
nccl_result nccl_send(const nccl *n, const device *v, void *communicator, uint64_t from, size_t count, int to);
nccl_result nccl_receive(const nccl *n, const device *v, void *communicator, uint64_t to, size_t count, int from);
