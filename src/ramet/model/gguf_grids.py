"""GGUF's types of one to three bits a value, whose codes number the points of a grid: rows of 4 or 8 values that go together.

Layouts and grids: ggml-org/ggml, src/ggml-common.h, as the ``gguf`` package has them. Which points a grid has was found by
trials over real weights, and follows from no rule; but the points stand in the order of their digits, so a grid is a set, and a
few hundred bytes hold it: one bit for each point there could be, deflated, in base 85.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.model.gguf_bits import Bytes, Codes, bits, halves, runs, scaled, words
from ramet.model.grouped import Grouped

__all__ = ["iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs"]

Int8: TypeAlias = npt.NDArray[np.int8]


def _grid(values: Sequence[int], width: int, points: str) -> Int8:
    """int8[points, width]. A point's number has the places of its values in ``values`` as digits, the first one the lowest."""
    numbers = np.flatnonzero(np.unpackbits(np.frombuffer(zlib.decompress(base64.b85decode(points)), np.uint8)))
    digits = numbers[:, None] // len(values) ** np.arange(width) % len(values)
    points_of: Int8 = np.array(values, np.int8)[digits]
    return points_of


_TWO_BITS = (8, 25, 43)
# fmt: off
_IQ1_S = _grid(
    (-1, 0, 1), 8,
    "c-k#eO>0z16uqyx#k83y_qA0qE*kA7fk#%6iL;cd<W&+S(JE7AEBc6nlGQ*KX*Z#@1057+gows$6w-}Cbfte_m;o2UY|_#*VZa~*x^U%6T=`Mm&aUdhx#ygF"
    "&eKOplgaU0)cQ?aLaWb`!=%}lC@i-gZEZ5CFdhU_><`D{U2pdIZAiiRBZ^Tjpc--1mjt-&r-O_l7bZy)3*%3zRUeyRXfJ~s5?<5PM<UK4aB<I3L}>n{hnc{+"
    ">K$G67mn>zvR$=UOtZPa7LUsmQWQ2bN)ou!Kj_yfb~LQyR=nku)`P+=g=?+GNRyF#AueD^;Yg67k)HG=(os>Uh!rG~(gRxZza2HhyPsM)=qh9|ehXUldkU;_"
    "wA!C+2Fv`rcq!34!0Fqz%0;&7#XeAmBu`}t6ci#>+3WlSwzITy{$0C$RU8lhlWkibbyz6nxOL=l|4%yAAJ4G^LV^S*V!(*CwdNU%)Qrh$#q9cyW*tq|@QQ}j"
    "896#XTv`6q5lhc&*LLPVeEGcad$xT4&D*b^FV9bJ+^}ih*A`2jX2rIue$9q9{)`S!jt!g=X1D{vGEMnukjj}Wcvs!oqc~_d61@aP1V3Bvcjc9uWpgt6=l#-;"
    "vm1GpU-HX*>(|GJ!F2C{R9{8qA7trFiLFJ0VD+S2Ny_0+jiaiUvPbU!Gt<44HyL$nQ%A{iI)xZW(;0iU=zRoe)YSg8LFF!L&Ei&Q)FngSxd==b)ez8IIEAq?"
    "gCPR1z1`cE#svx$dBcgrdMr~`+vY{G*{j)LdH7J(;|V_S3+rEqj0{aUGZ~5`z3=#nUT2ypkIbf^7Qd%#dKF#22&cWI$B=(k{y*i-P-%7a6aqltG8tC11XWn$"
    "8wuQe)#`Rb$ezM@h+=MX6ehv4>@KW-1MD8)wE",
)
_IQ2_XXS = _grid(
    _TWO_BITS, 8,
    "c-nPRORj`4470MbdWwiuj~R8vF<3s$DPNNQV8mEdDvh1mfzMz4@MsNM4-kL~Dg?0u3Z<Q}s#5&i%a^YL7=qILyw)W4Cso8iRnlpCLd`c4Du;C<RlH?aajd+e"
    "<FY7)k8>WSTt@47wX1jPqB41q=2e+&9hy;#r#nzQ(d`wV2I-N(E<X_7hks$x7)Do8!;TEvZcdv+$;Bf*s-;99+U-&7)=?KnsoS&M%ZZjW8ztGaG<oin^)>q~"
    "!#84@<5Q?C;cAe-jqH$lW6s<jvF<nQc*Z$~yKl@H%B$)D{-`Y{-_v~Aze0c0{sHUUCpi",
)
_IQ2_XS = _grid(
    _TWO_BITS, 8,
    "c-mc2ORj`4470L|dWwh@;*?QWh*MOoP)|Aew9xme83;|{*iP^L>UVu^J$f&9<)%0;rYcZH@zkTcz*1-`0#F4vd)cqIa~EY0S(m36us~sl4e+uqnt+xnD5p1i"
    "fdk&k2^cqyDKl&hVwLuN#<u{Y#82-D2r2AS*#~B;6>b%zZ?$An2Qav5OyP;?IjC1*OUa>YNXBOJs!l*N%2M9ag1pZ#qbS<pDODX)Ys@FiGwcn?g7z}ZUJ85J"
    "?WuXe7)kq!xj_MC=sehbo`f6hw91-EjVApg;SBK(#S-ctqy5bslAAu_xaBeODLPcR%XL4jpOCvsj1dP@iIwgyVBr<uBI!nKMuUZZ1qQNNP<bV}FGN4KvRv{k"
    "y>(2~*Gt;x6q$P={6Cb#@3Dfxx_wWh`vWo0U*P",
)
_IQ2_S = _grid(
    _TWO_BITS, 8,
    "c-n1JOKt@r42!agI0c#&;*=39#3>LflvCCTO#7-9jpk=;Y=fB%TefG%OIlXuE_Fz<Ougf=%xu>+l3Bq8hyjg~lMrunmZ<Wy`~YGiEi#3On5vBd<vmKZSi%aW"
    "(psKWGWlAsphF>8rUC+;ZDfa(=s@_F#i0yss$-8fvv#Vf@jNV{kuiVLgA~66J1A2@4RVJKUxH}IH-$JpaZ^g})pmKjjd>lmojtPqGOJ!xqXVV(I)s3f1HneH"
    "&<4|id_Zsqi~d9|fZw$~1nHWO$bgs-@JBFei6qb36Asxo<#s4;BRhd~d<sfnbhG0<$t^)oE$@gK%zO1xyELVB%s1k`FAKZeJ@WjCtPZ6s4%XC=!ChZ<C{I5t"
    "%jB|RQ$q0^0H^%ZVVCdNfJ9HPfzZdmWSrg_I({bPgptf%^rJMcpz`hTS7u<>s9rVvW-WSa`T|j+oGk",
)
_IQ3_XXS = _grid(
    (4, 12, 20, 28, 36, 44, 52, 62), 4,
    "c-l=-K?=h#3{ye}VW$qZd!FLL9+1HvWO^EVh1sdkoaHp#R7#szmgHo6m{j1}>~2z^o7e*jro|>W6f;suxGq5ThwwrH-tdy3S=*8VCKknJ;ww~xN=C-Lt2kc1"
    "f`n?I#<sN&{qc;xi`rsIog^>xCi>0vO72GEj+P?`#G30*;dkafo0(MD70~26E5oy)Fh-PS2J_iYxE!Gh>5A3e2Aw8l#Lz*UZ2xyz&!sE!Xy7=t?heopubnm$"
    ";UMyR4j1Wf!f;*xLWT6+u!rw*Hy!tqyDZ17JdzPtf@!~_J7yrh&WtZi",
)
_IQ3_S = _grid(
    range(1, 17, 2), 4,
    "c-k#dK}rKb5Ud?m7(7iN59ovqtiR~U2pdlmS^v`sIn3TR;sZue5Z@6$Amj-`@D=vV+J}a&>aMEU{rNq)_mDQ1)6rXa`g-zl6)-xV9&D<-%sLtw(&E+K!8jAZ"
    "An=FIh`{BX?s3iZ9eL!0y{saQwa{i<M_rV8i?Gza!ZNf5Tx$=B>&%}&x2aFnb2>I1DZfG3@eJJ?w}Hf9jj>U<u}qaX$V(Q{%bJZi0qBwX8+P2=0D&xpG^*kp"
    "x3aC_+^woo1gDy;frCMb5s>PfCelExhl@Z5=M_J&lZwQK<TIaOt1Nd_t_Z4Nkqr(Irw~QLK*sjOloy2EUU#sN3YKfvLC9pG+yhGG#kO><KBF1{I~{B$E!8Aq"
    "IlE}-BNQAl`R33C|JNFjj93D(#a!oZudm_a(c~OHe<Yb)Y4R?AVbTWv01QA~hX",
)
# fmt: on
_SIGNS = np.array([row | row.bit_count() % 2 << 7 for row in range(128)], np.uint8)
"""Seven signs in their order, and an eighth that makes the number of negative ones even."""


def iq1_s(blocks: Bytes) -> Grouped:
    """Each 32 values are on a grid of -1, 0 and 1 that is shifted by an eighth, up or down."""
    high = words(blocks, 34, 50, "<u2")
    indices = blocks[..., 2:34] | (_parts(high, (0, 3, 6, 9)) & 7) << 8
    scales = scaled(halves(blocks, 0), 2 * (high >> 12 & 7) + 1)
    shifts = np.where(high >> 15, np.float32(-1.125), np.float32(-0.875)).reshape(scales.shape)
    return Grouped(runs(_IQ1_S[indices] + np.int8(1), 32), scales, scales * shifts, 2)


def iq1_m(blocks: Bytes) -> Grouped:
    """So are each eight; the codes are eighths. A block's float16 stands in the highest four bits of its four words of scales."""
    high, stored = bits(blocks[..., 32:48], 4, parts=16), words(blocks, 48, 56, "<u2")
    indices = blocks[..., :32] | (high & 7).astype(np.uint16) << 8
    points = _IQ1_S[indices] * np.int8(8) + np.where(high & 8, np.int8(-1), np.int8(1))[..., None]
    factor = (stored >> 12 << np.array([0, 4, 8, 12], np.uint16)).sum(axis=2, dtype=np.uint16).view("<f2").astype(np.float32)
    scales = scaled(factor, (2 * (_parts(stored, (0, 3, 6, 9)) & 7) + 1) * np.float32(0.125))
    return Grouped(runs(points, 16), scales, None, 9)


def iq2_xxs(blocks: Bytes) -> Grouped:
    pairs = blocks[..., 2:66].reshape(*blocks.shape[:2], 8, 2, 4)
    signs, scales = _signs_and_scales(pairs[..., 1, :], halves(blocks, 0), 0.25)
    return Grouped(_signed_points(_IQ2_XXS[pairs[..., 0, :]], signs, 32), scales, None, 43)


def iq2_xs(blocks: Bytes) -> Grouped:
    stored = words(blocks, 2, 66, "<u2")
    scales = scaled(halves(blocks, 0), (bits(blocks[..., 66:74], 4, parts=8) + np.float32(0.5)) * np.float32(0.25))
    return Grouped(_signed_points(_IQ2_XS[stored & 511], _SIGNS[stored >> 9], 16), scales, None, 43)


def iq2_s(blocks: Bytes) -> Grouped:
    indices = blocks[..., 2:34] | bits(blocks[..., 66:74], 2, parts=8).astype(np.uint16) << 8
    scales = scaled(halves(blocks, 0), (bits(blocks[..., 74:82], 4, parts=8) + np.float32(0.5)) * np.float32(0.25))
    return Grouped(_signed_points(_IQ2_S[indices], blocks[..., 34:66], 16), scales, None, 43)


def iq3_xxs(blocks: Bytes) -> Grouped:
    signs, scales = _signs_and_scales(blocks[..., 66:98], halves(blocks, 0), 0.5)
    return Grouped(_signed_points(_IQ3_XXS[blocks[..., 2:66]], signs, 32), scales, None, 62)


def iq3_s(blocks: Bytes) -> Grouped:
    indices = blocks[..., 2:66] | bits(blocks[..., 66:74], 1, parts=8).astype(np.uint16) << 8
    scales = scaled(halves(blocks, 0), 2 * bits(blocks[..., 106:110], 4, parts=4) + 1)
    return Grouped(_signed_points(_IQ3_S[indices], blocks[..., 74:106], 32), scales, None, 15)


def _parts(stored: Codes, shifts: Sequence[int]) -> Codes:
    """[n, B, w * shifts]: each word shifted by each of ``shifts``."""
    return (stored[..., None] >> np.array(shifts, stored.dtype)).reshape(*stored.shape[:2], -1)


def _signs_and_scales(packed: Bytes, factors: Float32, unit: float) -> tuple[Codes, Float32]:
    """Words of four times seven signs and a scale of four bits, one for each 32 values: uint8[n, B, 32] and [n, B * 8]."""
    stored = np.ascontiguousarray(packed).view("<u4").reshape(*packed.shape[:2], 8)
    return _SIGNS[_parts(stored, (0, 7, 14, 21)) & 127], scaled(factors, ((stored >> 28) + np.float32(0.5)) * np.float32(unit))


def _signed_points(points: Int8, signs: Codes, width: int) -> Int8:
    """[n, runs, width]: values of points, negative where their bit in ``signs`` (uint8[n, B, 32], lowest first) is set."""
    negative = np.unpackbits(np.ascontiguousarray(signs), axis=2, bitorder="little").view(np.int8)
    values = points.reshape(negative.shape)
    return ((values ^ -negative) + negative).reshape(len(values), -1, width)
