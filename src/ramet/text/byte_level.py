"""Byte-level BPE: how the known models cut a text before the merges, and the encoder that comes of it.

The cuts are facts of the models, as their own ``tokenizer.json`` states them; llama.cpp gives them names
(``tokenizer.ggml.pre``). A name that is not known is refused: a wrong cut gives wrong tokens without any sign of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from ramet.errors import ModelError
from ramet.text.patterns import linear
from ramet.text.vocabulary import add_in_order

__all__ = ["CUTS", "KNOWN_PATTERNS", "Cut", "byte_level_backend"]

_Step = str | pre_tokenizers.PreTokenizer
"""A regular expression of pieces to set apart, or a step that the package has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a model cuts text before the merges, and what goes with it.

    ``steps`` come one after the other, each cutting the pieces of the one before; ``gpt2`` is GPT-2's own cut; then bytes
    become their letters, and ``after`` cuts those. ``whole_words`` takes a piece that is a token as it stands, without the
    merges; ``add_bos`` holds where the file is silent.
    """

    steps: tuple[_Step, ...] = ()
    gpt2: bool = False
    after: tuple[_Step, ...] = ()
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*map(_step, self.steps), byte_level, *map(_step, self.after)])


def _step(step: _Step) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(step), "isolated") if isinstance(step, str) else step


def byte_level_backend(
    cut: Cut, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[int, AddedToken], where: str
) -> tokenizers.Tokenizer:
    """The encoder of a byte-level BPE. Raises ``ModelError``."""
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=dict(ids), merges=list(merges), ignore_merges=cut.whole_words))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"{where}: the merges do not fit the tokens: {error}") from error
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cut.pre_tokenizer()
    add_in_order(backend, added, where)
    return backend


_SUFFIX = r"'s|'t|'re|'ve|'m|'ll|'d"  # of English words
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = rf"(?i:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
_GPT4 = _HEAD + r"\p{N}{1,3}" + _TAIL
_QWEN = _HEAD + r"\p{N}" + _TAIL
_QWEN35 = (
    rf"(?i:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"  # with what has no case


def _by_case(suffix: str, digits: str) -> str:
    """A cut before a capital letter inside a word too."""
    front = r"[^\r\n\p{L}\p{N}]?"
    return f"{front}{_UPPER}*{_LOWER}+{suffix}|{front}{_UPPER}+{_LOWER}*{suffix}|{digits}" + _TAIL_SLASH


_GPT4O = _by_case(rf"(?i:{_SUFFIX})?", r"\p{N}{1,3}")
_TEKKEN = _by_case("", r"\p{N}")

_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED = (  # the cased letters of the Unicode that DeepSeek's authors had
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
    "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DIGIT = pre_tokenizers.Digits(individual_digits=True)
_DEEPSEEK = Cut(
    steps=(
        "[\r\n]",
        rf"\s?[{_CASED}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        linear(r"\s+$"),
        _CJK,
        _DIGIT,
    ),
)
_DEEPSEEK_CODER = Cut(steps=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT))
_DEEPSEEK3 = Cut(
    steps=(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_FALCON = Cut(
    steps=(pre_tokenizers.Punctuation("contiguous"),),
    gpt2=True,
    after=(pre_tokenizers.Digits(individual_digits=False), "[0-9][0-9][0-9]"),
)
_CHAMELEON = Cut(
    steps=(
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        "([\t\n]|    |  )",
        _DIGIT,
        pre_tokenizers.Punctuation("isolated"),
    ),
    gpt2=True,
    add_bos=True,
)
_GPT2 = Cut(gpt2=True)
_NEOX = Cut(gpt2=True, nfc=True)
_BY_DIGIT = Cut(steps=(_DIGIT,), gpt2=True)
_LLAMA3 = Cut(steps=(_GPT4,), whole_words=True, add_bos=True)
_CL100K = Cut(steps=(_GPT4,))
_QWEN2 = Cut(steps=(_QWEN,), nfc=True)
_O200K = Cut(steps=(_GPT4O,))

CUTS: Mapping[str, Cut] = {
    **dict.fromkeys(("gpt-2", "phi-2", "roberta-bpe"), _GPT2),
    **dict.fromkeys(("mpt", "olmo"), _NEOX),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _BY_DIGIT),
    "command-r": Cut(steps=(_DIGIT,), gpt2=True, nfc=True),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan"), Cut(steps=(_QWEN,))),
    "qwen35": Cut(steps=(_QWEN35,), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    "tekken": Cut(steps=(_TEKKEN,), whole_words=True, add_bos=True),
    "deepseek-llm": _DEEPSEEK,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "falcon": _FALCON,
    "chameleon": _CHAMELEON,
}
"""The known cuts, by the names that llama.cpp gives them."""

KNOWN_PATTERNS = frozenset(
    step for cut in CUTS.values() for steps in (cut.steps, cut.after) for step in steps if isinstance(step, str)
)
"""The patterns of the cuts, which take linear time."""
