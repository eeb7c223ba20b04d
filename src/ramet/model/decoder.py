"""The one decoder: every family of families.py is this code with other switches.

x = embed(tokens); for each layer x += attention(norm(x)), x += mlp(norm(x)); logits = head(norm(x)). Where the norms are, and
what else is done on the way, is for the spec to say. All this is put down once, as a program that the backend runs. Each result
row depends on its own token (and in attention on the keys and values before it) alone, so batching changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ramet.core.batch import Batch
from ramet.core.ids import Float32, Int32, UInt32
from ramet.kernels.backend import Backend, Choosing, KVLayer, PackedWeight, Picks, Weight
from ramet.kernels.program import (
    AS_IT_IS,
    NO_ADAPTERS,
    Adapt,
    Adapter,
    Adapters,
    Add,
    AsItIs,
    Attend,
    ChooseExperts,
    Embed,
    Expert,
    GeluMul,
    Heads,
    Load,
    LowRank,
    MixExperts,
    Program,
    Project,
    ProjectAdd,
    Prologue,
    Register,
    RmsNorm,
    RotateAndStore,
    Scale,
    SiluMul,
    SoftCap,
    Step,
    TakeRows,
    TokenFeed,
    Up,
)
from ramet.model.packing import NO_STORE, Packer, WeightStore
from ramet.model.rope import RopeTable
from ramet.model.spec import (
    Activation,
    Checkpoint,
    Experts,
    LayerSpec,
    LoraMatrix,
    ModelSpec,
    Progress,
    Tensors,
    silent,
)

__all__ = ["Decoder"]

_PRODUCTS = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
"""A layer's products that adapters change, in the order of their numbers, and the matrices that each is made of."""
_GATES: Mapping[Activation, SiluMul | GeluMul] = {"silu": SiluMul(), "gelu_tanh": GeluMul()}


@dataclass(frozen=True, slots=True, eq=False)
class _Mlp:
    """Gate and up in one product, down in another."""

    gate_up: PackedWeight
    down: PackedWeight

    @property
    def packed(self) -> dict[str, PackedWeight]:
        return {"gate_up": self.gate_up, "down": self.down}

    @property
    def products(self) -> dict[str, PackedWeight]:
        return self.packed


@dataclass(frozen=True, slots=True, eq=False)
class _Mixture:
    """Experts, and the product whose results say which of them a row has."""

    spec: Experts
    router: PackedWeight
    experts: tuple[Expert, ...]

    @property
    def packed(self) -> dict[str, PackedWeight]:
        return self._of(self.experts)

    @property
    def products(self) -> dict[str, PackedWeight]:
        """The weights that one row meets: as many experts as it has, whichever they are."""
        return self._of(self.experts[: self.spec.num_chosen])

    def _of(self, experts: Sequence[Expert]) -> dict[str, PackedWeight]:
        found = {"router": self.router}
        for i, expert in enumerate(experts):
            found |= {f"experts.{i}.gate_up": expert.gate_up, f"experts.{i}.down": expert.down}
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's weights, in the backend's layout: q, k and v in one product.

    ``*_after`` is done to what attention and MLP give before it is added to the residual.
    """

    spec: LayerSpec
    attn_norm: AsItIs | RmsNorm
    qkv: PackedWeight
    qkv_bias: Float32 | None
    out: PackedWeight
    out_bias: Float32 | None
    q_norm: AsItIs | RmsNorm
    k_norm: AsItIs | RmsNorm
    attn_after: AsItIs | Scale | RmsNorm
    mlp_norm: AsItIs | RmsNorm
    mlp: _Mlp | _Mixture
    mlp_after: AsItIs | Scale | RmsNorm

    @property
    def packed(self) -> dict[str, PackedWeight]:
        """By name, in the order in which a step reads them."""
        return {"qkv": self.qkv, "out": self.out} | self.mlp.packed

    @property
    def products(self) -> dict[str, PackedWeight]:
        """Those that a step of one row reads."""
        return {"qkv": self.qkv, "out": self.out} | self.mlp.products


class Decoder:
    """A model's weights on one backend. Stateless between calls but for the table of rotary angles.

    ``products`` are the weights of the matrix products of a step of one row, in order: ``layers.0.qkv`` and so on, ``head`` last;
    of experts as many as a row has. ``nbytes`` are the bytes of all packed weights. They are had from ``store``, or packed
    (packing.py); the checkpoint's own arrays are not kept.
    """

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, progress: Progress = silent, store: WeightStore = NO_STORE
    ) -> None:
        spec, tensors = checkpoint.spec, checkpoint.tensors
        self.spec: ModelSpec = spec
        self._backend = backend
        self._rope = RopeTable(layer.rope for layer in spec.layers)
        layers: list[_Layer] = []
        with Packer(tensors, backend, store) as packer:
            for i in range(spec.num_layers):
                progress(store.doing, i, spec.num_layers + 1)
                layers.append(_pack_layer(i, spec, tensors, packer))
            progress(store.doing, spec.num_layers, spec.num_layers + 1)
            embed = packer.pack("embed")
            head = embed if spec.tie_embeddings else packer.pack("head")
            progress(store.doing, spec.num_layers + 1, spec.num_layers + 1)
        final_norm = RmsNorm(tensors.vector("final_norm") * np.float32(spec.logit_scale), spec.rms_eps)
        forward = _forward(spec, embed, layers, self._rope)
        logits = _logits(spec, forward.result, final_norm, head)
        both = Program((*forward.steps, *logits.steps[1:]), logits.result)  # nothing is to be loaded there
        self._forward, self._logits, self._next_tokens = map(backend.compile, (forward, logits, both))
        self.products: Mapping[str, PackedWeight] = _products(layers, head)
        self.nbytes = sum(weight.nbytes for layer in layers for weight in layer.packed.values())
        self.nbytes += embed.nbytes + (0 if head is embed else head.nbytes)

    def adapter(self, matrices: Mapping[str, LoraMatrix]) -> Adapter:
        """Lay an adapter out, by names of the matrices that it changes (``layers.3.q``). May be called beside ``forward``."""
        return Adapter(
            tuple(
                self._change({role: matrices.get(f"layers.{i}.{role}") for role in roles})
                for i in range(self.spec.num_layers)
                for roles in _PRODUCTS.values()
            )
        )

    def _change(self, parts: Mapping[str, LoraMatrix | None]) -> LowRank | None:
        """Of one product, whose matrices these are. Those that share a ``down`` find it there once."""
        downs: dict[int, Weight] = {}
        first_ranks: dict[int, int] = {}
        ups: list[Up] = []
        first_output = num_ranks = 0
        for role, part in parts.items():
            if part is not None:
                if id(part.down) not in downs:
                    downs[id(part.down)], first_ranks[id(part.down)] = part.down, num_ranks
                    num_ranks += part.down.shape[0]
                ups.append(Up(self._backend.pack([part.up]), first_ranks[id(part.down)], first_output, part.scale))
            first_output += self.spec.num_outputs(role)
        return LowRank(self._backend.pack(downs.values()), tuple(ups)) if ups else None

    def forward(self, batch: Batch, kv_layers: Sequence[KVLayer], rows: Int32, adapters: Adapters = NO_ADAPTERS) -> Float32:
        """float32[len(rows), hidden]: what the last layer gives for these rows of the batch, before the final norm.

        Writes the keys and values of all the batch's tokens to ``batch.slots``. The batch's page copies must be done.
        """
        return self._forward.run_tokens(self._feed(batch, kv_layers, rows, adapters))

    def next_tokens(
        self, batch: Batch, kv_layers: Sequence[KVLayer], choosing: Choosing, adapters: Adapters = NO_ADAPTERS
    ) -> tuple[Float32, Picks]:
        """``chosen`` of ``forward`` of the batch's sampled rows, in one run.

        For small batches: this run has room of its own for what is between the layers of all their tokens.
        """
        return self._next_tokens.choose_tokens(self._feed(batch, kv_layers, batch.sample_rows, adapters), choosing)

    def _feed(self, batch: Batch, kv_layers: Sequence[KVLayer], rows: Int32, adapters: Adapters) -> TokenFeed:
        cos, sin = self._rope.reaching(batch.positions)
        plan = self._backend.plan(batch)
        return TokenFeed(batch.token_ids, batch.positions, batch.slots, rows, cos, sin, plan, kv_layers, adapters)

    def logits(self, hidden: Float32) -> Float32:
        """float32[R, V] of float32[R, hidden]: the final norm, then the output projection."""
        return self._logits.run_rows(np.ascontiguousarray(hidden))

    def chosen(self, hidden: Float32, wanted: UInt32 | None, choosing: Choosing) -> tuple[Float32, Picks]:
        """``logits``, whose memory is used again by the next call, and the tokens that are chosen of them.

        ``wanted`` uint32[R, W] are bits of the tokens whose logits are wanted, where not all are; the others mean nothing.
        """
        return self._logits.choose_rows(np.ascontiguousarray(hidden), wanted, choosing)


def _products(layers: Sequence[_Layer], head: PackedWeight) -> dict[str, PackedWeight]:
    of_layers = {f"layers.{i}.{name}": weight for i, layer in enumerate(layers) for name, weight in layer.products.items()}
    return of_layers | {"head": head}


class _Registers:
    """Registers of one set of rows."""

    def __init__(self, spec: ModelSpec, heads: Heads) -> None:
        self.x = Register(spec.hidden_size)
        self.qkv = Register(heads.width)
        self.mixed = Register(heads.q_width)
        self.gate_up = Register(2 * spec.intermediate_size)
        self.branch = Register(spec.hidden_size)
        self.routing = Register(spec.experts.num if spec.experts else 0)


def _forward(spec: ModelSpec, embed: PackedWeight, layers: Sequence[_Layer], rope: RopeTable) -> Program:
    """From token ids to the wanted rows of the last layer."""
    heads = Heads(spec.num_heads, spec.num_kv_heads, spec.head_dim)
    every, wanted = _Registers(spec, heads), _Registers(spec, heads)
    steps: list[Step] = [Embed(embed, spec.embedding_scale, every.x)]
    for i, layer in enumerate(layers):
        steps.append(Project(every.x, layer.attn_norm, layer.qkv, layer.qkv_bias, every.qkv))
        steps.append(Adapt(every.x, layer.attn_norm, _number(i, "qkv"), every.qkv))
        steps.append(RotateAndStore(every.qkv, heads, layer.q_norm, layer.k_norm, rope.pairs(layer.spec.rope), i))
        steps.append(Attend(every.qkv, heads, spec.attention_scale, i, every.mixed, layer.spec.window, spec.attention_cap))
        if i + 1 < len(layers):
            steps += _after_attention(i, spec, layer, every)
    # From here on rows do not meet, so what nobody wants is left out.
    steps += [
        TakeRows(every.x, wanted.x),
        TakeRows(every.mixed, wanted.mixed),
        *_after_attention(len(layers) - 1, spec, layers[-1], wanted),
    ]
    return Program(tuple(steps), wanted.x)


def _number(layer: int, product: str) -> int:
    """Of a product that adapters change."""
    return layer * len(_PRODUCTS) + list(_PRODUCTS).index(product)


def _after_attention(i: int, spec: ModelSpec, layer: _Layer, at: _Registers) -> Iterator[Step]:
    mixed = _Product(at.mixed, AS_IT_IS, layer.out, layer.out_bias, _number(i, "out"))
    yield from _add_product(mixed, layer.attn_after, at)
    gate = _GATES[spec.activation]
    if isinstance(layer.mlp, _Mlp):
        yield Project(at.x, layer.mlp_norm, layer.mlp.gate_up, None, at.gate_up)
        yield Adapt(at.x, layer.mlp_norm, _number(i, "gate_up"), at.gate_up)
        yield from _add_product(_Product(at.gate_up, gate, layer.mlp.down, None, _number(i, "down")), layer.mlp_after, at)
    else:
        yield Project(at.x, layer.mlp_norm, layer.mlp.router, None, at.routing)
        yield ChooseExperts(at.routing, layer.mlp.spec.num_chosen, layer.mlp.spec.is_normalized)
        yield MixExperts(at.x, layer.mlp_norm, at.routing, layer.mlp.experts, gate, at.branch)
        yield Add(at.branch, layer.mlp_after, at.x)


class _Product(NamedTuple):
    """A product that adapters change, by its number."""

    source: Register
    prologue: Prologue
    weight: PackedWeight
    bias: Float32 | None
    number: int


def _add_product(product: _Product, after: AsItIs | Scale | RmsNorm, at: _Registers) -> Iterator[Step]:
    """x += after(product)"""
    source, prologue, weight, bias, number = product
    if isinstance(after, AsItIs):
        yield ProjectAdd(source, prologue, weight, bias, at.x)
        yield Adapt(source, prologue, number, at.x)
    else:
        yield Project(source, prologue, weight, bias, at.branch)
        yield Adapt(source, prologue, number, at.branch)
        yield Add(at.branch, after, at.x)


def _logits(spec: ModelSpec, hidden: Register, final_norm: RmsNorm, head: PackedWeight) -> Program:
    """From rows of the last layer, which are loaded, to their logits."""
    logits = Register(spec.vocab_size)
    caps = () if spec.logit_cap is None else (SoftCap(logits, spec.logit_cap),)
    return Program((Load(hidden), Project(hidden, final_norm, head, None, logits), *caps), logits)


def _pack_layer(i: int, spec: ModelSpec, tensors: Tensors, packer: Packer) -> _Layer:
    prefix = f"layers.{i}."

    def vector(name: str) -> Float32:
        return tensors.vector(prefix + name)

    def norm(name: str, is_there: bool) -> AsItIs | RmsNorm:
        return RmsNorm(vector(name), spec.rms_eps) if is_there else AS_IT_IS

    def after(name: str) -> AsItIs | Scale | RmsNorm:
        if spec.norms != "before":
            return RmsNorm(vector(name) * np.float32(spec.residual_scale), spec.rms_eps)
        return AS_IT_IS if spec.residual_scale == 1.0 else Scale(spec.residual_scale)

    def pack(*names: str) -> PackedWeight:
        return packer.pack(*(prefix + name for name in names))

    def mlp() -> _Mlp | _Mixture:
        if spec.experts is None:
            return _Mlp(pack("gate", "up"), pack("down"))
        names = [f"experts.{e}." for e in range(spec.experts.num)]
        experts = tuple(Expert(pack(name + "gate", name + "up"), pack(name + "down")) for name in names)
        return _Mixture(spec.experts, pack("router"), experts)

    return _Layer(
        spec=spec.layers[i],
        attn_norm=norm("attn_norm", spec.norms != "after"),
        qkv=pack("q", "k", "v"),
        qkv_bias=np.concatenate([vector("q_bias"), vector("k_bias"), vector("v_bias")]) if spec.qkv_bias else None,
        out=pack("o"),
        out_bias=vector("o_bias") if spec.output_bias else None,
        q_norm=norm("q_norm", spec.qk_norm != "none"),
        k_norm=norm("k_norm", spec.qk_norm != "none"),
        attn_after=after("attn_post_norm"),
        mlp_norm=norm("mlp_norm", spec.norms != "after"),
        mlp=mlp(),
        mlp_after=after("mlp_post_norm"),
    )
