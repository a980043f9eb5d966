"""An agent that plays through openai-python is trained with the Tinker SDK on the very tokens that it read and sampled."""

import json
import random

import numpy as np
import openai
import pytest
from tinker import types

import sdkcalls

EPISODES = 16
ROUNDS = 12
DIGIT = {"enum": [1, 2, 3, 4]}


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


ADD, ANSWER = tool("add", a=DIGIT, b=DIGIT), tool("answer", digit=DIGIT)


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield made


def called(message):
    return json.loads(message.tool_calls[0].function.arguments)


def play(client, model, session, chance, seed):
    """One game: add two digits with the calculator, then say what it said. Each right number is a quarter or a half of the reward."""
    a, b = chance.choice([(2, 1), (2, 2)])
    messages = [{"role": "user", "content": f"{a} + {b}"}]

    def turn(tool):
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=[ADD, ANSWER], tool_choice={"type": "function", "function": {"name": tool}}, max_tokens=250, seed=seed,
            logprobs=True, reasoning_effort="none", extra_body={"session_id": session},
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and len(choice.logprobs.content) == len(choice.token_ids)
        messages.append(choice.message.model_dump(exclude_none=True))
        return answer, called(choice.message)

    _, operands = turn("add")
    reward = 0.25 * (operands["a"] == a) + 0.25 * (operands["b"] == b)
    messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": str(a + b)})
    second, said = turn("answer")
    assert second.prefix["exact"]
    return reward + 0.5 * (said["digit"] == a + b)


def datum_of(data, advantage):
    """A Datum of a session with its advantage on what was sampled."""
    inputs = {}
    for name, tensor in data["loss_fn_inputs"].items():
        values = np.asarray(tensor["data"], np.int64 if name == "target_tokens" else np.float32)
        inputs[name] = values * np.float32(advantage) if name == "advantages" else values
    return types.Datum(model_input=types.ModelInput.from_ints(data["model_input"]["chunks"][0]["tokens"]), loss_fn_inputs=inputs)


def test_an_agent_learns_from_its_games(client, server):
    trainer = sdkcalls.trainer(sdkcalls.service(server), rank=16)
    sdkcalls.train(trainer, rate=0.0)  # a version to sample from
    model = f"tinker://{trainer.model_id}"
    chance = random.Random(7)
    means = []
    for round_ in range(ROUNDS):
        rewards, games = [], []
        for episode in range(EPISODES):
            session = f"game-{round_}-{episode}"
            rewards.append(play(client, model, session, chance, seed=round_ * EPISODES + episode))
            merged = client.get(f"/sessions/{session}/datums?merge=true", cast_to=object)["data"]
            assert len(merged) == 1 and merged[0]["turns"] == [1, 2] and set(merged[0]["weight_versions"]) == {round_ + 1}
            games.append(merged[0]["datum"])
        means.append(float(np.mean(rewards)))
        spread = max(float(np.std(rewards)), 0.05)
        data = [datum_of(game, max(0.0, reward - means[-1]) / spread) for game, reward in zip(games, rewards, strict=True)]
        passed = trainer.forward_backward(data, "importance_sampling").result()
        # The trainer's log-probabilities of what was sampled are the sampler's, bit for bit, though a grammar chose.
        for datum, output in zip(data, passed.loss_fn_outputs, strict=True):
            sampled = np.asarray(datum.loss_fn_inputs["logprobs"].data, np.float32)
            scored = np.asarray(output["logprobs"].data, np.float32)
            assert np.array_equal(scored[sampled != 0], sampled[sampled != 0]) and (sampled != 0).sum() > 10
        trainer.optim_step(types.AdamParams(learning_rate=6e-3)).result()
    assert np.mean(means[-2:]) > np.mean(means[:2]) + 0.1, means


