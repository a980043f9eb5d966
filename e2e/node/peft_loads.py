"""Loads a downloaded archive in PEFT: peft_loads.py ARCHIVE. Prints how many tensors it has."""

import sys
import tarfile
import tempfile

from peft import LoraConfig
from peft.utils import load_peft_weights

with tempfile.TemporaryDirectory() as folder:
    with tarfile.open(sys.argv[1]) as archive:
        archive.extractall(folder, filter="data")
    config = LoraConfig.from_pretrained(folder)
    print(config.r, len(load_peft_weights(folder, device="cpu")))
