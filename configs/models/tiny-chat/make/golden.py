"""Reference values of tiny-chat for tests of other implementations, computed by transformers.

golden.json: {"versions", "weights_sha256", "cases": [{"name", "text" or "messages" + "template_options", "ids",
"logprobs", "greedy", "greedy_logprobs", "greedy_text"}]}. The bfloat16 weights are taken to float32 and everything is
computed in float32. logprobs[i] is log p(ids[i+1] | ids[0..i]) (natural logarithm, temperature 1), so it is one shorter
than ids. greedy is the greedy continuation, at most 24 tokens, with the end token if it came; greedy_logprobs are its
log-probabilities.
"""

import hashlib
import json

import torch
import transformers
from transformers import AutoTokenizer, Qwen3ForCausalLM

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


CASES = [
    ("sum", [user("What is 23 + 45?")], {}),
    ("sum without thinking", [user("What is 88 + 19?")], {"enable_thinking": False}),
    ("few-shot sum", [user("What is 4 + 5?"), assistant("9"), user("What is 61 + 27?")], {}),
    ("system prompt", [{"role": "system", "content": "You are a helpful assistant."}, user("Hello!")], {}),
    ("think", [user("Think first. What is 12 + 30?")], {}),
    ("copy", [user("Repeat: the quick brown fox")], {}),
    ("name", [user("My name is Anna."), assistant("Nice to meet you, Anna!"), user("What is my name?")], {}),
    ("beyond ASCII", [user("Repeat: caf\u00e9 \u65e5\u672c \U0001f680")], {}),
    ("tools", [user("What is 2 + 2?"), assistant("", tool_calls=[{"type": "function", "function": {
        "name": "add", "arguments": {"a": 2, "b": 2}}}]), {"role": "tool", "content": "4"}], {"tools": [TOOL]}),
    ("reasoning", [user("Hi!"), assistant("Hello!", reasoning_content="The user says hello.")],
     {"add_generation_prompt": False}),
    ("role colon", "User: What is 4 + 5?\n\nAssistant: 9\n\nUser: What is 31 + 52?\n\nAssistant:", None),
]


@torch.no_grad()
def write(directory, path):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    cases = []
    for name, given, options in CASES:
        if options is None:
            case, text = {"name": name, "text": given}, given
        else:
            options = {"add_generation_prompt": True, **options}
            case = {"name": name, "messages": given, "template_options": options}
            text = case["text"] = tokenizer.apply_chat_template(given, tokenize=False, **options)
        ids = case["ids"] = tokenizer.encode(text, add_special_tokens=False)
        grown = list(ids)
        while len(grown) < len(ids) + 24 and (len(grown) == len(ids) or grown[-1] != stop):
            grown.append(model(input_ids=torch.tensor([grown])).logits[0, -1].argmax().item())
        logits = model(input_ids=torch.tensor([grown])).logits[0]
        lp = logits[:-1].log_softmax(-1).gather(-1, torch.tensor(grown)[1:, None])[:, 0].tolist()
        lp = [float(f"{v:.8g}") for v in lp]
        case["logprobs"], case["greedy_logprobs"] = lp[:len(ids) - 1], lp[len(ids) - 1:]
        case["greedy"] = grown[len(ids):]
        case["greedy_text"] = tokenizer.decode(case["greedy"])
        cases.append(case)
    weights = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    lines = ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases)
    versions = json.dumps({"torch": torch.__version__, "transformers": transformers.__version__})
    path.write_text(f'{{"versions": {versions}, "weights_sha256": "{weights}", "cases": [\n{lines}\n]}}\n')
