// The device's threads: the caller and count-1 more that live as long as the device. Units of a job are claimed from one counter, or from a range for each thread. A thread that has nothing to do
// looks at the number of the job for a while, because a decoding step is hundreds of short jobs one after another and waking a thread takes as long as one of them, and then sleeps. Claiming is the only
// meeting point: a thread that wakes late finds nothing left, and nobody waits for it.
#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
static void relax(void) { _mm_pause(); }
// Bits 6 and 15 of MXCSR: denormals are zero, flush to zero.
static uint64_t flush_denormals(void) {
  unsigned old = _mm_getcsr();
  _mm_setcsr(old | 0x8040);
  return old;
}
static void restore_denormals(uint64_t old) { _mm_setcsr((unsigned)old); }
#elif defined(__aarch64__)
static void relax(void) { __asm__ volatile("yield"); }
// Bit 24 of FPCR: flush to zero, operands and results.
static uint64_t flush_denormals(void) {
  uint64_t old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  __asm__ volatile("msr fpcr, %0" ::"r"(old | (1u << 24)));
  return old;
}
static void restore_denormals(uint64_t old) { __asm__ volatile("msr fpcr, %0" ::"r"(old)); }
#else
#error "the CPU device has kernels for amd64 and arm64"
#endif

enum { SPINS = 500 };           // looks for the end of a job before its caller lets others have the processor
enum { LOOKS = 32 };            // for a job, between two looks at the clock
enum { ALONE = 3000 };          // nanoseconds of looking for a job before a thread lets others have its processor between looks,
enum { AWAKE = 100000 };        // and before it sleeps
enum { SHORT = 8000 };          // nanoseconds of work below which waking a thread does not pay

// range is units not claimed yet, from the half below to before the one above.
typedef struct {
  _Alignas(64) atomic_ullong units;
} range;

struct threads {
  int count;
  pthread_t *ids;
  worker *workers;
  range *ranges; // of each thread
  unit_function run;
  const void *job;
  int64_t units;
  _Alignas(64) atomic_ullong number; // of the last job: times two, and one more where its units are in ranges
  _Alignas(64) atomic_llong left;    // units not claimed yet; they are claimed from the last to the first
  _Alignas(64) atomic_llong done;
  _Alignas(64) atomic_int sleeping;
  atomic_bool stop;
  pthread_mutex_t lock;
  pthread_cond_t wake;
};

typedef struct {
  threads *t;
  int index;
} thread_start;

// claim claims a unit from the counter, -1: there is none.
static int64_t claim(threads *t) {
  long long left = atomic_load_explicit(&t->left, memory_order_relaxed);
  do {
    if (left <= 0) return -1;
  } while (!atomic_compare_exchange_weak_explicit(&t->left, &left, left - 1, memory_order_acquire, memory_order_relaxed));
  return t->units - left;
}

static unsigned long long range_of(uint32_t from, uint32_t to) { return (unsigned long long)to << 32 | from; }

// claim_from claims the first unit of a range, or the last one; -1: there is none.
static int64_t claim_from(range *r, bool first) {
  unsigned long long units = atomic_load_explicit(&r->units, memory_order_relaxed), rest;
  uint32_t from, to;
  do {
    from = (uint32_t)units, to = (uint32_t)(units >> 32);
    if (from >= to) return -1;
    rest = first ? range_of(from + 1, to) : range_of(from, to - 1);
  } while (!atomic_compare_exchange_weak_explicit(&r->units, &units, rest, memory_order_acquire, memory_order_relaxed));
  return first ? from : to - 1;
}

// claim_near claims a unit for a thread: the next one of its own range, else another's last.
static int64_t claim_near(threads *t, int index) {
  int64_t unit = claim_from(&t->ranges[index], true);
  for (int i = 1; unit < 0 && i < t->count; i++) unit = claim_from(&t->ranges[(index + i) % t->count], false);
  return unit;
}

// run_units runs units of the job with that number until none is left. Another may have come meanwhile: a claim holds for the job that it finds, which lives until every claimed unit is done.
static void run_units(threads *t, unsigned long long number, int index) {
  for (;;) {
    int64_t unit = number % 2 ? claim_near(t, index) : claim(t);
    if (unit < 0) return;
    t->run(t->job, unit, &t->workers[index]);
    atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
  }
}

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// look waits for a job after the one with that number or the end, but not longer than a thread stays awake. By the clock, because how long a pause of the processor takes differs by a factor of twenty between models.
static bool look(threads *t, unsigned long long number) {
  int64_t begin = nanoseconds(), now = begin;
  do {
    for (int i = 0; i < LOOKS; i++) {
      if (atomic_load_explicit(&t->number, memory_order_relaxed) != number || atomic_load(&t->stop)) return true;
      relax();
    }
    now = nanoseconds();
    if (now - begin > ALONE) sched_yield();
  } while (now - begin < AWAKE);
  return false;
}

static void *thread_main(void *argument) {
  thread_start start = *(thread_start *)argument;
  free(argument);
  threads *t = start.t;
  flush_denormals();
  for (;;) {
    unsigned long long number = atomic_load_explicit(&t->number, memory_order_acquire);
    run_units(t, number, start.index);
    if (!look(t, number)) {
      pthread_mutex_lock(&t->lock);
      atomic_fetch_add(&t->sleeping, 1);
      while (atomic_load(&t->number) == number && !atomic_load(&t->stop)) pthread_cond_wait(&t->wake, &t->lock);
      atomic_fetch_sub(&t->sleeping, 1);
      pthread_mutex_unlock(&t->lock);
    }
    if (atomic_load(&t->stop)) return NULL;
  }
}

threads *threads_new(int count) {
  threads *t = NULL;
  if (posix_memalign((void **)&t, 64, sizeof *t)) return NULL;
  *t = (threads){.count = 1};
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->wake, NULL);
  t->ids = calloc((size_t)count, sizeof *t->ids);
  t->workers = calloc((size_t)count, sizeof *t->workers);
  if (!t->ids || !t->workers || posix_memalign((void **)&t->ranges, 64, (size_t)count * sizeof *t->ranges)) return threads_free(t), NULL;
  for (int i = 0; i < count; i++) atomic_init(&t->ranges[i].units, 0);
  for (; t->count < count; t->count++) {
    thread_start *s = malloc(sizeof *s);
    if (!s) return threads_free(t), NULL;
    *s = (thread_start){t, t->count};
    if (pthread_create(&t->ids[t->count], NULL, thread_main, s)) return free(s), threads_free(t), NULL;
  }
  return t;
}

void threads_free(threads *t) {
  pthread_mutex_lock(&t->lock);
  atomic_store(&t->stop, true);
  pthread_cond_broadcast(&t->wake);
  pthread_mutex_unlock(&t->lock);
  for (int i = 1; i < t->count; i++) pthread_join(t->ids[i], NULL);
  for (int i = 0; t->workers && i < t->count; i++) free(t->workers[i].memory);
  pthread_cond_destroy(&t->wake);
  pthread_mutex_destroy(&t->lock);
  free(t->workers);
  free(t->ranges);
  free(t->ids);
  free(t);
}

int threads_count(const threads *t) { return t->count; }

int threads_reserve(threads *t, int64_t bytes) {
  for (int i = 0; i < t->count; i++) {
    worker *w = &t->workers[i];
    if (w->bytes >= bytes) continue;
    free(w->memory);
    *w = (worker){0};
    if (posix_memalign(&w->memory, 64, (size_t)bytes)) return w->memory = NULL, -1;
    w->bytes = bytes;
  }
  return 0;
}

static void run(threads *t, unit_function f, const void *job, int64_t units, double work, bool ranges) {
  uint64_t old = flush_denormals();
  if (t->count == 1 || units == 1 || work < SHORT) {
    for (int64_t i = 0; i < units; i++) f(job, i, &t->workers[0]);
    restore_denormals(old);
    return;
  }
  t->run = f, t->job = job, t->units = units;
  atomic_store_explicit(&t->done, 0, memory_order_relaxed);
  ranges = ranges && units <= UINT32_MAX;
  if (!ranges) atomic_store_explicit(&t->left, units, memory_order_release);
  for (int64_t i = 0; ranges && i < t->count; i++)
    atomic_store_explicit(&t->ranges[i].units, range_of((uint32_t)(units * i / t->count), (uint32_t)(units * (i + 1) / t->count)), memory_order_release);
  unsigned long long number = (atomic_load_explicit(&t->number, memory_order_relaxed) / 2 + 1) * 2 + ranges;
  atomic_store(&t->number, number);
  if (atomic_load(&t->sleeping) > 0) {
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
  }
  run_units(t, number, 0);
  for (int spins = 0; atomic_load_explicit(&t->done, memory_order_acquire) < units; spins++)
    if (spins < SPINS) relax();
    else sched_yield(); // another process has this thread's processor
  restore_denormals(old);
}

void threads_run(threads *t, unit_function f, const void *job, int64_t units, double work) { run(t, f, job, units, work, false); }
void threads_run_ranges(threads *t, unit_function f, const void *job, int64_t units, double work) { run(t, f, job, units, work, true); }
