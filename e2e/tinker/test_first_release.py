"""What only SDK 0.3, the first release that is served, does in its own way."""

import numpy as np
import pytest
import tinker

import sdkcalls
import tinsmith
from sdkcalls import VERSION

pytestmark = [pytest.mark.version, pytest.mark.skipif(VERSION >= (0, 6), reason="newer releases have other calls for it")]

OTHER = [5, 6, 7, 8, 9, 10]


def test_load_state_loads_the_optimizer(service):
    run = sdkcalls.trainer(service)
    for _ in range(2):
        sdkcalls.train(run, rate=2e-3)
    path = run.save_state("middle").result().path
    resumed, loaded = service.create_training_client_from_state(path), sdkcalls.trainer(service)
    loaded.load_state(path).result()
    for each in (run, resumed, loaded):
        sdkcalls.train(each, OTHER, rate=2e-3)
        sdkcalls.train(each, OTHER, rate=2e-3)
        assert np.array_equal(sdkcalls.logprobs(each), sdkcalls.logprobs(run))


def test_lists(service):
    run, rest = sdkcalls.trainer(service), service.create_rest_client()
    model = run.get_info().model_id
    paths = {run.save_state("a").result().path, run.save_weights_for_sampler("b").result().path}
    assert {(c.tinker_path, c.checkpoint_type) for c in rest.list_checkpoints(model).result().checkpoints} == {
        (f"tinker://{model}/weights/a", "training"),
        (f"tinker://{model}/sampler_weights/b", "sampler"),
    }
    seen = rest.get_training_run_by_tinker_path(f"tinker://{model}/weights/a").result()
    assert (seen.base_model, seen.lora_rank, seen.last_checkpoint.checkpoint_id) == (tinsmith.MODEL, 8, "weights/a")
    for path in paths:
        rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(model).result().checkpoints == []
    with pytest.raises(tinker.NotFoundError):
        rest.list_checkpoints("nothing:train:0").result()
