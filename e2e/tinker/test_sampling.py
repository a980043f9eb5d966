"""Sampling through the SDK: what is drawn, where it stops, and that every log-probability is the trainer's own."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import tinker
from tinker import types

import proxy
import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION

QUESTION = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def pair(service):
    """A training client after one step and a sampling client of the same weights."""
    trainer = sdkcalls.trainer(service)
    sdkcalls.train(trainer)
    return trainer, sdkcalls.client(trainer.save_weights_and_get_sampling_client())


@pytest.fixture
def base(service):
    return sdkcalls.client(service.create_sampling_client(base_model=tinsmith.MODEL))


@pytest.fixture(scope="module")
def tokenizer():
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(tinsmith.ROOT / "configs" / "models" / "tiny-chat" / "tokenizer.json"))


def text(tokenizer, tokens) -> str:
    return tokenizer.decode(list(tokens), skip_special_tokens=False)


@pytest.mark.version
def test_sampled_logprobs_are_the_trainers(pair):
    trainer, sampler = pair
    answer = sdkcalls.sample(sampler, num_samples=4, max_tokens=24, seed=1, stop=[])
    for sequence in answer.sequences:
        assert len(sequence.tokens) == len(sequence.logprobs) == 24
        assert np.array_equal(np.asarray(sequence.logprobs, np.float32), sdkcalls.sampled_logprobs(trainer, TOKENS, sequence.tokens))
    assert answer.prompt_logprobs is None and answer.topk_prompt_logprobs is None


@pytest.mark.version
def test_prompt_logprobs_are_the_trainers(pair):
    trainer, sampler = pair
    expected = sdkcalls.logprobs(trainer)
    answer = sdkcalls.sample(sampler, max_tokens=1, options={"include_prompt_logprobs": True})
    computed = sampler.compute_logprobs(sdkcalls.prompt()).result()
    for got in (answer.prompt_logprobs, computed):
        assert got[0] is None and np.array_equal(np.asarray(got[1:], np.float32), expected)


@pytest.mark.version
def test_fresh_adapter_equals_the_base_model(service, base):
    trainer = sdkcalls.trainer(service)
    computed = base.compute_logprobs(sdkcalls.prompt()).result()
    assert np.array_equal(np.asarray(computed[1:], np.float32), sdkcalls.logprobs(trainer))


@pytest.mark.version
def test_seeds_are_reproducible_beside_other_work(pair, base):
    _, sampler = pair
    draw = lambda seed: [s.tokens for s in sdkcalls.sample(sampler, num_samples=3, max_tokens=12, seed=seed, stop=[]).sequences]  # noqa: E731
    alone = draw(42)
    others = [base.sample(prompt=sdkcalls.prompt(TOKENS * 5), num_samples=2, sampling_params=types.SamplingParams(max_tokens=40, seed=i, stop=[])) for i in range(6)]
    assert draw(42) == alone
    for each in others:
        each.result()
    assert draw(43) != alone
    assert len({tuple(t) for t in alone}) == 3


@pytest.mark.version
def test_without_a_seed_draws_differ(base):
    drawn = {tuple(s.tokens) for _ in range(2) for s in sdkcalls.sample(base, num_samples=2, max_tokens=12, stop=[]).sequences}
    assert len(drawn) == 4


@pytest.mark.version
def test_greedy_decoding(base):
    greedy = sdkcalls.sample(base, max_tokens=12, temperature=0, stop=[]).sequences[0]
    top = sdkcalls.sample(base, max_tokens=12, top_k=1, seed=8, stop=[]).sequences[0]
    nucleus = sdkcalls.sample(base, max_tokens=12, top_p=1e-6, seed=9, stop=[]).sequences[0]
    assert greedy.tokens == top.tokens == nucleus.tokens
    rows = sdkcalls.sample(base, [*TOKENS, *greedy.tokens], max_tokens=1, options={"topk_prompt_logprobs": 1, "include_prompt_logprobs": True}).topk_prompt_logprobs
    assert [row[0][0] for row in rows[len(TOKENS) :]] == greedy.tokens


def test_top_k_draws_only_from_the_most_likely(base):
    likely = {t for t, _ in sdkcalls.sample(base, [*TOKENS, 1], max_tokens=1, options={"topk_sample_logprobs": 3}).sequences[0].topk_logprobs[0]}
    drawn = {s.tokens[0] for s in sdkcalls.sample(base, [*TOKENS, 1], num_samples=64, max_tokens=1, top_k=3, seed=1).sequences}
    assert drawn <= likely and len(drawn) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.8])
def test_logprobs_are_of_the_scaled_distribution(base, temperature):
    drawn = sdkcalls.sample(base, num_samples=16, max_tokens=1, temperature=temperature, seed=3, stop=[]).sequences
    scaled = np.array([s.logprobs[0] for s in drawn])
    plain = np.array([base.compute_logprobs(sdkcalls.prompt([*TOKENS, s.tokens[0]])).result()[-1] for s in drawn])
    assert len({s.tokens[0] for s in drawn}) > 2
    assert np.allclose(scaled - scaled[0], (plain - plain[0]) / temperature, rtol=0, atol=1e-4)


@pytest.mark.version
def test_length_and_integer_stops(base):
    free = sdkcalls.sample(base, max_tokens=16, seed=2, stop=[]).sequences[0]
    assert len(free.tokens) == 16 and free.stop_reason == "length"
    end = next(t for i, t in enumerate(free.tokens) if i >= 3 and t not in free.tokens[:i])
    where = free.tokens.index(end)
    stopped = sdkcalls.sample(base, max_tokens=16, seed=2, stop=[end]).sequences[0]
    assert stopped.tokens == free.tokens[: where + 1] and stopped.stop_reason == "stop"
    assert stopped.logprobs == free.logprobs[: where + 1]


@pytest.mark.version
def test_stops_at_the_models_own_end(base, tokenizer):
    answer = sdkcalls.sample(base, tokenizer.encode(QUESTION, add_special_tokens=False).ids, max_tokens=200, temperature=0).sequences[0]
    assert answer.stop_reason == "stop"
    assert text(tokenizer, answer.tokens[-1:]) == "<|im_end|>"


@pytest.mark.version
@pytest.mark.parametrize("as_list", [False, True])
def test_stop_string_across_tokens(base, tokenizer, as_list):
    free = sdkcalls.sample(base, max_tokens=24, seed=6, stop=[]).sequences[0]
    # A text that begins inside one token and ends inside a later one.
    pieces = [text(tokenizer, [t]) for t in free.tokens]
    at = next(i for i in range(4, 20) if len(pieces[i]) > 1 and len(pieces[i + 1]) > 1 and pieces[i].isascii() and pieces[i + 1].isascii())
    stop = pieces[at][-1] + pieces[at + 1][0]
    expected = next(i for i in range(len(free.tokens)) if stop in text(tokenizer, free.tokens[: i + 1]))
    got = sdkcalls.sample(base, max_tokens=24, seed=6, stop=[stop] if as_list else stop).sequences[0]
    assert got.tokens == free.tokens[: expected + 1] and got.stop_reason == "stop"


@pytest.mark.version
def test_top_k_prompt_logprobs(pair):
    _, sampler = pair
    answer = sdkcalls.sample(sampler, max_tokens=1, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 5})
    rows = answer.topk_prompt_logprobs
    assert rows[0] is None and len(rows) == len(TOKENS)
    for token, logprob, row in zip(TOKENS[1:], answer.prompt_logprobs[1:], rows[1:], strict=True):
        values = [v for _, v in row]
        assert len(row) == 5 and values == sorted(values, reverse=True) and len({t for t, _ in row}) == 5
        if token in dict(row):
            assert dict(row)[token] == logprob
        else:
            assert logprob <= values[-1]


@pytest.mark.version
def test_prompt_over_the_context_is_refused(base):
    with pytest.raises(tinker.BadRequestError, match="Prompt length plus max_tokens exceeds"):
        sdkcalls.sample(base, TOKENS, max_tokens=4096)


BAD = {
    "temperature": {"temperature": -1.0},
    "top_p": {"top_p": 1.5},
    "top_k": {"top_k": -7},
    "max_tokens": {"max_tokens": -1},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters_are_refused_by_name(base, name):
    with pytest.raises(tinker.BadRequestError, match=name):
        sdkcalls.sample(base, **BAD[name])


def test_bad_prompts_are_refused(base):
    for tokens in ([], [1, 4096], [-1]):
        with pytest.raises(tinker.BadRequestError):
            sdkcalls.sample(base, tokens)
    with pytest.raises(tinker.BadRequestError, match="image"):
        base.sample(prompt=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=1)).result()


@pytest.mark.skipif(VERSION < (0, 26), reason="sequence ids came with 0.26")
@pytest.mark.version
def test_sequences_have_ids_of_their_own(base):
    ids = [s.sequence_id for _ in range(2) for s in sdkcalls.sample(base, num_samples=3).sequences]
    assert len(set(ids)) == 6


@pytest.mark.skipif(VERSION < (0, 29), reason="topk_sample_logprobs came with 0.29")
@pytest.mark.version
def test_top_k_of_sampled_tokens(pair):
    _, sampler = pair
    sequence = sdkcalls.sample(sampler, max_tokens=6, seed=5, stop=[], options={"topk_sample_logprobs": 4}).sequences[0]
    rows = sdkcalls.sample(sampler, [*TOKENS, *sequence.tokens], max_tokens=1, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 4}).topk_prompt_logprobs
    assert [list(map(tuple, row)) for row in sequence.topk_logprobs] == [list(map(tuple, row)) for row in rows[len(TOKENS) :]]


@pytest.mark.skipif(VERSION < (0, 30), reason="target_prompt_logprobs came with 0.30")
@pytest.mark.version
def test_logprobs_of_chosen_targets(base):
    import torch

    p = len(TOKENS)
    ids = torch.full((p - 1, 3), -1, dtype=torch.int64)
    ids[2, 0], ids[2, 1], ids[p - 2, 2] = 17, TOKENS[3], 99
    one_by_one = {}
    for i, j in [(2, 0), (2, 1), (p - 2, 2)]:
        one_by_one[i, j] = base.compute_logprobs(sdkcalls.prompt([*TOKENS[: i + 1], int(ids[i, j])])).result()[-1]
    dense = sdkcalls.sample(base, max_tokens=1, options={"target_prompt_logprobs": types.TensorData.from_torch(ids)}).target_prompt_logprobs
    sparse = sdkcalls.sample(base, max_tokens=1, options={"target_prompt_logprobs": types.TensorData.from_torch_sparse(ids, pad_value=-1)}).target_prompt_logprobs
    for got in (dense.to_torch(), sparse.to_torch()):
        assert got.shape == ids.shape
        assert {k: got[k].item() for k in one_by_one} == one_by_one
        assert (got[ids == -1] == 0).all()


@pytest.mark.skipif(VERSION < (0, 31), reason="prompt_alt_tokens_k came with 0.31")
@pytest.mark.version
def test_alternatives_to_prompt_tokens(base):
    draw = lambda seed: sdkcalls.sample(base, max_tokens=1, seed=seed, temperature=0.8, options={"prompt_alt_tokens_k": 4}).prompt_alt_tokens  # noqa: E731
    got = draw(1)
    tokens, values = got.tokens.to_numpy(), got.logprobs.to_numpy()
    assert tokens.shape == values.shape == (len(TOKENS) - 1, 4)
    assert np.array_equal(tokens, draw(1).tokens.to_numpy()) and not np.array_equal(tokens, draw(2).tokens.to_numpy())
    for row, k in [(0, 0), (4, 3), (len(TOKENS) - 2, 1)]:
        plain = base.compute_logprobs(sdkcalls.prompt([*TOKENS[: row + 1], int(tokens[row, k])])).result()[-1]
        assert values[row, k] == np.float32(plain)  # scores of the prompt are those of temperature 1


@pytest.mark.skipif(VERSION < (0, 33), reason="prompt_logprobs_last_n came with 0.33")
@pytest.mark.version
def test_logprobs_of_the_last_prompt_tokens(base):
    whole = sdkcalls.sample(base, max_tokens=1, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 2})
    part = sdkcalls.sample(base, max_tokens=1, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 2, "prompt_logprobs_last_n": 4})
    first = len(TOKENS) - 4
    assert part.prompt_logprobs == [None] * first + whole.prompt_logprobs[first:]
    assert part.topk_prompt_logprobs == [None] * first + whole.topk_prompt_logprobs[first:]


@pytest.mark.version
def test_sampler_keeps_its_weights_while_training_goes_on(pair):
    trainer, sampler = pair
    before = sampler.compute_logprobs(sdkcalls.prompt()).result()
    for _ in range(3):
        sdkcalls.train(trainer)
    assert sampler.compute_logprobs(sdkcalls.prompt()).result() == before
    newer = sdkcalls.client(trainer.save_weights_and_get_sampling_client()).compute_logprobs(sdkcalls.prompt()).result()
    assert newer != before
    assert np.array_equal(np.asarray(newer[1:], np.float32), sdkcalls.logprobs(trainer))


@pytest.mark.skipif(VERSION < (0, 16), reason="get_base_model came with 0.16")
@pytest.mark.version
def test_base_model_of_samplers(pair, base):
    for each in (pair[1], base):
        assert each.get_base_model() == tinsmith.MODEL


@pytest.mark.version
def test_many_unnamed_samplers_are_no_checkpoints(service):
    trainer = sdkcalls.trainer(service)
    samplers = [sdkcalls.client(trainer.save_weights_and_get_sampling_client()) for _ in range(20)]
    rest = service.create_rest_client()
    assert rest.list_checkpoints(trainer.get_info().model_id).result().checkpoints == []
    assert len({tuple(s.compute_logprobs(sdkcalls.prompt()).result()) for s in samplers}) == 1


CHILD = """
import pickle, sys
import sdkcalls
if __name__ == "__main__":
    sampler = pickle.load(open(sys.argv[1], "rb"))
    print(sdkcalls.sample(sampler, max_tokens=10, seed=11, stop=[]).sequences[0].tokens)
"""


@pytest.mark.skipif(VERSION < (0, 16), reason="sampling clients can be pickled since 0.16")
@pytest.mark.version
def test_pickled_clients_sample_in_other_processes(server, pair, tmp_path):
    _, sampler = pair
    expected = sdkcalls.sample(sampler, max_tokens=10, seed=11, stop=[]).sequences[0].tokens
    pickled, script = tmp_path / "sampler", tmp_path / "child.py"
    pickled.write_bytes(pickle.dumps(sampler))
    script.write_text(CHILD)
    environment = tinsmith.environment(server, PYTHONPATH=tinsmith.modules())
    children = [subprocess.Popen([sys.executable, script, pickled], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        out, errors = child.communicate(timeout=240)
        assert tinsmith.ended(child.returncode), errors
        assert out.strip().splitlines()[-1] == str(expected)


@pytest.mark.skipif(VERSION < (0, 32), reason="sampling clients join since 0.32")
def test_unpickled_clients_get_numbers_of_their_own(server, tmp_path):
    with proxy.Proxy(server.url) as between:
        sampler = sdkcalls.client(sdkcalls.service(server, base_url=between.url).create_sampling_client(base_model=tinsmith.MODEL))
        copies = [pickle.loads(pickle.dumps(sampler)) for _ in range(2)]
        results = [sdkcalls.sample(each, max_tokens=4, seed=1, stop=[]).sequences[0].tokens for each in (sampler, *copies)]
        assert results[0] == results[1] == results[2]
        assert len(between.to("/join_sampling_session")) == 2
        blocks = {e.json()["seq_id"] // 10**9 for e in between.to("/asample")}
        assert len(blocks) == 3 and 0 in blocks


@pytest.mark.version
def test_two_hundred_samples_at_once(server, service):
    with proxy.Proxy(server.url) as between:
        sampler = sdkcalls.client(sdkcalls.service(server, base_url=between.url).create_sampling_client(base_model=tinsmith.MODEL))
        futures = [sampler.sample(prompt=sdkcalls.prompt([*TOKENS, i]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=4, seed=i, stop=[])) for i in range(200)]
        got = [f.result().sequences[0].tokens for f in futures]
        for i in (0, 57, 199):
            assert got[i] == sdkcalls.sample(sampler, [*TOKENS, i], max_tokens=4, seed=i, stop=[]).sequences[0].tokens
        if VERSION >= (0, 27):
            assert 0 < len(between.to("/retrieve_futures")) < 200


@pytest.mark.skipif(VERSION < (0, 38), reason="the way to abandon a sample differs before 0.38")
def test_abandoned_sample_is_cancelled(server):
    import asyncio

    async def abandon(sampler):
        waiting = sampler.sample(prompt=sdkcalls.prompt(), num_samples=8, sampling_params=types.SamplingParams(max_tokens=4000, stop=[]))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 1.5)

    with proxy.Proxy(server.url) as between:
        sampler = sdkcalls.client(sdkcalls.service(server, base_url=between.url).create_sampling_client(base_model=tinsmith.MODEL))
        sdkcalls.sample(sampler, max_tokens=1)
        asyncio.run(abandon(sampler))
        # Work that went on would keep the next one waiting for its thousands of tokens.
        sdkcalls.sample(sampler, max_tokens=1)
        cancelled = between.to("/cancel_future")
        assert [e.status // 100 for e in cancelled] == [2]
