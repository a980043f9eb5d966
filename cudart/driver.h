// The CUDA driver through a table of function pointers: nothing of CUDA is linked, and no header of it is used. The types and numbers below are the driver API's
// documented binary interface. No function prints or exits; each gives the driver's code, 0 for success. Every function that takes a device makes its context current
// first, so it may be called from any thread, one at a time per device.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "kernels/arguments.h"
#include "library.h"

typedef int cuda_result;
typedef unsigned long long cuda_address;
typedef struct cuda_copy {
  size_t source_x, source_y;
  unsigned source_type; // 1 host, 2 device
  const void *source_host;
  cuda_address source_device;
  void *source_array;
  size_t source_pitch;
  size_t to_x, to_y;
  unsigned to_type;
  void *to_host;
  cuda_address to_device;
  void *to_array;
  size_t to_pitch;
  size_t width, height;
} cuda_copy;
// What a graph's node launches (CUDA_KERNEL_NODE_PARAMS_v2).
typedef struct cuda_node {
  void *function;
  unsigned x, y, z, threads_x, threads_y, threads_z, shared;
  void **arguments, **extra;
  void *kernel, *context; // instead of a function; of the function: null is the current one
} cuda_node;

// Name and arguments of every driver function that is used. Handles (contexts, streams, …) are pointers.
#define CUDA_FUNCTIONS(X) \
  X(cuInit, (unsigned flags)) \
  X(cuDriverGetVersion, (int *version)) \
  X(cuGetErrorName, (cuda_result code, const char **name)) \
  X(cuGetErrorString, (cuda_result code, const char **text)) \
  X(cuDeviceGetCount, (int *count)) \
  X(cuDeviceGet, (int *device, int ordinal)) \
  X(cuDeviceGetName, (char *name, int length, int device)) \
  X(cuDeviceGetUuid_v2, (void *uuid, int device)) \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
  X(cuDeviceTotalMem_v2, (size_t *bytes, int device)) \
  X(cuDeviceCanAccessPeer, (int *can, int device, int peer)) \
  X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
  X(cuDevicePrimaryCtxRelease_v2, (int device)) \
  X(cuCtxSetCurrent, (void *context)) \
  X(cuCtxSynchronize, (void)) \
  X(cuCtxEnablePeerAccess, (void *peer, unsigned flags)) \
  X(cuMemGetInfo_v2, (size_t *free, size_t *total)) \
  X(cuMemAlloc_v2, (cuda_address *address, size_t bytes)) \
  X(cuMemFree_v2, (cuda_address address)) \
  X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) \
  X(cuMemFreeHost, (void *memory)) \
  X(cuMemcpyHtoDAsync_v2, (cuda_address to, const void *from, size_t bytes, void *stream)) \
  X(cuMemcpyDtoHAsync_v2, (void *to, cuda_address from, size_t bytes, void *stream)) \
  X(cuMemcpyDtoDAsync_v2, (cuda_address to, cuda_address from, size_t bytes, void *stream)) \
  X(cuMemcpyPeerAsync, (cuda_address to, void *to_context, cuda_address from, void *from_context, size_t bytes, void *stream)) \
  X(cuMemcpy2DAsync_v2, (const cuda_copy *copy, void *stream)) \
  X(cuMemsetD8Async, (cuda_address to, unsigned char value, size_t bytes, void *stream)) \
  X(cuStreamCreate, (void **stream, unsigned flags)) \
  X(cuStreamDestroy_v2, (void *stream)) \
  X(cuStreamSynchronize, (void *stream)) \
  X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
  X(cuEventCreate, (void **event, unsigned flags)) \
  X(cuEventDestroy_v2, (void *event)) \
  X(cuEventRecord, (void *event, void *stream)) \
  X(cuEventSynchronize, (void *event)) \
  X(cuEventElapsedTime, (float *milliseconds, void *from, void *to)) \
  X(cuModuleLoadDataEx, (void **module, const void *image, unsigned options, int *option, void **value)) \
  X(cuModuleUnload, (void *module)) \
  X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
  X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
  X(cuLaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **arguments, void **extra))

// cuda_edge says what a launch of a graph waits for: CUDA's CUgraphEdgeData.
typedef struct {
  unsigned char from_port, to_port, type, reserved[5];
} cuda_edge;

// Those of graphs, which a driver may lack.
#define CUDA_GRAPH_FUNCTIONS(X) \
  X(cuGraphCreate, (void **graph, unsigned flags)) \
  X(cuGraphAddKernelNode_v2, (void **node, void *graph, void *const *after, size_t count, const cuda_node *parameters)) \
  X(cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags)) \
  X(cuGraphExecKernelNodeSetParams_v2, (void *executable, void *node, const cuda_node *parameters)) \
  X(cuGraphLaunch, (void *executable, void *stream)) \
  X(cuGraphExecDestroy, (void *executable)) \
  X(cuGraphDestroy, (void *graph))
// And those of graphs in which launches overlap, of CUDA 12.3.
#define CUDA_EDGE_FUNCTIONS(X) \
  X(cuGraphAddDependencies_v2, (void *graph, void *const *from, void *const *to, const cuda_edge *edges, size_t count))

typedef struct driver {
  void *library;
#define CUDA_POINTER(name, arguments) cuda_result(*name) arguments;
  CUDA_FUNCTIONS(CUDA_POINTER)
  CUDA_GRAPH_FUNCTIONS(CUDA_POINTER)
  CUDA_EDGE_FUNCTIONS(CUDA_POINTER)
#undef CUDA_POINTER
} driver;

#define CUDA_ONE(name, arguments) +1
enum { CUDA_FUNCTION_COUNT = 0 CUDA_FUNCTIONS(CUDA_ONE) CUDA_GRAPH_FUNCTIONS(CUDA_ONE) CUDA_EDGE_FUNCTIONS(CUDA_ONE) };
#undef CUDA_ONE
extern const library_function cuda_functions[CUDA_FUNCTION_COUNT];

enum { KERNEL_LIMIT = 208, MODULE_LIMIT = 5 };

// One device: its primary context, one stream, the kernels.
typedef struct device {
  const driver *d;
  int ordinal, handle;
  void *context, *stream;
  int dependent; // launches of graphs begin while those before them run: every kernel that is loaded waits for them itself
  void *modules[MODULE_LIMIT]; // those behind the first one, with kernels that not every device has, may be missing
  void *aside; // a second stream, made when it is first needed
  void *functions[KERNEL_LIMIT];
} device;

// cuda_device_open fills a zeroed device whose d and ordinal are set. After a failure cuda_device_close undoes what was done.
cuda_result cuda_device_open(device *v);
cuda_result cuda_device_close(device *v);
// cuda_device_load compiles the PTX of a module for the device and looks its kernels up, whose numbers begin at first; shared[i] is the dynamic shared memory of the i-th; one with more than
// most_shared, what the device has for a block, cannot be launched. log receives the compiler's message. failed names the step; after a failure the module may be loaded again.
cuda_result cuda_device_load(device *v, int module, const char *ptx, int first, int count, const char *const *names, const int *shared, int most_shared, char *log, int log_bytes, const char **failed);
cuda_result cuda_device_attribute(const driver *d, int ordinal, int attribute, int *value);
cuda_result cuda_device_memory_info(device *v, size_t *free, size_t *total);
cuda_result cuda_device_alloc(device *v, size_t bytes, uint64_t *address);
cuda_result cuda_device_free(device *v, uint64_t address);
cuda_result cuda_device_alloc_host(device *v, size_t bytes, void **memory);
cuda_result cuda_device_free_host(device *v, void *memory);
cuda_result cuda_device_zero(device *v, uint64_t to, size_t bytes);
// Rows of width bytes between host and device, each pitch apart; they come after what the stream has before them. The host memory must be pinned.
cuda_result cuda_device_upload(device *v, uint64_t to, size_t to_pitch, const void *from, size_t width, size_t rows);
cuda_result cuda_device_download(device *v, void *to, uint64_t from, size_t from_pitch, size_t width, size_t rows);
cuda_result cuda_device_copy(device *to, uint64_t to_address, const device *from, uint64_t from_address, size_t bytes);
cuda_result cuda_device_enable_peer(device *v, const device *peer, int *enabled);
cuda_result cuda_device_synchronize(device *v);
// cuda_device_finish waits for all streams of the context.
cuda_result cuda_device_finish(device *v);

// One launch: a grid of blocks of kernel, and where its arguments lie among those of a series of launches. There is no padding: its bytes are compared.
typedef struct cuda_work {
  int kernel;
  unsigned x, y, z, threads, shared;
  unsigned at, bytes;
} cuda_work;
// cuda_device_launch launches a series one by one; after a failure failed is the number of the launch.
cuda_result cuda_device_launch(device *v, const cuda_work *work, int count, const unsigned char *arguments, int *failed);

// cuda_device_turn makes the second stream the device's stream, and the stream the second one.
cuda_result cuda_device_turn(device *v);
cuda_result cuda_event_new(device *v, void **event, int timed);
cuda_result cuda_event_free(device *v, void *event);
cuda_result cuda_event_record(device *v, void *event);
cuda_result cuda_event_wait(device *v, void *event);                  // the host waits
cuda_result cuda_event_order(device *v, void *event);                 // the device's stream waits
cuda_result cuda_event_elapsed(device *v, void *from, void *to, float *milliseconds);

// A series of launches as a graph: one node each, in a chain. The nodes are the graph's, so it is kept as long as its executable, whose nodes are changed through them.
typedef struct cuda_graph {
  void *graph, *executable, **nodes;
} cuda_graph;
// cuda_graph_build fills a zeroed graph; also after a failure cuda_graph_free undoes what was done.
cuda_result cuda_graph_build(device *v, cuda_graph *g, const cuda_work *work, int count, const unsigned char *arguments);
// cuda_graph_update gives count launches of the graph, which[0], which[1], …, the arguments of the series; work is the whole of it. Launches before that are under way keep theirs.
cuda_result cuda_graph_update(device *v, const cuda_graph *g, const int *which, int count, const cuda_work *work, const unsigned char *arguments);
cuda_result cuda_graph_launch(device *v, const cuda_graph *g);
// cuda_graph_free zeroes the graph, which must not be running.
cuda_result cuda_graph_free(device *v, cuda_graph *g);

// Calls that need no device.
cuda_result cuda_call_init(const driver *d);
cuda_result cuda_call_version(const driver *d, int *version); // also of a driver that lacks functions
cuda_result cuda_call_count(const driver *d, int *count);
cuda_result cuda_call_name(const driver *d, int ordinal, char *name, int length);
cuda_result cuda_call_uuid(const driver *d, int ordinal, unsigned char uuid[16]);
cuda_result cuda_call_memory(const driver *d, int ordinal, size_t *bytes);
const char *cuda_call_error_name(const driver *d, cuda_result code); // null if the driver does not know it
const char *cuda_call_error_text(const driver *d, cuda_result code);
