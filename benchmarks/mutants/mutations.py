"""The small errors: one changed operator, number, condition, name, argument or statement at a time."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
NAMES = {"min": "max", "minimum": "maximum", "any": "all", "floor": "ceil", "argmin": "argmax", "zeros": "ones"}
NAMES |= {there: here for here, there in NAMES.items()}
UNTOUCHED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)  # messages, and claims of our own


@dataclass(frozen=True)
class Mutant:
    """One error: these bytes of a file replaced by others; `function`: the innermost one around it, or ""."""

    path: str
    start: int
    end: int
    text: str
    function: str
    source: bytes

    @property
    def mutated(self) -> bytes:
        return self.source[: self.start] + self.text.encode() + self.source[self.end :]

    @property
    def line(self) -> int:
        return self.source.count(b"\n", 0, self.start) + 1

    def diff(self) -> str:
        """The changed lines as a unified diff without context."""
        before, after = (text.decode().splitlines() for text in (self.source, self.mutated))
        return "\n".join(
            list(difflib.unified_diff(before, after, self.path, f"line {self.line}", n=0, lineterm=""))[2:]
        )

    @property
    def changed(self) -> str:
        """The changed lines, `-` before and `+` after, without line numbers: the same wherever they move."""
        lines = [line for line in self.diff().splitlines() if line[:1] in "+-"]
        return "\n".join(line[0] + line[1:].strip() for line in lines)

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.path}:{self.function.partition(':')[0]}:{self.changed}".encode()).hexdigest()[:12]


def mutants(root: Path, path: str) -> list[Mutant]:
    """All of a file, each of which compiles."""
    source = (root / path).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
    found: dict[str, Mutant] = {}
    for node, function in nodes(ast.parse(source)):
        for start, end, text in changes(node, source, starts):
            mutant = Mutant(path, start, end, text, function, source)
            if compiles(mutant.mutated):
                found.setdefault(mutant.id, mutant)
    return list(found.values())


def compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def nodes(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node that may be changed, with the key of the function around it."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, UNTOUCHED) or is_for_readers(child):
                continue
            inner = key_of(child) if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            if inner.startswith("__repr__"):
                continue
            yield child, inner
            yield from nodes(child, inner)


def key_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"{function.name}:{function.lineno}"


def is_for_readers(node: ast.AST) -> bool:
    """`if TYPE_CHECKING`, abstract methods, docstrings, and `strict=True`, which is a claim."""
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, ast.FunctionDef):
        return any("abstractmethod" in ast.unparse(d) for d in node.decorator_list)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


Change = tuple[int, int, str]


def changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[Change]:
    """(start, end, text) of every change to this node itself."""

    def span(part: ast.AST) -> tuple[int, int]:
        return (
            starts[part.lineno - 1] + part.col_offset,  # type: ignore[attr-defined]
            starts[part.end_lineno - 1] + part.end_col_offset,  # type: ignore[attr-defined]
        )

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Change]:
        at, end = span(left)[1], span(right)[0]
        if type(operator) in OPERATORS and b"#" not in source[at:end]:
            old, new = OPERATORS[type(operator)]
            place = source[at:end].decode().find(old)
            yield at + place, at + place + len(old), new

    if isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List):
        yield from between(node.left, node.right, node.op)
    elif isinstance(node, ast.BoolOp):
        yield from between(node.values[0], node.values[1], node.op)
    elif isinstance(node, ast.Compare):
        yield from between(node.left, node.comparators[0], node.ops[0])
    elif isinstance(node, ast.UnaryOp):
        yield span(node)[0], span(node.operand)[0], ""
    elif isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes)) and node.value not in (None, ...):
        yield (*span(node), other(node.value))
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        start, end = span(node.test)
        yield start, end, f"(not ({source[start:end].decode()}))"
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield (*span(test), "True")
    elif (
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or isinstance(node, ast.Break)
    ):
        yield (*span(node), "pass")
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
        if ast.unparse(node.value) not in ("list", "dict", "set", "tuple"):
            yield span(node.value)[1], span(node)[1], ""
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield (*span(node), NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        end = span(node)[1]
        yield end - len(node.attr), end, NAMES[node.attr]
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if is_for_readers(keyword):
                continue
            start, end = span(keyword)
            before = source[:start].rstrip()
            yield (before.rfind(b","), end, "") if before.endswith(b",") else (start, end, "")


def other(value: object) -> str:
    """Another number, or the other truth value."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    return repr(2.0 * value + 1.0) if isinstance(value, float) else repr(value)
