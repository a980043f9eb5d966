#include "absent.h"

#include <string.h>
#include <sys/mman.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

// What NVIDIA states of each, and the memory that its driver reports, about.
const absent_gpu absent_gpus[ABSENT_GPUS] = {
  {"NVIDIA H100 80GB HBM3", 9, 0, 132, 227 << 10, (size_t)81559 << 20},
  {"NVIDIA H200", 9, 0, 132, 227 << 10, (size_t)143771 << 20},
  {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 163 << 10, (size_t)81920 << 20},
  {"NVIDIA B200", 10, 0, 148, 227 << 10, (size_t)183359 << 20},
};

enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
static char handle; // of everything that has a handle and no state

// Every device has its own context, by which it is known. The one that is current is not needed: nothing runs.
static char contexts[ABSENT_GPUS];

#define DO(name, arguments) static cuda_result absent_##name arguments
DO(cuInit, (unsigned flags)) { return 0; }
DO(cuDriverGetVersion, (int *version)) { *version = 13000; return 0; }
DO(cuGetErrorName, (cuda_result code, const char **name)) { return NOT_FOUND; }
DO(cuGetErrorString, (cuda_result code, const char **text)) { return NOT_FOUND; }
DO(cuDeviceGetCount, (int *count)) { *count = ABSENT_GPUS; return 0; }
DO(cuDeviceGet, (int *device, int ordinal)) { *device = ordinal; return 0; }
DO(cuDeviceGetName, (char *name, int length, int device)) {
  strncpy(name, absent_gpus[device].name, (size_t)length - 1);
  name[length - 1] = 0;
  return 0;
}
DO(cuDeviceGetAttribute, (int *value, int attribute, int device)) {
  const absent_gpu *g = absent_gpus + device;
  switch (attribute) {
  case 16: *value = g->multiprocessors; return 0;
  case 75: *value = g->major; return 0;
  case 76: *value = g->minor; return 0;
  case 97: *value = g->shared; return 0;
  }
  return NOT_FOUND;
}
DO(cuDeviceGetUuid_v2, (void *uuid, int device)) { memset(uuid, 0, 16); return 0; }
DO(cuDeviceTotalMem_v2, (size_t *bytes, int device)) { *bytes = absent_gpus[device].memory; return 0; }
DO(cuDeviceCanAccessPeer, (int *can, int device, int peer)) { *can = 1; return 0; }
DO(cuDevicePrimaryCtxRetain, (void **context, int device)) { *context = contexts + device; return 0; }
DO(cuDevicePrimaryCtxRelease_v2, (int device)) { return 0; }
static _Thread_local long current; // device of the thread's context
DO(cuCtxSetCurrent, (void *context)) { current = (char *)context - contexts; return 0; }
DO(cuCtxSynchronize, (void)) { return 0; }
DO(cuCtxEnablePeerAccess, (void *peer, unsigned flags)) { return 0; }
DO(cuMemGetInfo_v2, (size_t *free, size_t *total)) { // what bounds memory is asked elsewhere
  *free = (size_t)1 << 46;
  *total = absent_gpus[current].memory;
  return 0;
}

// Memory is address space: a page of it is there once something is written to it, as lists are. In front of it lies how much it is.
enum { HEAD = 4096 };
static void *space(size_t bytes) {
  char *p = mmap(NULL, bytes + HEAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  memcpy(p, &bytes, sizeof bytes);
  return p + HEAD;
}
static cuda_result give_back(void *memory) {
  size_t bytes;
  char *p = (char *)memory - HEAD;
  memcpy(&bytes, p, sizeof bytes);
  return munmap(p, bytes + HEAD) ? NOT_FOUND : 0;
}
static void *at(cuda_address address) { return (void *)(uintptr_t)address; }
DO(cuMemAlloc_v2, (cuda_address *address, size_t bytes)) { return (*address = (uintptr_t)space(bytes)) ? 0 : OUT_OF_MEMORY; }
DO(cuMemFree_v2, (cuda_address address)) { return give_back(at(address)); }
DO(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) { return (*memory = space(bytes)) ? 0 : OUT_OF_MEMORY; }
DO(cuMemFreeHost, (void *memory)) { return give_back(memory); }

// What comes from the host is kept, for lists do. What goes there are zeros, whatever a kernel would have written.
DO(cuMemcpyHtoDAsync_v2, (cuda_address to, const void *from, size_t bytes, void *stream)) { memcpy(at(to), from, bytes); return 0; }
DO(cuMemcpyDtoHAsync_v2, (void *to, cuda_address from, size_t bytes, void *stream)) { memset(to, 0, bytes); return 0; }
DO(cuMemcpyDtoDAsync_v2, (cuda_address to, cuda_address from, size_t bytes, void *stream)) { return 0; }
DO(cuMemcpyPeerAsync, (cuda_address to, void *to_context, cuda_address from, void *from_context, size_t bytes, void *stream)) { return 0; }
DO(cuMemcpy2DAsync_v2, (const cuda_copy *copy, void *stream)) {
  for (size_t r = 0; r < copy->height; r++) {
    if (copy->to_type == 1) memset((char *)copy->to_host + r * copy->to_pitch, 0, copy->width);
    else memcpy((char *)at(copy->to_device) + r * copy->to_pitch, (const char *)copy->source_host + r * copy->source_pitch, copy->width);
  }
  return 0;
}
DO(cuMemsetD8Async, (cuda_address to, unsigned char value, size_t bytes, void *stream)) { return 0; } // new memory is zero anyhow, and old memory has lists that are written before they are read
DO(cuStreamCreate, (void **stream, unsigned flags)) { *stream = &handle; return 0; }
DO(cuStreamDestroy_v2, (void *stream)) { return 0; }
DO(cuStreamSynchronize, (void *stream)) { return 0; }
DO(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) { return 0; }
DO(cuEventCreate, (void **event, unsigned flags)) { *event = &handle; return 0; }
DO(cuEventDestroy_v2, (void *event)) { return 0; }
DO(cuEventRecord, (void *event, void *stream)) { return 0; }
DO(cuEventSynchronize, (void *event)) { return 0; }
DO(cuEventElapsedTime, (float *milliseconds, void *from, void *to)) { *milliseconds = 0; return 0; }
DO(cuModuleLoadDataEx, (void **module, const void *image, unsigned options, int *option, void **value)) { *module = &handle; return 0; }
DO(cuModuleUnload, (void *module)) { return 0; }
DO(cuModuleGetFunction, (void **function, void *module, const char *name)) { *function = &handle; return 0; }
DO(cuFuncSetAttribute, (void *function, int attribute, int value)) { return 0; }
// Launches are counted before they come here.
DO(cuLaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **arguments, void **extra)) { return NOT_FOUND; }

void absent_driver(driver *d) {
#define SET(name, arguments) d->name = absent_##name;
  CUDA_FUNCTIONS(SET) // without graphs: every launch is counted
#undef SET
}

const void *absent_memory(uint64_t address) { return at(address); }
