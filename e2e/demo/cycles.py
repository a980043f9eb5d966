"""Shows clock cycles with the real Tinker SDK: a client that sends its next forward_backward and optim_step before it reads the results of
the last pair, and one that waits for every answer; each alone and with three busy neighbours, one of which samples.

    python cycles.py [--steps N] [--trace FILE] [--json FILE]

It prints the total time and the clock cycles of each, draws some cycles of both crowded runs, and writes the whole session's trace for
Perfetto or chrome://tracing. TINKER_BASE_URL says which server; `make demo CASE=cycles` starts one for itself."""

import argparse
import collections
import json
import os
import random
import shutil
import threading
import time
import urllib.request

import tinker
from tinker import types

import ending
import timeline

MODEL = "tinsmith/tiny-chat"
ADAM = types.AdamParams(learning_rate=1e-4)


ROWS, TOKENS = 4, 32
BUSY_TOKENS = 160  # of a neighbour's sequences: a cycle takes longer than a client needs to send its next pair, also where the server has more of the processors than the clients
SHOWN = 8  # clock cycles in a drawing


def batch(seed, rows=ROWS, tokens=TOKENS):
    """Sequences of random tokens: what is learned does not matter here."""
    source = random.Random(seed)
    data = []
    for _ in range(rows):
        ids = [source.randrange(4, 400) for _ in range(tokens + 1)]
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(ids[:-1]),
                loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * tokens},
            )
        )
    return data


class Client:
    """One run, with the clock cycle of each of its operations."""

    def __init__(self, service, seed, tokens=TOKENS):
        self.run = service.create_lora_training_client(base_model=MODEL, rank=8, seed=seed).result()
        self.id = self.run.get_info().model_id
        self.data = batch(seed, tokens=tokens)
        self.pairs = []

    def send(self):
        """Submits a pair; the SDK gives its requests to the server in the background, in order."""
        return self.run.forward_backward(self.data, "cross_entropy"), self.run.optim_step(ADAM)

    def read(self, pair):
        backward, step = pair
        cycles = backward.result().metrics["clock_cycle:unique"], step.result().metrics["clock_cycle"]
        self.pairs.append(tuple(int(c) for c in cycles))

    def pipelined(self, steps):
        """Keeps one pair ahead of the one that it waits for."""
        ahead = collections.deque()
        for _ in range(steps):
            ahead.append(self.send())
            if len(ahead) > 1:
                self.read(ahead.popleft())
        while ahead:
            self.read(ahead.popleft())

    def waiting(self, steps):
        """Waits for each answer before it sends the next request."""
        for _ in range(steps):
            backward = self.run.forward_backward(self.data, "cross_entropy")
            backward.result()
            step = self.run.optim_step(ADAM)
            step.result()
            self.read((backward, step))


class Neighbours:
    """Three runs that always have work queued; the last one samples too. Use with `with`."""

    def __init__(self, service):
        self.clients = [Client(service, 100 + i, BUSY_TOKENS) for i in range(3)]
        self.sampler = self.clients[-1].run.save_weights_and_get_sampling_client().result()
        self.stop = threading.Event()
        self.errors = []
        self.threads = [threading.Thread(target=self.work, args=(self.train, c)) for c in self.clients]
        self.threads.append(threading.Thread(target=self.work, args=(self.sample, None)))

    def work(self, what, client):
        try:
            what(client)
        except Exception as error:  # noqa: BLE001: told by __exit__
            self.errors.append(error)

    def train(self, client):
        ahead = collections.deque()
        while not self.stop.is_set():
            ahead.append(client.send())
            if len(ahead) > 2:
                client.read(ahead.popleft())
        while ahead:
            client.read(ahead.popleft())

    def sample(self, _):
        params = types.SamplingParams(max_tokens=64, temperature=1.0, stop=[], seed=1)
        while not self.stop.is_set():
            self.sampler.sample(types.ModelInput.from_ints([5, 6, 7]), num_samples=2, sampling_params=params).result()

    def __enter__(self):
        for t in self.threads:
            t.start()
        time.sleep(1.0)  # until they are in their stride
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()
        if self.errors:
            raise self.errors[0]


def measure(service, how, steps, seed):
    """Runs one client and tells its time, the cycles from its first to its last operation, and the seconds in which that was."""
    client = Client(service, seed)
    begin = time.time()
    getattr(client, how)(steps)
    end = time.time()
    cycles = client.pairs[-1][1] - client.pairs[0][0] + 1
    together = sum(a == b for a, b in client.pairs)
    return {"client": how, "run": client.id, "seconds": end - begin, "cycles": cycles, "steps": steps, "together": together, "begin": begin, "end": end}


def trace_of(session):
    url = tinker.RestClient().export_session_trace(session).result()
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def rows_of(trace):
    """The device's work by run, samples by sampling session, and the clock cycles; times in seconds."""
    names, spans, cycles, begun = {}, collections.defaultdict(list), [], {}
    for e in trace["traceEvents"]:
        row = e.get("tid")
        if e["name"] == "thread_name":
            names[row] = e["args"]["name"]
        elif e.get("cat") == "device":
            spans[row].append((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
        elif e.get("cat") == "cycle":
            cycles.append((e["args"]["cycle"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
        elif e.get("cat") == "backend" and e["name"] == "sample":
            if e["ph"] == "b":
                begun[e["id"]] = e["ts"] / 1e6
            else:
                spans[row].append(("sample", begun.pop(e["id"]), e["ts"] / 1e6))
    return [(names[row], found) for row, found in sorted(spans.items())], cycles


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--trace", default=os.path.join(".cache", "cycles-trace.json"), help="where the trace goes")
    parser.add_argument("--json", help="write the measurements into this file")
    args = parser.parse_args()

    service = tinker.ServiceClient()
    measure(service, "waiting", 1, 9)  # the SDK's and the server's first time
    found = [("alone", measure(service, how, args.steps, 1)) for how in ("pipelined", "waiting")]
    with Neighbours(service) as neighbours:
        found += [("3 neighbours", measure(service, how, args.steps, 2)) for how in ("pipelined", "waiting")]
    others = {c.id: f"neighbour {i + 1}" for i, c in enumerate(neighbours.clients)}

    print(f"\n{args.steps} steps of forward_backward ({ROWS} x {TOKENS} tokens) and optim_step on {MODEL}, rank 8\n")
    print(f"{'client':<12}{'beside':<14}{'seconds':>8}{'cycles':>8}{'steps per cycle':>17}{'pairs in one cycle':>20}")
    for beside, m in found:
        print(f"{m['client']:<12}{beside:<14}{m['seconds']:>8.2f}{m['cycles']:>8}{m['steps'] / m['cycles']:>17.2f}{m['together']:>16} of {m['steps']}")

    raw = trace_of(found[0][1]["run"].split(":train:")[0])
    os.makedirs(os.path.dirname(os.path.abspath(args.trace)), exist_ok=True)
    with open(args.trace, "wb") as file:
        file.write(raw)
    rows, cycles = rows_of(json.loads(raw))
    width = max(40, min(160, shutil.get_terminal_size((116, 24)).columns) - 16)
    for _, m in found[2:]:
        own = [c for c in cycles if c[1] >= m["begin"] and c[2] <= m["end"]]
        own = own[max(0, len(own) // 2 - SHOWN // 2) :][:SHOWN]
        begin, end = own[0][1], own[-1][2]
        shown = []
        for name, spans in rows:
            label = "this client" if name == m["run"] else others.get(name, "" if ":train:" in name else "samples")
            if label and any(a < end and b >= begin for _, a, b in spans):
                shown.append((label, spans))
        print(f"\nthe {m['client']} client with three neighbours, its middle:\n")
        timeline.draw(shown, cycles, begin, end, width)
    print(f"\nthe whole session for Perfetto or chrome://tracing: {args.trace}")

    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([{**m, "beside": beside} for beside, m in found], file)


if __name__ == "__main__":
    main()
    ending.end()
