// A CUDA driver without a GPU, for tests: memory is the host's, what is put into a stream is done at once or late (streams.h), launches run the kernels through the shim. It checks what a GPU would
// not forgive (freeing twice, freeing what was not allocated, a launch of another block size, an argument in the memory of a device that cannot be reached, graphs that are never given back) and can be told to fail.
//
// FAKE_CUDA_FAIL=name:n:code makes the n-th call of that function from the time the variable was set give that code, name:n:code:device of
// those for that device. FAKE_CUDA_ORDER=seed orders the threads at random, in every launch differently. FAKE_CUDA_SKIP names kernels, with spaces between,
// that are not run. With FAKE_CUDA_NO_WAIT none waits for the one before it. FAKE_CUDA_EARLY is a file that tells what kernels ask for before they wait.
// FAKE_CUDA_KERNELS is a file that gets a line "loaded NAME" for each kernel
// that is looked up, and "run NAME" for each that is run, once for a value of the variable. FAKE_CUDA_COUNT is a file that gets a line with its name for each call of a function and,
// indented, each run of a kernel; "modules", and how they are loaded, for cuInit. FAKE_CUDA_APART names pairs, as "0-1 1-0", of which the first device cannot reach the second. FAKE_CUDA_DEVICES is how many devices there are (1), FAKE_CUDA_NAME what they are called, FAKE_CUDA_UUID the byte that their UUIDs are made of, FAKE_CUDA_CLOCK their clock in kHz (not told), FAKE_CUDA_MEMORY how many bytes each has (1 GiB), FAKE_CUDA_VERSION the driver's version.
#include "shim.h"
#include "streams.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

typedef struct cuda_copy {
  size_t source_x, source_y;
  unsigned source_type;
  const void *source_host;
  unsigned long long source_device;
  void *source_array;
  size_t source_pitch;
  size_t to_x, to_y;
  unsigned to_type;
  void *to_host;
  unsigned long long to_device;
  void *to_array;
  size_t to_pitch;
  size_t width, height;
} cuda_copy;
typedef struct cuda_node {
  void *function;
  unsigned x, y, z, threads_x, threads_y, threads_z, shared;
  void **arguments, **extra;
  void *kernel, *context;
} cuda_node;
typedef struct cuda_edge {
  unsigned char from_port, to_port, type, reserved[5];
} cuda_edge;

namespace {
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_PTX = 218, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, PEER_ENABLED = 704, LAUNCH_FAILED = 719 };

int sticky; // a failed launch spoils the context, as on a GPU

struct Context {
  int device, retained;
  std::map<unsigned long long, size_t> memory;
  size_t used;
  std::set<const Context *> peers; // whose memory it can reach

  bool has(unsigned long long address) const {
    auto m = memory.upper_bound(address);
    return m != memory.begin() && (--m, address < m->first + m->second);
  }
};
Context contexts[8];
std::set<void *> host, handles, mapped;
thread_local Context *current;

long setting(const char *name, long otherwise) {
  const char *v = getenv(name);
  return v && *v ? atol(v) : otherwise;
}
int devices() { return (int)setting("FAKE_CUDA_DEVICES", 1); }

// count writes a line to the file that FAKE_CUDA_COUNT names.
void count(const char *before, const char *name) {
  const char *v = getenv("FAKE_CUDA_COUNT");
  if (!v || !*v) return;
  if (FILE *f = fopen(v, "a")) {
    fprintf(f, "%s%s\n", before, name);
    fclose(f);
  }
}

// failure counts calls of a function that FAKE_CUDA_FAIL names.
int failure(const char *function) {
  count("", function);
  static std::string plan;
  static long calls;
  const char *v = getenv("FAKE_CUDA_FAIL");
  if (!v || !*v) {
    plan.clear();
    return 0;
  }
  if (plan != v) plan = v, calls = 0;
  size_t length = strlen(function);
  if (strncmp(v, function, length) || v[length] != ':') return 0;
  char *end;
  long n = strtol(v + length + 1, &end, 10);
  int code = (int)strtol(end + 1, &end, 10);
  if (*end == ':' && (!current || current->device != atoi(end + 1))) return 0;
  return ++calls == n ? code : 0;
}

// named tells whether a word is one of those of a list.
bool named(const char *list, const char *word) { return list && (" " + std::string(list) + " ").find(" " + std::string(word) + " ") != std::string::npos; }

// tell writes to the file that FAKE_CUDA_KERNELS names what happened to a kernel for the first time.
void tell(const char *what, const shim::Kernel *kernel) {
  static std::string path;
  static std::set<std::string> told;
  const char *v = getenv("FAKE_CUDA_KERNELS");
  if (!v || !*v) return;
  if (path != v) path = v, told.clear();
  const std::string line = std::string(what) + " " + kernel->name + "\n";
  if (!told.insert(line).second) return;
  if (FILE *f = fopen(v, "a")) {
    fputs(line.c_str(), f);
    fclose(f);
  }
}

// take gives memory for a device, NULL if there is none. It is never below 4 GiB, where the heap of a program at a fixed place begins: an address
// there has the bits of two small numbers that lie beside each other among a kernel's arguments (a float of 1e-5 and a zero, say), and a launch
// would find that it names memory. The upper half of those that mmap chooses is a number of about 32,600.
void *take(size_t bytes) {
  void *p = nullptr;
  if (posix_memalign(&p, 512, bytes)) return nullptr;
  if ((uint64_t)p >> 32 == 0) {
    free(p);
    p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    mapped.insert(p);
  }
  return p;
}
void give_back(void *p, size_t bytes) {
  if (mapped.erase(p))
    munmap(p, bytes);
  else
    free(p);
}

void *new_handle() {
  void *h = malloc(1);
  handles.insert(h);
  return h;
}
int free_handle(void *h) {
  if (!handles.erase(h)) return INVALID_HANDLE;
  free(h);
  return 0;
}

// What kernels ask for before they wait must be memory of a device. FAKE_CUDA_EARLY is a file that gets a line with kernel, address and bytes.
bool asked_elsewhere;
void asked_early(const char *kernel, const void *at, unsigned bytes) {
  bool known = false;
  for (const Context &c : contexts) {
    auto m = c.memory.upper_bound((unsigned long long)at);
    known = known || (m != c.memory.begin() && (--m, (unsigned long long)at + bytes <= m->first + m->second));
  }
  if (!known) {
    fprintf(stderr, "kernel %s asks for %u bytes at %p, which are no device's\n", kernel, bytes, at);
    asked_elsewhere = true;
  }
  const char *v = getenv("FAKE_CUDA_EARLY");
  if (!v || !*v) return;
  if (FILE *f = fopen(v, "a")) {
    fprintf(f, "%s %llu %u\n", kernel, (unsigned long long)at, bytes);
    fclose(f);
  }
}

// What a launch runs: in a stream, or of a graph.
struct Launch {
  const shim::Kernel *kernel;
  shim::Index grid;
  unsigned threads, shared;
  std::vector<uint64_t> arguments;

  int fill(void *function, shim::Index blocks, unsigned block, unsigned dynamic, void **from) {
    if (!blocks.x || !blocks.y || !blocks.z || blocks.y > 65535 || blocks.z > 65535) return INVALID_VALUE;
    *this = {(const shim::Kernel *)function, blocks, block, dynamic, {}};
    arguments.resize((kernel->bytes + 7) / 8);
    memcpy(arguments.data(), from[0], kernel->bytes);
    for (const Context &c : contexts)
      for (uint64_t a : arguments)
        if (&c != current && c.has(a) && !current->peers.count(&c)) {
          fprintf(stderr, "kernel %s: device %d cannot reach the memory of device %d\n", kernel->name, current->device, c.device);
          return sticky = LAUNCH_FAILED;
        }
    return 0;
  }
  int run() const {
    static uint64_t launches;
    uint64_t order = (uint64_t)setting("FAKE_CUDA_ORDER", 0);
    if (order) order = (order + ++launches) * 0x9E3779B97F4A7C15u | 1;
    if (named(getenv("FAKE_CUDA_SKIP"), kernel->name)) return 0;
    tell("run", kernel), count(" ", kernel->name);
    shim::asked = asked_early;
    const char *wrong = shim::launch(kernel, grid, (int)threads, shared, arguments.data(), order);
    if (asked_elsewhere) {
      asked_elsewhere = false;
      return sticky = LAUNCH_FAILED;
    }
    if (!wrong) return 0;
    fprintf(stderr, "kernel %s: %s\n", kernel->name, wrong);
    return sticky = LAUNCH_FAILED;
  }
};
// A node that depends on the one before it by a programmatic edge runs before it, unless its kernel waits: it may begin so early.
struct Node : Launch {
  bool after = false, early = false;
};
struct Graph {
  Context *context;
  std::deque<Node> nodes; // their places are their handles
};
struct Executable {
  const Graph *graph;
  Context *context;
  std::deque<Node> nodes;
  std::shared_ptr<int> under_way = std::make_shared<int>(0); // launches that have not run
};
std::set<Graph *> graphs;

// The kernels of each module that wait for the launch before theirs before they read or write anything, by their PTX; and what they are as functions, which
// are others than those that do not wait.
std::map<void *, std::set<std::string>> waiting;
std::map<const shim::Kernel *, shim::Kernel> waits;
bool does_wait(const shim::Kernel *function) {
  for (const auto &w : waits)
    if (&w.second == function) return true;
  return false;
}
// harmless tells whether a line of PTX may come before the wait: what computes, reads arguments, or asks for memory.
bool harmless(std::string line) {
  line.erase(0, line.find_first_not_of("\t "));
  if (line.empty() || line[0] == '.' || line.compare(0, 2, "//") == 0 || line.compare(0, 8, "ld.param") == 0) return true;
  if (line.find("cp.async.bulk.prefetch.L2") != std::string::npos) return true;
  for (const char *other : {"[", "bra", "bar", "call", "ret", "exit", "trap", "fence"}) // memory, and what goes elsewhere or waits
    if (line.find(other) != std::string::npos) return false;
  return line.back() != ':';
}
std::set<std::string> those_that_wait(const char *text) {
  static const char entry[] = ".entry ", wait[] = "griddepcontrol.wait;";
  std::set<std::string> names;
  if (!strstr(text, wait) || setting("FAKE_CUDA_NO_WAIT", 0)) return names;
  while ((text = strstr(text, entry))) {
    text += sizeof entry - 1;
    const char *end = strchr(text, '('), *body = strstr(text, "\n{\n");
    if (!end || !body) break;
    const char *next = strstr(body, entry), *waits = strstr(body, wait);
    if (!waits || (next && waits > next)) continue;
    bool first = true;
    for (body += 3; body < waits && first;) {
      const char *line = strchr(body, '\n');
      if (!line || line > waits) break;
      first = harmless(std::string(body, (size_t)(line - body)));
      body = line + 1;
    }
    if (first) names.insert(std::string(text, (size_t)(end - text)));
  }
  return names;
}

std::set<Executable *> executables;

template <class T> T *known(const std::set<T *> &all, void *handle) { return all.count((T *)handle) ? (T *)handle : nullptr; }
} // namespace

#define ENTER \
  std::lock_guard<std::mutex> guard(streams::lock()); \
  if (int code = failure(__func__)) return code;
#define IN_CONTEXT \
  ENTER if (!current || !current->retained) return INVALID_CONTEXT; \
  if (sticky) return sticky;
// What takes a stream; the rest of the function is put there.
#define IN_STREAM(stream) \
  IN_CONTEXT if (!streams::known(stream)) return INVALID_HANDLE;

extern "C" {
int cuInit(unsigned) {
  ENTER const char *loading = getenv("CUDA_MODULE_LOADING");
  count("modules ", loading ? loading : "");
  return devices() > 0 ? 0 : 100;
}
int cuDriverGetVersion(int *version) {
  ENTER *version = (int)setting("FAKE_CUDA_VERSION", 12080);
  return 0;
}
int cuGetErrorName(int code, const char **name) {
  switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
  }
  *name = nullptr;
  return INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "out of memory" : code == LAUNCH_FAILED ? "unspecified launch failure" : nullptr;
  return *text ? 0 : INVALID_VALUE;
}
int cuDeviceGetCount(int *count) {
  ENTER *count = devices();
  return 0;
}
int cuDeviceGet(int *device, int ordinal) {
  ENTER if (ordinal < 0 || ordinal >= devices() || ordinal >= 8) return INVALID_DEVICE;
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char *name, int length, int) {
  ENTER const char *v = getenv("FAKE_CUDA_NAME");
  snprintf(name, (size_t)length, "%s", v && *v ? v : "no GPU: kernels on the processor");
  return 0;
}
int cuDeviceGetUuid_v2(void *uuid, int device) {
  ENTER memset(uuid, (int)setting("FAKE_CUDA_UUID", 0xab), 16);
  ((unsigned char *)uuid)[15] = (unsigned char)device;
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
  ENTER switch (attribute) {
    case 13: // the clock in kHz
      *value = (int)setting("FAKE_CUDA_CLOCK", 0);
      return *value ? 0 : INVALID_VALUE;
    case 75: *value = (int)setting("FAKE_CUDA_MAJOR", 9); return 0;
    case 76: *value = 0; return 0;
    case 16: *value = 2; return 0;         // multiprocessors
    case 97: *value = (int)setting("FAKE_CUDA_SHARED", 227 << 10); return 0; // shared memory of a block
  }
  return INVALID_VALUE;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) {
  ENTER *bytes = (size_t)setting("FAKE_CUDA_MEMORY", 1l << 30);
  return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  ENTER *can = device != peer && !named(getenv("FAKE_CUDA_APART"), (std::to_string(device) + "-" + std::to_string(peer)).c_str());
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  ENTER if (!contexts[device].retained++) sticky = 0;
  contexts[device].device = device;
  *context = &contexts[device];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER if (!contexts[device].retained) return INVALID_CONTEXT;
  if (--contexts[device].retained == 0) { // the context takes its memory with it
    for (auto &m : contexts[device].memory) give_back((void *)m.first, m.second);
    contexts[device].memory.clear();
    contexts[device].used = 0;
    for (Context &c : contexts) c.peers.erase(&contexts[device]), contexts[device].peers.erase(&c);
    for (const Graph *g : graphs)
      if (g->context == &contexts[device]) return INVALID_CONTEXT;
    for (const Executable *e : executables)
      if (e->context == &contexts[device]) return INVALID_CONTEXT;
  }
  return 0;
}
int cuCtxSetCurrent(void *context) {
  ENTER current = (Context *)context;
  return 0;
}
int cuCtxGetDevice(int *device) {
  ENTER if (!current) return INVALID_CONTEXT;
  *device = current->device;
  return 0;
}
int cuCtxSynchronize() { IN_CONTEXT return streams::run_all(); }
int cuCtxEnablePeerAccess(void *peer, unsigned) { IN_CONTEXT return current->peers.insert((Context *)peer).second ? 0 : PEER_ENABLED; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
  IN_CONTEXT *total = (size_t)setting("FAKE_CUDA_MEMORY", 1l << 30);
  *free = *total - current->used;
  return 0;
}
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  IN_CONTEXT if (!bytes) return INVALID_VALUE;
  if (current->used + bytes > (size_t)setting("FAKE_CUDA_MEMORY", 1l << 30)) return OUT_OF_MEMORY;
  void *p = take(bytes);
  if (!p) return OUT_OF_MEMORY;
  memset(p, 0xff, bytes); // not a number, for those who read before they write
  current->memory[(unsigned long long)p] = bytes;
  current->used += bytes;
  *address = (unsigned long long)p;
  return 0;
}
int cuMemFree_v2(unsigned long long address) {
  IN_CONTEXT auto m = current->memory.find(address);
  if (m == current->memory.end()) return INVALID_VALUE;
  if (int code = streams::run_all()) return code; // as the driver, which waits
  current->used -= m->second;
  give_back((void *)address, m->second);
  current->memory.erase(m);
  return 0;
}
int cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
  IN_CONTEXT *memory = malloc(bytes);
  if (!*memory) return OUT_OF_MEMORY;
  host.insert(*memory);
  return 0;
}
int cuMemFreeHost(void *memory) {
  IN_CONTEXT if (!host.erase(memory)) return INVALID_VALUE;
  free(memory);
  return 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
  IN_STREAM(stream) return streams::put(stream, [=] { return memcpy((void *)to, from, bytes), 0; });
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
  IN_STREAM(stream) return streams::put(stream, [=] { return memcpy(to, (void *)from, bytes), 0; });
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
  IN_STREAM(stream) return streams::put(stream, [=] { return memcpy((void *)to, (void *)from, bytes), 0; });
}
int cuMemcpyPeerAsync(unsigned long long to, void *, unsigned long long from, void *, size_t bytes, void *stream) {
  IN_STREAM(stream) return streams::put(stream, [=] { return memcpy((void *)to, (void *)from, bytes), 0; });
}
int cuMemcpy2DAsync_v2(const cuda_copy *copy, void *stream) {
  IN_STREAM(stream) if (copy->width > copy->source_pitch || copy->width > copy->to_pitch) return INVALID_VALUE;
  return streams::put(stream, [c = *copy] {
    const char *from = c.source_type == 1 ? (const char *)c.source_host : (const char *)c.source_device;
    char *to = c.to_type == 1 ? (char *)c.to_host : (char *)c.to_device;
    for (size_t r = 0; r < c.height; r++) memcpy(to + r * c.to_pitch, from + r * c.source_pitch, c.width);
    return 0;
  });
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *stream) {
  IN_STREAM(stream) return streams::put(stream, [=] { return memset((void *)to, value, bytes), 0; });
}
int cuStreamCreate(void **stream, unsigned) {
  IN_CONTEXT *stream = streams::create();
  return 0;
}
int cuStreamDestroy_v2(void *stream) {
  ENTER return streams::known(stream) ? streams::destroy(stream) : INVALID_HANDLE;
}
int cuStreamSynchronize(void *stream) { IN_STREAM(stream) return streams::run(stream); }
int cuStreamWaitEvent(void *stream, void *event, unsigned) { IN_STREAM(stream) return streams::known_event(event) ? streams::wait(stream, event) : INVALID_HANDLE; }
int cuEventCreate(void **event, unsigned flags) {
  enum { DISABLE_TIMING = 2 };
  IN_CONTEXT *event = streams::create_event(!(flags & DISABLE_TIMING));
  return 0;
}
int cuEventDestroy_v2(void *event) {
  ENTER return streams::destroy_event(event) ? 0 : INVALID_HANDLE;
}
int cuEventRecord(void *event, void *stream) {
  IN_STREAM(stream) if (!streams::known_event(event)) return INVALID_HANDLE;
  streams::record(event, stream);
  return 0;
}
int cuEventSynchronize(void *event) { IN_CONTEXT return streams::known_event(event) ? streams::run_event(event) : INVALID_HANDLE; }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  IN_CONTEXT for (void *event : {from, to}) if (!streams::known_event(event) || !streams::timed_event(event)) return INVALID_HANDLE;
  for (void *event : {from, to})
    if (!streams::reached_event(event)) return NOT_READY;
  *milliseconds = streams::milliseconds(from, to);
  return 0;
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned, int *, void **value) {
  IN_CONTEXT if (!strstr((const char *)image, ".target sm_")) {
    snprintf((char *)value[0], (size_t)value[1], "this is no PTX");
    return INVALID_PTX;
  }
  *module = new_handle();
  waiting[*module] = those_that_wait((const char *)image);
  return 0;
}
int cuModuleUnload(void *module) {
  ENTER waiting.erase(module);
  return free_handle(module);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  IN_CONTEXT const shim::Kernel *kernel = shim::find(name);
  if (!kernel) return NOT_FOUND;
  tell("loaded", kernel);
  if (waiting[module].count(name)) kernel = &waits.emplace(kernel, *kernel).first->second;
  *function = const_cast<shim::Kernel *>(kernel);
  return 0;
}
int cuFuncSetAttribute(void *, int, int value) { IN_CONTEXT return value <= setting("FAKE_CUDA_SHARED", 227 << 10) ? 0 : INVALID_VALUE; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared, void *stream, void **arguments, void **) {
  IN_STREAM(stream) Launch l;
  if (int code = l.fill(function, {x, y, z}, threads, shared, arguments)) return code;
  return streams::put(stream, [=] { return l.run(); });
}
int cuGraphCreate(void **graph, unsigned) {
  IN_CONTEXT *graph = new Graph{current, {}};
  graphs.insert((Graph *)*graph);
  return 0;
}
int cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t count, const cuda_node *n) {
  IN_CONTEXT Graph *g = known(graphs, graph);
  if (!g) return INVALID_HANDLE;
  const size_t place = g->nodes.size();
  if (count > (place ? 1 : 0) || (count && *after != &g->nodes[place - 1])) return INVALID_VALUE; // nobody makes anything but chains
  Node l;
  if (int code = l.fill(n->function, {n->x, n->y, n->z}, n->threads_x, n->shared, n->arguments)) return code;
  l.after = count > 0 || !place;
  g->nodes.push_back(l);
  *node = &g->nodes.back();
  return 0;
}
int cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const cuda_edge *edges, size_t count) {
  IN_CONTEXT Graph *g = known(graphs, graph);
  if (!g) return INVALID_HANDLE;
  const size_t place = g->nodes.size();
  if (count != 1 || place < 2 || *from != &g->nodes[place - 2] || *to != &g->nodes[place - 1] || g->nodes.back().after) return INVALID_VALUE;
  if (edges->from_port != 1 || edges->to_port != 0 || edges->type != 1 || setting("FAKE_CUDA_MAJOR", 9) < 9) return INVALID_VALUE;
  g->nodes.back().after = true;
  g->nodes.back().early = !does_wait(g->nodes.back().kernel);
  return 0;
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
  IN_CONTEXT const Graph *g = known(graphs, graph);
  if (!g) return INVALID_HANDLE;
  for (const Node &n : g->nodes)
    if (!n.after) return INVALID_VALUE; // it would run beside the others
  executables.insert(*(Executable **)executable = new Executable{g, g->context, g->nodes});
  return 0;
}
int cuGraphExecKernelNodeSetParams_v2(void *executable, void *node, const cuda_node *n) {
  IN_CONTEXT Executable *e = known(executables, executable);
  if (!e || !graphs.count(const_cast<Graph *>(e->graph))) return INVALID_HANDLE;
  for (size_t i = 0; i < e->nodes.size(); i++)
    if (node == &e->graph->nodes[i]) return e->nodes[i].fill(n->function, {n->x, n->y, n->z}, n->threads_x, n->shared, n->arguments);
  return INVALID_VALUE;
}
int cuGraphLaunch(void *executable, void *stream) {
  IN_STREAM(stream) const Executable *e = known(executables, executable);
  if (!e) return INVALID_HANDLE;
  ++*e->under_way;
  return streams::put(stream, [nodes = e->nodes, under_way = e->under_way] { // as they are now
    --*under_way;
    std::vector<const Node *> order;
    for (const Node &n : nodes) order.insert(n.early ? order.end() - 1 : order.end(), &n);
    for (const Node *n : order)
      if (int code = n->run()) return code;
    return 0;
  });
}
int cuGraphExecDestroy(void *executable) {
  IN_CONTEXT Executable *e = known(executables, executable);
  if (!e) return INVALID_HANDLE;
  if (*e->under_way) return INVALID_VALUE;
  executables.erase(e);
  delete e;
  return 0;
}
int cuGraphDestroy(void *graph) {
  IN_CONTEXT Graph *g = known(graphs, graph);
  if (!g) return INVALID_HANDLE;
  graphs.erase(g);
  delete g;
  return 0;
}
}
