// Memory. From HUGE bytes on it is mapped directly, at a multiple of HUGE, and advised to be in huge pages. A mapping that is given back is kept for the next of its length: an optimizer step makes a version and frees
// one, a pass takes a dozen buffers of gradients and a cycle one for each of its runs, and having the system clear fresh pages for each takes longer than computing what goes there on a small model. What is kept and what
// is in use together are at most ALWAYS_KEPT bytes more than has been in use at once, so that keeping never takes a process beyond what it has needed; and no more than most_bytes are kept, until memory_trim.
#define _GNU_SOURCE
#include "kernels.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, SMALL = 4096, KEPT = 512, ALWAYS_KEPT = 64 << 20 };
static const size_t most_bytes = (size_t)4 << 30;

typedef struct {
  char *start;
  size_t length;
} mapping;

static struct {
  pthread_mutex_t lock;
  mapping list[KEPT]; // those that came last are at the end
  int count;
  size_t bytes;
  size_t used, most; // bytes of mappings in use, and the most that ever were
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t length_of(int64_t bytes) { return ((size_t)bytes + SMALL - 1) & ~(size_t)(SMALL - 1); }

// take_out removes an entry of the list, whose lock is held.
static mapping take_out(int i) {
  mapping m = kept.list[i];
  memmove(kept.list + i, kept.list + i + 1, (size_t)(--kept.count - i) * sizeof m);
  kept.bytes -= m.length;
  return m;
}

// most_kept is how many bytes may be kept. The list's lock is held.
static size_t most_kept(void) {
  size_t below = kept.most - kept.used + ALWAYS_KEPT;
  return below < most_bytes ? below : most_bytes;
}

// trim_to takes out those that have been there longest until no more than so many bytes and entries are kept, and gives them to be unmapped without the lock, which is held here.
static int trim_to(size_t bytes, int entries, mapping old[KEPT]) {
  int n = 0;
  while (kept.bytes > bytes || kept.count > entries) old[n++] = take_out(0);
  return n;
}
static void unmap(const mapping *old, int n) {
  while (n > 0) n--, munmap(old[n].start, old[n].length);
}

// take gives the mapping of that length that was given back last, NULL if there is none; in use is what either way comes to be.
static char *take(size_t length) {
  char *found = NULL;
  mapping old[KEPT];
  pthread_mutex_lock(&kept.lock);
  for (int i = kept.count - 1; i >= 0 && !found; i--)
    if (kept.list[i].length == length) found = take_out(i).start;
  kept.used += length;
  if (kept.used > kept.most) kept.most = kept.used;
  int n = trim_to(most_kept(), KEPT, old);
  pthread_mutex_unlock(&kept.lock);
  unmap(old, n);
  return found;
}

// keep takes a mapping that is not in use any more in, in place of those that have been there longest. With no start there is none, only its length was counted.
static void keep(mapping m) {
  mapping old[KEPT];
  pthread_mutex_lock(&kept.lock);
  kept.used -= m.length;
  size_t room = most_kept();
  bool fits = m.start && m.length <= room;
  int n = trim_to(fits ? room - m.length : room, fits ? KEPT - 1 : KEPT, old);
  if (fits) kept.list[kept.count++] = m, kept.bytes += m.length;
  pthread_mutex_unlock(&kept.lock);
  unmap(old, n);
  if (!fits && m.start) munmap(m.start, m.length);
}

uintptr_t memory_new(int64_t bytes, bool cleared) {
  if (bytes < HUGE) {
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? (size_t)bytes : 1)) return 0;
    if (cleared) memset(p, 0, (size_t)bytes);
    return (uintptr_t)p;
  }
  if (bytes > INT64_MAX - HUGE - SMALL) return 0;
  size_t length = length_of(bytes);
  char *again = take(length);
  if (again && cleared) memset(again, 0, length);
  if (again) return (uintptr_t)again;
  char *p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    memory_trim(0); // it may have been the limit of the process
    p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (p == MAP_FAILED) return keep((mapping){NULL, length}), 0;
  uintptr_t start = ((uintptr_t)p + HUGE - 1) & ~(uintptr_t)(HUGE - 1), end = start + length;
  if (start > (uintptr_t)p) munmap(p, start - (uintptr_t)p);
  if ((uintptr_t)p + length + HUGE > end) munmap((void *)end, (uintptr_t)p + length + HUGE - end);
#ifdef MADV_HUGEPAGE
  madvise((void *)start, length, MADV_HUGEPAGE); // only a wish
#endif
  return start;
}

void memory_free(uintptr_t addr, int64_t bytes) {
  size_t length = length_of(bytes);
  if (bytes < HUGE) free((void *)addr);
  else keep((mapping){(char *)addr, length});
}

void memory_trim(int64_t most) {
  for (;;) {
    pthread_mutex_lock(&kept.lock);
    mapping m = kept.bytes > (size_t)most ? take_out(kept.count - 1) : (mapping){0};
    pthread_mutex_unlock(&kept.lock);
    if (!m.start) break;
    munmap(m.start, m.length);
  }
#ifdef __GLIBC__
  if (most == 0) malloc_trim(0); // what is smaller than a mapping: the matrices of many small adapters are a gigabyte
#endif
}

void memory_copy(uintptr_t to, uintptr_t from, int64_t bytes) { memcpy((void *)to, (const void *)from, (size_t)bytes); }
