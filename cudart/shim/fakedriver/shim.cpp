// Fibers, barriers and what else shim.h declares. One launch runs at a time.
#include "fibers.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shim {

Index block, grid;
int thread_index;
void *dynamic_shared;

static Kernel *kernels;
Kernel::Kernel(const char *n, int t, unsigned c, unsigned b, void (*r)(const void *)) : name(n), threads(t), cluster(c), bytes(b), run(r), next(kernels) { kernels = this; }
const Kernel *find(const char *name) {
  for (const Kernel *k = kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return nullptr;
}

std::vector<Fiber> fibers;
size_t live;
std::vector<Block> blocks;
Fiber *current;
Barrier cluster_whole;
unsigned cluster_alive, shared_bytes;
bool moved;

namespace {
constexpr size_t stack_bytes = 128 << 10;

std::vector<int> turns; // the order of threads in this round
size_t place; // of the running one
uint64_t chance; // for what may happen early or late; 0: always late
bool late; // products are computed when they are waited for
char wrong_text[2000]; // what a kernel did wrong
const Kernel *running;
const void *arguments;

#if defined(__x86_64__)
void *scheduler;
extern "C" void shim_switch(void **from, void *to);
__asm__(".text\n.globl shim_switch\nshim_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
void to_scheduler(Fiber &from) { shim_switch(&from.sp, scheduler); }
void to_fiber(Fiber &f) { shim_switch(&scheduler, f.sp); }
void to_other(Fiber &from, Fiber &f) { shim_switch(&from.sp, f.sp); }
#else
ucontext_t scheduler;
void to_scheduler(Fiber &from) { swapcontext(&from.context, &scheduler); }
void to_fiber(Fiber &f) { swapcontext(&scheduler, &f.context); }
void to_other(Fiber &from, Fiber &f) { swapcontext(&from.context, &f.context); }
#endif

// next_of_round makes the next thread of the round that can go on the current one; null: none can.
Fiber *next_of_round() {
  for (; place < turns.size(); place++) {
    Fiber &f = fibers[turns[place]];
    if (f.held()) continue;
    place++;
    current = &f, thread_index = f.thread, block = blocks[f.block].index, dynamic_shared = blocks[f.block].shared;
    return current;
  }
  return nullptr;
}

} // namespace

void misuse(const char *format, ...) {
  if (wrong_text[0]) return;
  int n = snprintf(wrong_text, sizeof wrong_text, "warp %d of block (%u, %u, %u): ", current->thread / 32, blocks[current->block].index.x, blocks[current->block].index.y, blocks[current->block].index.z);
  va_list all;
  va_start(all, format);
  vsnprintf(wrong_text + n, sizeof wrong_text - (size_t)n, format, all);
  va_end(all);
}
bool misused() { return wrong_text[0]; }

// give_way is back in another round.
void give_way() {
  Fiber &me = *current;
  if (Fiber *next = next_of_round()) to_other(me, *next);
  else to_scheduler(me);
}

namespace {
void one_less(Barrier &b, unsigned &alive) {
  if (--alive && b.arrived == alive) b.arrived = 0, b.turn++;
}

void run_thread() {
  running->run(arguments);
  if (!current->products.empty()) misuse("a thread ended with products under way");
  // What waits for all threads does not wait for one that has ended.
  current->done = moved = true;
  Block &own = blocks[current->block];
  one_less(own.whole, own.alive);
  one_less(own.groups[thread_index / 128], own.group_alive[thread_index / 128]);
  one_less(own.warps[thread_index / 32], own.warp_alive[thread_index / 32]);
  one_less(cluster_whole, cluster_alive);
  give_way();
  abort(); // an ended fiber is never resumed
}

void prepare(Fiber &f) {
  if (!f.stack) f.stack.reset(new char[stack_bytes]);
  f.done = f.hidden = f.begun = f.waited = false, f.at = nullptr, f.waits = nullptr, f.exchanges = 0, f.groups = f.product_groups = 0;
  f.copies.clear(), f.products.clear(), f.seen.clear();
#if defined(__x86_64__)
  const size_t apart = (&f - fibers.data()) * 320 % 4096; // stacks that begin at one place of a page would lie in the same sets of the caches
  void **s = (void **)(((uintptr_t)f.stack.get() + stack_bytes - apart) & ~(uintptr_t)63);
  *--s = nullptr; // the frame above; it also aligns the stack as a call would
  *--s = (void *)run_thread;
  s -= 6;
  f.sp = s;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get();
  f.context.uc_stack.ss_size = stack_bytes;
  f.context.uc_link = &scheduler;
  makecontext(&f.context, run_thread, 0);
#endif
}

} // namespace

void wait_at(Barrier &b, unsigned count) {
  const unsigned turn = b.turn;
  if (++b.arrived == count) {
    b.arrived = 0, b.turn++, moved = true;
    return;
  }
  current->at = &b, current->turn = turn;
  give_way();
  current->at = nullptr;
  moved = true;
}

uint64_t next_random(uint64_t &s) {
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return s;
}

void block_barrier() {
  Block &own = blocks[current->block];
  wait_at(own.whole, own.alive);
}
void group_barrier() {
  Block &own = blocks[current->block];
  wait_at(own.groups[thread_index / 128], own.group_alive[thread_index / 128]);
}
void warp_barrier() {
  Block &own = blocks[current->block];
  wait_at(own.warps[thread_index / 32], own.warp_alive[thread_index / 32]);
}

// Two places per lane take turns: one may be written again after a barrier at which all have read it.
const Slot *exchange(const void *mine, unsigned size) {
  auto &place = blocks[current->block].slots[thread_index / 32][current->exchanges++ & 1];
  memcpy(place[thread_index & 31], mine, size);
  warp_barrier();
  return place;
}

static void perform(Copy &x) {
  if (x.done) return;
  x.done = true;
  if (x.wanted) memcpy(x.to, x.from, 16);
  else memset(x.to, 0, 16);
}
void copy_later(void *to, const void *from, bool wanted) {
  if (((uintptr_t)to | (uintptr_t)from) % 16) misuse("a copy of 16 bytes from or to an address that is no multiple of 16"); // a fault on a device, also of one that is not wanted
  current->copies.push_back({to, from, wanted, current->groups, false});
  if (chance && next_random(chance) & 1) perform(current->copies.back());
}
void (*asked)(const char *kernel, const void *at, unsigned bytes);
void ask_early(const void *at, unsigned bytes) {
  if (((uintptr_t)at | bytes) % 16 || !bytes) return misuse("%u bytes are asked for that do not go by 16", bytes);
  if (current->waited) return misuse("memory is asked for behind the wait for the launch before");
  if (asked) asked(running->name, at, bytes);
}
void asked_enough() { current->waited = true; }
void commit_copies() { current->groups++; }
void wait_for_copies(int newest) {
  auto &c = current->copies;
  size_t kept = 0;
  for (Copy &x : c) {
    if (x.group >= current->groups - newest) {
      c[kept++] = x;
      continue;
    }
    current->hidden = true;
    perform(x);
  }
  c.resize(kept);
}

namespace {
// element is the hardware's address of an element: row or column outer, place inner of the inner axis. In blocks of 8 rows of 128 bytes, stride from one block to the next along the rows' axis and, for a matrix
// down the rows, leading from 64 columns to the next 64; then bits 4 to 6 of the address are combined with its bits 7 to 9.
uint16_t element(const Matrix &m, int outer, int inner) {
  uintptr_t at = (uintptr_t)m.at;
  if (m.down) at += outer / 64 * m.leading + outer % 64 * 2 + inner / 8 * m.stride + inner % 8 * 128;
  else at += outer / 8 * m.stride + outer % 8 * 128 + inner * 2;
  return *(const uint16_t *)(at ^ (at >> 7 & 7) << 4);
}

// multiply computes the calling thread's elements.
void multiply(const Product &p) {
  const int lane = thread_index % 32, row = thread_index / 32 % 4 * 16 + lane / 4;
  uint16_t left[2][16], right[16];
  memcpy(left, p.left, sizeof left);
  for (int h = 0; h < 2 && p.a.at; h++)
    for (int k = 0; k < 16; k++) left[h][k] = element(p.a, row + 8 * h, k);
  for (int j = 0; j < p.columns / 8; j++)
    for (int e = 0; e < 2; e++) {
      for (int k = 0; k < 16; k++) right[k] = element(p.b, 8 * j + lane % 4 * 2 + e, k);
      for (int h = 0; h < 2; h++) {
        float &d = p.d[4 * j + 2 * h + e];
        d = sum_of_products(left[h], right, p.anew ? 0.0f : d);
      }
    }
}
} // namespace

void publish() { current->hidden = false; }
void begin_products() { current->begun = true; }
void multiply_later(float *d, int columns, bool anew, const Matrix &a, const unsigned (*fragment)[4], const Matrix &b) {
  if (current->hidden) misuse("a product after copies that were not published");
  if (!current->begun) misuse("a product without begin_products");
  products_may_read(a, b, columns);
  Product p = {d, columns, anew, a, b, {}, current->product_groups};
  if (fragment) rows_of_fragment(p.left, exchange(*fragment, sizeof *fragment), thread_index % 32);
  current->products.push_back(p);
  if (!late) multiply(current->products.back());
}
void end_products() { current->product_groups++, current->begun = false; }
void wait_for_products(int newest) {
  auto &all = current->products;
  size_t kept = 0;
  for (const Product &p : all) {
    if (p.group >= current->product_groups - newest) all[kept++] = p;
    else if (late) multiply(p);
  }
  all.resize(kept);
  warp_barrier(); // a warp waits as one
}

namespace {
// run_cluster runs the blocks that begin with one.
void run_cluster(Index first, int threads, uint64_t &order) {
  cluster_alive = 0, cluster_whole = {};
  begin_cluster();
  for (unsigned r = 0; r < blocks.size(); r++) {
    Block &b = blocks[r];
    memset(b.shared, 0xff, shared_bytes);
    b.index = {first.x + r, first.y, first.z};
    b.alive = (unsigned)threads, b.whole = {};
    for (int g = 0; g < (threads + 127) / 128; g++) b.groups[g] = {}, b.group_alive[g] = threads - 128 * g < 128 ? (unsigned)(threads - 128 * g) : 128;
    for (int w = 0; w < threads / 32; w++) b.warps[w] = {}, b.warp_alive[w] = 32;
    for (int i = 0; i < threads; i++) {
      Fiber &f = fibers[r * (size_t)threads + (size_t)i];
      f.block = r, f.thread = i;
      prepare(f);
    }
    cluster_alive += (unsigned)threads;
  }
  while (cluster_alive && !misused()) {
    if (order)
      for (uint64_t i = turns.size() - 1; i > 0; i--) std::swap(turns[i], turns[(next_random(order) >> 32) * (i + 1) >> 32]);
    moved = false, place = 0;
    if (Fiber *first = next_of_round()) to_fiber(*first);
    if (misused()) return;
    // Copies arrive when nobody can go on without them, or earlier.
    if (order && next_random(order) % 4 == 0) copy_arrives(&order);
    if (moved || copy_arrives(order ? &order : nullptr)) continue;
    tell_deadlock();
    if (!misused()) snprintf(wrong_text, sizeof wrong_text, "deadlock: some threads wait at a barrier that the others never reach");
  }
  if (!misused()) end_cluster();
}
} // namespace

const char *launch(const Kernel *k, Index g, int threads, unsigned bytes, const void *args, uint64_t order) {
  if (threads != k->threads || threads % 32 || threads > 1024) return "a block has another number of threads than the kernel says";
  if (g.x % k->cluster) return "a grid whose first side is no multiple of a cluster";
  // Shared memory begins at the same place of the swizzle's pattern in all blocks of a cluster, and not where the pattern begins.
  const size_t apart = (bytes + 2 * 1024) / 1024 * 1024;
  std::unique_ptr<unsigned char[]> shared(new unsigned char[apart * k->cluster + 2048]);
  unsigned char *from = shared.get() + (-(uintptr_t)shared.get() & 1023) + 16;
  shared_bytes = bytes, running = k, arguments = args, grid = g, late = order != 0, chance = order, wrong_text[0] = 0;
  blocks.resize(k->cluster);
  for (Block &b : blocks) b.shared = from, from += apart;
  live = (size_t)threads * k->cluster;
  if (fibers.size() < live) fibers.resize(live);
  turns.resize(live);
  for (size_t i = 0; i < turns.size(); i++) turns[i] = (int)i;
#if defined(__x86_64__)
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040); // denormals are zero, as the GPU code is built
#endif
  for (Index at = {0, 0, 0}; at.z < g.z && !misused(); at.z++)
    for (at.y = 0; at.y < g.y && !misused(); at.y++)
      for (at.x = 0; at.x < g.x && !misused(); at.x += k->cluster) run_cluster(at, threads, order);
#if defined(__x86_64__)
  _mm_setcsr(control);
#endif
  return misused() ? wrong_text : nullptr;
}

namespace {
// Numbers that the compiler computes with at once where the processor can.
typedef uint16_t SixteenShort __attribute__((vector_size(32)));
typedef int32_t Sixteen __attribute__((vector_size(64)));
typedef int32_t Eight __attribute__((vector_size(32)));
typedef int32_t Four __attribute__((vector_size(16)));

INLINE Sixteen sixteen(const uint16_t *from) {
  SixteenShort v;
  memcpy(&v, from, sizeof v);
  return __builtin_convertvector(v, Sixteen);
}
template <class V> INLINE V larger_of(const V &a, const V &b) {
  const V which = a > b; // all bits, or none
  return (a & which) | (b & ~which);
}
// folded has f of the halves of v.
template <class Half, class V, class F> INLINE Half folded(const V &v, F f) {
  Half halves[2];
  memcpy(halves, &v, sizeof v);
  return f(halves[0], halves[1]);
}
INLINE int largest_of(const Sixteen &v) {
  const auto larger = [](const auto &a, const auto &b) { return larger_of(a, b); };
  const Four m = folded<Four>(folded<Eight>(v, larger), larger);
  const int a = m[0] > m[1] ? m[0] : m[1], b = m[2] > m[3] ? m[2] : m[3];
  return a > b ? a : b;
}
// sum_of adds numbers of up to 28 bits.
INLINE int64_t sum_of(const Sixteen &v) {
  const auto sum = [](const auto &a, const auto &b) { return a + b; };
  const Four s = folded<Four>(folded<Eight>(v, sum), sum);
  return (int64_t)s[0] + s[1] + s[2] + s[3];
}
} // namespace

// sum_of_products is one tensor-core instruction's element: c and the 16 exact products are cut off 25 binary places below the largest exponent among them, added as
// integers, and the sum is cut to float32. That is how Hopper's bfloat16 instructions were found to behave by "MMA-Sim" (Microsoft, 2025); not verified here on a device.
float sum_of_products(const uint16_t *a, const uint16_t *b, float c) {
  uint32_t u;
  memcpy(&u, &c, 4);
  const Sixteen left = sixteen(a), right = sixteen(b), ea = left >> 7 & 255, eb = right >> 7 & 255;
  const int ec = (int)(u >> 23 & 255);
  if (ec == 255 || largest_of(larger_of(ea, eb)) == 255) { // not finite
    float s = c;
    for (int i = 0; i < 16; i++) {
      uint32_t x = (uint32_t)a[i] << 16, y = (uint32_t)b[i] << 16;
      float p, q;
      memcpy(&p, &x, 4), memcpy(&q, &y, 4);
      s += p * q;
    }
    return s;
  }
  // Significands with what is before the point, which subnormal numbers do not have: products have 14 places behind it, c has 23. Exponents are those of bfloat16's format, twice its bias above.
  const Sixteen products = ((left & 127) | ((ea != 0) & 128)) * ((right & 127) | ((eb != 0) & 128)), some = products != 0;
  const Sixteen exponents = ((ea - (ea == 0) + eb - (eb == 0)) & some) | (-1000 & ~some);
  const int part = (int)(u & 0x7fffff) | (ec ? 0x800000 : 0), exponent = (ec ? ec : 1) + 127;
  int top = largest_of(exponents);
  if (top == -1000) return c == 0.0f ? 0.0f : c; // zeros are added to c: much of what masks and filling up give
  if (part && exponent > top) top = exponent;
  // To units of 2^(top - 25), towards zero.
  Sixteen cut = top - exponents;
  cut = -larger_of(-cut, Sixteen{} - 31);
  const Sixteen magnitudes = products << 11 >> cut, minus = -((left ^ right) >> 15);
  const int c_cut = top - exponent, c_part = part && c_cut < 31 ? part << 2 >> c_cut : 0;
  const int64_t sum = sum_of((magnitudes ^ minus) - minus) + (u >> 31 ? -c_part : c_part);
  if (!sum) return 0.0f;
  uint64_t m = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
  int drop = 64 - __builtin_clzll(m) - 24; // bits beyond float32's 24
  if (drop > 0) m = m >> drop << drop;
  const double unit = bits<double>((uint64_t)(top - 254 - 25 + 1023) << 52);
  return (float)((sum < 0 ? -(double)m : (double)m) * unit);
}

} // namespace shim
