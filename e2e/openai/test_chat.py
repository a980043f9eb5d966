"""Conversations through openai-python whose tokens are trained on with the Tinker SDK."""

import json
import math

import numpy as np
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


def test_a_session_is_trained_on_by_its_provenance(client, server):
    """stable_reinforce takes the log-probabilities that were recorded when the chat was sampled, not the client's."""
    trainer = sdkcalls.trainer(sdkcalls.service(server))
    sdkcalls.train(trainer)
    model = f"tinker://{trainer.model_id}"
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    tokens, pieces = [], []  # of the conversation; where each was read or sampled
    for turn in range(2):
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=60, seed=turn, logprobs=True, reasoning_effort="none",
            tools=[TOOL], tool_choice="required", parallel_tool_calls=False, extra_body={"session_id": "provenance"},
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and answer.prefix["exact"] == (turn > 0)
        pieces.append((types.PromptProvenanceSpan, choice.sequence_id, len(tokens), answer.prompt_token_ids[len(tokens) :], None))
        pieces.append((types.SampledProvenanceSpan, choice.sequence_id, 0, choice.token_ids, [entry.logprob for entry in choice.logprobs.content]))
        tokens = answer.prompt_token_ids + choice.token_ids
        messages += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "5"}]
    merged = get(client, "/sessions/provenance/datums?merge=true")["data"][0]
    assert merged["sequence_ids"] == [pieces[0][1], pieces[2][1]]
    assert merged["datum"]["model_input"]["chunks"][0]["tokens"] == tokens[:-1]

    def spans(first, last):
        """Those of all tokens but the first or the last."""
        made = [span(sequence_id=name, offset=offset, length=len(part)) for span, name, offset, part, _ in pieces]
        made[0] = types.PromptProvenanceSpan(sequence_id=pieces[0][1], offset=first, length=len(pieces[0][3]) - first)
        made[-1] = types.SampledProvenanceSpan(sequence_id=pieces[-1][1], offset=0, length=len(pieces[-1][3]) - last)
        return made

    advantages = [value for *_, part, scores in pieces for value in [1.5 if scores else 0.0] * len(part)][1:]
    made = sdkcalls.datum(tokens, logprobs=[0.0] * len(advantages), advantages=advantages).with_provenance(model_input=spans(0, 1), loss_fn_inputs=spans(1, 0))
    output = trainer.forward_backward([made], "stable_reinforce").result()
    scored = sdkcalls.arrays(output)[0].astype(float)
    recorded = [score for *_, part, scores in pieces for score in scores or [0.0] * len(part)][1:]
    want = -sum(min(math.exp(now - then), 2.0) * now * advantage for now, then, advantage in zip(scored, recorded, advantages, strict=True) if advantage)
    assert output.metrics["loss:sum"] == pytest.approx(want, rel=1e-4)


def test_the_prompts_logprobs_are_the_trainers(client, server):
    """prompt_logprobs in vLLM's form: the same numbers as forward of the Tinker API gives for the prompt's tokens."""
    trainer = sdkcalls.trainer(sdkcalls.service(server))
    sdkcalls.train(trainer)
    answer = client.chat.completions.create(
        model=f"tinker://{trainer.model_id}", messages=[{"role": "user", "content": "What is 2 + 3?"}], max_tokens=1, extra_body={"prompt_logprobs": 4, "return_token_ids": True}
    )
    tokens, told = answer.prompt_token_ids, answer.prompt_logprobs
    assert len(told) == len(tokens) and told[0] is None
    own = [entry[str(token)] for token, entry in zip(tokens[1:], told[1:], strict=True)]
    assert np.array_equal(np.array([one["logprob"] for one in own], np.float32), sdkcalls.logprobs(trainer, tokens))
    assert all(len(entry) in (4, 5) and {1, 2, 3, 4} == {one["rank"] for one in entry.values()} - {None} for entry in told[1:])
    assert "".join(one["decoded_token"] for one in own).count("What is 2 + 3?") == 1
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        client.chat.completions.create(model=tinsmith.MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True, extra_body={"prompt_logprobs": 1})


def test_a_session_is_found_under_its_name(client):
    client.chat.completions.create(model=tinsmith.MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, extra_body={"session_id": "team/agent 1"})
    for path in ("/sessions/team%2Fagent%201", "/sessions/team/agent%201"):
        assert len(get(client, path + "/datums")["data"]) == 1
    assert client.delete("/sessions/team%2Fagent%201", cast_to=object)["id"] == "team/agent 1"


def test_arguments_are_checked_that_were_not_held_to(client):
    """A pattern that no grammar holds to is named in a header, and what it does not allow is told of beside the call, which comes as it was sampled."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=zz)", "maxLength": 4}}, "required": ["a"]}
    ask = {
        "model": tinsmith.MODEL, "messages": [{"role": "user", "content": "Call it."}], "max_tokens": 300, "seed": 3, "reasoning_effort": "none", "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required",
    }
    raw = client.chat.completions.with_raw_response.create(**ask)
    assert raw.headers["x-tinsmith-schema-relaxed"] == "f#/properties/a pattern"
    choice = raw.parse().choices[0]
    given = json.loads(choice.message.tool_calls[0].function.arguments)
    assert choice.finish_reason == "tool_calls" and set(given) == {"a"}
    assert [(error["tool_call"], error["path"]) for error in choice.schema_errors] == ([] if given["a"].startswith("zz") else [(0, "/a")])
    last = [chunk.choices[0] for chunk in client.chat.completions.create(**ask, stream=True)][-1]
    assert last.finish_reason == "tool_calls" and last.schema_errors == choice.schema_errors
