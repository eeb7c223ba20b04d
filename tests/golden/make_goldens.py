"""Write ``tiny_logits.json``: what transformers computes, in float32, for the tiny models of ``tests/tiny_models.py``.

Run in an environment with the ``golden`` extra (torch, transformers), from anywhere: ``python tests/golden/make_goldens.py``.
For each model: logits at a few positions of a fixed prompt, the last ones past the original context of the models with scaled
rotary angles; and the greedy continuation of its first 128 tokens, twice that context.
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

from tiny_models import ORIGINAL_CONTEXT, TINY_MODELS, VOCAB_SIZE, TinyModel, write_folder  # noqa: E402

EVERY = 3  # token ids whose logits are kept
POSITIONS = (0, 17, ORIGINAL_CONTEXT - 1, 100, 159)
GREEDY_FROM, GREEDY_TOKENS = 2 * ORIGINAL_CONTEXT, 24


def main() -> None:
    prompt = np.random.default_rng(7).integers(0, VOCAB_SIZE, POSITIONS[-1] + 1).tolist()
    torch.set_num_threads(1)
    models = {name: golden(model, prompt) for name, model in TINY_MODELS.items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    figures = {
        "made_with": versions,
        "prompt": prompt,
        "positions": POSITIONS,
        "every": EVERY,
        "greedy_from": GREEDY_FROM,
        "models": models,
    }
    text = json.dumps(figures, separators=(",", ":")).replace("],[", "],\n[").replace('},"', '},\n"')
    (HERE / "tiny_logits.json").write_text(text + "\n")


@torch.inference_mode()
def golden(model: TinyModel, prompt: list[int]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder), tokenizer=False)
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits = net(torch.tensor([prompt])).logits[0].numpy()
    tokens = prompt[:GREEDY_FROM]
    for _ in range(GREEDY_TOKENS):
        tokens = [*tokens, int(net(torch.tensor([tokens])).logits[0, -1].argmax())]
    return {
        "logits": [[float(f"{x:.6g}") for x in logits[p, ::EVERY]] for p in POSITIONS],
        "greedy": tokens[GREEDY_FROM:],
    }


if __name__ == "__main__":
    main()
