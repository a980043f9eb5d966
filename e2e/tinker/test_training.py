"""forward, forward_backward and optim_step through the SDK: every number against its formula."""

import numpy as np
import pytest
import tinker
from tinker import types

import sdkcalls
from sdkcalls import TOKENS, VERSION, datum

N = len(TOKENS) - 1

# An update in proportion to the gradient: with eps far above its root mean square, a step of Adam is learning_rate/eps times the gradient.
LINEAR = {"learning_rate": 1e6, "eps": 1e8}


@pytest.fixture
def trained(service):
    """A training client after one step, so that A and B of the adapter are both other than zero."""
    made = sdkcalls.trainer(service)
    sdkcalls.train(made)
    return made


def run(client, data, loss="cross_entropy", config=None, forward_only=False):
    call = client.forward if forward_only else client.forward_backward
    return call(data, loss, config).result()


@pytest.mark.version
def test_cross_entropy_is_the_weighted_sum(trained):
    weights = np.array([0, 1, 0.5, 2, 0, 1, -1, 3, 0, 0.25, 1], np.float32)
    plain = run(trained, [datum()])
    weighted = run(trained, [datum(weights=weights)])
    doubled = run(trained, [datum(weights=2 * weights)])
    lp = sdkcalls.arrays(weighted)[0]
    assert lp.shape == (N,) and (lp < 0).all()
    assert np.array_equal(lp, sdkcalls.arrays(plain)[0]) and np.array_equal(lp, sdkcalls.arrays(doubled)[0])
    assert weighted.metrics["loss:sum"] == pytest.approx(-(weights.astype(float) * lp).sum(), rel=1e-5)
    assert doubled.metrics["loss:sum"] == pytest.approx(2 * weighted.metrics["loss:sum"], rel=1e-6)
    for name in weighted.metrics:
        assert name.count(":") == 1, name


def ratios(lp):
    """Sampling log-probabilities that make ratios on both sides of every clip bound, and advantages of both signs."""
    rng = np.random.default_rng(3)
    q = (lp - rng.choice([-1.8, -0.7, -0.1, 0, 0.1, 0.7, 1.8], lp.shape)).astype(np.float32)
    advantages = rng.normal(size=lp.shape).astype(np.float32)
    advantages[2] = 0
    return q, advantages


def importance_sampling(lp, q, a, _):
    r = np.exp(lp - q)
    return -(r * a).sum(), -r * a


def ppo(lp, q, a, config):
    r = np.exp(lp - q)
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    clipped = np.clip(r, low, high) * a
    return -np.minimum(r * a, clipped).sum(), np.where(r * a <= clipped, -r * a, 0)


def cispo(lp, q, a, config):
    weight = np.clip(np.exp(lp - q), config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", 4.0))
    return -(weight * lp * a).sum(), -weight * a


def dro(lp, q, a, config):
    beta = config["beta"]
    return -(lp * a - 0.5 * beta * (lp - q) ** 2).sum(), -(a - beta * (lp - q))


def gspo(lp, q, a, config):
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    s = np.exp((lp - q).mean())
    clipped = np.clip(s, low, high) * a
    return -np.minimum(s * a, clipped).sum(), np.where(s * a <= clipped, -s * a, 0)


LOSSES = [
    (importance_sampling, {}),
    (ppo, {}),
    (ppo, {"clip_low_threshold": 0.4, "clip_high_threshold": 2.5}),
    (cispo, {}),
    (cispo, {"clip_low_threshold": 0.6, "clip_high_threshold": 1.5}),
    (dro, {"beta": 0.05}),
    (dro, {"beta": 0.7}),
    (gspo, {"clip_low_threshold": 0.2, "clip_high_threshold": 3.0}),
]


@pytest.mark.version
@pytest.mark.parametrize(("loss", "config"), LOSSES, ids=lambda v: v.__name__ if callable(v) else ",".join(map(str, v.values())) or "defaults")
def test_loss_and_gradient_follow_the_formula(service, loss, config):
    if not sdkcalls.sends(loss.__name__):
        pytest.skip(f"this release sends no {loss.__name__}")
    native, surrogate = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (native, surrogate):
        sdkcalls.train(each)
    lp = sdkcalls.logprobs(native)
    q, advantages = ratios(lp)
    inputs = {"logprobs": q, "advantages": advantages}
    if loss is gspo:
        inputs["sequence_ratio_mask"] = np.ones(N, np.float32)
    value, gradient = loss(*(v.astype(float) for v in (lp, q, advantages)), config)
    output = run(native, [datum(**inputs)], loss.__name__, config)
    assert np.array_equal(sdkcalls.arrays(output)[0], lp)
    assert output.metrics["loss:sum"] == pytest.approx(value, rel=1e-4, abs=1e-4)
    # The same gradient as the cross-entropy whose weights are minus the derivative.
    run(surrogate, [datum(weights=-gradient.astype(np.float32))])
    steps = [c.optim_step(types.AdamParams(**LINEAR)).result() for c in (native, surrogate)]
    assert np.allclose(sdkcalls.logprobs(native), sdkcalls.logprobs(surrogate), rtol=0, atol=2e-4)
    assert not np.allclose(sdkcalls.logprobs(native), lp, rtol=0, atol=2e-3)
    assert gradient_norm(steps[0]) == pytest.approx(gradient_norm(steps[1]), rel=1e-4)


def gradient_norm(step) -> float:
    found = [v for k, v in step.metrics.items() if "grad" in k and "norm" in k]
    assert len(found) == 1, step.metrics
    return found[0]


def test_metrics_of_a_step_are_finite_numbers(trained):
    run(trained, [datum()])
    metrics = trained.optim_step(types.AdamParams()).result().metrics
    assert gradient_norm(trained.optim_step(types.AdamParams()).result()) == 0  # consumed by the step before
    assert metrics and all(np.isfinite(v) for v in metrics.values())
    assert gradient_norm(types.OptimStepResponse(metrics=metrics)) > 0


@pytest.mark.skipif(VERSION < (0, 20), reason="before 0.20 the client knows the names of losses")
@pytest.mark.version
def test_unknown_loss_fails_at_once_and_by_name(trained):
    with pytest.raises(tinker.RequestFailedError, match="no_such_loss") as failure:
        run(trained, [datum()], "no_such_loss")
    assert failure.value.category == types.RequestErrorCategory.User
    assert sdkcalls.train(trained).metrics["loss:sum"] > 0


BAD = {
    "token outside the vocabulary": lambda: datum([1, 2, 4096]),
    "negative token": lambda: datum([1, 2, -5]),
    "input outside the vocabulary": lambda: datum([1, 99999, 3]),
    "weights too short": lambda: datum(weights=[1.0, 1.0]),
    "NaN in weights": lambda: datum(weights=[np.nan] + [1.0] * (N - 1)),
    "infinite weight": lambda: datum(weights=[np.inf] + [1.0] * (N - 1)),
    "longer than the context": lambda: datum([5] * 4200),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_datum_fails_its_operation_only(service, bad):
    hurt, spared = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (hurt, spared):
        sdkcalls.train(each)
    with pytest.raises(tinker.RequestFailedError) as failure:
        run(hurt, [datum(), BAD[bad]()])
    assert failure.value.category == types.RequestErrorCategory.User, str(failure.value)
    for each in (hurt, spared):
        sdkcalls.train(each)
    assert np.array_equal(sdkcalls.logprobs(hurt), sdkcalls.logprobs(spared))


def test_unknown_and_bad_loss_config_is_refused_by_name(trained):
    inputs = {"logprobs": [-1.0] * N, "advantages": [1.0] * N}
    for config, name in [({"clip_lo": 0.5}, "clip_lo"), ({"clip_low_threshold": 2.0, "clip_high_threshold": 0.5}, "clip_"), ({"clip_low_threshold": float("nan")}, "clip_low_threshold")]:
        with pytest.raises(tinker.RequestFailedError, match=name):
            run(trained, [datum(**inputs)], "ppo", config)


@pytest.mark.parametrize("setting", ["learning_rate", "beta1", "eps", "weight_decay", "grad_clip_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_bad_optimizer_settings_are_refused_by_name(service, setting, value):
    hurt, spared = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (hurt, spared):
        sdkcalls.train(each)
    with pytest.raises(tinker.RequestFailedError, match=setting):
        hurt.optim_step(types.AdamParams(**{setting: value})).result()
    for each in (hurt, spared):
        sdkcalls.train(each)
    assert np.array_equal(sdkcalls.logprobs(hurt), sdkcalls.logprobs(spared))


@pytest.mark.version
def test_batch_equals_its_members_alone(trained):
    sequences = [TOKENS, TOKENS[:3], TOKENS * 9, [7, 8], TOKENS[::-1] * 3]
    together = sdkcalls.arrays(run(trained, [datum(s) for s in sequences], forward_only=True))
    assert [len(lp) for lp in together] == [len(s) - 1 for s in sequences]
    for sequence, lp in zip(sequences, together, strict=True):
        assert np.array_equal(lp, sdkcalls.logprobs(trained, sequence))


@pytest.mark.version
def test_forward_leaves_no_gradient(service):
    evaluated, untouched = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (evaluated, untouched):
        sdkcalls.train(each)
    before = sdkcalls.logprobs(evaluated)
    for _ in range(2):
        run(evaluated, [datum()], forward_only=True)
    sdkcalls.train(evaluated, TOKENS[::-1])
    sdkcalls.train(untouched, TOKENS[::-1])
    assert np.array_equal(sdkcalls.logprobs(evaluated), sdkcalls.logprobs(untouched))
    assert not np.array_equal(sdkcalls.logprobs(evaluated), before)


@pytest.mark.version
def test_accumulated_halves_equal_the_whole(service):
    data = [datum(TOKENS[i:] + TOKENS[: i // 2]) for i in range(6)]
    whole, halves = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for _ in range(2):
        run(whole, data)
        run(halves, data[:2])
        run(halves, data[2:])
        for each in (whole, halves):
            each.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-8)).result()
    assert np.allclose(sdkcalls.logprobs(whole), sdkcalls.logprobs(halves), rtol=0, atol=1e-4)


@pytest.mark.version
def test_queued_calls_run_in_order(service):
    queued, awaited = sdkcalls.trainer(service), sdkcalls.trainer(service)
    futures = []
    for _ in range(4):
        futures.append(queued.forward_backward([datum()], "cross_entropy"))
        futures.append(queued.optim_step(types.AdamParams(learning_rate=5e-3)))
    losses = [f.result().metrics["loss:sum"] for f in futures[::2]]
    assert losses == [sdkcalls.train(awaited).metrics["loss:sum"] for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 4


@pytest.mark.version
def test_same_seed_same_run(service):
    first, second, other = (sdkcalls.trainer(service, seed=s) for s in (5, 5, 6))
    losses = [[sdkcalls.train(each).metrics["loss:sum"] for _ in range(3)] for each in (first, second, other)]
    assert losses[0] == losses[1]
    assert losses[0][0] == losses[2][0]  # a fresh adapter adds nothing
    assert losses[0][2] != losses[2][2]


@pytest.mark.parametrize("trained_parts", ["attn", "mlp", "unembed"])
def test_untrained_parts_stay_untrained(service, trained_parts):
    flags = {f"train_{part}": part == trained_parts for part in ("attn", "mlp", "unembed")}
    partial, full = sdkcalls.trainer(service, **flags), sdkcalls.trainer(service)
    for each in (partial, full):
        sdkcalls.train(each)
        run(each, [datum()])
    norms = [gradient_norm(each.optim_step(types.AdamParams()).result()) for each in (partial, full)]
    assert 0 < norms[0] < norms[1]


def soft_targets(k=3):
    rng = np.random.default_rng(7)
    targets = rng.integers(0, 4000, (N, k))
    weights = np.where(rng.random((N, k)) < 0.3, rng.random((N, k)), 0).astype(np.float32)
    weights[0, 0] = 0.5
    return targets, weights


def soft_datum(targets, weights):
    return types.Datum(model_input=sdkcalls.prompt(TOKENS[:-1]), loss_fn_inputs={"target_tokens": targets, "weights": weights})


def test_several_targets_per_position(trained):
    targets, weights = soft_targets()
    output = run(trained, [soft_datum(targets, weights)])
    lp = sdkcalls.arrays(output)[0]
    assert lp.shape == targets.shape
    assert output.metrics["loss:sum"] == pytest.approx(-(weights.astype(float) * lp).sum(), rel=1e-5)
    column = run(trained, [types.Datum(model_input=sdkcalls.prompt(TOKENS[:-1]), loss_fn_inputs={"target_tokens": targets[:, 1].copy(), "weights": weights[:, 1].copy()})], forward_only=True)
    assert np.allclose(sdkcalls.arrays(column)[0], lp[:, 1], rtol=0, atol=1e-6)


def test_sparse_targets_equal_dense_ones(trained):
    import torch

    targets, weights = soft_targets(k=16)
    targets = np.where(weights != 0, targets, 0)
    dense = run(trained, [soft_datum(targets, weights)])
    sparse = run(trained, [soft_datum(torch.from_numpy(targets), torch.from_numpy(weights))])
    assert soft_datum(torch.from_numpy(targets), torch.from_numpy(weights)).loss_fn_inputs["weights"].sparse_crow_indices is not None
    assert sparse.metrics["loss:sum"] == dense.metrics["loss:sum"]
    assert np.array_equal(sdkcalls.arrays(sparse)[0], sdkcalls.arrays(dense)[0])


def test_datums_of_different_shapes_in_one_call(trained):
    targets, weights = soft_targets()
    wide, wide_weights = soft_targets(k=5)
    got = sdkcalls.arrays(run(trained, [soft_datum(targets, weights), datum(), soft_datum(wide, wide_weights), datum(TOKENS[:4])]))
    assert [lp.shape for lp in got] == [(N, 3), (N,), (N, 5), (3,)]
    assert np.array_equal(got[1], sdkcalls.logprobs(trained))


@pytest.mark.version
def test_custom_loss_equals_cross_entropy(service):
    import torch

    weights = np.linspace(-1, 2, N).astype(np.float32)
    custom, direct = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (custom, direct):
        sdkcalls.train(each)

    def loss(data, logprobs):
        value = -(torch.from_numpy(weights) * logprobs[0]).sum()
        return value, {"mine": float(value.detach())}

    output = custom.forward_backward_custom([datum()], loss).result()
    expected = run(direct, [datum(weights=weights)])
    assert output.metrics["mine"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    for each in (custom, direct):
        each.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-8)).result()
    assert np.array_equal(sdkcalls.logprobs(custom), sdkcalls.logprobs(direct))


@pytest.mark.skipif(VERSION < (0, 38), reason="before 0.38 forward_backward_custom waits for its forward pass")
def test_queued_custom_losses_keep_their_order(service):
    trainer = sdkcalls.trainer(service)

    def loss(data, logprobs):
        return -logprobs[0].sum(), {}

    first = trainer.forward_backward_custom([datum()], loss)
    step = trainer.optim_step(types.AdamParams(learning_rate=5e-3))
    second = trainer.forward_backward_custom([datum()], loss)
    step.result()
    assert second.result().metrics["loss:sum"] < first.result().metrics["loss:sum"]
    assert "surrogate_loss:sum" in second.result().metrics


@pytest.mark.skipif(VERSION < (0, 38), reason="0.38 made a failed custom loss end its training client")
def test_failed_custom_loss_ends_its_client_only(service):
    broken = sdkcalls.trainer(service)

    def loss(data, logprobs):
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError):
        broken.forward_backward_custom([datum()], loss).result()
    assert sdkcalls.train(sdkcalls.trainer(service)).metrics["loss:sum"] > 0


@pytest.mark.version
def test_many_datums_travel_in_chunks(trained):
    data = [datum([i % 4000, (7 * i) % 4000, 5]) for i in range(2500)]
    output = run(trained, data, forward_only=True)
    assert len(output.loss_fn_outputs) == 2500
    lp = sdkcalls.arrays(output)
    assert output.metrics["loss:sum"] == pytest.approx(-sum(each.astype(float).sum() for each in lp), rel=1e-5)
    for i in (0, 1023, 1024, 2047, 2048, 2499):
        assert np.array_equal(lp[i], sdkcalls.logprobs(trained, [i % 4000, (7 * i) % 4000, 5])), i


@pytest.mark.version
def test_bad_datum_in_a_later_chunk_stops_nothing_else(trained):
    data = [datum([5, 6])] * 1500
    data[1200] = datum([5, 999999])
    with pytest.raises(tinker.RequestFailedError):
        run(trained, data)
    trained.optim_step(types.AdamParams()).result()


def test_number_that_never_arrives_is_skipped(trained):
    picture = types.ImageAssetPointerChunk(location="nowhere", format="png", expected_tokens=2)
    bad = types.Datum(model_input=types.ModelInput(chunks=[picture]), loss_fn_inputs={"target_tokens": [1, 2], "weights": [1.0, 1.0]})
    with pytest.raises(ValueError):
        run(trained, [bad])
    trained.optim_step(types.AdamParams()).result()


def test_images_are_refused_by_name(trained):
    picture = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=2)
    bad = types.Datum(model_input=types.ModelInput(chunks=[picture]), loss_fn_inputs={"target_tokens": [1, 2], "weights": [1.0, 1.0]})
    with pytest.raises(tinker.RequestFailedError, match="image"):
        run(trained, [bad])


def test_text_chunks_join(trained):
    split = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=TOKENS[:4]), types.EncodedTextChunk(tokens=TOKENS[4:-1])])
    joined = types.Datum(model_input=split, loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * N})
    assert np.array_equal(sdkcalls.arrays(run(trained, [joined], forward_only=True))[0], sdkcalls.logprobs(trained))


def test_stable_reinforce_without_provenance_is_refused(trained):
    with pytest.raises(tinker.RequestFailedError, match="provenance"):
        run(trained, [datum(logprobs=[-1.0] * N, advantages=[1.0] * N)], "stable_reinforce")


@pytest.mark.skipif(VERSION < (0, 38), reason="provenance spans came with 0.26, recording with 0.38's sampling clients")
def test_stable_reinforce_uses_the_recorded_logprobs(service):
    trainer = sdkcalls.trainer(service)
    sdkcalls.train(trainer)
    sampler = trainer.save_weights_and_get_sampling_client()
    got = sdkcalls.sample(sampler, max_tokens=6, seed=4).sequences[0]
    sdkcalls.train(trainer)
    p, n = len(TOKENS), len(got.tokens)
    advantages = np.array([0.0] * (p - 1) + [1.5] * n, np.float32)
    whole = [*TOKENS, *got.tokens]
    spans = dict(
        model_input=[types.PromptProvenanceSpan(sequence_id=got.sequence_id, offset=0, length=p), types.SampledProvenanceSpan(sequence_id=got.sequence_id, offset=0, length=n - 1)],
        loss_fn_inputs=[types.PromptProvenanceSpan(sequence_id=got.sequence_id, offset=1, length=p - 1), types.SampledProvenanceSpan(sequence_id=got.sequence_id, offset=0, length=n)],
    )
    made = datum(whole, logprobs=[0.0] * (p - 1) + list(got.logprobs), advantages=advantages).with_provenance(**spans)
    output = run(trainer, [made], "stable_reinforce")
    lp = sdkcalls.arrays(output)[0].astype(float)
    r = np.minimum(np.exp(lp[p - 1 :] - np.asarray(got.logprobs)), 2.0)
    assert output.metrics["loss:sum"] == pytest.approx(-(r * lp[p - 1 :] * 1.5).sum(), rel=1e-4)
