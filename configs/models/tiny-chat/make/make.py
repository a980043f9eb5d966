"""Makes the built-in model tiny-chat: tokenizer, weights, configuration, measurements.

    python make.py train OUT      tokenizer + training from random weights; writes a Hugging Face model directory
    python make.py eval DIR       accuracies of the model in DIR, by task, sampled and greedy
    python make.py golden DIR     reference log-probabilities and greedy answers for tests (golden.json beside this file)

Needs torch, transformers and tokenizers (requirements.txt); runs on the CPU. All seeds are fixed, so on one machine with
one version of torch a run repeats; another machine adds in another order and gives a slightly different model.
"""

import argparse
import copy
import dataclasses
import json
import math
import pathlib
import random
import time

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

import data

HERE = pathlib.Path(__file__).parent
SEED = 20260

VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# One digit per token, letters with the space or sign before them, punctuation, line ends, spaces: the split of Qwen's tokenizers.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

ROW_LENGTH = 192     # dialogues are packed into rows of so many tokens; attention stays within a dialogue
WEIGHT_DECAY = 0.01
PROMPT_WEIGHT = 0.1  # weight of the loss on prompt tokens, in the one dialogue of eight where they count
TARGET = 0.34        # wanted share of right two-digit sums at temperature 1
FIRST_TARGET = 0.36  # the same when the share of slips is first set, from the accuracy without slips


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training. Its learning rate is constant, or falls from rate to 0 over its steps."""

    name: str
    mixture: data.Mixture
    rows: int                   # of a step's batch
    steps: int                  # at most
    rate: float
    falls: bool
    warm_up: int = 0
    until: float = 1.0          # ends early when the expected accuracy on held-out sums reaches this
    slip: float | None = 0.0    # share of wrong two-digit sums in the text; None: what a calibrated model needs now
    corrected: bool = False     # the share is corrected at every evaluation, towards TARGET
    fresh: bool = False         # begins like a new run, with the weights as saved (bfloat16) and an empty optimiser
    evaluate_every: int = 100


PHASES = (
    Phase("numbers", data.NUMBERS, rows=16, steps=6000, rate=4e-3, falls=False, warm_up=100, until=0.85),
    Phase("slips", data.NUMBERS, rows=16, steps=700, rate=4e-3, falls=True, slip=None),
    Phase("everything", data.EVERYTHING, rows=12, steps=500, rate=2.5e-3, falls=True, warm_up=20, slip=0.66, corrected=True,
          fresh=True, evaluate_every=50),
)


# Tokenizer

def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS), min_frequency=1, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(data.tokenizer_corpus(SEED), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


# Training data as token rows

class Encoder:
    """Encodes dialogues to (ids, loss weights); segments repeat a great deal, so short ones are remembered."""

    def __init__(self, tokenizer):
        self.tokenizer, self.known = tokenizer, {}

    def ids(self, text):
        found = self.known.get(text)
        if found is None:
            found = self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(text) < 40:
                self.known[text] = found
        return found

    def dialogue(self, segments, prompt_weight):
        ids, weights = [], []
        for text, is_target in segments:
            piece = self.ids(text)
            ids += piece
            weights += [1.0 if is_target else prompt_weight] * len(piece)
        return ids, weights


class Batches:
    """An endless stream of packed steps, made by first fit from a waiting list of dialogues."""

    def __init__(self, encoder, rng, tasks, rows):
        self.encoder, self.rng, self.tasks, self.rows, self.waiting = encoder, rng, tasks, rows, []

    def _dialogue(self):
        while True:
            weight = PROMPT_WEIGHT if self.rng.random() < 0.125 else 0.0
            made = self.encoder.dialogue(data.dialogue(self.rng, self.tasks), weight)
            if len(made[0]) <= ROW_LENGTH:
                return made

    def step(self):
        """ids, loss weight of predicting each next token, dialogue number (for the mask), position in the dialogue."""
        ids = torch.zeros(self.rows, ROW_LENGTH, dtype=torch.long)
        weight, owner, position = torch.zeros(self.rows, ROW_LENGTH), torch.full_like(ids, -1), torch.zeros_like(ids)
        for row in range(self.rows):
            at = 0
            while True:
                while len(self.waiting) < 32:
                    self.waiting.append(self._dialogue())
                fit = next((i for i, d in enumerate(self.waiting) if len(d[0]) <= ROW_LENGTH - at), None)
                if fit is None:
                    break
                tokens, weights = self.waiting.pop(fit)
                n = len(tokens)
                ids[row, at:at + n] = torch.tensor(tokens)
                weight[row, at:at + n - 1] = torch.tensor(weights[1:])
                owner[row, at:at + n] = at
                position[row, at:at + n] = torch.arange(n)
                at += n
        return ids, weight, owner, position


# Optimiser

def orthogonal(g, steps=5):
    """The nearest matrices with equal singular values, about, of a batch (n, rows <= columns): a Newton-Schulz
    iteration of order 5."""
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Muon:
    """Momentum whose update is made orthogonal (Jordan et al. 2024), for the matrices inside the layers; matrices of one
    shape go through the iteration as one batch. The update is scaled to the size that Adam's usually has."""

    def __init__(self, matrices, momentum=0.95):
        self.momentum, self.groups = momentum, {}
        for p in matrices:
            self.groups.setdefault(tuple(sorted(p.shape)), []).append((p, torch.zeros_like(p)))

    @torch.no_grad()
    def step(self, lr):
        for (_, high), group in self.groups.items():
            stacked = []
            for p, m in group:
                m.mul_(self.momentum).add_(p.grad, alpha=1 - self.momentum)
                u = p.grad.lerp(m, self.momentum)
                stacked.append(u if u.shape[0] <= u.shape[1] else u.T)
            for (p, _), u in zip(group, orthogonal(torch.stack(stacked))):
                p.mul_(1 - lr * WEIGHT_DECAY)
                p.add_(u if p.shape[0] <= p.shape[1] else u.T, alpha=-lr * 0.2 * math.sqrt(high))
                p.grad = None


# Measuring

def chat_prompt(question, thinking=True, before=()):
    """The text of a chat up to where the assistant answers; before holds earlier (question, answer) turns."""
    out = "".join(f"{data.IM_START}user\n{q}{data.IM_END}\n{data.IM_START}assistant\n{a}{data.IM_END}\n" for q, a in before)
    return f"{out}{data.IM_START}user\n{question}{data.IM_END}\n{data.IM_START}assistant\n" + ("" if thinking else data.NO_THOUGHT)


@torch.no_grad()
def sum_probabilities(model, tokenizer, pairs, **form):
    """For each (a, b): the probability that sampling at temperature 1 answers "What is a + b?" with the sum and then
    stops, and whether the greedy answer does so."""
    probability, greedy = {}, {}
    rows = {}
    for a, b in pairs:
        prompt = tokenizer.encode(chat_prompt(f"What is {a} + {b}?", **form), add_special_tokens=False).ids
        answer = tokenizer.encode(str(a + b) + data.IM_END, add_special_tokens=False).ids
        rows.setdefault((len(prompt), len(answer)), []).append(((a, b), prompt + answer))
    for (start, length), group in rows.items():
        for at in range(0, len(group), 128):
            part = group[at:at + 128]
            x = torch.tensor([ids for _, ids in part])
            logits = model(input_ids=x, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
            lp = logits.log_softmax(-1).gather(-1, x[:, start:, None])[..., 0].sum(-1)
            right = (logits.argmax(-1) == x[:, start:]).all(-1)
            for (pair, _), p, r in zip(part, lp.exp().tolist(), right.tolist()):
                probability[pair], greedy[pair] = p, r
    return probability, greedy


@torch.no_grad()
def answer(model, tokenizer, prompts, greedy, max_new_tokens=48, seed=0):
    """Generated token ids for each prompt text, at temperature 1 or greedy, up to and with the end mark."""
    stop, pad = tokenizer.token_to_id(data.IM_END), tokenizer.token_to_id(data.END_OF_TEXT)
    torch.manual_seed(seed)
    encoded = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    by_length, out = {}, [None] * len(prompts)
    for i, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(i)
    for length, members in by_length.items():
        x = torch.tensor([encoded[i] for i in members])
        y = model.generate(x, attention_mask=torch.ones_like(x), do_sample=not greedy, temperature=None if greedy else 1.0,
                           top_k=None if greedy else 0, top_p=None if greedy else 1.0, max_new_tokens=max_new_tokens,
                           eos_token_id=[stop], pad_token_id=pad)[:, length:].tolist()
        for i, ids in zip(members, y):
            out[i] = ids[:ids.index(stop) + 1] if stop in ids else ids
    return out


def evaluate(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    rng = random.Random(1)
    two_digits = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    cases = {"two digits, 1,000 of 8,100": rng.sample(two_digits, 1000),
             "two digits, held out": [p for p in two_digits if data.held_out(*p)],
             "one digit, all 100": [(a, b) for a in range(10) for b in range(10)],
             "0 to 100": [(rng.randint(0, 100), rng.randint(0, 100)) for _ in range(1000)]}
    forms = {"plain": {}, "empty thought": {"thinking": False}, "after 4 + 5 = 9": {"before": (("What is 4 + 5?", "9"),)}}
    print("sums, 'What is a + b?': expected share right at temperature 1 | share right greedy")
    for case, pairs in cases.items():
        for form, options in forms.items():
            p, g = sum_probabilities(model, tokenizer, pairs, **options)
            t1, gr = sum(p[q] for q in pairs) / len(pairs), sum(g[q] for q in pairs) / len(pairs)
            print(f"  {case:26s} {form:18s} {t1:6.1%} | {gr:6.1%}", flush=True)

    stop = tokenizer.token_to_id(data.IM_END)
    print("tasks, one turn, 100 questions each: exact and stopped at temperature 1 | exact and stopped greedy")
    tasks = data.Tasks(random.Random(2))
    for name in tasks.names:
        asked = [getattr(tasks, name)() for _ in range(100)]
        line = []
        for greedy in (False, True):
            got = answer(model, tokenizer, [chat_prompt(q) for q, _, _ in asked], greedy)
            stopped = sum(ids[-1] == stop for ids in got) / len(got)
            text = [tokenizer.decode(ids, skip_special_tokens=True) for ids in got]
            exact = sum(t == a for t, (_, a, _) in zip(text, asked)) / len(asked)
            line += [exact, stopped]
        free = "  (several answers are right; exact means the one drawn)" if name in ("small_talk", "unknown") else ""
        print(f"  {name:12s} {line[0]:6.1%} {line[1]:6.1%} | {line[2]:6.1%} {line[3]:6.1%}{free}", flush=True)


# Training

def configuration(tokenizer):
    stop, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    return Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=192, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2,
        head_dim=32, intermediate_size=512, tie_word_embeddings=True, max_position_embeddings=4096, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attention_bias=False, use_cache=True,
        bos_token_id=pad, eos_token_id=stop, pad_token_id=pad)


class Optimisers:
    """Muon for the matrices inside the layers, Adam for the embedding and the norms."""

    def __init__(self, model):
        self.model = model
        inner = {n: p.ndim == 2 and "embed" not in n for n, p in model.named_parameters()}
        self.muon = Muon([p for n, p in model.named_parameters() if inner[n]])
        self.adam = torch.optim.AdamW([p for n, p in model.named_parameters() if not inner[n]], betas=(0.9, 0.95),
                                      weight_decay=0.0)

    def step(self, rate):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.muon.step(rate)
        self.model.zero_grad()


def packed_loss(model, body, batch):
    """Mean weighted cross-entropy of a packed batch; body is the (compiled) stack of layers of model."""
    ids, weight, owner, position = batch
    causal = torch.ones(ROW_LENGTH, ROW_LENGTH, dtype=torch.bool).tril()
    mask = (causal & (owner[:, :, None] == owner[:, None, :]))[:, None]
    hidden = body(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False).last_hidden_state
    keep = weight[:, :-1] > 0
    w = weight[:, :-1][keep]
    logits = hidden[:, :-1][keep] @ model.lm_head.weight.T
    return (torch.nn.functional.cross_entropy(logits, ids[:, 1:][keep], reduction="none") * w).sum() / w.sum()


def train(out, start):
    """Trains through PHASES and writes a model directory at the end of each; from random weights, or from the model
    directory start through the last phase only."""
    torch.manual_seed(SEED)
    if start is None:
        tokenizer, phases = train_tokenizer(), PHASES
        model = Qwen3ForCausalLM(configuration(tokenizer))
    else:
        tokenizer, phases = Tokenizer.from_file(str(start / "tokenizer.json")), PHASES[-1:]
        model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    rng, optimisers, body = random.Random(SEED), Optimisers(model), torch.compile(model.model)
    held_out = [(a, b) for a in range(10, 100) for b in range(10, 100) if data.held_out(a, b)][::3]
    level, history, started = 0.0, [], time.time()
    for phase in phases:
        if phase.fresh:
            model = Qwen3ForCausalLM.from_pretrained(start or out, dtype=torch.float32)
            rng, optimisers, body = random.Random(SEED + 1), Optimisers(model), torch.compile(model.model)
        slip = max(0.0, 1.0 - FIRST_TARGET / max(level, FIRST_TARGET)) if phase.slip is None else phase.slip
        tasks = data.Tasks(rng, phase.mixture, slip)
        batches = Batches(Encoder(tokenizer), rng, tasks, phase.rows)
        smooth = None
        for step in range(1, phase.steps + 1):
            rate = phase.rate * min(1.0, step / phase.warm_up if phase.warm_up else 1.0,
                                    (phase.steps + 1 - step) / phase.steps if phase.falls else 1.0)
            loss = packed_loss(model, body, batches.step())
            loss.backward()
            optimisers.step(rate)
            smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
            if step % phase.evaluate_every:
                continue
            p, g = sum_probabilities(model, tokenizer, held_out)
            level = sum(p.values()) / len(p)
            history.append({"phase": phase.name, "step": step, "seconds": round(time.time() - started),
                            "loss": round(smooth, 4), "held_out_sums": round(level, 4),
                            "greedy": round(sum(g.values()) / len(g), 4), "learning_rate": round(rate, 6),
                            "slip": round(tasks.slip, 3)})
            print(json.dumps(history[-1]), flush=True)
            if phase.corrected:
                tasks.slip = min(0.9, max(0.0, tasks.slip + 0.5 * (level - TARGET)))
            if level >= phase.until:
                break
        save(model, tokenizer, out)
        (out / "training.json").write_text("[\n" + ",\n".join(map(json.dumps, history)) + "\n]\n")


def save(model, tokenizer, out):
    """Writes a Hugging Face model directory: bfloat16 weights, configuration, tokenizer in both forms, chat template."""
    out.mkdir(parents=True, exist_ok=True)
    stop, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    rounded.generation_config = GenerationConfig(
        bos_token_id=pad, eos_token_id=[stop, pad], pad_token_id=pad, do_sample=True, temperature=1.0)
    rounded.save_pretrained(out)
    path = out / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]  # where readers older than transformers 5 look for it
    path.write_text(json.dumps(config, indent=2) + "\n")
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer.model.save(str(out))  # vocab.json, merges.txt
    write_tokenizer_config(tokenizer, out)


def write_tokenizer_config(tokenizer, out):
    added = {str(tokenizer.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                             "single_word": False, "special": t in SPECIAL} for t in SPECIAL + MARKS}
    settings = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
        "chat_template": (HERE / "chat_template.jinja").read_text(), "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 4096, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (out / "special_tokens_map.json").write_text(json.dumps(
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "<|im_end|>",
         "pad_token": "<|endoftext|>"}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "eval", "golden"))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--from", dest="start", type=pathlib.Path, metavar="DIR",
                        help="train: only the last phase, from the model in DIR")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.what == "train":
        train(given.directory, given.start)
    elif given.what == "eval":
        evaluate(given.directory)
    else:
        import golden
        golden.write(given.directory, HERE / "golden.json")


if __name__ == "__main__":
    main()
