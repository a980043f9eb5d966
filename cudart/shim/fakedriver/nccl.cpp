// NCCL without a GPU, for tests, over the driver without one. Every exchange is made of pairs of a sender and a receiver. As in NCCL the host does not wait for the copies: they are made when one of
// the two streams comes to them, after what the other stream had before. Unlike in NCCL a call returns when its other ends have been called, and the context of the communicator's device must be current: NCCL itself
// would take GPU 0's, and make it, where none is.
//
// FAKE_NCCL_VERSION is the version (22105), FAKE_NCCL_FAIL=name makes that function give an error.
#include "streams.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

extern "C" int cuCtxGetDevice(int *device);

namespace {
enum { UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
typedef std::unique_lock<std::mutex> Guard;

struct End {
  void *stream;
  uint64_t position;
  const char *from;
  char *to;
  size_t bytes;
};
struct Pair {
  End send, receive;
  bool matched = false, done = false;
};
struct Group {
  int left;
  bool aborted = false;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Pair>>> senders, receivers; // waiting, by ranks
};
struct Communicator {
  std::shared_ptr<Group> group;
  int rank, size, device;
};
struct Call {
  Communicator *c;
  int peer;
  bool send;
  End end;
};
std::mutex lock;
std::condition_variable changed;
thread_local int depth;
thread_local std::vector<Call> calls;

int failure(const char *function) {
  const char *v = getenv("FAKE_NCCL_FAIL");
  return v && !strcmp(v, function) ? 3 : 0;
}

// current tells whether the context of the device is the calling thread's.
bool current(int device) {
  int d = -1;
  return !cuCtxGetDevice(&d) && d == device;
}

int copy(Pair &p) {
  if (p.done) return 0;
  p.done = true;
  for (const End *e : {&p.send, &p.receive})
    if (int code = streams::run_to(e->stream, e->position)) return code;
  memcpy(p.receive.to, p.send.from, p.send.bytes);
  return 0;
}

// post finds the other ends of calls, all on one stream, and puts the copies there.
int post(std::vector<Call> all) {
  if (!current(all[0].c->device)) return UNHANDLED_CUDA_ERROR;
  for (Call &c : all) {
    std::lock_guard<std::mutex> driver(streams::lock());
    if (!streams::known(c.end.stream)) return INVALID_ARGUMENT;
    c.end.position = streams::position(c.end.stream);
  }
  std::vector<std::shared_ptr<Pair>> pairs;
  {
    Guard guard(lock);
    for (const Call &c : all) {
      Group &g = *c.c->group;
      const auto key = c.send ? std::make_pair(c.c->rank, c.peer) : std::make_pair(c.peer, c.c->rank);
      auto &others = c.send ? g.receivers[key] : g.senders[key];
      auto &own = c.send ? g.senders[key] : g.receivers[key];
      std::shared_ptr<Pair> p;
      if (!others.empty()) {
        p = others.front();
        others.pop_front();
        p->matched = true;
      } else {
        own.push_back(p = std::make_shared<Pair>());
      }
      (c.send ? p->send : p->receive) = c.end;
      pairs.push_back(p);
    }
    changed.notify_all();
    for (size_t i = 0; i < pairs.size(); i++) {
      changed.wait(guard, [&] { return pairs[i]->matched || all[i].c->group->aborted; });
      if (!pairs[i]->matched || pairs[i]->send.bytes != pairs[i]->receive.bytes) return INVALID_USAGE;
    }
  }
  std::lock_guard<std::mutex> driver(streams::lock());
  return streams::put(all[0].end.stream, [pairs] {
    for (const auto &p : pairs)
      if (int code = copy(*p)) return code;
    return 0;
  });
}

int submit(std::vector<Call> some) {
  if (depth) {
    calls.insert(calls.end(), some.begin(), some.end());
    return 0;
  }
  return some.empty() ? 0 : post(std::move(some));
}
Call sending(void *c, int peer, const void *from, size_t count, void *stream) { return {(Communicator *)c, peer, true, {stream, 0, (const char *)from, nullptr, 4 * count}}; }
Call receiving(void *c, int peer, void *to, size_t count, void *stream) { return {(Communicator *)c, peer, false, {stream, 0, nullptr, (char *)to, 4 * count}}; }
} // namespace

#define ENTER \
  if (int code = failure(__func__)) return code;
#define FLOATS \
  ENTER if (type != 7) return INVALID_ARGUMENT;

extern "C" {
int ncclGetVersion(int *version) {
  ENTER const char *v = getenv("FAKE_NCCL_VERSION");
  *version = v && *v ? atoi(v) : 22105;
  return 0;
}
const char *ncclGetErrorString(int code) { return code == INVALID_USAGE ? "invalid usage" : code == INVALID_ARGUMENT ? "invalid argument" : code == UNHANDLED_CUDA_ERROR ? "unhandled cuda error" : "internal error"; }
int ncclCommInitAll(void **communicators, int count, const int *devices) {
  ENTER if (!current(devices[0])) return UNHANDLED_CUDA_ERROR;
  auto g = std::make_shared<Group>();
  g->left = count;
  for (int i = 0; i < count; i++) communicators[i] = new Communicator{g, i, count, devices[i]};
  return 0;
}
int ncclCommDestroy(void *communicator) {
  ENTER if (!current(((Communicator *)communicator)->device)) return UNHANDLED_CUDA_ERROR;
  delete (Communicator *)communicator;
  return 0;
}
int ncclCommAbort(void *communicator) {
  ENTER if (!current(((Communicator *)communicator)->device)) return UNHANDLED_CUDA_ERROR;
  Guard guard(lock);
  ((Communicator *)communicator)->group->aborted = true;
  changed.notify_all();
  delete (Communicator *)communicator;
  return 0;
}
int ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream) { FLOATS return submit({sending(communicator, peer, from, count, stream)}); }
int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream) { FLOATS return submit({receiving(communicator, peer, to, count, stream)}); }
int ncclAllGather(const void *from, void *to, size_t count, int type, void *communicator, void *stream) {
  FLOATS const auto *c = (Communicator *)communicator;
  std::vector<Call> all;
  for (int p = 0; p < c->size; p++) {
    if (p == c->rank && (const char *)from == (char *)to + 4 * count * (size_t)p) continue; // in place
    all.push_back(sending(communicator, p, from, count, stream));
    all.push_back(receiving(communicator, p, (char *)to + 4 * count * (size_t)p, count, stream));
  }
  return submit(std::move(all));
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *communicator, void *stream) {
  FLOATS const auto *c = (Communicator *)communicator;
  if (c->rank != root) return submit({receiving(communicator, root, to, count, stream)});
  std::vector<Call> all;
  for (int p = 0; p < c->size; p++)
    if (p != root) all.push_back(sending(communicator, p, from, count, stream));
  return submit(std::move(all));
}
int ncclGroupStart() {
  ENTER depth++;
  return 0;
}
int ncclGroupEnd() {
  ENTER if (--depth) return 0;
  std::vector<Call> all = std::move(calls);
  calls.clear();
  return all.empty() ? 0 : post(std::move(all));
}
}
