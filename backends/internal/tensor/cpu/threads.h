// The device's threads.
#ifndef TINSMITH_CPU_THREADS_H
#define TINSMITH_CPU_THREADS_H

#include "jobs.h"

typedef struct threads threads;

threads *threads_new(int count);
void threads_free(threads *t);
int threads_count(const threads *t);
// threads_reserve gives every thread at least bytes of its own memory; -1 when there is none.
int threads_reserve(threads *t, int64_t bytes);
// threads_run runs units 0 … units-1 of a job on all threads and returns when they are done. work is about how many nanoseconds one thread would take:
// short jobs stay on the caller. Denormals are flushed in all of it.
void threads_run(threads *t, unit_function f, const void *job, int64_t units, double work);
// threads_run_ranges is threads_run for units that lie one behind another in memory and are read once: every thread goes through a range of its own, because the processor looks ahead where reading goes straight on, and then
// takes what others have left from the ends of theirs.
void threads_run_ranges(threads *t, unit_function f, const void *job, int64_t units, double work);

#endif
