"""Rotary angles as config.json describes them: each kind of scaling becomes divisors and a scale, and all others are refused.

Elsewhere two kinds look at how long a request is, so that keys in a cache would not be those of a longer request. Here both are
settled when the model is loaded: *dynamic* has no effect within ``max_position_embeddings``, beyond which no request goes;
*longrope* takes its long factors where the context that is served is longer than the original one, and else its short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramet.errors import shown
from ramet.model.files import Fields
from ramet.model.rope import linear_divisors, llama3_divisors, longrope_scale, yarn_divisors, yarn_scale
from ramet.model.spec import RopeSpec

__all__ = ["RopeContext", "rope_of"]


@dataclass(frozen=True, slots=True)
class RopeContext:
    """What angles depend on besides their own parameters. ``served`` is the longest context that requests may have."""

    config: Fields
    head_dim: int
    max_position: int
    served: int
    may_be_partial: bool = False


@dataclass(frozen=True, slots=True)
class _Given:
    """One kind's parameters: ``dim`` dims turn on base ``theta``."""

    parameters: Fields
    theta: float
    dim: int
    context: RopeContext

    def original(self) -> int:
        """The context before it was stretched: beside the factors, or in Phi's files at the top."""
        key = "original_max_position_embeddings"
        where = self.parameters if self.parameters.has(key) else self.context.config
        return where.integer(key, self.context.max_position, low=2)

    def spec(self, divisors: tuple[float, ...], scale: float = 1.0) -> RopeSpec:
        return RopeSpec(self.theta, self.dim, divisors, scale)


def rope_of(parameters: Fields, theta: float, context: RopeContext) -> RopeSpec:
    """The angles that ``rope_parameters`` (transformers 5) or ``rope_scaling`` (before) describe. Raises ``ModelError``."""
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if parameters.text("type", kind) != kind:
        raise parameters.fail("rope_type", f"is {shown(kind, 60)}, but type is {shown(parameters.raw('type'), 60)}")
    if kind not in _KINDS:
        raise parameters.fail("rope_type", f"{shown(kind, 60)} is not supported; supported: {', '.join(_KINDS)}")
    return _KINDS[kind](_Given(parameters, theta, _dim(parameters, context), context))


def _dim(parameters: Fields, context: RopeContext) -> int:
    """How many dims of a head turn."""
    where = parameters if parameters.has("partial_rotary_factor") else context.config
    part = where.number("partial_rotary_factor", 1.0)
    dim = int(min(part, 2.0) * context.head_dim)
    if part != 1.0 and not context.may_be_partial:
        raise where.fail("partial_rotary_factor", f"{part} is not supported in this architecture; only 1.0 is")
    if not 2 <= dim <= context.head_dim or dim % 2:
        raise where.fail("partial_rotary_factor", f"{part} is no even number of the {context.head_dim} dims of a head")
    return dim


def _default(given: _Given) -> RopeSpec:
    if given.parameters.has("factor"):
        raise given.parameters.fail("factor", "is given, but no rope_type says what it scales")
    return given.spec(linear_divisors(given.dim))


def _linear(given: _Given) -> RopeSpec:
    return given.spec(linear_divisors(given.dim, given.parameters.number("factor")))


def _dynamic(given: _Given) -> RopeSpec:
    given.parameters.number("factor")  # which counts only beyond the context
    return given.spec(linear_divisors(given.dim))


def _llama3(given: _Given) -> RopeSpec:
    parameters = given.parameters
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if low >= high:
        raise parameters.fail("low_freq_factor", f"{low} is not under high_freq_factor {high}")
    return given.spec(
        llama3_divisors(
            given.dim,
            given.theta,
            factor=parameters.number("factor"),
            low=low,
            high=high,
            original_max_position=parameters.integer("original_max_position_embeddings"),
        )
    )


def _yarn(given: _Given) -> RopeSpec:
    parameters, original = given.parameters, given.original()
    factor = parameters.number("factor", given.context.max_position / original)
    fast, slow = parameters.number("beta_fast", 32.0), parameters.number("beta_slow", 1.0)
    if slow >= fast:
        raise parameters.fail("beta_slow", f"{slow} is not under beta_fast {fast}")
    if given.theta <= 1:
        raise parameters.fail("rope_theta", f"{given.theta} is not over 1, which yarn needs")
    if parameters.has("attention_factor"):
        scale = parameters.number("attention_factor")
    elif parameters.has("mscale") and parameters.has("mscale_all_dim"):
        scale = yarn_scale(factor, parameters.number("mscale")) / yarn_scale(factor, parameters.number("mscale_all_dim"))
    else:
        scale = yarn_scale(factor)
    whole = parameters.boolean("truncate", True)
    divisors = yarn_divisors(
        given.dim, given.theta, factor=factor, slow=slow, fast=fast, original_max_position=original, whole=whole
    )
    return given.spec(divisors, scale)


def _longrope(given: _Given) -> RopeSpec:
    parameters, original = given.parameters, given.original()
    short, long = (parameters.numbers(key, given.dim // 2) for key in ("short_factor", "long_factor"))
    factor = parameters.number("factor", given.context.max_position / original)
    scale = parameters.number("attention_factor", longrope_scale(factor, original))
    return given.spec(long if given.context.served > original else short, scale)


_KINDS: Mapping[str, Callable[[_Given], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,  # its name in early Phi-3 files
}
