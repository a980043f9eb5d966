#include "nccl.h"

enum { FLOAT32_VALUES = 7, UNHANDLED_CUDA_ERROR = 1 }; // ncclFloat32, ncclUnhandledCudaError

// On a thread without a context the CUDA runtime in the library would make GPU 0's, which may be none of ours.
#define CURRENT(v) \
  if ((v)->d->cuCtxSetCurrent((v)->context)) return UNHANDLED_CUDA_ERROR

#define NEEDED(result, name, arguments) {#name, offsetof(nccl, name), 0},
const library_function nccl_functions[NCCL_FUNCTION_COUNT] = {NCCL_FUNCTIONS(NEEDED)};
#undef NEEDED

nccl_result nccl_version(const nccl *n, int *version) {
  enum { INTERNAL_ERROR = 3 };
  return n->ncclGetVersion ? n->ncclGetVersion(version) : INTERNAL_ERROR;
}
const char *nccl_error_text(const nccl *n, nccl_result code) { return n->ncclGetErrorString(code); }

nccl_result nccl_init(const nccl *n, const device *v, void **communicators, int count, const int *devices) {
  CURRENT(v);
  return n->ncclCommInitAll(communicators, count, devices);
}

nccl_result nccl_destroy(const nccl *n, const device *v, void *communicator) {
  CURRENT(v);
  return n->ncclCommDestroy(communicator);
}

nccl_result nccl_abort(const nccl *n, const device *v, void *communicator) {
  CURRENT(v);
  return n->ncclCommAbort(communicator);
}

nccl_result nccl_all_gather(const nccl *n, const device *v, void *communicator, uint64_t to, uint64_t from, size_t count) {
  CURRENT(v);
  return n->ncclAllGather((const void *)(uintptr_t)from, (void *)(uintptr_t)to, count, FLOAT32_VALUES, communicator, v->stream);
}

nccl_result nccl_all_to_all(const nccl *n, const device *v, void *communicator, int ranks, uint64_t to, uint64_t from, size_t count) {
  CURRENT(v);
  nccl_result code = n->ncclGroupStart();
  if (code) return code;
  const uint64_t bytes = 4 * (uint64_t)count;
  for (int p = 0; p < ranks && !code; p++) {
    code = n->ncclSend((const void *)(uintptr_t)(from + (uint64_t)p * bytes), count, FLOAT32_VALUES, p, communicator, v->stream);
    if (!code) code = n->ncclRecv((void *)(uintptr_t)(to + (uint64_t)p * bytes), count, FLOAT32_VALUES, p, communicator, v->stream);
  }
  const nccl_result end = n->ncclGroupEnd(); // whatever failed: a group that was begun is ended
  return code ? code : end;
}

nccl_result nccl_broadcast(const nccl *n, const device *v, void *communicator, uint64_t at, size_t count, int root) {
  CURRENT(v);
  return n->ncclBroadcast((const void *)(uintptr_t)at, (void *)(uintptr_t)at, count, FLOAT32_VALUES, root, communicator, v->stream);
}

nccl_result nccl_send(const nccl *n, const device *v, void *communicator, uint64_t from, size_t count, int to) {
  CURRENT(v);
  return n->ncclSend((const void *)(uintptr_t)from, count, FLOAT32_VALUES, to, communicator, v->stream);
}

nccl_result nccl_receive(const nccl *n, const device *v, void *communicator, uint64_t to, size_t count, int from) {
  CURRENT(v);
  return n->ncclRecv((void *)(uintptr_t)to, count, FLOAT32_VALUES, from, communicator, v->stream);
}
