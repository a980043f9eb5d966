"""The cookbook's decision models: one answer token, its probability among the choices by target_prompt_logprobs, trained by cross_entropy."""

import json
import math
import subprocess
import sys

import tinsmith
from test_recipes import on

# What the cookbook's README shows, for questions whose answers are in them. Each probability is asked of a client of the newest weights.
PROGRAM = """
import asyncio, json
import tinker
from tinker_cookbook import model_info, renderers
from tinker_cookbook.recipes.decisions import Decision, DecisionRenderer, decision_choice_datums, decision_dist_datums, probability_loss, sample_decision
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = "Qwen/Qwen3-8B"
CHOICES = [("billing", "Charges and invoices"), ("sdk", "The Python package"), ("console", "The web console")]
EXAMPLES = [
    (Decision("Why was I charged twice?", CHOICES), "billing"),
    (Decision("The import fails. What now?", CHOICES), "sdk"),
    (Decision("Where do I sign in?", CHOICES), "console"),
]


async def main():
    service = tinker.ServiceClient()
    training = await service.create_lora_training_client(base_model=MODEL, rank=8, seed=3)
    renderer = DecisionRenderer(renderers.get_renderer(model_info.get_recommended_renderer_name(MODEL), get_tokenizer(MODEL)))

    async def probabilities(decisions, training=training):
        sampler = await training.save_weights_and_get_sampling_client()
        return await asyncio.gather(*[sample_decision(sampler, renderer.render(decision)) for decision in decisions])

    async def step(submitted, training=training, rate=5e-3):
        optimizer = training.optim_step(tinker.AdamParams(learning_rate=rate))
        result = await (await submitted if asyncio.iscoroutine(submitted) else submitted)
        await optimizer
        return result

    decisions = [decision for decision, _ in EXAMPLES]
    before = await probabilities(decisions)
    datums = decision_choice_datums(renderer, EXAMPLES)
    first = await training.forward(datums, "cross_entropy")
    for _ in range(30):
        await step(training.forward_backward(datums, loss_fn="cross_entropy"))
    after = await probabilities(decisions)

    coin = Decision("Which side shows?", [("heads", ""), ("tails", "")])
    soft = decision_dist_datums(renderer, [(coin, {"heads": 0.25, "tails": 0.75})])
    other = await service.create_lora_training_client(base_model=MODEL, rank=8, seed=3)
    for _ in range(20):
        await step(other.forward_backward_custom(soft, probability_loss(lambda got, wanted: -(wanted * got.log()).sum())), other, 1e-3)
    (calibrated,) = await probabilities([coin], other)
    print(json.dumps({"before": before, "after": after, "answers": [a for _, a in EXAMPLES], "calibrated": calibrated,
                      "lengths": [len(o["logprobs"].data) for o in first.loss_fn_outputs], "weights": [sum(d.loss_fn_inputs["weights"].data) for d in datums]}))


asyncio.run(main())
"""


@on("0.6.1", always=("0.6.1",))
def test_decision_model(recipes):
    environment = tinsmith.environment(recipes.server, PYTHONPATH=str(recipes.cookbook), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=recipes.folder, env=environment, capture_output=True, text=True, timeout=400)
    assert tinsmith.ended(done.returncode), done.stderr[-4000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["weights"] == [1, 1, 1]  # one token each
    for before, after, answer in zip(told["before"], told["after"], told["answers"]):
        assert math.isclose(sum(before.values()), 1, rel_tol=1e-5) and math.isclose(sum(after.values()), 1, rel_tol=1e-5)
        assert after[answer] > 0.8 and after[answer] > before[answer], (answer, before, after)
    assert abs(told["calibrated"]["heads"] - 0.25) < 0.1, told["calibrated"]
