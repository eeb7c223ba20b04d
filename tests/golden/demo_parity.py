"""What 16-bit activations and small KV cost the demo model: ``python tests/golden/demo_parity.py [--kv int8] [TEXT_FILE]``.

Feeds a text through the demo model twice, as it is served (Q4_1 weights, activations rounded to int16, bfloat16 KV or what is
named) and with the same weights as float32 throughout, and compares perplexity, logits and the next token that each thinks best.
Exits 1 where the perplexities differ by over 1 %, or the best tokens agree in under 99 of 100 places (98 with int8 KV); 2 where
there is no text. The text is the Universal Declaration of Human Rights in English, from the ``shared`` folder beside the
repository or ``$RAMET_SHARED``, unless a file is named. Takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "model")]

from one_sequence import OneSequence  # noqa: E402

from ramet.config import ModelConfig  # noqa: E402
from ramet.kernels.backend import KVFormat  # noqa: E402
from ramet.kernels.registry import make_backend  # noqa: E402
from ramet.model.source import open_model  # noqa: E402
from ramet.text.tokenizer import Tokenizer  # noqa: E402

MIN_TOKENS, CHUNK = 2000, 128
MAX_PERPLEXITY_CHANGE = 0.01
MIN_AGREEMENT: dict[KVFormat, float] = {"float32": 0.99, "bfloat16": 0.99, "int8": 0.98}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kv", choices=MIN_AGREEMENT, default="bfloat16")
    parser.add_argument("text", type=Path, nargs="?")
    options = parser.parse_args()
    text = options.text.read_text("utf-8") if options.text else _declaration()
    if text is None:
        print("no text: the shared data folder is absent; name a file")
        return 2
    served = open_model(ModelConfig())
    tokens = Tokenizer.from_gguf(served.text.gguf or {}).encode(text)
    if len(tokens) < MIN_TOKENS:
        print(f"the text has {len(tokens)} tokens; {MIN_TOKENS} are needed")
        return 2
    backend = make_backend("cpu")
    room = -(-len(tokens) // 16) * 16
    small = OneSequence(served, backend, room, kv=options.kv)
    exact = OneSequence(open_model(ModelConfig(dtype="float32")), backend, room)
    losses = np.zeros(2)
    agreements, total_distance, largest = 0, 0.0, 0.0
    for at in range(0, len(tokens) - 1, CHUNK):
        piece, targets = tokens[at : at + CHUNK], tokens[at + 1 : at + CHUNK + 1]
        logits = [sequence.feed(piece)[: len(targets)] for sequence in (small, exact)]
        losses += [_loss(one, targets) for one in logits]
        agreements += int((logits[0].argmax(axis=1) == logits[1].argmax(axis=1)).sum())
        distances = np.abs(logits[0] - logits[1])
        total_distance += float(distances.mean(axis=1).sum())
        largest = max(largest, float(distances.max()))
    places = len(tokens) - 1
    perplexity = np.exp(losses / places)
    change, agreement = perplexity[0] / perplexity[1] - 1, agreements / places
    print(f"tokens              {places}")
    print(f"perplexity          {perplexity[0]:.4f} served, {perplexity[1]:.4f} float32: {change:+.2%}")
    print(f"logits off by       {total_distance / places:.3f}, at most {largest:.2f}")
    print(f"best token agrees   {agreement:.2%}")
    return int(abs(change) > MAX_PERPLEXITY_CHANGE or agreement < MIN_AGREEMENT[options.kv])


def _declaration() -> str | None:
    shared = Path(os.environ.get("RAMET_SHARED") or ROOT.parent / "shared")
    path = shared / "data" / "unicode-text" / "udhr_39_languages.jsonl"
    if not path.exists():
        return None
    entries = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return next((str(e["text"]) for e in entries if e["lang"] == "eng"), None)


def _loss(logits: npt.NDArray[np.float32], targets: list[int]) -> float:
    """Sum of negative log probabilities of the targets."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    log_sum = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return float((log_sum - wide[np.arange(len(targets)), targets]).sum())


if __name__ == "__main__":
    sys.exit(main())
