// Streams, events and graphs of the driver without a GPU. A stream's work is done when it is put there; with FAKE_CUDA_LATE=1, which is read when a stream is made, only when somebody waits for it,
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
// put gives work to a stream, or to the graph that is recorded from it.
int put(void *stream, Work work);
int run(void *stream);     // to its end
int run_all();
uint64_t position(void *stream); // behind what it has been given
int run_to(void *stream, uint64_t position);

void *create_event();
bool known_event(void *event);
bool destroy_event(void *event);
void record(void *event, void *stream);
int wait(void *stream, void *event); // the stream waits for the event
int run_event(void *event);          // the caller waits for it

bool begin_capture(void *stream);
void *end_capture(void *stream); // the graph; null if none is recorded
bool recording();                // a graph is recorded: what would wait is refused
int launch(void *graph, void *stream);
bool destroy_graph(void *graph);
void *copy_graph(void *graph);
} // namespace streams
