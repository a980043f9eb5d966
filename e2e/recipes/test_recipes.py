"""The recipes of tinker-cookbook 0.5.8 and 0.6.1, unmodified: each runs to its end and its own metrics show that it learned.

What a recipe sends is its own affair; the settings here are its own flags, small enough for two cores. Version 0.6.1 trains
rl_loop and math_rl with stable_reinforce by default, 0.5.8 with importance_sampling."""

import os

import pytest

ALL = os.environ.get("E2E_LEVEL") == "all"


def on(*versions, always=()):
    """Runs a test on these cookbook versions with `make test-all`, and on those in `always` with `make test` too."""
    rarely = pytest.mark.skipif(not ALL, reason="this recipe on this cookbook version runs with make test-all")
    return pytest.mark.parametrize(
        "recipes", [pytest.param(v, id=v, marks=() if v in always else rarely) for v in versions], indirect=True
    )


def series(rows, key):
    """The values of one metric in order, from the rows that have it."""
    values = [row[key] for row in rows if key in row]
    assert values, f"no row has {key!r}; there are {sorted(set().union(*rows))}"
    return values


def mean(values):
    return sum(values) / len(values)


@on("0.5.8", "0.6.1", always=("0.5.8",))
def test_sl_loop(recipes):
    loss = series(
        recipes.run("sl_loop", "sl_loop", 400, batch_size=32, learning_rate=2e-3, max_steps=8, lora_rank=16, save_every=4),
        "train_mean_nll",
    )
    assert len(loss) == 8
    assert mean(loss[-2:]) < 0.6 * loss[0], loss


@on("0.5.8", "0.6.1")
def test_sl_loop_goes_on_from_its_checkpoint(recipes):
    """The second process finds the first one's checkpoint in the log folder and continues with weights, moments and step."""
    flags = dict(batch_size=32, learning_rate=2e-3, lora_rank=16, save_every=3)
    first = recipes.run("sl_loop", "sl_resume", 400, max_steps=4, **flags)
    (recipes.log("sl_resume") / "metrics.jsonl").unlink()
    lines = (recipes.log("sl_resume") / "checkpoints.jsonl").read_text().splitlines()
    (recipes.log("sl_resume") / "checkpoints.jsonl").write_text(lines[0] + "\n")  # as if it had died after batch 3
    second = recipes.run("sl_loop", "sl_resume", 400, max_steps=6, **flags)
    assert [row["step"] for row in second] == [3, 4, 5]
    # Batch 3 again, on the same weights: the same bits.
    assert second[0]["train_mean_nll"] == first[3]["train_mean_nll"]
    assert second[0]["grad_norm"] == first[3]["grad_norm"]


@on("0.5.8", "0.6.1", always=("0.5.8",))
def test_math_rl_arithmetic(recipes):
    rows = recipes.run(
        "math_rl.train", "arithmetic", 400, env="arithmetic", group_size=8, groups_per_batch=16, learning_rate=2e-3,
        max_tokens=5, max_steps=8, lora_rank=32, eval_every=0, save_every=0,
    )
    reward = series(rows, "env/all/reward/total")
    assert len(reward) == 8
    assert mean(reward[-2:]) > reward[0] + 0.15, reward
    # The recipe compares the sampler's log-probabilities with the trainer's; here they are equal bits, not merely close.
    assert set(series(rows, "optim/kl_sample_train_v2")) == {0.0}


@on("0.5.8", "0.6.1", always=("0.5.8",))
def test_dpo(recipes):
    rows = recipes.run("preference.dpo.train", "dpo", 400, dataset="hhh", batch_size=16, learning_rate=1e-3, max_steps=5)
    loss = series(rows, "dpo_loss")
    # Before the first step policy and reference are the same weights: the loss is log 2 exactly, the margin is zero.
    assert loss[0] == pytest.approx(0.6931472, abs=1e-6)
    assert series(rows, "margin")[0] == 0.0
    assert loss[-1] < 0.3, loss
    assert series(rows, "accuracy")[-1] == 1.0


@on("0.5.8", "0.6.1")
def test_rl_loop(recipes):
    reward = series(
        recipes.run(
            "rl_loop", "rl_loop", 900, batch_size=16, group_size=16, learning_rate=1.5e-3, max_tokens=24, max_steps=8,
            lora_rank=16, save_every=0,
        ),
        "reward/total",
    )
    assert mean(reward[-3:]) > mean(reward[:2]) + 0.08, reward


@on("0.5.8", "0.6.1")
def test_math_rl_gsm8k(recipes):
    rows = recipes.run(
        "math_rl.train", "gsm8k", 900, env="gsm8k", group_size=16, groups_per_batch=16,
        learning_rate=1.5e-3, max_tokens=24, max_steps=8, lora_rank=16, eval_every=8, save_every=0,
    )
    reward = series(rows, "env/all/reward/total")
    assert mean(reward[-3:]) > mean(reward[:2]) + 0.08, reward


@on("0.5.8", "0.6.1")
@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_math_rl_other_losses(recipes, loss):
    rows = recipes.run(
        "math_rl.train", loss, 400, env="arithmetic", loss_fn=loss, group_size=8, groups_per_batch=16, learning_rate=2e-3,
        max_tokens=5, max_steps=6, num_substeps=2, lora_rank=32, eval_every=0, save_every=0,
    )
    reward = series(rows, "env/all/reward/total")
    assert mean(reward[-2:]) > reward[0] + 0.15, reward


@on("0.5.8", "0.6.1")
def test_on_policy_distillation(recipes):
    """The student starts from weights that were trained away from the teacher, the base model under another name."""
    rows = recipes.run(
        "distillation.on_policy_distillation", "distillation", 900, teacher_model="Qwen/Qwen3-4B-Instruct-2507",
        load_checkpoint_path=recipes.taught(), group_size=4, groups_per_batch=16, learning_rate=1e-3, max_tokens=24, max_steps=6,
        lora_rank=16, eval_every=0, save_every=0,
    )
    kl = series(rows, "teacher_kl")
    assert mean(kl[-2:]) < 0.7 * kl[0], kl


@on("0.5.8", "0.6.1")
def test_chat_sl(recipes):
    rows = recipes.run(
        "chat_sl.train", "chat_sl", 400, dataset="chat.jsonl", batch_size=32, learning_rate=2e-3, max_steps=8, lora_rank=16,
        eval_every=4, save_every=4, rolling_save_every=2,
    )
    loss = series(rows, "train_mean_nll")
    assert mean(loss[-2:]) < 0.6 * loss[0], loss


@on("0.5.8", "0.6.1")
def test_sl_basic(recipes):
    """The recipe's batch is 128 rows; it evaluates on the test rows too."""
    rows = recipes.run("sl_basic", "sl_basic", 900, learning_rate=2e-3, max_steps=4, eval_every=2)
    loss = series(rows, "train_mean_nll")
    assert loss[-1] < 0.8 * loss[0], loss
    held_out = series(rows, "test/nll")
    assert held_out[-1] < held_out[0], held_out


@on("0.5.8", "0.6.1")
def test_rl_basic(recipes):
    """The recipe's batch is 128 groups of 16, every one of the 2,048 samples a request of its own."""
    rows = recipes.run(
        "rl_basic", "rl_basic", 1800, learning_rate=2e-3, max_steps=2, num_substeps=4, max_tokens=24, lora_rank=16,
    )
    reward = series(rows, "env/all/reward/total")
    assert reward[-1] > reward[0] + 0.02, reward
