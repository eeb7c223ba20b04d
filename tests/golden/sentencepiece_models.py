"""Makes ``sentencepiece_models.json``: small models of each kind, texts, and the ids that ``sentencepiece`` gives them.

Run in an environment with sentencepiece (0.2.3 made the present file): ``python tests/golden/sentencepiece_models.py``.
"""

import base64
import contextlib
import io
import json
import tempfile
from pathlib import Path

import sentencepiece

LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "A cache that is a tree keeps what many prompts share; the tree is cut where they part.",
    "def encode(text): return [ids[piece] for piece in pieces(text)]  # 12345 67890",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "나라의 말이 중국과 달라 한자와는 서로 통하지 않으니",
    "  two  spaces   three    four, and\ttabs; <tag> and </tag> stay whole <tag>",
]
TEXTS = [
    "",
    " ",
    "   ",
    "the",
    " the",
    "  the  quick   brown    fox  ",
    "the\nquick\n\nbrown\tfox",
    "thethethe treetree aaaaaaa",
    "12345 and 3.14159",
    "▁the▁quick ▁ x▁",  # not for models with runs of spaces as symbols, which Ramet finds as spaces only
    "▁the▁quick ▁ ▁▁",
    "<s>the</s><unk>",
    "<tag>the</tag> <tag> the </tag>x<tag><tag>",
    "<0x41> <0x0A>",
    "①ﬁne \uff21\uff22\uff23 \uff54\uff48\uff45 e\u0301",
    "한국어 日本語 いろは русский",
    "🦙 👩‍👩‍👧 \U0001f3f4\U000e0067\U000e007f",
    "a\u0000b\u200bc\ufeff",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 3,
]
RULES = "2460\t31\nFB01\t66 69\nFF21\t41\nFF54\t74\n65 301\tE9\n3000\t20\n"  # of code points, before and after
ANY = {"character_coverage": 1.0, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"}
GEMMA = {"add_dummy_prefix": False, "user_defined_symbols": ["▁▁", "▁▁▁", "▁▁▁▁", "\t", "<tag>"], **ANY}
MODELS = {
    "bpe like Llama's": {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, **ANY},
    "bpe like Gemma's": {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, **GEMMA},
    "bpe without bytes": {"model_type": "bpe", "vocab_size": 220, **ANY},
    "unigram with bytes": {"model_type": "unigram", "vocab_size": 440, "byte_fallback": True, **ANY},
    "unigram with rules": {"model_type": "unigram", "vocab_size": 200, "character_coverage": 0.98, "rules": RULES},
}


def train(rules=None, **options):
    """The bytes of a model. It keeps the name of the file with its rules, so that is in the current folder."""
    if rules is not None:
        Path("rules.tsv").write_text(rules)
        options["normalization_rule_tsv"] = "rules.tsv"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 2), model_writer=model, hard_vocab_limit=False, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


def main():
    cases = []
    path = Path(__file__).resolve().with_suffix(".json")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, options in MODELS.items():
            data = train(**options)
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
            texts = [text for text in TEXTS if "▁" not in text or "user_defined_symbols" not in options]
            pairs = [{"text": text, "ids": processor.encode(text)} for text in texts]
            cases.append({"name": name, "model": base64.b64encode(data).decode(), "pairs": pairs})
    path.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
