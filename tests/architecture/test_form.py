"""The form of the source: ``__all__`` everywhere, sizes that can be read, names from the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from source_tree import ROOT, Module, functions, planted, source_modules

MAX_FILE_LINES = 450
MAX_NATIVE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_PARAMETERS = 9
MANY_PARAMETERS = {  # the options of the Python API and of a command: each is a keyword of its own to the user
    "ramet.llm.LLM.__init__",
    "ramet.cli.generate.generate",
}

BANNED_CLASS = re.compile(r"_?Base[A-Z]\w*|\w+(Helper|Helpers|Util|Utils|Worker|Executor|Mixin)|(?!KVManager$)\w+Manager")
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "misc"}
BANNED_NAMES = {
    "rid", "rids", "Req", "SequenceGroup", "seq_group", "input_ids", "fill_ids", "extend_tokens", "cached_len", "device_len",
    "prefix_len", "extend_len", "out_loc", "out_cache_loc", "block_table", "block_tables", "block_ids", "req_to_token",
    "tree_cache", "inc_ref", "dec_ref", "inc_lock_ref", "dec_lock_ref", "swap_in", "swap_out", "retract", "ForwardBatch",
    "guided_decoding", "logits_processor", "logits_processors", "model_runner", "kill_request", "cancel_request",
}  # fmt: skip


# --- __all__ -------------------------------------------------------------------------------------------------------------


def public_list(module: Module) -> list[str] | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def top_level(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Names defined at the top of a module, and whether each is a class or function of its own."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, True
            case ast.Assign(targets=targets):
                yield from ((t.id, False) for target in targets for t in ast.walk(target) if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, False
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (((alias.asname or alias.name).split(".")[0], False) for alias in names)
            case ast.If(body=then, orelse=other):
                yield from top_level([*then, *other])
            case ast.Try(body=tried, handlers=handlers, orelse=other):
                yield from top_level([*tried, *(s for h in handlers for s in h.body), *other])


def all_faults(modules: list[Module]) -> list[str]:
    faults = []
    for module in modules:
        defined = dict(top_level(module.tree.body))
        listed = public_list(module)
        if listed is None:
            if defined or not module.is_package:
                faults.append(f"{module.name}: no __all__")
            continue
        faults += [f"{module.name}: __all__ names {name}, which is not defined" for name in listed if name not in defined]
        if len(set(listed)) < len(listed):
            faults.append(f"{module.name}: __all__ names something twice")
        own = {name for name, is_own in defined.items() if is_own and not name.startswith("_")}
        faults += [f"{module.name}: {name} is neither private nor in __all__" for name in sorted(own - set(listed))]
    return faults


def test_every_module_says_what_is_public():
    assert all_faults(source_modules()) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1", "no __all__"),
        ("", "no __all__"),
        ("__all__ = ['gone']", "gone, which is not defined"),
        ("__all__ = ['x', 'x']\nx = 1", "twice"),
        ("__all__ = []\nclass Leak: ...", "Leak is neither"),
        ("__all__ = []\nif True:\n    def leak(): ...", "leak is neither"),
    ],
)
def test_planted_faults_of_all_are_found(text, fault):
    (found,) = all_faults(planted(text))
    assert fault in found


def test_what_is_imported_or_conditional_counts_as_defined():
    conditional = "try:\n    import b\nexcept ImportError:\n    b = None"
    text = f"__all__ = ['a', 'b', 'c', 'D']\nfrom x import y as a\n{conditional}\nc: int = 1\nD = c"
    assert all_faults(planted(text)) == []


# --- sizes ---------------------------------------------------------------------------------------------------------------


def size_faults(modules: list[Module]) -> list[str]:
    faults = []
    for module in modules:
        if (lines := module.text.count("\n")) > MAX_FILE_LINES:
            faults.append(f"{module.name}: {lines} lines, at most {MAX_FILE_LINES}")
        for function in functions(module):
            node = function.node
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES:
                faults.append(f"{function.path}: {lines} lines, at most {MAX_FUNCTION_LINES}")
            given = node.args
            count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) + bool(given.vararg) + bool(given.kwarg)
            if count > MAX_PARAMETERS and function.path not in MANY_PARAMETERS:
                faults.append(f"{function.path}: {count} parameters, at most {MAX_PARAMETERS}")
    return faults


def test_files_and_functions_can_be_read():
    assert size_faults(source_modules()) == []


def test_test_files_can_be_read():
    tests = sorted((ROOT / "tests").rglob("*.py"))
    assert tests
    long = {path.name: lines for path in tests if (lines := path.read_text("utf-8").count("\n")) > MAX_FILE_LINES}
    assert long == {}


def test_native_files_can_be_read():
    native = [path for path in sorted((ROOT / "csrc").rglob("*")) if path.suffix in (".cpp", ".h")]
    assert native
    long = {path.name: lines for path in native if (lines := path.read_text("utf-8").count("\n")) > MAX_NATIVE_LINES}
    assert long == {}


def test_functions_with_many_parameters_are_excused_only_while_they_exist():
    assert {function.path for module in source_modules() for function in functions(module)} >= MANY_PARAMETERS


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n" * (MAX_FILE_LINES + 1), "lines"),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * MAX_FUNCTION_LINES, "A.f: 71 lines"),
        ("def f(a, b, /, c, d, e, *args, g, h, i, **kw): ...", "f: 10 parameters"),
        ("class A:\n    def f(self, a, b, c, d, e, g, h, i, j): ...", "A.f: 10 parameters"),
    ],
)
def test_planted_giants_are_found(text, fault):
    (found,) = size_faults(planted(text))
    assert fault in found


# --- names ---------------------------------------------------------------------------------------------------------------


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def name_faults(modules: list[Module]) -> list[str]:
    faults = [f"{module.name}: a module of this name" for module in modules if module.name.split(".")[-1] in BANNED_MODULES]
    for module in modules:
        faults += [f"{module.name}:{line}: {name}" for name, line in names_in(module.tree) if name in BANNED_NAMES]
        classes = (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
        faults += [f"{module.name}:{node.lineno}: class {node.name}" for node in classes if BANNED_CLASS.fullmatch(node.name)]
    return faults


def test_names_are_those_of_the_glossary():
    assert name_faults(source_modules()) == []


@pytest.mark.parametrize(
    "text",
    [
        "class BaseCache: ...",
        "class _BaseCache: ...",
        "class PageHelper: ...",
        "class CacheUtils: ...",
        "class PageManager: ...",
        "def f(input_ids): ...",
        "self.tree_cache = 1",
        "f(block_tables=1)",
    ],
)
def test_planted_names_are_found(text):
    assert len(name_faults(planted(text))) == 1


def test_names_that_are_fine():
    assert name_faults(planted("class KVManager: ...\nclass Basement: ...\nblock = page_ids")) == []
    assert name_faults(planted("", "ramet.kv.utils")) == ["ramet.kv.utils: a module of this name"]
