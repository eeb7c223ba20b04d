"""The families Ramet knows, as data: which switches each has, and what its tensors are called in each kind of file.

Anything that is not in these tables is refused by name: a wrong guess gives fluent nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ramet.errors import ModelError, shown
from ramet.model.files import few, plain
from ramet.model.spec import Activation, HeadNorms, ModelSpec, Norms

__all__ = [
    "GGUF_FAMILIES",
    "HF_FAMILIES",
    "Expected",
    "ExpertKeys",
    "Family",
    "Naming",
    "check_tensors",
    "expected_tensors",
    "family_of",
]

Naming = Literal["hf", "gguf"]
Bias = Literal["never", "always", "by_file"]  # by_file: config.json's attention_bias, or the tensor's presence in a GGUF
Windows = Literal["none", "all", "upper", "between"]  # layers whose window slides; see Family


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Keys of config.json for the number of experts and the width of one. ``normalized`` says whether weights are normalized;
    without such a key they are.
    """

    num: str
    width: str
    normalized: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Switches of one family.

    ``hf_names`` and ``gguf_names``: where a role's tensor has another name than in Llama's files; roles with one name are rows
    of one tensor, one role after another. ``gguf_interleaved``: its GGUF files store q and k rows so that rotary pairs are
    neighbours; Ramet rotates halves. ``hf_norm_offset``: what folders leave out of every norm's weight.

    ``default_theta``: rotary base where a config has none, for families whose early configs had none. ``local_theta``: the same
    for layers with a window, where they have a base of their own. ``no_rope_every``: every so many layers one does not rotate,
    unless the file says otherwise.

    ``windows``: the layers that may have one are none, all, those from ``max_window_layers`` on, or those between which every
    ``full_every``-th sees all. ``has_window_switch``: a window counts only with ``use_sliding_window``.

    ``experts``: those that have them, or in GGUF files may have them. ``has_multipliers``: Granite's four scales. ``is_gemma``:
    the embedding is scaled by the root of its width, scores by ``query_pre_attn_scalar``, and there may be caps.
    ``gguf_wide_depth``: layers of the one Gemma whose scores are scaled by its width over its heads, which its GGUF files do not
    say.
    """

    qkv_bias: Bias = "never"
    output_bias: Bias = "never"
    qk_norm: HeadNorms = "none"
    norms: Norms = "before"
    hf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_interleaved: bool = False
    hf_norm_offset: float = 0.0
    default_theta: float | None = None
    no_rope_every: int = 0
    may_rotate_partly: bool = False
    local_theta: float | None = None
    experts: ExpertKeys | None = None
    windows: Windows = "none"
    full_every: int = 0
    has_window_switch: bool = False
    has_multipliers: bool = False
    is_gemma: bool = False
    gguf_wide_depth: int = 0
    activation: Activation = "silu"
    ties_by_default: bool = False


_LLAMA = Family(qkv_bias="by_file", output_bias="by_file", gguf_interleaved=True, default_theta=10_000.0)
_PHI3 = Family(
    default_theta=10_000.0,
    may_rotate_partly=True,
    windows="all",
    hf_names=dict.fromkeys("qkv", "model.layers.{}.self_attn.qkv_proj.weight")
    | dict.fromkeys(("gate", "up"), "model.layers.{}.mlp.gate_up_proj.weight"),
    gguf_names=dict.fromkeys("qkv", "blk.{}.attn_qkv.weight") | dict.fromkeys(("gate", "up"), "blk.{}.ffn_up.weight"),
)
_QWEN2 = Family(qkv_bias="always", windows="upper", has_window_switch=True)
_QWEN3 = Family(qkv_bias="by_file", output_bias="by_file", qk_norm="head", windows="upper", has_window_switch=True)
_QWEN3_MOE = replace(_QWEN3, windows="all", experts=ExpertKeys("num_experts", "moe_intermediate_size", "norm_topk_prob"))
_MIXTRAL = Family(
    windows="all",
    experts=ExpertKeys("num_local_experts", "intermediate_size", None),
    hf_names={
        "router": "model.layers.{}.block_sparse_moe.gate.weight",
        "experts.gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
        "experts.up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        "experts.down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
    },
)
_OLMO2 = Family(qkv_bias="by_file", output_bias="by_file", qk_norm="whole", norms="after", default_theta=10_000.0)
_GRANITE = replace(_LLAMA, has_multipliers=True)
_SMOLLM3 = replace(_LLAMA, no_rope_every=4, ties_by_default=True)
_GEMMA2 = Family(
    qkv_bias="by_file",
    output_bias="by_file",
    norms="both",
    hf_names={"mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight"},
    hf_norm_offset=1.0,
    default_theta=10_000.0,
    windows="between",
    full_every=2,
    is_gemma=True,
    gguf_wide_depth=46,
    activation="gelu_tanh",
    ties_by_default=True,
)
_GEMMA3 = replace(_GEMMA2, qk_norm="head", default_theta=1_000_000.0, local_theta=10_000.0, full_every=6, gguf_wide_depth=62)

HF_FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": Family(windows="all"),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "MixtralForCausalLM": _MIXTRAL,
    "Phi3ForCausalLM": _PHI3,
    "SmolLM3ForCausalLM": _SMOLLM3,
    "GraniteForCausalLM": _GRANITE,
    "Olmo2ForCausalLM": _OLMO2,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
}
GGUF_FAMILIES: Mapping[str, Family] = {
    "llama": replace(_LLAMA, windows="all", experts=_MIXTRAL.experts),  # Mistral's and Mixtral's, too
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3moe": replace(_QWEN3_MOE, windows="none"),
    "phi3": _PHI3,
    "smollm3": _SMOLLM3,
    "granite": _GRANITE,
    "olmo2": _OLMO2,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
}


@dataclass(frozen=True, slots=True)
class _Role:
    """One tensor of a model. ``shape`` in letters (see ``_sizes``); ``when`` says for which specs it is there."""

    hf: str
    gguf: str
    shape: str
    when: Callable[[ModelSpec], bool] = lambda spec: True


_TOP: Mapping[str, _Role] = {
    "embed": _Role("model.embed_tokens.weight", "token_embd.weight", "VH"),
    "final_norm": _Role("model.norm.weight", "output_norm.weight", "H"),
    "head": _Role("lm_head.weight", "output.weight", "VH", lambda spec: not spec.tie_embeddings),
}
_HF, _GGUF = "model.layers.{}.", "blk.{}."


def _has_norm_before(spec: ModelSpec) -> bool:
    return spec.norms != "after"


def _is_dense(spec: ModelSpec) -> bool:
    return spec.experts is None


def _has_norm_after(spec: ModelSpec) -> bool:
    return spec.norms != "before"


def _has_qk_norm(spec: ModelSpec) -> bool:
    return spec.qk_norm != "none"


_LAYER: Mapping[str, _Role] = {
    "attn_norm": _Role(_HF + "input_layernorm.weight", _GGUF + "attn_norm.weight", "H", _has_norm_before),
    "q": _Role(_HF + "self_attn.q_proj.weight", _GGUF + "attn_q.weight", "QH"),
    "k": _Role(_HF + "self_attn.k_proj.weight", _GGUF + "attn_k.weight", "KH"),
    "v": _Role(_HF + "self_attn.v_proj.weight", _GGUF + "attn_v.weight", "KH"),
    "o": _Role(_HF + "self_attn.o_proj.weight", _GGUF + "attn_output.weight", "HQ"),
    "q_bias": _Role(_HF + "self_attn.q_proj.bias", _GGUF + "attn_q.bias", "Q", lambda spec: spec.qkv_bias),
    "k_bias": _Role(_HF + "self_attn.k_proj.bias", _GGUF + "attn_k.bias", "K", lambda spec: spec.qkv_bias),
    "v_bias": _Role(_HF + "self_attn.v_proj.bias", _GGUF + "attn_v.bias", "K", lambda spec: spec.qkv_bias),
    "o_bias": _Role(_HF + "self_attn.o_proj.bias", _GGUF + "attn_output.bias", "H", lambda spec: spec.output_bias),
    "q_norm": _Role(_HF + "self_attn.q_norm.weight", _GGUF + "attn_q_norm.weight", "q", _has_qk_norm),
    "k_norm": _Role(_HF + "self_attn.k_norm.weight", _GGUF + "attn_k_norm.weight", "k", _has_qk_norm),
    "attn_post_norm": _Role(_HF + "post_attention_layernorm.weight", _GGUF + "post_attention_norm.weight", "H", _has_norm_after),
    "mlp_norm": _Role(_HF + "post_attention_layernorm.weight", _GGUF + "ffn_norm.weight", "H", _has_norm_before),
    "gate": _Role(_HF + "mlp.gate_proj.weight", _GGUF + "ffn_gate.weight", "FH", _is_dense),
    "up": _Role(_HF + "mlp.up_proj.weight", _GGUF + "ffn_up.weight", "FH", _is_dense),
    "down": _Role(_HF + "mlp.down_proj.weight", _GGUF + "ffn_down.weight", "HF", _is_dense),
    "router": _Role(_HF + "mlp.gate.weight", _GGUF + "ffn_gate_inp.weight", "EH", lambda spec: spec.experts is not None),
    "mlp_post_norm": _Role(_HF + "post_feedforward_layernorm.weight", _GGUF + "post_ffw_norm.weight", "H", _has_norm_after),
}


_EXPERT: Mapping[str, _Role] = {  # one for each expert
    "gate": _Role(_HF + "mlp.experts.{}.gate_proj.weight", _GGUF + "ffn_gate_exps.weight", "FH"),
    "up": _Role(_HF + "mlp.experts.{}.up_proj.weight", _GGUF + "ffn_up_exps.weight", "FH"),
    "down": _Role(_HF + "mlp.experts.{}.down_proj.weight", _GGUF + "ffn_down_exps.weight", "HF"),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a tensor stands: rows (or numbers) of the file's tensor from ``first_row`` on, and its shape in rows and columns."""

    file_name: str
    shape: tuple[int, ...]
    first_row: int = 0

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.shape[0])

    def part(self, rows: slice) -> slice:
        """Some of its rows, as rows of the file's tensor."""
        first, stop, _ = rows.indices(self.shape[0])
        return slice(self.first_row + first, self.first_row + stop)


def family_of(architecture: str, known: Mapping[str, Family], where: str) -> Family:
    """The family of an architecture name. Raises ``ModelError`` with the known ones."""
    if architecture not in known:
        raise ModelError(f"{where}: architecture {shown(architecture)} is not supported; supported: {', '.join(known)}")
    return known[architecture]


def expected_tensors(spec: ModelSpec, naming: Naming) -> dict[str, Expected]:
    """Every tensor of a model of this shape, by its name in Ramet (``embed``, ``layers.3.q``, ``layers.3.experts.7.up``).

    ``naming`` need not be that of the file it came from: an adapter may come in the other.
    """
    sizes = _sizes(spec)
    family = {**HF_FAMILIES, **GGUF_FAMILIES}[spec.architecture]
    own_names = family.hf_names if naming == "hf" else family.gguf_names
    found: dict[str, Expected] = {}
    taken: dict[str, int] = {}  # rows of a file's tensor that roles have, so far

    def add(name: str, role_name: str, role: _Role, layer: int, expert: int = 0) -> None:
        file_name = own_names.get(role_name, getattr(role, naming)).format(layer, expert)
        shape = tuple(sizes[letter] for letter in role.shape)
        first_row = taken.get(file_name, 0)
        found[name] = Expected(file_name, shape, first_row)
        taken[file_name] = first_row + shape[0]

    for name, role in _TOP.items():
        if role.when(spec):
            add(name, name, role, 0)
    for i in range(spec.num_layers):
        for name, role in _LAYER.items():
            if role.when(spec):
                add(f"layers.{i}.{name}", name, role, i)
        for e in range(spec.experts.num if spec.experts else 0):
            for name, role in _EXPERT.items():
                add(f"layers.{i}.experts.{e}.{name}", f"experts.{name}", role, i, e)
    return found


def check_tensors(
    expected: Iterable[Expected], shapes: Mapping[str, tuple[int, ...]], where: str, ignored: Callable[[str], bool]
) -> None:
    """Compare a file's tensors (name -> shape) with what the model must have: none missing, none over, no other shape.

    Raises ``ModelError`` with names and numbers.
    """
    wanted = {one.file_name: (one.rows.stop, *one.shape[1:]) for one in expected}  # of several parts the last one stays
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise ModelError(f"{where}: missing tensors: {few(missing)}")
    unexpected = [name for name in shapes if name not in wanted and not ignored(name)]
    if unexpected:
        raise ModelError(f"{where}: unexpected tensors, of another architecture or a variant of it: {few(unexpected)}")
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise ModelError(
                f"{where}: tensor {plain(name)} is {list(shapes[name])}, but the configuration makes it {list(shape)}"
            )


def _sizes(spec: ModelSpec) -> dict[str, int]:
    q, k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    one_norm = spec.qk_norm == "whole"
    return {
        "V": spec.vocab_size,
        "H": spec.hidden_size,
        "Q": q,
        "K": k,
        "q": q if one_norm else spec.head_dim,
        "k": k if one_norm else spec.head_dim,
        "F": spec.intermediate_size,
        "E": spec.experts.num if spec.experts else 0,
    }
