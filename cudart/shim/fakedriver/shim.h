// The kernels' language on the CPU: the words of language.h with one fiber per CUDA thread. It is for tests: blocks run one after another and barriers are switches
// between fibers, in an order that a seed decides, so that a missing barrier shows. It knows no kernel and no driver.
//
// The blocks of a cluster run beside each other, and bulk copies come one by one whenever a block waits for them, or before. What bulk copies, mbarriers and products are used for wrongly ends the launch with a text that says which warp did
// what (bulk.cpp): stricter than hardware, a thread may only multiply, or load as matrices, what it has itself waited for, and may not miss a phase of a barrier that it waits at.
//
// What stands in for hardware: copy_async copies when it is waited for, not before, or in a random order of threads also at once; shared memory of a launch is filled with NaN before each block; multiply_16x8x16 computes
// in integers what Hopper's tensor cores are reported to compute; products of warpgroups read shared memory when they are begun, or when they are waited for where threads run in a random order, by the
// pattern that the PTX manual defines.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE static inline
#define INLINE_MEMBER inline
#define UNROLL
#define UNROLL_1
#define UNROLL_2
#define UNROLL_4
#define SHARED(type, name) static type name
#define DYNAMIC_SHARED(type, name) type *name = (type *)shim::dynamic_shared
// A kernel enters itself into the table that launches look in.
#define KERNEL_CLUSTER(name, threads, blocks, arguments) \
  extern "C" void name(const arguments a); \
  static const shim::Kernel name##_kernel(#name, threads, blocks, sizeof(arguments), [](const void *p) { name(*(const arguments *)p); }); \
  extern "C" void name(const arguments a)
#define KERNEL(name, threads, arguments) KERNEL_CLUSTER(name, threads, 1, arguments)
#define KERNEL_BLOCKS(name, threads, blocks, arguments) KERNEL(name, threads, arguments)
#define KERNEL_CLUSTER_BLOCKS(name, threads, cluster, blocks, arguments) KERNEL_CLUSTER(name, threads, cluster, arguments)

namespace shim {
struct Index {
  unsigned x, y, z;
};
extern Index block, grid; // of the running fiber
extern int thread_index;
extern void *dynamic_shared;

struct Kernel {
  Kernel(const char *name, int threads, unsigned cluster, unsigned bytes, void (*run)(const void *arguments));
  const char *name;
  int threads;
  unsigned cluster; // blocks of one, beside each other in x; such a kernel has no SHARED
  unsigned bytes; // of the arguments
  void (*run)(const void *arguments);
  Kernel *next;
};
const Kernel *find(const char *name);

// launch runs every block. order 0 lets threads run in their order, another number in a random one. The result is null, or what went wrong, until the next launch: a deadlock, a block of another size.
const char *launch(const Kernel *k, Index grid, int threads, unsigned shared_bytes, const void *arguments, uint64_t order);

void block_barrier();
void group_barrier(); // of a warpgroup
void warp_barrier();
// exchange gives every lane's 32 bytes to every lane of the warp; the answer is valid until the calling thread's next but one exchange.
typedef unsigned char Slot[32];
const Slot *exchange(const void *mine, unsigned size);
void copy_later(void *to, const void *from, bool wanted);
void commit_copies();
// What a thread asks for before it waits for the launch before its own goes to asked, if that is set; behind the wait there is nothing to ask for.
extern void (*asked)(const char *kernel, const void *at, unsigned bytes);
void ask_early(const void *at, unsigned bytes);
void asked_enough();
void wait_for_copies(int newest);
// A matrix in shared memory: where it begins and the two offsets of its descriptor; down tells its major axis.
struct Matrix {
  const unsigned char *at;
  unsigned leading, stride;
  bool down;
};
// rows_of_fragment gives a lane's two rows of a left operand, of which all lanes have given their fragments.
static inline void rows_of_fragment(uint16_t (&left)[2][16], const Slot *all, int lane) {
  for (int i = 0; i < 2; i++)
    for (int t = 0; t < 4; t++)
      for (int half = 0; half < 2; half++) memcpy(&left[i][half * 8 + t * 2], all[lane / 4 * 4 + t] + 4 * (i + 2 * half), 4);
}
void publish();
void begin_products();
// Either a matrix or, where that has no address, a fragment of the warp's 16 rows is on the left. anew: d counts as zero.
void multiply_later(float *d, int columns, bool anew, const Matrix &a, const unsigned (*fragment)[4], const Matrix &b);
void end_products();
void wait_for_products(int newest);
float sum_of_products(const uint16_t *a, const uint16_t *b, float c); // 16 of each

// Of bulk.h; blocks are ranks in the cluster.
unsigned cluster_rank();
void cluster_barrier();
void *in_block(void *p, unsigned block);
void mbarrier_init(const void *at, unsigned count);
void mbarrier_arrive(const void *at, unsigned bytes); // which it expects from then on
void mbarrier_wait(const void *at, unsigned parity);
void copy_bulk(void *to, const void *from, unsigned bytes, const void *barrier, unsigned blocks);
void row_may_be_read(const void *row); // of 16 bytes, by the calling thread
} // namespace shim

static inline int thread() { return shim::thread_index; }
static inline int64_t block_x() { return shim::block.x; }
static inline int64_t block_y() { return shim::block.y; }
static inline int64_t block_z() { return shim::block.z; }
static inline int64_t blocks_x() { return shim::grid.x; }
static inline int64_t blocks_y() { return shim::grid.y; }
static inline void barrier() { shim::block_barrier(); }
static inline void warp_barrier() { shim::warp_barrier(); }
static inline float shuffle_xor(float v, int mask) {
  const shim::Slot *all = shim::exchange(&v, sizeof v);
  float r;
  memcpy(&r, all[(thread() & 31) ^ mask], sizeof r);
  return r;
}
static inline float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float sqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double sqrt_rn(double x) { return __builtin_sqrt(x); }
template <class T> static inline T *memory(uint64_t address) { return (T *)address; }
template <class T> static inline T value_at(uint64_t address) { return *(const T *)address; }
template <class To, class From> static inline To bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}
static inline void here(float &) {}
static inline uint32_t add_shared(uint32_t *to, uint32_t v) {
  const uint32_t before = *to; // no other fiber runs meanwhile
  *to = before + v;
  return before;
}
static inline void copy_async(void *to, const void *from, bool wanted) { shim::copy_later(to, from, wanted); }
static inline void copy_async_streamed(void *to, const void *from, bool wanted) { shim::copy_later(to, from, wanted); }
static inline void ask_early(const void *at, unsigned bytes, bool wanted) {
  if (wanted) shim::ask_early(at, bytes);
}
static inline void wait_for_launch() { shim::asked_enough(); }
static inline void copy_async_commit() { shim::commit_copies(); }
template <int newest> static inline void copy_async_wait() { shim::wait_for_copies(newest); }

static inline void load_four(unsigned (&r)[4], const void *row, bool transposed) {
  shim::row_may_be_read(row);
  const shim::Slot *all = shim::exchange(&row, sizeof row);
  const int lane = thread() & 31;
  for (int m = 0; m < 4; m++) {
    uint16_t pair[2];
    for (int i = 0; i < 2; i++) {
      const int at_row = transposed ? lane % 4 * 2 + i : lane / 4, at_column = transposed ? lane / 4 : lane % 4 * 2 + i;
      const uint16_t *from;
      memcpy(&from, all[m * 8 + at_row], sizeof from);
      pair[i] = from[at_column];
    }
    r[m] = (unsigned)pair[0] | (unsigned)pair[1] << 16;
  }
  shim::warp_barrier(); // a lane's rows have been read by all before it goes on
}
static inline void load_matrices(unsigned (&r)[4], const void *row) { load_four(r, row, false); }
static inline void load_matrices_transposed(unsigned (&r)[4], const void *row) { load_four(r, row, true); }

static inline void store_two(float *to, float first, float second) {
  if ((uintptr_t)to % 8) __builtin_trap(); // as the hardware would
  to[0] = first, to[1] = second;
}

static inline unsigned narrow_one(float v) {
  uint32_t u = bits<uint32_t>(v);
  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
static inline unsigned narrow_two(float low, float high) { return narrow_one(low) | narrow_one(high) << 16; }

static inline void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const shim::Slot *all = shim::exchange(mine, sizeof mine);
  const int lane = thread() & 31;
  uint16_t left[2][16], right[2][16]; // the two rows and the two columns of the lane's four elements
  shim::rows_of_fragment(left, all, lane);
  for (int i = 0; i < 2; i++)
    for (int t = 0; t < 4; t++)
      for (int half = 0; half < 2; half++) {
        memcpy(&right[i][half * 8 + t * 2], all[(lane % 4 * 2 + i) * 4 + t] + 16 + 4 * half, 4);
      }
  for (int e = 0; e < 4; e++) d[e] = shim::sum_of_products(left[e / 2], right[e % 2], d[e]);
}

// The words of warpgroup.h.
typedef shim::Matrix shared_matrix;
static inline shared_matrix along_rows(const void *at) { return {(const unsigned char *)at, 16, 1024, false}; }
static inline shared_matrix down_rows(const void *at, unsigned leading) { return {(const unsigned char *)at, leading, 1024, true}; }
static inline shared_matrix further(shared_matrix m, unsigned bytes) { return {m.at + bytes, m.leading, m.stride, m.down}; }
static inline unsigned char *round_up(unsigned char *p) { return p + (-(uintptr_t)p & 1023); }
static inline void publish() { shim::publish(); }
static inline void begin_products() { shim::begin_products(); }
static inline void end_products() { shim::end_products(); }
template <int newest> static inline void wait_for_products() { shim::wait_for_products(newest); }
template <int n> static inline void finish_products(float (&)[n]) { shim::wait_for_products(0); }
static inline int64_t fresh(int64_t v) { return v; }
static inline void group_barrier() { shim::group_barrier(); }
template <bool down, int n> static inline void multiply_group(float (&d)[n], const shared_matrix &a, const shared_matrix &b) {
  shim::multiply_later(d, 2 * n, false, a, nullptr, {b.at, b.leading, b.stride, down});
}
template <bool down, int n> static inline void multiply_group(float (&d)[n], const unsigned (&a)[4], const shared_matrix &b) {
  shim::multiply_later(d, 2 * n, false, {}, &a, {b.at, b.leading, b.stride, down});
}
template <int n> static inline void multiply_anew(float (&d)[n], const shared_matrix &a, const shared_matrix &b) { shim::multiply_later(d, 2 * n, true, a, nullptr, b); }
template <int n> static inline void multiply_anew(float (&d)[n], const unsigned (&a)[4], const shared_matrix &b) { shim::multiply_later(d, 2 * n, true, {}, &a, b); }

// The words of bulk.h.
typedef uint64_t mbarrier;
static inline unsigned cluster_rank() { return shim::cluster_rank(); }
static inline void cluster_barrier() { shim::cluster_barrier(); }
static inline void mbarrier_init(mbarrier *b, unsigned count) { shim::mbarrier_init(b, count); }
static inline void mbarrier_init_done() {}
static inline void mbarrier_arrive(mbarrier *b) { shim::mbarrier_arrive(b, 0); }
static inline void mbarrier_arrive_in(mbarrier *b, unsigned block) { shim::mbarrier_arrive(shim::in_block(b, block), 0); }
static inline void mbarrier_arrive_expect(mbarrier *b, unsigned bytes) { shim::mbarrier_arrive(b, bytes); }
static inline void mbarrier_wait(mbarrier *b, unsigned parity) { shim::mbarrier_wait(b, parity); }
static inline void copy_bulk(void *to, const void *from, unsigned bytes, mbarrier *b) { shim::copy_bulk(to, from, bytes, b, 1u << shim::cluster_rank()); }
static inline void copy_bulk_multicast(void *to, const void *from, unsigned bytes, mbarrier *b, unsigned blocks) { shim::copy_bulk(to, from, bytes, b, blocks); }
template <int n> static inline void take_registers() { static_assert(n % 8 == 0 && n >= 24 && n <= 256, "as the instruction has them"); }
template <int n> static inline void leave_registers() { take_registers<n>(); }
