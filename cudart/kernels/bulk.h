// The words of language.h for bulk copies, the barriers that count them (PTX mbarrier) and clusters of blocks: compute capability 9.0. shim.h has the other meaning of each word.
//
// An mbarrier lies in shared memory and goes from phase to phase: a phase ends when as many threads have arrived as the barrier counts, and as many bytes have been copied as arrivals said. Waiting for a parity returns when the last
// phase that has ended is of that parity: 0 for the first, 1 for the second, and so on; before any has, parity 1 does not wait.
#pragma once
#include "warpgroup.h"

#ifdef __CUDA__
typedef unsigned long mbarrier;

INLINE unsigned cluster_rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// cluster_barrier is barrier for all threads of the cluster: what they have written before is seen after it, by each other.
INLINE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

INLINE void mbarrier_init(mbarrier *b, unsigned count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory"); }
// mbarrier_init_done comes after the last mbarrier_init of a thread, and before the barrier behind which others use them.
INLINE void mbarrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory"); }
INLINE void mbarrier_arrive(mbarrier *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory"); }
// mbarrier_arrive_in arrives at the barrier at the same place in another block of the cluster, or in the calling one.
INLINE void mbarrier_arrive_in(mbarrier *b, unsigned block) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(b)), "r"(block) : "memory");
}
// mbarrier_arrive_expect has the phase wait for so many bytes more, and arrives.
INLINE void mbarrier_arrive_expect(mbarrier *b, unsigned bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory"); }
INLINE void mbarrier_wait(mbarrier *b, unsigned parity) {
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}

// copy_bulk copies bytes into the block's shared memory in the background, and the barrier counts them; addresses and bytes are multiples of 16. Nobody may read or write what is there until then. Copies are of the proxy that products read by: no
// publish is needed.
INLINE void copy_bulk(void *to, const void *from, unsigned bytes, mbarrier *b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}
// copy_bulk_multicast copies to the same place of each block of the cluster whose bit is set, where the barrier at b's place counts the bytes.
INLINE void copy_bulk_multicast(void *to, const void *from, unsigned bytes, mbarrier *b, unsigned blocks) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)),
               "h"((unsigned short)blocks)
               : "memory");
}

// take_registers has each thread of the calling warpgroup own so many registers, when others have left theirs; all of its warps call it.
template <int n> INLINE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> INLINE void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }

#endif

// A place of a ring of tiles in shared memory, and which turn of it this is.
template <int places> struct bulk_ring {
  int place;
  unsigned parity;
  INLINE_MEMBER void go_on() {
    if (++place == places) place = 0, parity ^= 1;
  }
};
