"""EBNF with recursion: which parts of it become lexemes changes what a mask costs, and no mask."""

from __future__ import annotations

import random
import re
import string

import numpy as np
import pytest
from byte_grammars import accepts, allowed, matcher

from ramet.core.grammar import GrammarSpec
from ramet.errors import GrammarError
from ramet.structured.compiler import GrammarCompiler, TokenTable
from ramet.structured.ebnf import lark_of_ebnf

LLAMA_JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
XGRAMMAR_JSON = r"""
root ::= array | object
any ::= number | string | "true" | "false" | "null" | array | object
number ::= ("0" | "-"? [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
string ::= (([\"] string_1 [\"]))
string_1 ::= "" | [^"\\\r\n] string_1 | "\\" escape string_1
escape ::= ["\\/bfnrt] | "u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]
array ::= "[" ("" | ws any (ws "," ws any)*) ws "]"
object ::= "{" ("" | ws string ws ":" ws any ( ws "," ws string ws ":" ws any)*) ws "}"
ws ::= [ \n\t]*
"""


def _vocabulary(size: int) -> TokenTable:
    """All bytes, and pieces of JSON in all mixtures, as real vocabularies have them."""
    random_pieces = random.Random(0)
    signs = [*'{}[]",:\\ \n\t-+.0123456789', *"abcdeflnrstu", '": "', '",\n', '": [', "}, ", "true", "null", "the ", "of"]
    pieces = [bytes([b]) for b in range(256)]
    known = set(pieces)
    while len(pieces) < size - 1:
        piece = "".join(random_pieces.choices(signs, k=random_pieces.randint(2, 6))).encode()
        if piece not in known:
            known.add(piece)
            pieces.append(piece)
    return TokenTable([*pieces, b"<eos>"], frozenset({size - 1}), frozenset({size - 1}), size)


@pytest.mark.parametrize("text", [LLAMA_JSON, XGRAMMAR_JSON], ids=["llama.cpp", "xgrammar"])
def test_json_as_others_write_it_is_no_work_with_a_large_vocabulary(text: str) -> None:
    """It was refused with 150,000 tokens, and with fewer some answers failed: each character was a step of the parser."""
    table = _vocabulary(60_000)
    compiler = GrammarCompiler(table)
    eos = len(table.pieces) - 1
    for seed in range(4):
        one = compiler.matcher(GrammarSpec.of({"grammar": text}), frozenset({eos})).result()
        choose = np.random.default_rng(seed)
        row = np.zeros(one.num_words, np.uint32)
        for _ in range(100):
            one.fill_mask(row)
            ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            ids = ids[ids != eos]
            if not len(ids):
                break
            one.accept(int(choose.choice(ids)))


def test_json_as_others_write_it_is_what_it_was() -> None:
    for text in (LLAMA_JSON, XGRAMMAR_JSON):
        for good in ('{"a": [1, -2.5e+3, "x\\u00e9\\n", {}], "": null}', "{}", '{"k":{"l":[true,false,[]]}}'):
            assert accepts({"grammar": text}, good), good
        for bad in ('{"a": }', '{"a" 1}', "{,}", '{"a": [1,]}', '{"a": 01}', '{"a": "\n"}', "{} {}"):
            assert not accepts({"grammar": text}, bad), bad


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('root ::= "a" root "b" | "ab" "c"', ["abc", "aabcb"], ["ab", "aabc"]),
        ('root ::= x root "." | x\nx ::= [a-c]+ | "ab" "d"?', ["a", "abda.", "aab.", "abdabc.", "abab.."], [".", "ad"]),
        ('root ::= "(" root ")" | word\nword ::= [a-z] word | [a-z]', ["(abc)", "a", "((z))"], ["()", "(a", "(A)"]),
        ('root ::= root2 "!"\nroot2 ::= root2 "+" [0-9] | [0-9]', ["1!", "1+2+3!"], ["+1!", "1+!"]),
        ('root ::= list\nlist ::= "<" (item ("," item)*)? ">"\nitem ::= list | [0-9]*', ["<>", "<,>", "<1,<22,>>"], ["<1", ">"]),
        ('root ::= ("a" | "ab") mid ("c" | "bc")\nmid ::= "" | "x" mid "y"', ["ac", "abc", "abbc", "axybc"], ["ax", "abbbc"]),
        ('root ::= "é" root "é" | ["ß-ü"]{2}', ["ßü", 'éß"é'], ["é", "éßü"]),
        ('root ::= "<" root ">" | x "!"\nx ::= x | "a"?', ["!", "a!", "<<a!>>"], ["aa!", "<>", "<a>"]),
        ('root ::= "(" root ")" | x\nx ::= "a" ("b" ("c" x | "d" x | "e") | "f"?)', ["a", "(abcabdaf)", "abe"], ["ab", "abc"]),
        ('root ::= "a"{0} "b" root{0,0} | "c" root', ["b", "ccb"], ["ab", "bb", "c"]),
        ('root ::= ("b" mid ("a" | "ab"))*\nmid ::= "x" mid "y" | "z"', ["bzabza", "bzab", "bxzyabbza"], ["bza.", "bzb"]),
        ('root ::= ("a" | "ab") mid "bc"\nmid ::= "" | "x" mid "y"', ["abc", "abbc", "axybc"], ["ac", "axbc"]),
        ('root ::= ("a" | "ab") end\nend ::= mid "bc"\nmid ::= "" | "x" mid "y"', ["abc", "abbc", "axybc"], ["ac", "axbc"]),
        ('root ::= "<" root ">" | "a"? "b"?', ["a", "ab", "<b>", "<>"], ["aa", "ba", "<abb>"]),
        ('root ::= tail? "." | "(" root ")"\ntail ::= "a" ("b" tail)?', [".", "ababa.", "(aba.)"], ["ab.", "b."]),
    ],
)
def test_recursive_grammars(text: str, good: list[str], bad: list[str]) -> None:
    """No longest match of a part shuts out a match of the whole, whole texts being cut in any way."""
    for one in good:
        assert accepts({"grammar": text}, one), one
    for one in bad:
        assert not accepts({"grammar": text}, one), one


C = r"""
root ::= (ws type ws name ws ("(" (ws type ws name)* ws ")" ws block | ("=" ws sum)? ";"))* ws
type ::= ("int" | "char") (ws "*")*
block ::= "{" ws (statement ws)* "}"
statement ::= block | "if" ws "(" ws sum ws ")" ws statement (ws "else" ws statement)? | "return" (ws sum)? ws ";" | sum ws ";"
sum ::= product (ws [+-] ws product)*
product ::= unary (ws [*/%] ws unary)*
unary ::= ("-" | "!" | "*") ws unary | item
item ::= one (ws ("[" ws sum ws "]" | "(" ws (sum (ws "," ws sum)*)? ws ")" | "." ws name))*
one ::= name | [0-9]+ ("." [0-9]*)? | "\"" ([^"\\\n] | "\\" .)* "\"" | "(" ws sum ws ")"
name ::= [a-zA-Z_] [a-zA-Z0-9_]*
ws ::= ([ \t\n] | "//" [^\n]* "\n" | "/*" ([^*] | "*" [^/])* "*/")*
"""


def test_what_may_be_empty_is_not_copied_to_each_of_its_places() -> None:
    """Space with comments runs on into a division and is cut; what was made of 33 copies of it was over the bounds."""
    assert len(lark_of_ebnf(C)) < 2 * len(C)
    assert accepts({"grammar": C}, "int f(){if(a/b)/* c */return -x[1]*g(2, 3); } // end\n")
    assert not accepts({"grammar": C}, "int f(){return a//b;}")


def test_rules_that_are_over_the_bounds_as_lexemes_are_characters() -> None:
    """Each beginning of a run of parts that may be empty is a way of its own in a lexeme."""
    letters = string.ascii_uppercase + string.ascii_lowercase[:14]
    text = 'root ::= "<" root ">" | ' + " ".join(f'"{letter}"?' for letter in letters)
    assert accepts({"grammar": text}, "<<BXYacdn>>")
    assert not accepts({"grammar": text}, "<aB>")


def _random_grammar(choose: random.Random) -> str:
    names = ["root", "p", "q", "s"]

    def item(depth: int) -> str:
        kind = choose.randrange(8 if depth else 5)
        if kind < 2:
            return '"' + "".join(choose.choices("abc", k=choose.randint(1, 3))) + '"'
        if kind == 2:
            return choose.choice(["[ab]", "[^a]", "[a-c]"])
        if kind < 5:
            return choose.choice(names[1:])
        return f"({either(depth - 1)})" + choose.choice(["", "?", "*", "+", "{1,2}"])

    def either(depth: int) -> str:
        return " | ".join(
            " ".join(item(depth) for _ in range(choose.randint(0 if i else 1, 3))) for i in range(choose.randint(1, 3))
        )

    return "\n".join(f'{name} ::= {either(2)} | "{end}"' for name, end in zip(names, "cabc", strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_lexemes_change_no_mask(seed: int) -> None:
    """Against the same rules with each character by itself, written in Lark without a terminal of more."""
    choose = random.Random(seed)
    text = _random_grammar(choose)
    plain = re.sub(r"\[[^]]*\]", lambda found: f"/{found[0]}/", text.replace("::=", ":").replace("root", "start"))
    plain = re.sub(r'"([a-c]+)"', lambda found: " ".join(f'"{char}"' for char in found[1]), plain)
    plain = re.sub(r"\|\s*(?=[|)\n])|\|\s*$|\(\s*(?=\|)", lambda found: found[0] + ' "" ', plain)
    ours, theirs = matcher({"grammar": text}), matcher({"grammar": plain})
    for walk in range(6):
        one, other = ours.fork(), theirs.fork()
        steps = random.Random(walk)
        for _ in range(12):
            ids = allowed(one)
            assert ids == allowed(other), (text, lark_of_ebnf(text))
            letters = sorted(ids & set(b"abcd"))
            if not letters:
                break
            byte = steps.choice(letters)
            one.accept(byte)
            other.accept(byte)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('root ::= "a" (root "b"', "bracket that does not end"),
        ('root ::= "a" ) root', "bracket that ends"),
        ("root ::= * root", "nothing to repeat"),
        ('root ::= "a"** root?', "repeats a repetition"),
        ('root ::= "a"{2}+ root?', "repeats a repetition"),
        ('root ::= "a"{} root?', "count"),
        ('root ::= "a"{3,2} root?', "ends before it begins"),
        ('root ::= "a"{1,200000} root?', "at most"),
        ("root ::= " + "(" * 40 + '"a" root?' + ")" * 40, "groups more than 30 deep"),
    ],
)
def test_what_is_no_grammar(text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        lark_of_ebnf(text)


@pytest.mark.parametrize(
    "rules",
    [
        ["root ::= r0 root r0 |", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "a"?'],
        ["root ::= r0 root r0 |", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "a"'],
        ["root ::= " + '"a"? ' * 5_000 + "(root)?"],
        ["root ::= root2 |", "root2 ::= " + '("a" | "b") ' * 2_000 + "root2 | root root"],
        [*(f"r{i} ::= r{i + 1}" for i in range(9_000)), 'r9000 ::= "a"', "root ::= r0"],
        ["root ::= " + " | ".join(f'"{i:04}" root "{i:04}"' for i in range(2_000))],
        ['root ::= "(" root ")" | r0', *(f'r{i} ::= ("a" | (r{i + 1} "b"))?' for i in range(390)), 'r390 ::= "z"'],
        ["root ::= " + "r0 root " * 4_500 + '| "z"', *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(9)), 'r9 ::= "a"?'],
        ["root ::= " + '"a"' * 15_000 + "(root | " + "|".join(f'"{i}"' for i in range(90)) + ")"],
        ["root ::= x root |", "x ::= x x | " + '"a"' * 14_000 + "r0", *(f"r{i} ::= r{i + 1}" for i in range(390)), "r390 ::="],
        ["root ::= " + " | ".join(f'"{i}" . {{200}} root' for i in range(1_500)) + ' | "z"'],
        ["root ::= " + "(" * 29 + "|".join(['"a"root"b"'] * 4_800) + '|"z")' * 29],
    ],
    ids=[
        "nullable copies",
        "copies",
        "nullable run",
        "long loop",
        "chain of rules",
        "many texts",
        "deep chain",
        "copies in places",
        "ways that go on",
        "no loop",
        "many automata",
        "nested groups",
    ],
)
def test_what_would_grow_is_taken_as_it_is_or_refused(rules: list[str]) -> None:
    """Each of these would never end if copies were made of parts as long as there are some."""
    try:
        matcher({"grammar": "\n".join(rules)})
    except GrammarError as error:
        told = str(error)
    else:
        told = "make it smaller"
    assert re.search("make it smaller|Too many items|lexer|too large|too complex", told), told


@pytest.mark.parametrize("num_rules", [45, 150])
def test_what_becomes_of_a_grammar_does_not_depend_on_how_deep_its_caller_stands(num_rules: int) -> None:
    rules = "\n".join(f'r{i} ::= r{i + 1} "b" | "a"' for i in range(num_rules))
    text = f'root ::= "(" root ")" | r0\n{rules}\nr{num_rules} ::= "z"'

    def at(depth: int) -> str:
        return at(depth - 1) if depth else lark_of_ebnf(text)

    assert at(0) == at(400)
