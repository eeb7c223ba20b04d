"""Write ``src/ramet/structured/unicode_tables.py``: what ``\\w``, ``\\p{..}`` and the flag i mean, as llguidance has it.

Both ways to keep an output to a pattern must agree to the bit, whatever Unicode version Python has. So each class is asked of
llguidance: the texts that a pattern of one class takes are walked byte by byte. Run this anew when llguidance changes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import llguidance
import numpy as np

OUT = Path(__file__).resolve().parents[1] / "src/ramet/structured/unicode_tables.py"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
PROPERTIES = {"Word": r"\w"} | {name: rf"\p{{{name}}}" for name in ("Alphabetic", "Lowercase", "Uppercase", "White_Space")}
SCRIPTS = """
Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi
Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform
Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic
Garay Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya
Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi
Kannada Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu
Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin
Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean
Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian Old_Italic
Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong
Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham
SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham
Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Vai
Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square
"""


class Bytes:
    """A vocabulary of the 256 bytes, as llguidance takes one."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<e>")
    eos_token_id = 256
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


TOKENIZER = llguidance.LLTokenizer(Bytes())
LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=5_000_000, step_lexer_fuel=5_000_000, max_lexer_states=500_000)


def members(pattern: str) -> list[int]:
    """The code points that a pattern of one character takes, rising."""
    grammar = llguidance.LLMatcher.grammar_from_lark(f'start: /{pattern}/\n%llguidance {{"no_forcing": true}}\n')
    matcher = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise SystemExit(f"{pattern}: {matcher.get_error()}")
    row = np.zeros(9, np.uint32)

    def walk(prefix: bytes) -> Iterator[int]:
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        for byte in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:256]).tolist():
            text = prefix + bytes([byte])
            if len(text) == 1 + (text[0] >= 0xC0) + (text[0] >= 0xE0) + (text[0] >= 0xF0):
                yield ord(text.decode())
            else:
                matcher.consume_token(byte)
                yield from walk(text)
                matcher.rollback(1)

    return list(walk(b""))


def cuts(points: list[int]) -> list[int]:
    """First and past-last code points of each run, one after the other."""
    found: list[int] = []
    for point in points:
        if found and found[-1] == point:
            found[-1] = point + 1
        else:
            found += [point, point + 1]
    return found


def steps(numbers: Iterable[int]) -> list[int]:
    before, found = 0, []
    for number in numbers:
        found.append(number - before)
        before = number
    return found


def packed(numbers: Iterable[int]) -> str:
    """Seven bits a byte, the last one of each number below 128; deflated, in base 85."""
    data = bytearray()
    for number in numbers:
        while number >= 128:
            data.append(number % 128 + 128)
            number //= 128
        data.append(number)
    return base64.b85encode(zlib.compress(bytes(data), 9)).decode()


def main() -> None:
    sets = {name: cuts(members(rf"\p{{{name}}}")) for name in CATEGORIES.split()}
    sets |= {name: cuts(members(pattern)) for name, pattern in PROPERTIES.items()}
    sets |= {f"sc={name}": cuts(members(rf"\p{{{name}}}")) for name in SCRIPTS.split()}
    orbits = {}
    for point in members(r"[\p{Changes_When_Casemapped}\p{Changes_When_Casefolded}\x{0345}\p{Lt}]"):
        orbit = members(rf"(?i:\x{{{point:X}}})")
        if len(orbit) > 1:
            orbits[orbit[0]] = orbit
    numbers: list[int] = []
    for ends in sets.values():
        numbers += [len(ends), *steps(ends)]
    cases: list[int] = []
    for first, orbit in zip(steps(orbits), orbits.values(), strict=True):
        cases += [first, len(orbit) - 1, *steps(orbit)[1:]]
    write(list(sets), packed(numbers), packed(cases))


def lines(text: str, width: int = 120) -> str:
    return "\n".join(f'    "{text[at : at + width]}"' for at in range(0, len(text), width))


def write(names: list[str], numbers: str, cases: str) -> None:
    head = '"""Unicode\'s classes and cases, as llguidance has them. Written by ``tools/make_unicode_tables.py``."""\n\n'
    head += '__all__ = ["CASES", "CLASSES", "NAMES"]\n\n'
    words = lines(" ".join(names))
    text = f"{head}NAMES = (\n{words}\n)\n\nCLASSES = (\n{lines(numbers)}\n)\n\nCASES = (\n{lines(cases)}\n)\n"
    OUT.write_text(text, "utf-8")
    print(f"{OUT.name}: {len(names)} classes, {len(text):,} bytes")


if __name__ == "__main__":
    main()
