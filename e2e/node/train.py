"""Trains a run with the official SDK: train.py URL KEY NAME. It makes two steps and a checkpoint, prints the run's id, and makes one more step for each line it reads."""

import sys

import tinker
from tinker import types

url, key, name = sys.argv[1:]
service = tinker.ServiceClient(base_url=url, api_key=key, user_metadata={"name": name})
client = service.create_lora_training_client(base_model="tinsmith/tiny-chat", rank=8, user_metadata={"name": name})
tokens = list(range(10, 40))
datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 29})


def step():
    passed = client.forward_backward([datum], "cross_entropy")
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-3))
    passed.result(), stepped.result()


step()
step()
client.save_state("first").result()
print(client.get_info().model_id, flush=True)
for _ in sys.stdin:
    step()
    print("stepped", flush=True)
