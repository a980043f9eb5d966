// Memory. From HUGE bytes on it is mapped directly, at a multiple of HUGE, and advised to be in huge pages. A mapping that is given back is kept for the next of its length, up to KEPT_BYTES in
// all: an optimizer step makes a version and frees one, a pass takes a dozen buffers of gradients, and having the system clear fresh pages for each takes longer than computing what goes there on a small model.
#define _GNU_SOURCE
#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, SMALL = 4096, KEPT = 32, KEPT_BYTES = 64 << 20 };

typedef struct {
  char *start;
  size_t length;
} mapping;

static struct {
  pthread_mutex_t lock;
  mapping list[KEPT]; // those that came last are at the end
  int count;
  size_t bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t length_of(int64_t bytes) { return ((size_t)bytes + SMALL - 1) & ~(size_t)(SMALL - 1); }

// take_out removes an entry of the list, whose lock is held.
static mapping take_out(int i) {
  mapping m = kept.list[i];
  memmove(kept.list + i, kept.list + i + 1, (size_t)(--kept.count - i) * sizeof m);
  kept.bytes -= m.length;
  return m;
}

// find_kept gives the mapping of that length that was given back last, NULL if there is none.
static char *find_kept(size_t length) {
  char *found = NULL;
  pthread_mutex_lock(&kept.lock);
  for (int i = kept.count - 1; i >= 0 && !found; i--)
    if (kept.list[i].length == length) found = take_out(i).start;
  pthread_mutex_unlock(&kept.lock);
  return found;
}

// keep takes a mapping in, in place of those that have been there longest.
static void keep(mapping m) {
  mapping old[KEPT];
  int n = 0;
  pthread_mutex_lock(&kept.lock);
  while (kept.count == KEPT || kept.bytes + m.length > KEPT_BYTES) old[n++] = take_out(0);
  kept.list[kept.count++] = m;
  kept.bytes += m.length;
  pthread_mutex_unlock(&kept.lock);
  while (n > 0) n--, munmap(old[n].start, old[n].length);
}

uintptr_t memory_new(int64_t bytes) {
  if (bytes < HUGE) {
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? (size_t)bytes : 1)) return 0;
    memset(p, 0, (size_t)bytes);
    return (uintptr_t)p;
  }
  if (bytes > INT64_MAX - HUGE - SMALL) return 0;
  size_t length = length_of(bytes);
  char *again = find_kept(length);
  if (again) return (uintptr_t)memset(again, 0, length);
  char *p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    memory_trim(); // it may have been the limit of the process
    p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (p == MAP_FAILED) return 0;
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
  else if (length > KEPT_BYTES / 4) munmap((void *)addr, length);
  else keep((mapping){(char *)addr, length});
}

void memory_trim(void) {
  for (;;) {
    pthread_mutex_lock(&kept.lock);
    mapping m = kept.count > 0 ? take_out(kept.count - 1) : (mapping){0};
    pthread_mutex_unlock(&kept.lock);
    if (!m.start) return;
    munmap(m.start, m.length);
  }
}

void memory_copy(uintptr_t to, uintptr_t from, int64_t bytes) { memcpy((void *)to, (const void *)from, (size_t)bytes); }
