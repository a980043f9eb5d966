// What shim.cpp and bulk.cpp have in common: the fibers of a cluster's blocks. One launch runs at a time.
#pragma once
#include "shim.h"

#include <map>
#include <memory>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {
struct Copy {
  void *to;
  const void *from;
  bool wanted;
  int group;
  bool done;
};
struct Product {
  float *d;
  int columns;
  bool anew;
  Matrix a, b;
  uint16_t left[2][16]; // the lane's two rows of a left matrix that is a fragment
  int group;
};
// A barrier of a number of threads: those who come wait for the next turn.
struct Barrier {
  unsigned arrived, turn;
};
// An mbarrier: pending arrivals and bytes of the phase, which begins with count of the first and none of the second.
struct Phases {
  unsigned block;
  int count, pending;
  int64_t bytes;
  unsigned phase; // how many have ended
};
struct Block {
  Index index;
  unsigned char *shared;
  Barrier whole, groups[8], warps[32]; // of all threads, of warpgroups, of warps
  unsigned group_alive[8], warp_alive[32], alive;
  Slot slots[32][2][32];
};
struct Fiber {
  std::unique_ptr<char[]> stack;
#if defined(__x86_64__)
  void *sp;
#else
  ucontext_t context;
#endif
  unsigned block; // its rank in the cluster
  int thread;
  bool done;
  const Barrier *at; // which it waits at while this is its turn
  unsigned turn;
  const Phases *waits; // the mbarrier that it waits at until the last phase that ended has this parity
  unsigned parity;
  std::map<const Phases *, unsigned> seen; // how many phases it knows the end of
  unsigned exchanges;
  int groups; // of copies committed
  std::vector<Copy> copies;
  bool hidden, begun; // copies have arrived that products may not see yet; begin_products was called
  bool waited; // for the launch before
  int product_groups; // ended
  std::vector<Product> products;

  bool held() const { return done || (at && at->turn == turn) || (waits && (waits->phase & 1) == parity); }
};

extern std::vector<Fiber> fibers; // those of the cluster's blocks one after another are the first live of them; their stacks are kept
extern size_t live;
extern std::vector<Block> blocks;
extern Fiber *current;
extern Barrier cluster_whole;
extern unsigned cluster_alive, shared_bytes;
extern bool moved; // in this round some thread passed a barrier or ended

// misuse keeps the first text about what a kernel did wrong, with the running warp before it.
void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool misused();
void give_way(); // has the others of the round go on
void wait_at(Barrier &b, unsigned count);
uint64_t next_random(uint64_t &s);

// Of bulk.cpp: a cluster begins; one copy that is under way arrives, the oldest one or, with a seed, any; false if there is none; what is left when all threads have ended; what threads wait for.
void begin_cluster();
bool copy_arrives(uint64_t *order);
void end_cluster();
void tell_deadlock();
// products_may_read checks that the calling thread may read what a product with so many columns reads.
void products_may_read(const Matrix &a, const Matrix &b, int columns);
} // namespace shim
