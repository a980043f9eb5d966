"""verifiers' client of a training, unmodified, against the real server: it renders and reads chats itself, and has tokens sampled."""

import asyncio

import numpy as np
import pytest
import verifiers.v1 as vf
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.errors import ProviderError
from verifiers.v1.types import SamplingConfig

import sdkcalls
import tinsmith

TOKENIZER = str(tinsmith.ROOT / "configs" / "models" / "tiny-chat")


def talk(server, monkeypatch, play, **config):
    monkeypatch.setenv("TINSMITH_KEY", server.key)

    async def run():
        client = vf.resolve_client(vf.TrainClientConfig(base_url=server.url + "/v1", api_key_var="TINSMITH_KEY", renderer_model_name=TOKENIZER, **config))
        try:
            return await play(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_rollout_of_an_adapter(server, monkeypatch):
    """The tokens and log-probabilities of a rollout are those that the trainer computes, bit for bit."""
    trainer = sdkcalls.trainer(sdkcalls.service(server))
    sdkcalls.train(trainer)
    model = f"tinker://{trainer.model_id}"

    async def play(client):
        messages, turns = [{"role": "user", "content": "What is 2 + 3?"}], []
        for seed in range(2):
            sampling = SamplingConfig(temperature=1.0, max_tokens=24, seed=seed)
            turns.append(await client.get_response(ChatDialect(), {"model": model, "messages": messages}, sampling, session_id="rollout"))
            messages += [{"role": "assistant", "content": turns[-1].message.content or ""}, {"role": "user", "content": "And more?"}]
        return turns

    for turn in talk(server, monkeypatch, play):
        tokens = turn.tokens
        assert turn.finish_reason in ("stop", "length") and turn.model == model and turn.id
        assert 0 < len(tokens.completion_ids) == len(tokens.completion_logprobs) <= 24
        scored = sdkcalls.logprobs(trainer, tokens.prompt_ids + tokens.completion_ids)[len(tokens.prompt_ids) - 1 :]
        assert np.array_equal(np.array(tokens.completion_logprobs, np.float32), scored)


def test_what_is_refused_is_told(server, monkeypatch):
    async def play(client):
        body = {"model": tinsmith.MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        with pytest.raises(ProviderError, match="temperature"):
            await client.get_response(ChatDialect(), body, SamplingConfig(temperature=9.0))
        with pytest.raises(ProviderError, match="context"):
            await client.get_response(ChatDialect(), body, SamplingConfig(max_tokens=10**6))
        with pytest.raises(ProviderError, match="not"):
            await client.get_response(ChatDialect(), body | {"model": "unknown"}, SamplingConfig(max_tokens=4))

    talk(server, monkeypatch, play)
