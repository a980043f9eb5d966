#include "streams.h"

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>

namespace streams {
namespace {
struct Stream {
  bool late;
  std::deque<Work> work;
  uint64_t put = 0, done = 0;
};
using Clock = std::chrono::steady_clock;
struct Event {
  bool timed;
  std::shared_ptr<Stream> stream; // null: not recorded yet
  uint64_t position = 0;
  Clock::time_point reached; // of timed ones
};
std::map<void *, std::shared_ptr<Stream>> all;
std::map<void *, std::shared_ptr<Event>> events;

int run_to(const std::shared_ptr<Stream> &s, uint64_t position) {
  int first = 0;
  while (s->done < position) {
    Work w = std::move(s->work.front());
    s->work.pop_front();
    s->done++;
    const int code = w();
    if (!first) first = code;
  }
  return first;
}
int put(const std::shared_ptr<Stream> &s, Work w) {
  if (!s->late) return w();
  s->work.push_back(std::move(w));
  s->put++;
  return 0;
}
} // namespace

std::mutex &lock() {
  static std::mutex m;
  return m;
}
uint64_t position(void *stream) { return all.at(stream)->put; }
int run_to(void *stream, uint64_t position) { return run_to(all.at(stream), position); }

void *create() {
  auto s = std::make_shared<Stream>();
  const char *late = getenv("FAKE_CUDA_LATE");
  s->late = late && *late == '1';
  all[s.get()] = s;
  return s.get();
}
bool known(void *stream) { return all.count(stream); }
int destroy(void *stream) {
  const int code = run(stream);
  all.erase(stream);
  return code;
}
int put(void *stream, Work w) { return put(all.at(stream), std::move(w)); }
int run(void *stream) { return run_to(all.at(stream), all.at(stream)->put); }
int run_all() {
  int first = 0;
  for (auto &s : all) {
    const int code = run_to(s.second, s.second->put);
    if (!first) first = code;
  }
  return first;
}
void *create_event(bool timed) {
  auto e = std::make_shared<Event>();
  e->timed = timed;
  void *handle = e.get();
  events[handle] = std::move(e);
  return handle;
}
bool known_event(void *event) { return events.count(event); }
bool destroy_event(void *event) { return events.erase(event); }
void record(void *event, void *stream) {
  const std::shared_ptr<Event> e = events.at(event);
  e->stream = all.at(stream);
  if (e->timed) put(e->stream, [e] { return e->reached = Clock::now(), 0; });
  e->position = e->stream->put;
}
int wait(void *stream, void *event) {
  const Event &e = *events.at(event);
  if (!e.stream || e.stream == all.at(stream)) return 0;
  return put(all.at(stream), [other = e.stream, position = e.position] { return run_to(other, position); });
}
bool timed_event(void *event) { return events.at(event)->timed && events.at(event)->stream; }
bool reached_event(void *event) {
  const Event &e = *events.at(event);
  return e.stream->done >= e.position;
}
float milliseconds(void *from, void *to) { return std::chrono::duration<float, std::milli>(events.at(to)->reached - events.at(from)->reached).count(); }
int run_event(void *event) {
  const Event &e = *events.at(event);
  return e.stream ? run_to(e.stream, e.position) : 0;
}
} // namespace streams
