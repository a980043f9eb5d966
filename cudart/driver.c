#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define NEEDED(name, arguments) {#name, offsetof(driver, name), 0},
#define OPTIONAL(name, arguments) {#name, offsetof(driver, name), 1},
const library_function cuda_functions[CUDA_FUNCTION_COUNT] = {CUDA_FUNCTIONS(NEEDED) CUDA_GRAPH_FUNCTIONS(OPTIONAL) CUDA_EDGE_FUNCTIONS(OPTIONAL)};
#undef NEEDED
#undef OPTIONAL

#define CHECK(call) \
  do { \
    cuda_result code = (call); \
    if (code) return code; \
  } while (0)
#define CURRENT(v) CHECK((v)->d->cuCtxSetCurrent((v)->context))

cuda_result cuda_device_open(device *v) {
  CHECK(v->d->cuDeviceGet(&v->handle, v->ordinal));
  CHECK(v->d->cuDevicePrimaryCtxRetain(&v->context, v->handle));
  CURRENT(v);
  return v->d->cuStreamCreate(&v->stream, 1); // not ordered with the default stream
}

cuda_result cuda_device_close(device *v) {
  if (!v->context) return 0;
  cuda_result first = v->d->cuCtxSetCurrent(v->context), code = 0;
  for (int i = 0; i < MODULE_LIMIT; i++)
    if (v->modules[i] && (code = v->d->cuModuleUnload(v->modules[i])) && !first) first = code;
  if (v->stream && (code = v->d->cuStreamDestroy_v2(v->stream)) && !first) first = code;
  if (v->aside && (code = v->d->cuStreamDestroy_v2(v->aside)) && !first) first = code;
  if ((code = v->d->cuCtxSetCurrent(NULL)) && !first) first = code;
  if ((code = v->d->cuDevicePrimaryCtxRelease_v2(v->handle)) && !first) first = code;
  for (int i = 0; i < MODULE_LIMIT; i++) v->modules[i] = NULL;
  v->stream = v->aside = v->context = NULL;
  return first;
}

cuda_result cuda_device_load(device *v, int module, const char *ptx, int first, int count, const char *const *names, const int *shared, int most_shared, char *log, int log_bytes, const char **failed) {
  enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6, MAX_DYNAMIC_SHARED = 8 };
  int option[2] = {ERROR_LOG, ERROR_LOG_BYTES};
  void *value[2] = {log, (void *)(intptr_t)log_bytes};
  log[0] = 0;
  *failed = "cuModuleLoadDataEx";
  CURRENT(v);
  if (v->modules[module]) CHECK(v->d->cuModuleUnload(v->modules[module]));
  v->modules[module] = NULL;
  CHECK(v->d->cuModuleLoadDataEx(&v->modules[module], ptx, 2, option, value));
  for (int i = 0; i < count; i++) {
    *failed = names[i];
    CHECK(v->d->cuModuleGetFunction(&v->functions[first + i], v->modules[module], names[i]));
    if (shared[i] > 48 << 10 && shared[i] <= most_shared) CHECK(v->d->cuFuncSetAttribute(v->functions[first + i], MAX_DYNAMIC_SHARED, shared[i])); // more than that must be asked for
  }
  return 0;
}

cuda_result cuda_device_attribute(const driver *d, int ordinal, int attribute, int *value) {
  int handle;
  CHECK(d->cuDeviceGet(&handle, ordinal));
  return d->cuDeviceGetAttribute(value, attribute, handle);
}

cuda_result cuda_device_memory_info(device *v, size_t *free, size_t *total) {
  CURRENT(v);
  return v->d->cuMemGetInfo_v2(free, total);
}

cuda_result cuda_device_alloc(device *v, size_t bytes, uint64_t *address) {
  CURRENT(v);
  cuda_address a = 0;
  CHECK(v->d->cuMemAlloc_v2(&a, bytes));
  *address = a;
  return 0;
}

cuda_result cuda_device_free(device *v, uint64_t address) {
  CURRENT(v);
  return v->d->cuMemFree_v2(address);
}

cuda_result cuda_device_alloc_host(device *v, size_t bytes, void **memory) {
  CURRENT(v);
  return v->d->cuMemHostAlloc(memory, bytes, 1); // for every context
}

cuda_result cuda_device_free_host(device *v, void *memory) {
  CURRENT(v);
  return v->d->cuMemFreeHost(memory);
}

cuda_result cuda_device_zero(device *v, uint64_t to, size_t bytes) {
  CURRENT(v);
  return v->d->cuMemsetD8Async(to, 0, bytes, v->stream);
}

cuda_result cuda_device_upload(device *v, uint64_t to, size_t to_pitch, const void *from, size_t width, size_t rows) {
  CURRENT(v);
  if (rows == 1 || to_pitch == width) return v->d->cuMemcpyHtoDAsync_v2(to, from, width * rows, v->stream);
  cuda_copy c = {.source_type = 1, .source_host = from, .source_pitch = width, .to_type = 2, .to_device = to, .to_pitch = to_pitch, .width = width, .height = rows};
  return v->d->cuMemcpy2DAsync_v2(&c, v->stream);
}

cuda_result cuda_device_download(device *v, void *to, uint64_t from, size_t from_pitch, size_t width, size_t rows) {
  CURRENT(v);
  if (rows == 1 || from_pitch == width) return v->d->cuMemcpyDtoHAsync_v2(to, from, width * rows, v->stream);
  cuda_copy c = {.source_type = 2, .source_device = from, .source_pitch = from_pitch, .to_type = 1, .to_host = to, .to_pitch = width, .width = width, .height = rows};
  return v->d->cuMemcpy2DAsync_v2(&c, v->stream);
}

cuda_result cuda_device_copy(device *to, uint64_t to_address, const device *from, uint64_t from_address, size_t bytes) {
  CURRENT(to);
  if (to->handle == from->handle) return to->d->cuMemcpyDtoDAsync_v2(to_address, from_address, bytes, to->stream);
  return to->d->cuMemcpyPeerAsync(to_address, to->context, from_address, from->context, bytes, to->stream);
}

cuda_result cuda_device_enable_peer(device *v, const device *peer, int *enabled) {
  enum { ALREADY_ENABLED = 704 };
  CHECK(v->d->cuDeviceCanAccessPeer(enabled, v->handle, peer->handle));
  if (!*enabled) return 0;
  CURRENT(v);
  cuda_result code = v->d->cuCtxEnablePeerAccess(peer->context, 0);
  return code == ALREADY_ENABLED ? 0 : code;
}

cuda_result cuda_device_synchronize(device *v) {
  CURRENT(v);
  return v->d->cuStreamSynchronize(v->stream);
}

cuda_result cuda_device_finish(device *v) {
  CURRENT(v);
  return v->d->cuCtxSynchronize();
}

cuda_result cuda_device_launch(device *v, const cuda_work *work, int count, const unsigned char *arguments, int *failed) {
  *failed = 0;
  CURRENT(v);
  for (; *failed < count; ++*failed, work++) {
    void *pointers[] = {(void *)(arguments + work->at)};
    CHECK(v->d->cuLaunchKernel(v->functions[work->kernel], work->x, work->y, work->z, work->threads, 1, 1, work->shared, v->stream, pointers, NULL));
  }
  return 0;
}

cuda_result cuda_device_turn(device *v) {
  CURRENT(v);
  if (!v->aside) CHECK(v->d->cuStreamCreate(&v->aside, 1));
  void *aside = v->aside;
  v->aside = v->stream;
  v->stream = aside;
  return 0;
}

cuda_result cuda_event_new(device *v, void **event, int timed) {
  CURRENT(v);
  return v->d->cuEventCreate(event, timed ? 0 : 2);
}

cuda_result cuda_event_free(device *v, void *event) {
  CURRENT(v);
  return v->d->cuEventDestroy_v2(event);
}

cuda_result cuda_event_record(device *v, void *event) {
  CURRENT(v);
  return v->d->cuEventRecord(event, v->stream);
}

cuda_result cuda_event_wait(device *v, void *event) {
  CURRENT(v);
  return v->d->cuEventSynchronize(event);
}

cuda_result cuda_event_order(device *v, void *event) {
  CURRENT(v);
  return v->d->cuStreamWaitEvent(v->stream, event, 0);
}

cuda_result cuda_event_elapsed(device *v, void *from, void *to, float *milliseconds) {
  CURRENT(v);
  return v->d->cuEventElapsedTime(milliseconds, from, to);
}

// node_of gives a launch as a node; pointer is memory for the address of its arguments, which are copied when the node is made.
static cuda_node node_of(const device *v, const cuda_work *work, const unsigned char *arguments, void **pointer) {
  *pointer = (void *)(arguments + work->at);
  return (cuda_node){.function = v->functions[work->kernel], .x = work->x, .y = work->y, .z = work->z, .threads_x = work->threads, .threads_y = 1, .threads_z = 1, .shared = work->shared, .arguments = pointer};
}

cuda_result cuda_graph_build(device *v, cuda_graph *g, const cuda_work *work, int count, const unsigned char *arguments) {
  enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
#define THERE(name, arguments) \
  if (!v->d->name) return NOT_FOUND;
  CUDA_GRAPH_FUNCTIONS(THERE)
#undef THERE
  // A launch begins when all blocks of the one before it have begun, and waits within for its end: what is behind the first is programmatic.
  const cuda_edge edge = {.from_port = 1, .type = 1};
  CURRENT(v);
  if (!(g->nodes = calloc((size_t)count, sizeof *g->nodes))) return OUT_OF_MEMORY;
  CHECK(v->d->cuGraphCreate(&g->graph, 0));
  for (int i = 0; i < count; i++) {
    void *pointer;
    const cuda_node node = node_of(v, work + i, arguments, &pointer);
    const int whole = i > 0 && !v->dependent; // it begins after the end of the one before it
    CHECK(v->d->cuGraphAddKernelNode_v2(&g->nodes[i], g->graph, whole ? &g->nodes[i - 1] : NULL, whole, &node));
    if (i > 0 && v->dependent) CHECK(v->d->cuGraphAddDependencies_v2(g->graph, &g->nodes[i - 1], &g->nodes[i], &edge, 1));
  }
  return v->d->cuGraphInstantiateWithFlags(&g->executable, g->graph, 0);
}

cuda_result cuda_graph_update(device *v, const cuda_graph *g, const int *which, int count, const cuda_work *work, const unsigned char *arguments) {
  CURRENT(v);
  for (int i = 0; i < count; i++) {
    void *pointer;
    const cuda_node node = node_of(v, work + which[i], arguments, &pointer);
    CHECK(v->d->cuGraphExecKernelNodeSetParams_v2(g->executable, g->nodes[which[i]], &node));
  }
  return 0;
}

cuda_result cuda_graph_launch(device *v, const cuda_graph *g) {
  CURRENT(v);
  return v->d->cuGraphLaunch(g->executable, v->stream);
}

cuda_result cuda_graph_free(device *v, cuda_graph *g) {
  cuda_result first = v->d->cuCtxSetCurrent(v->context), code;
  if (g->executable && (code = v->d->cuGraphExecDestroy(g->executable)) && !first) first = code;
  if (g->graph && (code = v->d->cuGraphDestroy(g->graph)) && !first) first = code;
  free(g->nodes);
  memset(g, 0, sizeof *g);
  return first;
}

cuda_result cuda_call_init(const driver *d) { return d->cuInit(0); }
cuda_result cuda_call_version(const driver *d, int *version) {
  enum { NOT_FOUND = 500 };
  return d->cuDriverGetVersion ? d->cuDriverGetVersion(version) : NOT_FOUND;
}
cuda_result cuda_call_count(const driver *d, int *count) { return d->cuDeviceGetCount(count); }

cuda_result cuda_call_name(const driver *d, int ordinal, char *name, int length) {
  int handle;
  CHECK(d->cuDeviceGet(&handle, ordinal));
  return d->cuDeviceGetName(name, length, handle);
}

cuda_result cuda_call_uuid(const driver *d, int ordinal, unsigned char uuid[16]) {
  int handle;
  CHECK(d->cuDeviceGet(&handle, ordinal));
  return d->cuDeviceGetUuid_v2(uuid, handle);
}

cuda_result cuda_call_memory(const driver *d, int ordinal, size_t *bytes) {
  int handle;
  CHECK(d->cuDeviceGet(&handle, ordinal));
  return d->cuDeviceTotalMem_v2(bytes, handle);
}

const char *cuda_call_error_name(const driver *d, cuda_result code) {
  const char *name = NULL;
  return d->cuGetErrorName(code, &name) ? NULL : name;
}

const char *cuda_call_error_text(const driver *d, cuda_result code) {
  const char *text = NULL;
  return d->cuGetErrorString(code, &text) ? NULL : text;
}
