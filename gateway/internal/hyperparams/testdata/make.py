"""Writes cookbook.json: what tinker-cookbook's hyperparam_utils says of every model that it knows, in its own words and numbers.

    PYTHONPATH=.cache/cookbook/0.6.1 .venv/bin/python gateway/internal/hyperparams/testdata/make.py > gateway/internal/hyperparams/cookbook.json

e2e/tinker/test_hyperparams.py compares the command with the same functions, called there.
"""

import importlib.metadata
import inspect
import json
import re

from tinker_cookbook import hyperparam_utils as h
from tinker_cookbook.exceptions import ConfigurationError


def known():
    """Every model that one of its tables or its list of what is not calibrated names."""
    names = set(h._LORA_PARAMS_PER_RANK_BY_COMPONENT)
    for function in (h._get_hidden_size, h.get_lr):
        names |= set(re.findall(r'"([\w.-]+/[\w.-]+)"', inspect.getsource(function)))
    return sorted(names)


def describe(name):
    found = {"hidden_size": h._get_hidden_size(name)}
    try:
        found["learning_rate"] = h.get_lr(name)
    except (NotImplementedError, ConfigurationError):
        found["learning_rate"] = None  # the cookbook refuses: the formula is not calibrated for it
    found["parameters_per_rank"] = h._LORA_PARAMS_PER_RANK_BY_COMPONENT.get(name)
    return found


if __name__ == "__main__":
    print(json.dumps({"source": f"tinker-cookbook {importlib.metadata.version('tinker-cookbook')}, hyperparam_utils", "models": {name: describe(name) for name in known()}}, indent=1))
