"""The worker of the backend plugin `transformers`: a Hugging Face causal language model, its LoRA adapters, log-probabilities, gradients and logits.

It is started by the plugin, which embeds it, as `python -I worker.py` with a socket as descriptor 3. It knows no order, no version, no loss, no sampling: all of that is the plugin's.
One request is one frame, and so is its answer: two little-endian numbers, of 4 and 8 bytes, the sizes of what follows; a JSON object; raw tensors. An answer has "error" where the request
failed. While a request takes long, frames with "beat" come before its answer. The worker ends when the socket does. It prints nothing but diagnostics.

Every sequence runs alone, in a batch of one, and is filled up with token 0 behind its end to a multiple of 64, which no row before sees: causal. So a row's bits do not depend on neighbours.
"""

import copy
import inspect
import json
import os
import socket
import struct
import sys
import time
import traceback

os.dup2(2, 1)  # what libraries print is no frame and no secret: it goes to the log
CHANNEL = socket.socket(fileno=3)

MAX_HEAD = 1 << 24
MAX_BODY = 1 << 30
BLOCK = 64  # tokens that a sequence is filled up to a multiple of
ROWS = 16  # rows whose sums are computed at once, always from the sequence's start


# Frames


def receive(size):
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        n = CHANNEL.recv_into(view[at:])
        if n == 0:
            if at == 0:
                os._exit(0)  # the plugin is gone
            raise SystemExit("the plugin ended in the middle of a frame")
        at += n
    return data


def read_frame():
    head, body = struct.unpack("<IQ", receive(12))
    if head > MAX_HEAD or body > MAX_BODY:
        raise SystemExit(f"a frame of {head} and {body} bytes is larger than {MAX_HEAD} and {MAX_BODY}")
    return json.loads(receive(head) if head else b"{}"), receive(body) if body else bytearray()


def write_frame(head, *parts):
    text = json.dumps(head).encode()
    views = [memoryview(p).cast("B") for p in parts if len(p)]
    CHANNEL.sendall(struct.pack("<IQ", len(text), sum(len(v) for v in views)) + text)
    for view in views:
        CHANNEL.sendall(view)


last_beat = time.monotonic()


def beat():
    """Tells, once a second at most, that the work goes on."""
    global last_beat
    now = time.monotonic()
    if now - last_beat > 1:
        last_beat = now
        write_frame({"beat": True})


class Refusal(Exception):
    """What is wrong with a model or a setting, in words for whoever set it. field is a key of the configuration or "model_dir"."""

    def __init__(self, field, message):
        super().__init__(message)
        self.field = field


# Modules that carry LoRA, by the last part of their names. What stands in both lists belongs to attention if a part of its path says so.
ATTENTION = set(
    "q_proj k_proj v_proj o_proj out_proj qkv_proj dense query_key_value Wqkv W_pack wq wk wv wo c_attn c_proj"
    " q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj in_proj_qkv in_proj_z in_proj_qkvz".split()
)
MLP = set("gate_proj up_proj down_proj gate_up_proj fc1 fc2 fc_in fc_out c_fc c_proj dense_h_to_4h dense_4h_to_h w1 w2 w3 wi wo wi_0 wi_1 input_linear output_linear".split())
ATTENTION_PATHS = ("attn", "attention", "mixer")
FOREIGN_PATHS = ("vision", "visual", "audio", "image", "mtp")


class State:
    """The loaded model and everything that is kept between requests, by the plugin's numbers."""

    model = None
    device = None
    vocab = context = 0
    keeps_last = False  # forward knows logits_to_keep
    linears = {}  # path → list of (module, first row, end row)
    modules = []
    adapters = {}  # key → Adapter
    arriving = {}
    passes = {}
    prefixes = {}
    gradient = None
    active = None  # Adapter


class Adapter:
    """A and B of the modules that have them, as leaves of the graph."""

    def __init__(self, flat, scale, tensors):
        self.scale, self.leaves, self.factors = scale, [], {}
        at = 0
        for t in tensors:
            n = 1
            for d in t["shape"]:
                n *= d
            leaf = flat[at : at + n].reshape(t["shape"]).to(State.device, copy=True).requires_grad_()
            at += n
            self.leaves.append(leaf)
            self.factors.setdefault(t["module"], {})[t["half"]] = leaf

    def of(self, module):
        """A and B of a module, or nothing."""
        f = self.factors.get(module)
        return (f["lora_A"], f["lora_B"]) if f else None


def linear_hook(parts, rows):
    """Adds scale · B(Ax), in float32, to the rows of a linear module's output that its parts have."""

    def hook(module, args, out):
        beat()
        adapter = State.active
        if adapter is None:
            return None
        pieces, any_part = [], False
        x = args[0].float()
        for index, first, end in parts:
            pair = adapter.of(index)
            if pair is None:
                pieces.append(x.new_zeros(*x.shape[:-1], end - first))
                continue
            any_part = True
            a, b = (f.to(x.device) for f in pair)
            pieces.append(torch.nn.functional.linear(torch.nn.functional.linear(x, a), b) * adapter.scale)
        if not any_part:
            return None
        delta = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
        if delta.requires_grad:
            delta.register_hook(lambda g: beat())
        return (out.float() + delta).to(out.dtype)

    return hook


def experts_forward(module, indexes, transposed, interleaved):
    """The forward of stacked experts with the adapter's matrices added to the weights, in float32. It is computed once more for the gradient, so that one layer's weights are kept at a time."""
    original = module.forward

    def adapted(adapter, gate_up, down):
        def product(index):
            pair = adapter.of(index)
            return None if pair is None else (pair[1] @ pair[0]).to(gate_up.device) * adapter.scale  # [E, out, in]

        gate, up, lower = (product(i) for i in indexes)
        gate_up, down = gate_up.float(), down.float()
        if gate is not None or up is not None:
            gate = torch.zeros_like(up) if gate is None else gate
            up = torch.zeros_like(gate) if up is None else up
            both = torch.stack([gate, up], 2).flatten(1, 2) if interleaved else torch.cat([gate, up], 1)
            gate_up = gate_up + (both.transpose(1, 2) if transposed else both)
        if lower is not None:
            down = down + (lower.transpose(1, 2) if transposed else lower)
        return {"gate_up_proj": gate_up, "down_proj": down}

    def run(adapter, hidden, *args, **kwargs):
        beat()
        kept = {n: module._parameters.pop(n) for n in ("gate_up_proj", "down_proj")}
        biases = {n: p for n, p in list(module._parameters.items()) if p is not None and p.dtype != torch.float32}
        for n in biases:
            del module._parameters[n]
        try:
            module.__dict__.update(adapted(adapter, **{n.removesuffix("_proj"): p for n, p in kept.items()}))
            module.__dict__.update({n: p.float() for n, p in biases.items()})
            floats = [a.float() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
            named = {k: a.float() if torch.is_tensor(a) and a.is_floating_point() else a for k, a in kwargs.items()}
            return original(hidden.float(), *floats, **named).to(hidden.dtype)
        finally:
            for n in (*kept, *biases):
                module.__dict__.pop(n, None)
            module._parameters.update(kept)
            module._parameters.update(biases)

    def forward(hidden, *args, **kwargs):
        adapter = State.active
        if adapter is None or all(adapter.of(i) is None for i in indexes):
            return original(hidden, *args, **kwargs)
        if torch.is_grad_enabled():
            return torch.utils.checkpoint.checkpoint(run, adapter, hidden, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        return run(adapter, hidden, *args, **kwargs)

    module.forward = forward


def group_of(path, chosen):
    """attention, mlp or nothing, for a module of this path."""
    name = path.rsplit(".", 1)[-1]
    if chosen:
        return next((g for g in ("attention", "mlp") if name in chosen.get(g, [])), None)
    if any(word in part.lower() for word in FOREIGN_PATHS for part in path.split(".")):
        return None
    attention = any(word in part.lower() for word in ATTENTION_PATHS for part in path.split(".")[:-1])
    if name in ATTENTION and (attention or name not in MLP):
        return "attention"
    return "mlp" if name in MLP and not attention else None


def parts_of(path, module, parent):
    """The official parts of a linear module: names with their rows. Fused q, k, v of a gated delta rule are three."""
    if path.endswith(".in_proj_qkv") and hasattr(parent, "key_dim") and hasattr(parent, "value_dim"):
        base, k, v = path.removesuffix("qkv"), parent.key_dim, parent.value_dim
        if 2 * k + v == module.out_features:
            return [(base + "q", 0, k), (base + "k", k, 2 * k), (base + "v", 2 * k, 2 * k + v)]
    return [(path, 0, module.out_features)]


def find_modules(chosen):
    """Lists the modules that carry LoRA, hangs the hooks on them, and checks that both groups have some."""
    model, found = State.model, []
    named = dict(model.named_modules())
    head = model.get_output_embeddings()

    def add(path, group, size_in, size_out, copies_a=0, copies_b=0):
        found.append({"path": path, "group": group, "in": size_in, "out": size_out, "copies_a": copies_a, "copies_b": copies_b})
        return len(found) - 1

    for path, module in named.items():
        if module is head:
            continue
        parent = named.get(path.rpartition(".")[0])
        if isinstance(module, torch.nn.Linear):
            group = group_of(path, chosen)
            if group is None:
                continue
            parts = [(add(name, group, module.in_features, end - first), first, end) for name, first, end in parts_of(path, module, parent)]
            module.register_forward_hook(linear_hook(parts, module.out_features))
            continue
        gate_up, down = (module._parameters.get(n) for n in ("gate_up_proj", "down_proj"))
        if gate_up is None or down is None or gate_up.dim() != 3 or down.dim() != 3 or (chosen and "experts" not in chosen.get("mlp", [])):
            continue
        transposed = bool(getattr(module, "is_transposed", gate_up.shape[1] == down.shape[2] and gate_up.shape[2] == 2 * down.shape[1]))
        e, d, f = down.shape[0], *(reversed(down.shape[1:]) if transposed else down.shape[1:])
        if tuple(gate_up.shape) != ((e, d, 2 * f) if transposed else (e, 2 * f, d)):
            raise Refusal("model_dir", f"{path}: gate_up_proj has shape {list(gate_up.shape)}, which does not fit down_proj's {list(down.shape)}")
        indexes = [add(path + ".w1", "mlp", d, f, 1, e), add(path + ".w3", "mlp", d, f, 1, e), add(path + ".w2", "mlp", f, d, e, 1)]
        experts_forward(module, indexes, transposed, type(module).__name__ == "GptOssExperts")
    if isinstance(head, torch.nn.Linear):
        path = next(p for p, m in named.items() if m is head)
        head.register_forward_hook(linear_hook([(add(path, "unembed", head.in_features, head.out_features), 0, head.out_features)], head.out_features))
    for group in ("attention", "mlp", "unembed"):
        if not any(m["group"] == group for m in found):
            names = sorted({p.rsplit(".", 1)[-1] for p, m in named.items() if isinstance(m, torch.nn.Linear)})
            raise Refusal("config.modules", f"no linear module of {type(model).__name__} is known to belong to {group}; the model has {', '.join(names) or 'none'}")
    State.modules = found


# Verbs. Each takes the request's head and body and gives the answer's head and the tensors behind it.


def load(q, body):
    global torch
    import torch
    import torch.utils.checkpoint
    import transformers

    torch.set_num_threads(q["threads"])
    torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[q["dtype"]]
    device = q["device"]
    if device.startswith("cuda") or device == "auto":
        if not torch.cuda.is_available():
            raise Refusal("config.device", f"{device} is not available: torch {torch.__version__} finds no GPU")
    options = {"trust_remote_code": q["trust_remote_code"], "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(q["dir"], **options)
    except (ValueError, OSError) as e:
        raise Refusal("model_dir", f"transformers {transformers.__version__} does not take config.json: {str(e)[:2000]}") from e
    if getattr(config, "is_encoder_decoder", False):
        raise Refusal("model_dir", "the model is an encoder and a decoder; only causal language models are taken")
    if device == "auto":
        options["device_map"] = "auto"
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            q["dir"], config=config, dtype=dtype, use_safetensors=True, attn_implementation=q["attention"], output_loading_info=True, **options
        )
    except (ValueError, OSError, RuntimeError, ImportError) as e:
        raise Refusal("model_dir", f"transformers {transformers.__version__} does not load it: {str(e)[:2000]}") from e
    for what in ("missing_keys", "mismatched_keys", "error_msgs"):
        if told.get(what):
            raise Refusal("model_dir", f"the files do not fit the architecture: {what.replace('_', ' ')} {sorted(map(str, told[what]))[:8]}")
    if told.get("unexpected_keys"):
        print(f"tensors that {type(model).__name__} does not have: {sorted(told['unexpected_keys'])[:8]}", flush=True)
    model.requires_grad_(False)
    model.eval()
    if device != "auto":
        model.to(device)
    text = config.get_text_config()
    if hasattr(text, "_experts_implementation"):
        text._experts_implementation = "eager"
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None:
        raise Refusal("model_dir", f"{type(model).__name__} does not tell its embedding or its output head")
    State.model, State.device = model, embedding.weight.device
    State.vocab = min(embedding.weight.shape[0], head.weight.shape[0])
    longest = getattr(text, "max_position_embeddings", 0) or 0
    if longest and q["context"] > longest:
        raise Refusal("config.max_context_length", f"{q['context']} is not allowed: 1 to {longest} (max_position_embeddings of config.json)")
    State.context = q["context"] or longest or 2048
    State.keeps_last = "logits_to_keep" in inspect.signature(model.forward).parameters
    find_modules(q["modules"])
    return {
        "architecture": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "layers": getattr(text, "num_hidden_layers", 0) or 0,
        "hidden_size": embedding.weight.shape[1],
        "vocab_size": State.vocab,
        "context": State.context,
        "tied": head.weight is embedding.weight,
        "modules": State.modules,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(State.device) if State.device.type == "cuda" else "cpu",
        "capability": torch.backends.cpu.get_cpu_capability(),
    }, []


def tokens_of(body):
    return torch.frombuffer(body, dtype=torch.int32).long() if body else torch.zeros(0, dtype=torch.long)


def adapter(q, body):
    """A chunk of an adapter's values; the last one makes it."""
    if q["offset"] == 0:
        State.arriving[q["key"]] = torch.empty(q["total"], dtype=torch.float32)
    flat = State.arriving[q["key"]]
    flat[q["offset"] : q["offset"] + len(body) // 4] = torch.frombuffer(body, dtype=torch.float32)
    if q["offset"] + len(body) // 4 == q["total"]:
        State.adapters[q["key"]] = Adapter(State.arriving.pop(q["key"]), q["scale"], q["tensors"])
    return {}, []


def drop(q, body):
    State.adapters.pop(q["key"], None)
    return {}, []


def filled(tokens):
    """A sequence as a batch, filled up behind its end."""
    n = min(-(-len(tokens) // BLOCK) * BLOCK, State.context)
    return torch.nn.functional.pad(tokens, (0, max(0, n - len(tokens)))).to(State.device)[None]


def forward(q, body):
    """Runs a sequence. The answer has the logarithm of the sum of the exponentials of each position's logits in float64, and the logits of its targets."""
    both = tokens_of(body)
    tokens, targets = both[: q["tokens"]], both[q["tokens"] :]
    State.active = State.adapters[q["key"]] if q["key"] else None
    try:
        with torch.set_grad_enabled(q["gradient"]):
            logits = State.model(filled(tokens), use_cache=False).logits[0, : len(tokens), : State.vocab]
    finally:
        adapter, State.active = State.active, None
    targets = targets.to(logits.device)
    with torch.no_grad():
        sums = torch.cat([torch.logsumexp(rows.double(), -1) for rows in logits.detach().split(ROWS)])
        picked = logits.detach().float().gather(1, targets.view(len(tokens), -1)) if len(targets) else logits.new_zeros(0, dtype=torch.float32)
    State.passes[q["id"]] = (logits if q["gradient"] else logits.detach(), sums, targets, adapter)
    return {}, [sums.cpu().numpy(), picked.contiguous().cpu().numpy().reshape(-1)]


def rows(q, body):
    logits = State.passes[q["id"]][0].detach()
    return {}, [logits[q["from"] : q["to"]].float().contiguous().cpu().numpy().reshape(-1)]


def backward(q, body):
    """The gradient of Σ coefficient · log-probability of the pass's targets, which `gradients` then gives."""
    logits, sums, targets, adapter = State.passes.pop(q["id"])
    n = len(logits)
    c = torch.frombuffer(body, dtype=torch.float64).to(logits.device).view(n, -1)
    outer = torch.empty_like(logits)
    with torch.no_grad():
        for at in range(0, n, ROWS):
            part = slice(at, min(at + ROWS, n))
            total = c[part].sum(1, keepdim=True)
            d = -total * (logits[part].double() - sums[part, None]).exp()
            d.scatter_add_(1, targets.view(n, -1)[part], c[part])
            outer[part] = d.to(outer.dtype)
    found = torch.autograd.grad(logits, adapter.leaves, outer, allow_unused=True)
    State.gradient = torch.cat([(torch.zeros_like(x) if g is None else g).float().cpu().reshape(-1) for x, g in zip(adapter.leaves, found)])
    return {"total": len(State.gradient)}, []


def gradients(q, body):
    part = State.gradient[q["from"] : q["to"]].numpy()
    if q["to"] >= len(State.gradient):
        State.gradient = None
    return {}, [part]


def release(q, body):
    State.passes.pop(q["id"], None)
    State.prefixes.pop(q["id"], None)
    return {}, []


def run(key, tokens, cache):
    """Runs tokens behind a cache and gives the last row and the cache."""
    State.active = State.adapters[key] if key else None
    try:
        with torch.no_grad():
            more = {"logits_to_keep": 1} if State.keeps_last else {}
            out = State.model(tokens.to(State.device)[None], past_key_values=cache, use_cache=True, **more)
    finally:
        State.active = None
    return out.logits[0, -1, : State.vocab].float().cpu(), getattr(out, "past_key_values", None)


def prefill(q, body):
    tokens = tokens_of(body)
    row, cache = run(q["key"], tokens, None)
    if cache is None:
        raise RuntimeError(f"{type(State.model).__name__} gives no cache")
    State.prefixes[q["id"]] = (q["key"], row, cache)
    return {}, []


def fork(q, body):
    key, row, cache = State.prefixes[q["from"]]
    State.prefixes[q["id"]] = (key, row, copy.deepcopy(cache))
    return {}, []


def step(q, body):
    """The logits behind a sequence, to which a token is added first, unless it is below 0."""
    key, row, cache = State.prefixes[q["id"]]
    if q["token"] >= 0:
        row, cache = run(key, torch.tensor([q["token"]]), cache)
        State.prefixes[q["id"]] = (key, row, cache)
    return {}, [row.contiguous().numpy()]


VERBS = {f.__name__: f for f in (load, adapter, drop, forward, rows, backward, gradients, release, prefill, fork, step)}


def kind_of(error):
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "can't allocate memory" in text or "out of memory" in text:
        return "capacity"
    return "invalid" if isinstance(error, Refusal) else "internal"


def main():
    while True:
        q, body = read_frame()
        try:
            head, parts = VERBS[q["verb"]](q, body)
        except Exception as e:  # whatever a model does wrong is an answer
            if not isinstance(e, Refusal):
                traceback.print_exc()
            write_frame({"error": f"{type(e).__name__}: {str(e)[:3000]}" if not isinstance(e, Refusal) else str(e), "kind": kind_of(e), "field": getattr(e, "field", "")})
            del e
            continue
        write_frame(head, *parts)
        del head, parts


if __name__ == "__main__":
    main()
