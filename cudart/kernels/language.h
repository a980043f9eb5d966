// The subset of CUDA C++ that kernels are written in. Two compilers read it: clang for the GPU (no CUDA header, no standard header, no host code) and any C++17
// compiler for the CPU, where shim.h gives each word its meaning with one fiber per thread. A kernel is
//
//   KERNEL(name, threads, arguments) { … a.x … }
//
// with one structure of arguments.h, called a, by value. Arithmetic is rounded as written: the build forbids contraction, and fma_rn is the only fused operation.
#pragma once
#include "arguments.h"

#ifdef __CUDA__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#include <__clang_cuda_builtin_vars.h>
#define UNROLL _Pragma("unroll")
#define UNROLL_1 _Pragma("unroll 1")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_4 _Pragma("unroll 4")
#define INLINE static __device__ inline __attribute__((always_inline))
#define INLINE_MEMBER __device__ inline __attribute__((always_inline))
#define KERNEL(name, threads, arguments) extern "C" __attribute__((global)) void __attribute__((launch_bounds(threads))) name(const arguments a)
// KERNEL_BLOCKS is KERNEL of which a multiprocessor has room for so many blocks: so many registers are there to be used.
#define KERNEL_BLOCKS(name, threads, blocks, arguments) extern "C" __attribute__((global)) void __attribute__((launch_bounds(threads, blocks))) name(const arguments a)
// KERNEL_CLUSTER is KERNEL whose blocks run in clusters of so many, beside each other in x. clang 19 has no word for that: make.sh writes it into the PTX.
#define KERNEL_CLUSTER(name, threads, blocks, arguments) KERNEL(name, threads, arguments)
// KERNEL_CLUSTER_BLOCKS is both: clusters of so many, and a multiprocessor has room for so many blocks.
#define KERNEL_CLUSTER_BLOCKS(name, threads, cluster, blocks, arguments) KERNEL_BLOCKS(name, threads, blocks, arguments)
#define SHARED(type, name) __shared__ type name
// Shared memory whose size the launch says.
#define DYNAMIC_SHARED(type, name) \
  extern __shared__ __attribute__((aligned(16))) unsigned char dynamic_shared[]; \
  type *name = (type *)dynamic_shared

INLINE int thread() { return threadIdx.x; }
INLINE int64_t block_x() { return blockIdx.x; }
INLINE int64_t block_y() { return blockIdx.y; }
INLINE int64_t block_z() { return blockIdx.z; }
INLINE int64_t blocks_x() { return gridDim.x; }
INLINE int64_t blocks_y() { return gridDim.y; }
INLINE void barrier() { __syncthreads(); }
INLINE void warp_barrier() { __nvvm_bar_warp_sync(0xffffffff); }
INLINE float shuffle_xor(float v, int mask) { return __nvvm_shfl_sync_bfly_f32(0xffffffff, v, mask, 31); }
INLINE float fma_rn(float a, float b, float c) { return __nvvm_fma_rn_ftz_f(a, b, c); }
INLINE double fma_rn(double a, double b, double c) { return __nvvm_fma_rn_d(a, b, c); }
INLINE float sqrt_rn(float x) { return __nvvm_sqrt_rn_ftz_f(x); }
INLINE double sqrt_rn(double x) { return __nvvm_sqrt_rn_d(x); }
template <class T> INLINE T *memory(uint64_t address) { return (T *)(__attribute__((address_space(1))) T *)address; }
// value_at gives what lies in memory, a multiple of 8 bytes. Where a kernel takes something from memory or from its arguments, the compiler makes of reads through pointers one read of either, and so that this has an
// address copies all arguments to the stack of each thread; of these it does not.
template <class T> INLINE T value_at(uint64_t address) {
  struct {
    uint64_t words[sizeof(T) / 8];
  } v;
  UNROLL for (unsigned i = 0; i < sizeof(T) / 8; i++) v.words[i] = ((const __attribute__((address_space(1))) uint64_t *)address)[i];
  return __builtin_bit_cast(T, v);
}
template <class To, class From> INLINE To bits(From v) { return __builtin_bit_cast(To, v); }
// here has v loaded before it. The compiler moves a load behind the conditions under which it is used, where each waits for memory by itself.
INLINE void here(float &v) { asm volatile("" : "+f"(v)); }

// fresh gives v as the compiler knows nothing of, so that what is computed from it is not kept in registers from before.
INLINE int64_t fresh(int64_t v) {
  asm volatile("" : "+l"(v));
  return v;
}

INLINE unsigned shared_address(const void *p) { return (unsigned)(unsigned long)(__attribute__((address_space(3))) const char *)p; }
// add_shared adds v to a number in shared memory to which other threads add meanwhile, and gives what it was before. The sum is the same whatever their order; what is given is not.
INLINE uint32_t add_shared(uint32_t *to, uint32_t v) {
  uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(shared_address(to)), "r"(v) : "memory");
  return before;
}
// copy_async copies 16 bytes into shared memory, or writes zeros when not wanted, in the background; both addresses are multiples of 16.
INLINE void copy_async(void *to, const void *from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
// copy_async_streamed is copy_async of long rows that are read on from here: the memory is asked for 256 bytes at once.
INLINE void copy_async_streamed(void *to, const void *from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
INLINE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// copy_async_wait returns when all but the newest groups of the calling thread have arrived.
template <int newest> INLINE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory"); }

// Where launches overlap a kernel waits for the one before it: behind wait_for_launch, or before anything else where its source has no such word. Before that
// it may read its arguments, compute, and have ask_early bring memory that nobody writes
// to the second-level cache, so many bytes of it, if that is wanted; address and bytes are multiples of 16. All threads do so in a straight line. In the PTX
// both words are comments, which become instructions where launches overlap (dependent.go):
// elsewhere nothing is asked for, and the assembler drops what computes the address.
INLINE void ask_early(const void *at, unsigned bytes, bool wanted) {
  asm volatile("//early {\n\t//early .reg .pred wanted;\n\t//early setp.ne.u32 wanted, %2, 0;\n"
               "\t//early @wanted cp.async.bulk.prefetch.L2.global [%0], %1;\n\t//early }" ::"l"(at), "r"(bytes), "r"((unsigned)wanted));
}
INLINE void wait_for_launch() { asm volatile("//early wait" ::: "memory"); }

// load_matrices reads four 8 × 8 matrices of 16-bit elements from shared memory; lane l names row l%8 of matrix l/8. A lane receives elements (l/4, 2(l%4)) and the next one of
// each matrix; transposed, elements (2(l%4), l/4) and (2(l%4)+1, l/4).
INLINE void load_matrices(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
INLINE void load_matrices_transposed(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// store_two writes two numbers beside each other in memory, at a multiple of 8 bytes. Of a store of a pair behind which there is another way to store its numbers, the compiler makes two.
INLINE void store_two(float *to, float first, float second) { asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory"); }
// narrow_two rounds two numbers to bfloat16, to nearest even; low has the lower half of the result.
INLINE unsigned narrow_two(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// multiply_16x8x16 adds the product of bfloat16 fragments a (16 × 16) and b (16 × 8) to d.
INLINE void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
#include "shim.h"
#endif
