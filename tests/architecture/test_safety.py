"""T01, T04: nothing that can run code from data, no check that ``python -O`` drops; and no traces of one machine."""

from __future__ import annotations

import ast
import re

import pytest
from source_tree import ROOT, Module, functions, imports, planted, source_modules, tracked_files

CODE_FORMATS = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "diskcache",
    "jsonpickle",
    "runpy",
    "code",
}
CODE_CALLS = {"eval", "exec", "compile", "__import__"}
CODE_ATTRIBUTES = {
    ("torch", "load"), ("yaml", "load"), ("yaml", "load_all"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("os", "system"),
    ("os", "popen"), ("np", "frompyfunc"),
}  # fmt: skip
CODE_KEYWORDS = {"allow_pickle", "trust_remote_code"}


def code_faults(modules: list[Module]) -> list[str]:
    """T01. There is no list of exceptions, and none may be added."""
    faults = []
    for module in modules:
        faults += [
            f"{module.name}:{found.line}: imports {found.target}" for found in imports(module) if found.top in CODE_FORMATS
        ]
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in CODE_CALLS:
                    faults.append(f"{module.name}:{node.lineno}: calls {name}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in CODE_ATTRIBUTES:
                    faults.append(f"{module.name}:{node.lineno}: calls {owner}.{name}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="builtins"), attr=name)) if name in CODE_CALLS:
                    faults.append(f"{module.name}:{node.lineno}: calls {name}")
                case ast.keyword(arg=str(name)) if name in CODE_KEYWORDS:
                    faults.append(f"{module.name}:{node.value.lineno}: passes {name}")
                case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                    faults.append(f"{module.name}:{node.value.lineno}: runs a shell")
                case ast.keyword(arg="dtype", value=ast.Name(id="object")):
                    faults.append(f"{module.name}:{node.value.lineno}: an array of objects")
    return faults


def assert_faults(modules: list[Module]) -> list[str]:
    """T04. ``check`` methods and the audit are tests of the code's own state, made to be called by tests."""
    faults = []
    for module in modules:
        if module.name == "ramet.kv.audit":
            continue
        allowed = {id(inner) for f in functions(module) if f.node.name == "check" for inner in ast.walk(f.node)}
        asserts = (node for node in ast.walk(module.tree) if isinstance(node, ast.Assert) and id(node) not in allowed)
        faults += [f"{module.name}:{node.lineno}: assert" for node in asserts]
    return faults


def test_nothing_runs_code_from_data():  # T01
    assert code_faults(source_modules()) == []


def test_no_check_is_an_assert():  # T04
    assert assert_faults(source_modules()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle.something",
        "import importlib\nimportlib.import_module('marshal')",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import torch\ntorch.load(path)",
        "import yaml\nyaml.load(text)",
        "eval(text)",
        "exec(text)",
        "import builtins\nbuiltins.eval(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import numpy as np\nnp.array(x, dtype=object)",
    ],
)
def test_planted_ways_to_run_code_are_found(text):
    assert len(code_faults(planted(text))) == 1


@pytest.mark.parametrize(
    "text", ["import re\nre.compile('x')", "import json\njson.load(f)", "x.eval()", "np.load(p)", "run(x, shell=False)"]
)
def test_harmless_calls_pass(text):
    assert code_faults(planted(text)) == []


def test_planted_asserts_are_found():
    text = "class A:\n    def check(self):\n        assert 1\n    def take(self, n):\n        assert n > 0"
    assert assert_faults(planted(text)) == ["ramet.kv.planted:5: assert"]
    assert assert_faults(planted("assert True", "ramet.kv.audit")) == []


# --- one machine's traces ------------------------------------------------------------------------------------------------

MACHINE = re.compile(
    r"""(?<![\w.~}$])/(?:work|root|tmp|home|Users|mnt|scratch)/(?=[\w.])  # absolute paths of one machine
    | (?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}\b(?!\.\d)  # private addresses
    | https?://[\w.-]*\.(?:internal|local|lan|corp|intra)\b  # private hosts
    | \b(?:artifactory|nexus|devpi)[\w.-]*\.\w+/  # private registries
    | --(?:extra-)?index-url|PIP_INDEX_URL""",
    re.VERBOSE,
)


def machine_traces(text: str) -> list[str]:
    return [found[0] for found in MACHINE.finditer(text)]


def test_tracked_files_name_no_machine():
    traces = {}
    for path in tracked_files():
        if path.name == "test_safety.py":
            continue  # holds the patterns themselves
        found = machine_traces(path.read_bytes().decode("utf-8", "ignore"))
        if found:
            traces[str(path.relative_to(ROOT))] = found
    assert traces == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /work/main/x.py",
        "'/root/.cache'",
        "cp /tmp/a b",
        "/home/ann/x",
        "10.0.0.7",
        "http://192.168.1.4:80",
        "https://pypi.corp/simple",
        "pip --index-url x",
    ],
)
def test_planted_traces_are_found(text):
    assert len(machine_traces(text)) == 1


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "~/tmp/x", "a/work/b", "${root}/tmp/x", "numpy 2.10.0.1", "/v1/models", "version 10.2", "/tmp"]
)
def test_harmless_texts_pass(text):
    assert machine_traces(text) == []
