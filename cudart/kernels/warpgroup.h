// The words of language.h for warpgroups: four warps that multiply matrices in shared memory in the background (compute capability 9.0, PTX wgmma). shim.h has the other meaning of each word.
#pragma once
#include "arithmetic.h"

enum { SWIZZLE_ROW = 128, SWIZZLE_BLOCK = 1024 }; // bytes of a row in shared memory, and of the eight rows after which the pattern repeats

// Matrices lie in rows of 128 bytes, 64 elements of bfloat16. The hardware finds the 16-byte chunk c of row r at chunk c XOR r mod 8 of the row ("128-byte swizzle": bits 4 to 6 of an address are
// combined with its bits 7 to 9, so a matrix begins at a multiple of 1,024 bytes). So eight neighbouring rows of a column lie in different banks.
INLINE unsigned swizzled(int row, int chunk) { return (unsigned)(row * SWIZZLE_ROW + (chunk ^ (row & 7)) * 16); }

#ifdef __CUDA__
// A matrix in shared memory, as the PTX manual's "matrix descriptor" says it: bits 0 to 13 are the address, 16 to 29 the leading dimension's offset, 32 to 45 the stride dimension's, each in units of 16 bytes;
// bits 49 to 51, the base offset, are 0 where the pattern begins at a multiple of 1,024 bytes; bits 62 and 63 are 1 for the 128-byte swizzle.
struct shared_matrix {
  uint64_t descriptor;
};
INLINE shared_matrix described(const void *at, unsigned leading, unsigned stride) {
  return {(uint64_t)((shared_address(at) & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | 1ull << 62};
}
// along_rows: a row of memory is a row of the left matrix, or a column of the right one, with the inner axis along it ("K-major"). The stride is from 8 rows to the next 8; the leading offset has no meaning with a swizzle.
INLINE shared_matrix along_rows(const void *at) { return described(at, 16, SWIZZLE_BLOCK); }
// down_rows: a row of memory is 64 columns of the right matrix at one place of the inner axis ("MN-major"); the next 64 columns begin leading bytes on. The stride is from 8 places of the inner axis to the next 8.
INLINE shared_matrix down_rows(const void *at, unsigned leading) { return described(at, leading, SWIZZLE_BLOCK); }
// further is the matrix that begins so many bytes on, a multiple of 16: the hardware applies the pattern to the sum of addresses, so the first of them need not be where a pattern begins.
INLINE shared_matrix further(shared_matrix m, unsigned bytes) { return {m.descriptor + (bytes >> 4)}; }

// round_up gives the first address from p on that is a multiple of SWIZZLE_BLOCK in shared memory.
INLINE unsigned char *round_up(unsigned char *p) { return p + (-shared_address(p) & (SWIZZLE_BLOCK - 1)); }
// publish lets products read what the calling thread has written to shared memory, its own copies that have arrived included. A barrier comes between it and products of other threads.
INLINE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// group_barrier is barrier for the threads of a warpgroup: those of its number, by a barrier of the hardware of their own.
INLINE void group_barrier() { asm volatile("bar.sync %0, 128;" ::"r"(1 + warp() / 4) : "memory"); }

#define GROUP_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GROUP_16(i) GROUP_4(i), GROUP_4(i + 4), GROUP_4(i + 8), GROUP_4(i + 12)
#define GROUP_64(i) GROUP_16(i), GROUP_16(i + 16), GROUP_16(i + 32), GROUP_16(i + 48)
#define ANEW_4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define ANEW_16(i) ANEW_4(i), ANEW_4(i + 4), ANEW_4(i + 8), ANEW_4(i + 12)
#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32 REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64 \
  REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_128 \
  REGISTERS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Products of a warpgroup: begin_products, multiply_group as often as it is wanted, end_products; wait_for_products returns when all but the newest such groups are done. All four warps call them together. Until
// then the results, which are added to d, may not be touched, nor the matrices written.
// begin_products comes after whatever else the threads did to the results.
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int newest> INLINE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory"); }
// finish_products waits for all, and nothing that reads the results comes before.
INLINE void finish_products(float (&d)[16]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : GROUP_16(0)::"memory"); }
INLINE void finish_products(float (&d)[32]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : GROUP_16(0), GROUP_16(16)::"memory"); }
INLINE void finish_products(float (&d)[64]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : GROUP_64(0)::"memory"); }
INLINE void finish_products(float (&d)[128]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : GROUP_64(0), GROUP_64(64)::"memory"); }

// multiply_group adds the product of a (64 × 16) and b (16 × columns, twice the size of d) to d: a group of 16 of the inner axis. Warp w of the four has rows [16w, 16w + 16); element i of a lane's is
// (row, column) = (lane/4 + 8·(i/2%2), 8·(i/4) + 2·(lane%4) + i%2) of them.
template <bool down> INLINE void multiply_group(float (&d)[64], shared_matrix a, shared_matrix b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" REGISTERS_64 "}, %64, %65, p, 1, 1, 0, %66;\n}"
               : GROUP_64(0)
               : "l"(a.descriptor), "l"(b.descriptor), "n"(down ? 1 : 0));
}
template <bool down> INLINE void multiply_group(float (&d)[128], shared_matrix a, shared_matrix b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" REGISTERS_128 "}, %128, %129, p, 1, 1, 0, %130;\n}"
               : GROUP_64(0), GROUP_64(64)
               : "l"(a.descriptor), "l"(b.descriptor), "n"(down ? 1 : 0));
}

// Those of attention. multiply_anew is multiply_group that begins with zero, whatever d holds. A left matrix in registers is a fragment as multiply_16x8x16 takes it, of each warp its 16 rows; registers are not written before the product is
// done.
#define WITH_SHARED(columns, all, a_at, b_at) \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" all "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0;\n}"
#define PREDICATE(value) "{\n.reg .pred p;\nsetp.ne.b32 p, " #value ", 0;\n"
INLINE void multiply_anew(float (&d)[16], shared_matrix a, shared_matrix b) {
  asm volatile(PREDICATE(0) WITH_SHARED(32, REGISTERS_16, 16, 17) : ANEW_16(0) : "l"(a.descriptor), "l"(b.descriptor));
}
template <bool down> INLINE void multiply_group(float (&d)[16], shared_matrix a, shared_matrix b) {
  static_assert(!down);
  asm volatile(PREDICATE(1) WITH_SHARED(32, REGISTERS_16, 16, 17) : GROUP_16(0) : "l"(a.descriptor), "l"(b.descriptor));
}
INLINE void multiply_anew(float (&d)[32], shared_matrix a, shared_matrix b) {
  asm volatile(PREDICATE(0) WITH_SHARED(64, REGISTERS_32, 32, 33) : ANEW_16(0), ANEW_16(16) : "l"(a.descriptor), "l"(b.descriptor));
}
template <bool down> INLINE void multiply_group(float (&d)[32], shared_matrix a, shared_matrix b) {
  static_assert(!down);
  asm volatile(PREDICATE(1) WITH_SHARED(64, REGISTERS_32, 32, 33) : GROUP_16(0), GROUP_16(16) : "l"(a.descriptor), "l"(b.descriptor));
}
INLINE void multiply_anew(float (&d)[32], const unsigned (&a)[4], shared_matrix b) {
  asm volatile(PREDICATE(0) "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
               : ANEW_16(0), ANEW_16(16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor));
}
template <bool down> INLINE void multiply_group(float (&d)[32], const unsigned (&a)[4], shared_matrix b) {
  asm volatile(PREDICATE(1) "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}"
               : GROUP_16(0), GROUP_16(16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"(down ? 1 : 0));
}
template <bool down> INLINE void multiply_group(float (&d)[64], const unsigned (&a)[4], shared_matrix b) {
  asm volatile(PREDICATE(1) "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" REGISTERS_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, %69;\n}"
               : GROUP_64(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"(down ? 1 : 0));
}
#endif
