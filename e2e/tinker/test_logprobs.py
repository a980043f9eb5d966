"""The statements of docs/logprobs.md: of which distribution log-probabilities are, through both APIs."""

import functools

import numpy as np
import openai
import pytest
from tinker import types

import sdkcalls
import tinsmith

VOCABULARY = 4096
COLUMNS = 1000  # of one request for chosen targets
CONTEXT = [11, 502, 77, 1300]
CLOSE = {"rtol": 0, "atol": 1e-3}


@pytest.fixture(scope="module")
def base(shared_server):
    return sdkcalls.client(sdkcalls.service(shared_server).create_sampling_client(base_model=tinsmith.MODEL))


@pytest.fixture(scope="module")
def client(shared_server):
    return openai.OpenAI(base_url=shared_server.url + "/v1", api_key=shared_server.key)


@pytest.fixture(scope="module")
def whole(base):
    """The log-probabilities of all tokens after a context, at temperature 1: whole(context)."""

    @functools.cache
    def of(context):
        found = []
        for first in range(0, VOCABULARY, COLUMNS):
            ids = np.full((len(context), min(COLUMNS, VOCABULARY - first)), -1, np.int64)
            ids[-1] = np.arange(first, first + ids.shape[1])
            targets = types.TensorData(data=ids.ravel().tolist(), dtype="int64", shape=list(ids.shape))
            answer = sdkcalls.sample(base, [*context, 0], max_tokens=1, options={"target_prompt_logprobs": targets})
            found.append(answer.target_prompt_logprobs.to_numpy().astype(np.float64).reshape(ids.shape)[-1])
        return np.concatenate(found)

    return lambda context: of(tuple(context))


def tempered(logprobs, temperature):
    scaled = logprobs / (temperature or 1)
    return scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()


def completion(client, prompt=CONTEXT, **settings):
    extra = {k: settings.pop(k) for k in ("top_k", "min_p", "min_tokens", "repetition_penalty") if k in settings}
    return client.completions.create(model=tinsmith.MODEL, prompt=prompt, logprobs=5, extra_body=extra, **({"max_tokens": 1, "seed": 1} | settings)).choices


def test_all_log_probabilities_of_a_position_make_one(whole):
    assert np.isclose(np.exp(whole(CONTEXT)).sum(), 1, atol=1e-3)


@pytest.mark.parametrize("cut", [{}, {"top_k": 1}, {"top_k": 5}, {"top_p": 0.5}, {"top_p": 0.01}, {"top_k": 3, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.8])
def test_generated_tokens_have_the_temperatures_distribution_and_no_cut_changes_it(base, whole, temperature, cut):
    expected = tempered(whole(CONTEXT), temperature)
    for drawn in sdkcalls.sample(base, CONTEXT, num_samples=8, max_tokens=1, temperature=temperature, seed=3, stop=[], **cut).sequences:
        assert np.isclose(drawn.logprobs[0], expected[drawn.tokens[0]], **CLOSE)
        assert drawn.logprobs[0] < -1e-3  # not those of a draw without choice


def test_greedy_tokens_have_the_distribution_of_temperature_one(base, whole):
    drawn = sdkcalls.sample(base, CONTEXT, max_tokens=4, temperature=0, stop=[]).sequences[0]
    for i, token in enumerate(drawn.tokens):
        expected = whole([*CONTEXT, *drawn.tokens[:i]])
        assert token == expected.argmax() and np.isclose(drawn.logprobs[i], expected[token], **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.8])
def test_likeliest_tokens_beside_a_generated_one_are_of_its_distribution(base, whole, temperature):
    expected = tempered(whole(CONTEXT), temperature)
    row = sdkcalls.sample(base, CONTEXT, max_tokens=1, temperature=temperature, top_k=2, seed=3, stop=[], options={"topk_sample_logprobs": 6}).sequences[0].topk_logprobs[0]
    assert [t for t, _ in row] == np.argsort(-expected, kind="stable")[:6].tolist()
    assert np.allclose([p for _, p in row], expected[[t for t, _ in row]], **CLOSE)


def test_truncated_draw_from_the_likeliest_tokens(base):
    answer = sdkcalls.sample(base, CONTEXT, num_samples=32, max_tokens=1, top_k=5, seed=3, stop=[], options={"topk_sample_logprobs": 5})
    for drawn in answer.sequences:
        row = dict(map(tuple, drawn.topk_logprobs[0]))
        left = np.log(np.exp(list(row.values())).sum())
        assert drawn.logprobs[0] == row[drawn.tokens[0]] and left < -1e-3
        assert np.isclose(np.exp(np.array(list(row.values())) - left).sum(), 1)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_scores_of_a_prompt_are_of_temperature_one(base, whole, temperature):
    prompt = [*CONTEXT, 640]
    expected = whole(CONTEXT)
    answer = sdkcalls.sample(base, prompt, max_tokens=1, temperature=temperature, top_k=1, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 3})
    assert np.isclose(answer.prompt_logprobs[-1], expected[640], **CLOSE)
    assert np.allclose([p for _, p in answer.topk_prompt_logprobs[-1]], np.sort(expected)[::-1][:3], **CLOSE)
    assert base.compute_logprobs(sdkcalls.prompt(prompt)).result()[-1] == answer.prompt_logprobs[-1]


def test_alternatives_to_prompt_tokens_have_scores_of_temperature_one(base, whole):
    drawn = sdkcalls.sample(base, [*CONTEXT, 640], max_tokens=1, temperature=0.5, options={"prompt_alt_tokens_k": 3}).prompt_alt_tokens
    expected = whole(CONTEXT)[drawn.tokens.to_numpy()[-1]]
    assert np.allclose(drawn.logprobs.to_numpy()[-1], expected, **CLOSE)


def test_the_trainer_has_temperature_one(shared_server, base, whole):
    trainer = sdkcalls.trainer(sdkcalls.service(shared_server))  # a new adapter is the base model
    for temperature, same in ((1.0, True), (0.5, False)):
        drawn = sdkcalls.sample(base, CONTEXT, max_tokens=6, temperature=temperature, seed=3, stop=[]).sequences[0]
        trained = sdkcalls.sampled_logprobs(trainer, CONTEXT, drawn.tokens)
        assert np.isclose(trained[0], whole(CONTEXT)[drawn.tokens[0]], **CLOSE)
        assert np.array_equal(np.asarray(drawn.logprobs, np.float32), trained) == same
        again = base.compute_logprobs(sdkcalls.prompt([*CONTEXT, *drawn.tokens])).result()[len(CONTEXT) :]
        assert np.array_equal(np.asarray(again, np.float32), trained)


@pytest.mark.parametrize("cut", [{}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.9}, {"min_tokens": 1}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.8])
def test_completions_are_the_same(client, whole, temperature, cut):
    expected = np.sort(tempered(whole(CONTEXT), temperature))[::-1]
    for choice in completion(client, temperature=temperature, n=1 if temperature == 0 else 4, **cut):
        likeliest = sorted(choice.logprobs.top_logprobs[0].values(), reverse=True)
        assert np.allclose(likeliest[:5], expected[:5], **CLOSE)
        assert choice.logprobs.token_logprobs[0] == choice.logprobs.top_logprobs[0][choice.logprobs.tokens[0]]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.8])
def test_chat_is_the_same(client, shared_server, base, temperature):
    settings = {"temperature": temperature, "top_p": 0.01, "seed": 1, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(model=tinsmith.MODEL, messages=[{"role": "user", "content": "What is 2 + 3?"}], **settings)
    asked = openai.OpenAI(base_url=shared_server.url, api_key=shared_server.key).post(
        "/tokenize", cast_to=object, body={"model": tinsmith.MODEL, "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
    )
    drawn = sdkcalls.sample(base, asked["tokens"], max_tokens=3, temperature=temperature, top_p=0.01, seed=1, options={"topk_sample_logprobs": 2}).sequences[0]
    content = answer.choices[0].logprobs.content
    assert np.allclose([t.logprob for t in content], drawn.logprobs[: len(content)], rtol=0, atol=1e-6)
    assert np.allclose([[p.logprob for p in t.top_logprobs] for t in content], [[p for _, p in row] for row in drawn.topk_logprobs[: len(content)]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.8])
def test_bias_and_penalties_come_before_temperature(client, whole, temperature):
    biased = whole(CONTEXT).copy()
    second = next(t for t in np.argsort(-biased)[1:] if t < 4000)  # no special token, which would end the answer
    biased[second] += 40  # so that it is drawn
    chosen = completion(client, temperature=temperature, logit_bias={str(second): 40})[0].logprobs
    assert np.isclose(chosen.token_logprobs[0], tempered(biased, temperature)[second], **CLOSE)
    # The same token again: that it was generated is subtracted before temperature.
    twice = whole([*CONTEXT, int(second)]).copy()
    twice[second] += 40 - 1.5 - 0.5
    chosen = completion(client, temperature=temperature, max_tokens=2, logit_bias={str(second): 40}, frequency_penalty=1.5, presence_penalty=0.5)[0].logprobs
    likeliest = sorted(chosen.top_logprobs[1].values(), reverse=True)
    assert np.allclose(likeliest[:5], np.sort(tempered(twice, temperature))[::-1][:5], **CLOSE)


def test_echoed_prompts_have_neither_temperature_nor_bias(client, base):
    plain = base.compute_logprobs(sdkcalls.prompt(CONTEXT)).result()[1:]
    echoed = completion(client, temperature=0.3, echo=True, logit_bias={"640": 5}, repetition_penalty=1.3)[0].logprobs.token_logprobs
    assert np.allclose(echoed[1 : len(CONTEXT)], plain, rtol=0, atol=1e-6)
