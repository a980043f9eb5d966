// Bulk copies, mbarriers and what is checked of their use.
#include "fibers.h"

#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <string>

namespace shim {
namespace {
// A bulk copy's part for one block.
struct Bulk {
  unsigned char *to;
  const unsigned char *from;
  unsigned bytes;
  Phases *barrier;
  unsigned phase; // of the barrier when it began
};
// What a bulk copy brings, or brought, to some bytes: a thread that has waited for that phase may read them.
struct Brought {
  const unsigned char *to;
  const Phases *barrier;
  unsigned phase;
};
std::map<const void *, Phases> barriers;
std::vector<Bulk> under_way;
std::map<const unsigned char *, Brought> brought; // by where it begins; what is newer takes the place of what was there

unsigned offset_of(const void *at, unsigned block) { return (unsigned)((const unsigned char *)at - blocks[block].shared); }
int block_of(const void *p) {
  for (size_t b = 0; b < blocks.size(); b++)
    if (p >= blocks[b].shared && p < blocks[b].shared + shared_bytes) return (int)b;
  return -1;
}
// known gives a barrier; null if there is none.
Phases *known(const void *at, const char *what) {
  auto b = barriers.find(at);
  if (b != barriers.end()) return &b->second;
  misuse("%s at what is no mbarrier", what);
  return nullptr;
}
const void *place_of(const Phases *p) {
  for (auto &b : barriers)
    if (&b.second == p) return b.first;
  return nullptr;
}
void tell(char (&text)[160], const Phases *p) { snprintf(text, sizeof text, "the mbarrier at byte %u of block %u", offset_of(place_of(p), p->block), p->block); }

// advance ends the phase if nothing is missing.
void advance(Phases &p) {
  if (p.pending) return;
  if (p.bytes < 0) {
    char which[160];
    tell(which, &p);
    misuse("%s: %" PRId64 " bytes were copied in phase %u beyond those that were expected", which, -p.bytes, p.phase);
  }
  if (p.bytes == 0) p.phase++, p.pending = p.count, moved = true;
}
bool overlap(const void *a, const void *a_end, const void *b, const void *b_end) { return a < b_end && b < a_end; }

// each_part gives f the parts of shared memory that a product of the calling warpgroup reads of a matrix with so many rows, or columns, outside its 16 places of the inner axis.
template <class F> void each_part(const Matrix &m, int outer, F f) {
  if (!m.at) return; // in registers
  if (!m.down) {
    const unsigned char *at = (const unsigned char *)((uintptr_t)m.at & ~(uintptr_t)127);
    for (int o = 0; o < outer; o += 8) f(at + o / 8 * m.stride, at + o / 8 * m.stride + 1024);
    return;
  }
  for (int o = 0; o < outer; o += 64)
    for (int i = 0; i < 2; i++) f(m.at + o / 64 * m.leading + i * m.stride, m.at + o / 64 * m.leading + i * m.stride + 1024);
}
// may_read checks that the calling thread has waited for what was brought to [from, to).
void may_read(const unsigned char *from, const unsigned char *to) {
  auto b = brought.lower_bound(from);
  if (b != brought.begin() && std::prev(b)->second.to > from) --b;
  for (; b != brought.end() && b->first < to; ++b) {
    auto seen = current->seen.find(b->second.barrier);
    if (seen != current->seen.end() && seen->second > b->second.phase) continue;
    char which[160];
    tell(which, b->second.barrier);
    misuse("a product with bytes from %u on, whose thread has not waited for phase %u of %s", offset_of(b->first, current->block), b->second.phase, which);
  }
}
} // namespace

unsigned cluster_rank() { return current->block; }
void cluster_barrier() { wait_at(cluster_whole, cluster_alive); }
void *in_block(void *p, unsigned block) {
  if (block >= blocks.size()) return misuse("block %u of a cluster of %zu", block, blocks.size()), p;
  return blocks[block].shared + ((unsigned char *)p - blocks[current->block].shared);
}

void mbarrier_init(const void *at, unsigned count) {
  const int block = block_of(at);
  if (block != (int)current->block || (uintptr_t)at % 8) return misuse("an mbarrier at what is no multiple of 8 bytes in its own block's shared memory");
  if (!count || count > 0xfffff) return misuse("an mbarrier that counts %u arrivals", count);
  if (!barriers.emplace(at, Phases{(unsigned)block, (int)count, (int)count, 0, 0}).second) misuse("the mbarrier at byte %u is initialised twice", offset_of(at, block));
}

void mbarrier_arrive(const void *at, unsigned bytes) {
  Phases *p = known(at, "an arrival");
  if (!p) return;
  char which[160];
  tell(which, p);
  if (!blocks[p->block].alive) return misuse("an arrival at %s, which has ended", which);
  if (!p->pending) return misuse("%s: another arrival in phase %u, which counts %d", which, p->phase, p->count);
  p->bytes += bytes;
  if (p->bytes > 0xfffff) return misuse("%s: more bytes are expected than it can count", which);
  p->pending--;
  advance(*p);
}

void mbarrier_wait(const void *at, unsigned parity) {
  Phases *p = known(at, "a wait");
  if (!p) return;
  char which[160];
  tell(which, p);
  if (p->block != current->block) return misuse("a wait at %s by another block", which);
  if (parity > 1) return misuse("%s: parity %u", which, parity);
  if ((p->phase & 1) == parity) {
    current->waits = p, current->parity = parity;
    give_way();
    current->waits = nullptr;
    moved = true;
  }
  unsigned &seen = current->seen[p];
  if (p->phase > seen + 1) misuse("%s: a wait for parity %u after %u phases, of which the thread has seen %u", which, parity, p->phase, seen);
  seen = p->phase;
}

void copy_bulk(void *to, const void *from, unsigned bytes, const void *barrier, unsigned mask) {
  if (((uintptr_t)to | (uintptr_t)from | bytes) % 16 || !bytes) return misuse("a bulk copy of %u bytes that does not go by 16 of them", bytes);
  if (!mask || mask >> blocks.size()) return misuse("a bulk copy to the blocks %#x of a cluster of %zu", mask, blocks.size());
  for (unsigned b = 0; b < blocks.size(); b++) {
    if (!(mask >> b & 1)) continue;
    unsigned char *there = (unsigned char *)in_block(to, b), *end = there + bytes;
    if (!blocks[b].alive) return misuse("a bulk copy to block %u, which has ended", b);
    if (block_of(there) != (int)b || block_of(end - 1) != (int)b) return misuse("a bulk copy beyond the shared memory of block %u", b);
    Phases *p = known(in_block(const_cast<void *>(barrier), b), "a bulk copy's bytes are counted");
    if (!p) return;
    for (const Bulk &other : under_way)
      if (overlap(there, end, other.to, other.to + other.bytes)) return misuse("a bulk copy to byte %u of block %u, where another one is under way", offset_of(there, b), b);
    for (size_t i = 0; i < live; i++) {
      const Fiber &f = fibers[i];
      if (f.block != b) continue;
      for (const Product &x : f.products) {
        auto check = [&](const unsigned char *from, const unsigned char *until) {
          if (overlap(there, end, from, until)) misuse("a bulk copy to byte %u of block %u, which a product of warp %d under way reads", offset_of(there, b), b, f.thread / 32);
        };
        each_part(x.a, 64, check), each_part(x.b, x.columns, check);
      }
    }
    auto old = brought.lower_bound(there);
    if (old != brought.begin() && std::prev(old)->second.to > there) --old;
    while (old != brought.end() && old->first < end) old = brought.erase(old);
    brought[there] = {end, p, p->phase};
    memset(there, 0xff, bytes); // not a number, for those who do not wait
    under_way.push_back({there, (const unsigned char *)from, bytes, p, p->phase});
  }
}

bool copy_arrives(uint64_t *order) {
  if (under_way.empty()) return false;
  const size_t i = order ? (next_random(*order) >> 32) * under_way.size() >> 32 : 0;
  const Bulk c = under_way[i];
  under_way.erase(under_way.begin() + (long)i);
  if (c.phase != c.barrier->phase) {
    char which[160];
    tell(which, c.barrier);
    misuse("%s: phase %u ended while a copy of %u bytes was under way that began in it", which, c.phase, c.bytes);
  }
  memcpy(c.to, c.from, c.bytes);
  c.barrier->bytes -= c.bytes;
  advance(*c.barrier);
  return true;
}

void products_may_read(const Matrix &a, const Matrix &b, int columns) {
  if (brought.empty()) return;
  each_part(a, 64, may_read), each_part(b, columns, may_read);
}

void row_may_be_read(const void *row) {
  if (!brought.empty()) may_read((const unsigned char *)row, (const unsigned char *)row + 16);
}

void begin_cluster() { barriers.clear(), under_way.clear(), brought.clear(); }

void end_cluster() {
  if (!under_way.empty()) misuse("a block ended with bulk copies under way");
  for (auto &b : barriers)
    if (b.second.bytes) {
      char which[160];
      tell(which, &b.second);
      misuse("a block ended while %s expected %" PRId64 " bytes more", which, b.second.bytes);
    }
}

void tell_deadlock() {
  std::string text;
  std::map<const Phases *, bool> told;
  for (size_t i = 0; i < live; i++) {
    const Fiber &f = fibers[i];
    if (f.done || !f.waits || told[f.waits]) continue;
    told[f.waits] = true;
    char which[160], line[300];
    tell(which, f.waits);
    const Index &at = blocks[f.block].index;
    snprintf(line, sizeof line, "%s warp %d of block (%u, %u, %u) waits at %s for the end of phase %u: %d arrivals and %" PRId64 " bytes are missing", text.empty() ? "deadlock:" : ";", f.thread / 32, at.x, at.y, at.z, which, f.waits->phase,
             f.waits->pending, f.waits->bytes);
    text += line;
  }
  if (!text.empty()) misuse("%s", text.c_str());
}
} // namespace shim
