"""What this machine can do at most, measured, and what time a piece of work takes then (Williams et al., "Roofline", 2009)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

from ramet import _native
from ramet.kernels.backend import PackedWeight
from ramet.runner.kv_tensors import free_bytes

__all__ = ["SEVERAL", "Limits", "Rates", "Work", "far_bytes", "linear_work", "peaks_of"]

SEVERAL = 3  # windows of which the best is a limit: a neighbour can only make a machine look slower
_FAR_BYTES = 1 << 30
# Sets that have the instructions of another one too.
_BUILT_ON = {"amx": ("amx", "avx512"), "avx512_bf16": ("avx512_bf16", "avx512"), "avx_vnni": ("avx_vnni", "avx2")}


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that have to be read, and operations by what they multiply; a multiply-add counts as two.

    ``quantized_ops`` are of quantised weights with activations of 16 bits, ``half_ops`` of two numbers of 16 bits,
    ``single_ops`` of all others.
    """

    num_bytes: float = 0.0
    quantized_ops: float = 0.0
    half_ops: float = 0.0
    single_ops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> Work:
        return Work(*(getattr(self, f.name) * times for f in fields(self)))

    @property
    def num_ops(self) -> float:
        return self.quantized_ops + self.half_ops + self.single_ops


@dataclass(frozen=True, slots=True)
class Rates:
    """A reading of the limits: bytes a second, and operations a second of each kind of ``Work``."""

    read: float
    quantized: float
    half: float
    single: float

    def seconds(self, work: Work) -> float:
        """The least time: reading and arithmetic overlap, kinds of arithmetic do not."""
        return max(work.num_bytes / self.read, self._arithmetic_s(work))

    def bound(self, work: Work) -> str:
        """Which of the two that is."""
        return "read" if work.num_bytes / self.read >= self._arithmetic_s(work) else "ops"

    def _arithmetic_s(self, work: Work) -> float:
        return work.quantized_ops / self.quantized + work.half_ops / self.half + work.single_ops / self.single

    @classmethod
    def mean(cls, readings: Iterable[Rates]) -> Rates:
        rows = [tuple(asdict(reading).values()) for reading in readings]
        return cls(*(sum(column) / len(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class _Peak:
    """A kind of arithmetic; ``passes`` is how often it has to be done for one operation of the work."""

    isa: str
    numbers: str
    instruction: str
    passes: int = 1


class Limits:
    """The limits that kernels of one instruction set with so many threads have, on a model whose step reads ``step_bytes``.

    Which instruction is best for which work is found at the start; ``now`` then reads the four rates again.
    """

    def __init__(self, isa: str, threads: int, step_bytes: int, *, window_s: float = 0.1) -> None:
        self._threads = threads
        self._window_s = window_s
        self._stream = _native.Stream(step_bytes, threads)
        peaks: dict[str, _Peak] = {}
        for key in peaks_of(isa):
            peaks.setdefault(key[1], _Peak(*key))
        # An input of 16 bits is two of 8, so int8 has to pass twice (docs/decisions/0030).
        for_quantized = [
            replace(peak, passes=passes) for name, passes in (("int8", 2), ("int16", 1)) if (peak := peaks.get(name))
        ]
        self._kinds = (
            self._best(for_quantized or [peaks["fp32"]]),
            self._best([peaks[name] for name in ("fp32", "bf16") if name in peaks]),
            peaks["fp32"],
        )
        self.readings: list[Rates] = []

    @property
    def instructions(self) -> dict[str, str]:
        """By what each kind of work is held against."""
        names = [f"{p.instruction} ({p.numbers}{', two passes' if p.passes == 2 else ''})" for p in self._kinds]
        return dict(zip(("quantized", "half", "single"), names, strict=True))

    def now(self) -> Rates:
        """Measured now, and noted in ``readings``."""
        rates = {peak: self._rate(peak) for peak in set(self._kinds)}
        read = max(self._stream.rate(self._window_s) for _ in range(SEVERAL))
        self.readings.append(Rates(read, *(rates[peak] for peak in self._kinds)))
        return self.readings[-1]

    def spread(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest reading of each rate so far; nothing where there is none."""
        if not self.readings:
            return {}
        columns = {f.name: [getattr(reading, f.name) for reading in self.readings] for f in fields(Rates)}
        return {name: (min(values), max(values)) for name, values in columns.items()}

    def _best(self, peaks: list[_Peak]) -> _Peak:
        return max(peaks, key=self._rate)

    def _rate(self, peak: _Peak) -> float:
        rates = [_native.measure_peak(peak.isa, peak.numbers, self._threads, self._window_s) for _ in range(SEVERAL)]
        return max(rates) / peak.passes


def peaks_of(isa: str) -> list[tuple[str, str, str]]:
    """(instruction set, numbers, instruction) of the arithmetic that kernels of ``isa`` may use, best first."""
    return [peak for peak in _native.peaks() if peak[0] in _BUILT_ON.get(isa, (isa,))]


def far_bytes() -> int:
    """Size of a buffer that no cache holds, as far as memory allows."""
    return min(_FAR_BYTES, free_bytes() // 4)


def linear_work(weight: PackedWeight, rows: int) -> Work:
    """A product of so many rows with a packed matrix, read once. What is packed to under 12 bits a weight is quantised."""
    num_outputs, num_inputs = weight.shape
    ops, bytes_a_weight = 2.0 * num_outputs * num_inputs * rows, weight.nbytes / (num_outputs * num_inputs)
    if bytes_a_weight < 1.5:
        return Work(weight.nbytes, quantized_ops=ops)
    if bytes_a_weight < 3:
        return Work(weight.nbytes, half_ops=ops)
    return Work(weight.nbytes, single_ops=ops)
