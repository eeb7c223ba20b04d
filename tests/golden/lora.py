"""Write ``lora_logits.json``: what transformers computes, in float32, for tiny models with the adapters of ``tiny_adapters.py``
added to their weights: W + scale * B @ A, with the scales of PEFT's documentation.

Run in an environment with the ``golden`` extra (torch, transformers), from anywhere: ``python tests/golden/lora.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tiny_adapters import TINY_ADAPTERS, TinyAdapter  # noqa: E402
from tiny_models import TINY_MODELS, VOCAB_SIZE, write_folder  # noqa: E402

EVERY = 5  # token ids whose logits are kept
POSITIONS = (0, 13, 99)  # so long that the angles of long contexts count


def main() -> None:
    prompt = np.random.default_rng(8).integers(0, VOCAB_SIZE, POSITIONS[-1] + 1).tolist()
    torch.set_num_threads(1)
    figures = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompt": prompt,
        "positions": POSITIONS,
        "every": EVERY,
        "adapters": {name: golden(adapter, prompt) for name, adapter in TINY_ADAPTERS.items()},
    }
    text = json.dumps(figures, separators=(",", ":")).replace("],[", "],\n[").replace('},"', '},\n"')
    (HERE / "lora_logits.json").write_text(text + "\n")


@torch.inference_mode()
def golden(adapter: TinyAdapter, prompt: list[int]) -> list[list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(TINY_MODELS[adapter.model], Path(folder), tokenizer=False)
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for module, (a, b) in adapter.pairs.items():
        net.get_submodule(module).weight.add_(adapter.scale(module) * (torch.from_numpy(b) @ torch.from_numpy(a)))
    logits = net(torch.tensor([prompt])).logits[0].numpy()
    return [[float(f"{x:.6g}") for x in logits[p, ::EVERY]] for p in POSITIONS]


if __name__ == "__main__":
    main()
