"""Conversations through openai-python whose tokens are trained on with the Tinker SDK."""

import openai
import pytest
from tinker import types

import sdkcalls
import tinsmith

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}},
}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield made


def get(client, path):
    return client.get(path, cast_to=object)


def test_tools_and_thoughts_are_taken(client):
    answer = client.chat.completions.create(
        model=tinsmith.MODEL, messages=[{"role": "user", "content": "What is 2 + 3?"}], tools=[TOOL], tool_choice="auto", reasoning_effort="none", max_tokens=16, seed=1
    )
    assert answer.choices[0].message.role == "assistant"
    told = client.chat.completions.create(model=tinsmith.MODEL, messages=[{"role": "user", "content": "What is 2 + 3?"}], max_tokens=16, seed=1)
    assert answer.usage.prompt_tokens > told.usage.prompt_tokens + 50


def test_a_session_is_trained_on_as_it_was_sampled(client, server):
    trainer = sdkcalls.trainer(sdkcalls.service(server))
    data = [sdkcalls.datum(sdkcalls.TOKENS, weights=[1.0] * (len(sdkcalls.TOKENS) - 1))]
    trainer.forward_backward(data, "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    model = f"tinker://{trainer.model_id}"
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    answers = []
    for turn in range(4):
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=40, seed=turn, temperature=1, logprobs=True, extra_body={"session_id": "play", "return_datum": True}
        )
        answers.append(answer)
        choice = answer.choices[0]
        assert len(choice.token_ids) == len(choice.logprobs.content)
        messages += [choice.message.model_dump(exclude_none=True), {"role": "user", "content": f"And {turn} more?"}]
    assert answers[0].weight_version == 1 and answers[0].model_path == model
    turns = get(client, "/sessions/play/datums?loss=cross_entropy")["data"]
    assert len(turns) == 4
    for turn, answer in zip(turns, answers, strict=True):
        datum = answer.choices[0].datum
        inputs = {name: types.TensorData(**value) for name, value in datum["loss_fn_inputs"].items()}
        tokens = datum["model_input"]["chunks"][0]["tokens"]
        assert tokens == turn["datum"]["model_input"]["chunks"][0]["tokens"]
        scored = types.Datum(
            model_input=types.ModelInput.from_ints(tokens),
            loss_fn_inputs={"target_tokens": inputs["target_tokens"], "weights": types.TensorData(data=[1.0] * len(tokens), dtype="float32", shape=[len(tokens)])},
        )
        output = trainer.forward([scored], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        sampled = [at for at, weight in enumerate(inputs["advantages"].data) if weight]
        assert len(sampled) == len(answer.choices[0].token_ids)
        assert [output[at] for at in sampled] == [inputs["logprobs"].data[at] for at in sampled]
    if answers[1].prefix["exact"]:
        merged = get(client, "/sessions/play/datums?merge=true")["data"]
        assert len(merged) < 4
    client.delete("/sessions/play", cast_to=object)
    with pytest.raises(openai.NotFoundError):
        get(client, "/sessions/play/datums")
