"""The source of Ramet as syntax trees, and the questions that the architecture tests ask of them.

A rule is a function from modules to findings (``where: what``), so that each can be tried on planted faults as well.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

__all__ = [
    "ROOT",
    "Function",
    "Import",
    "Module",
    "forget",
    "functions",
    "imports",
    "planted",
    "source_modules",
    "tracked_files",
]

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = {".git", ".venv", "build", "dist", "shared", "__pycache__"}


@dataclass(frozen=True)
class Module:
    """``name`` is dotted, ``ramet.kv.pool``; a package's own is its ``__init__``."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def unit(self) -> str:
        """The part of Ramet it belongs to: ``kv`` of ``ramet.kv.pool``; ``ramet`` of ``ramet`` itself."""
        return self.name.split(".")[1] if "." in self.name else self.name


@dataclass(frozen=True)
class Import:
    """``target`` is what is imported, as far as it can be a module: ``a.b.c`` of ``from a.b import c``."""

    target: str
    line: int

    @property
    def top(self) -> str:
        return self.target.split(".")[0]


@dataclass(frozen=True)
class Function:
    """``path`` is dotted from the package on, ``ramet.llm.LLM.__init__``."""

    path: str
    node: ast.FunctionDef | ast.AsyncFunctionDef


@cache
def source_modules() -> list[Module]:
    """Every module under ``src``; read and parsed once, until ``forget``."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found.append(Module(".".join(parts[:-1] if is_package else parts), path.read_text("utf-8"), is_package))
    return found


def planted(text: str, name: str = "ramet.kv.planted") -> list[Module]:
    """One made-up module, to see that a rule finds what it is there for."""
    return [Module(name, text)]


@cache
def imports(module: Module) -> list[Import]:
    """All imports, wherever they stand: in functions, under TYPE_CHECKING, through ``import_module`` with a literal."""
    return list(_imports(module))


def _imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = _base_of(module, source, level)
                yield from (Import(f"{base}.{alias.name}" if base else alias.name, node.lineno) for alias in names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(target)), *_]) if (
                called in ("import_module", "__import__")
            ):
                yield Import(target, node.lineno)


def forget() -> None:
    """The trees take more memory than some of the other tests are allowed, and slow the collector down."""
    source_modules.cache_clear()
    imports.cache_clear()


def _base_of(module: Module, source: str | None, level: int) -> str:
    if level == 0:
        return source or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - level + module.is_package]
    return ".".join([*package, *([source] if source else [])])


def functions(module: Module) -> Iterator[Function]:
    def walk(node: ast.AST, path: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{path}.{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield Function(inner, child)
                yield from walk(child, inner)
            else:
                yield from walk(child, path)

    yield from walk(module.tree, module.name)


def tracked_files() -> list[Path]:
    """What git tracks; without git (an unpacked archive), every file but what is built."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        listed = ""
    if listed:
        return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _SKIPPED & set(path.relative_to(ROOT).parts)]
