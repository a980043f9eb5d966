// Streams and events of the driver without a GPU. A stream's work is done when it is put there; with FAKE_CUDA_LATE=1, which is read when a stream is made, only when somebody waits for it,
// and only as much of it as that takes: what is missing in the order between two streams then shows in the results.
//
// The caller holds the lock.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace streams {
typedef std::function<int()> Work; // gives the driver's code

std::mutex &lock();

void *create();
bool known(void *stream);
int destroy(void *stream); // after its work
int put(void *stream, Work work);
int run(void *stream);     // to its end
int run_all();
uint64_t position(void *stream); // behind what it has been given
int run_to(void *stream, uint64_t position);

void *create_event(bool timed);
bool known_event(void *event);
bool destroy_event(void *event);
void record(void *event, void *stream);
int wait(void *stream, void *event); // the stream waits for the event
int run_event(void *event);          // the caller waits for it
bool timed_event(void *event);       // it has been recorded, and has a time when it is reached
bool reached_event(void *event);
float milliseconds(void *from, void *to); // between two such events
} // namespace streams
