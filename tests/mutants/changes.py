"""What is changed in a file of Python or Lua: each statement is deleted, each comparison and `not` is turned round, and
so is the condition of each line that keeps a rule, as a comment before or behind it says. Lines of which a comment says
that they are `only faster` are left out."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.__main__ import ROOT

FASTER = "only faster"  # a comment: everything would be right without the line, and with either branch of its condition
LEFT_OUT = re.compile(rf"{FASTER}|for ever\b")  # or without the line, a server would be busy for ever
RULE = re.compile(r"\brules?: \w+")
LUA = {"==": "~=", "~=": "==", "<=": ">", ">=": "<", " < ": " >= ", " > ": " <= ", "not ": ""}
LUA_CONDITION = re.compile("|".join(map(re.escape, LUA)))
LUA_RULES = [  # what takes the place of a condition or a value in a line that keeps a rule
    ("true", re.compile(r"local \w+ = (.*)|if (.*) then$")),
    ("false", re.compile(r"if (.*) then$")),
]
LUA_STATEMENT = re.compile(  # a whole line, or a block in one; without a local variable, a script fails at once
    r"^((?!local |if |for |while |else|end\b|[{}]).*(?<![{(,]))$"
    r"| (?:then|do|else) (?!if )(.+?)(?= else| end\b)"
)
SIMPLE = (
    ast.Expr
    | ast.Assign
    | ast.AnnAssign
    | ast.AugAssign
    | ast.Delete
    | ast.Return
    | ast.Raise
    | ast.Break
    | ast.Continue
)


@dataclass(frozen=True)
class Change:
    """A file in which a part of the text is replaced. A character is a byte, because ast counts bytes."""

    file: Path
    text: str
    start: int
    end: int
    new: str

    def __str__(self) -> str:
        column = self.start - self.text.rfind("\n", 0, self.start)
        old = " ".join(self.text[self.start : self.end].split())
        return f"{self.file}:{self.line}:{column}: {old} -> {self.new or 'nothing'}"

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.start) + 1

    @property
    def source(self) -> bytes:
        """The changed text. The lines behind keep their numbers."""
        rest, newline, behind = self.text[self.end :].partition("\n")
        lost = newline * (self.text.count("\n", self.start, self.end) - self.new.count("\n"))
        return f"{self.text[: self.start]}{self.new}{rest}{newline}{lost}{behind}".encode("latin-1")


def changes(file: Path) -> Iterator[Change]:
    text = (ROOT / file).read_bytes().decode("latin-1")
    for start, end, new in lua(text) if file.suffix == ".lua" else python(text):
        if not LEFT_OUT.search(text[start:].partition("\n")[0]):
            yield Change(file, text, start, end, new)


def lua(text: str) -> Iterator[tuple[int, int, str]]:
    keeps_rule, start = False, 0
    for line in text.splitlines(keepends=True):
        code, _, comment = line.partition("--")
        keeps_rule = keeps_rule or bool(RULE.search(comment))
        if code := code.strip():
            first = start + line.index(code)
            for new, part in LUA_RULES if keeps_rule else ():
                if found := part.match(code):
                    yield first + found.start(found.lastindex), first + found.end(found.lastindex), new
            for found in LUA_STATEMENT.finditer(code):
                yield first + found.start(found.lastindex), first + found.end(found.lastindex), ""
            for found in LUA_CONDITION.finditer(code):
                yield first + found.start(), first + found.end(), LUA[found[0]]
            keeps_rule = False
        start += len(line)


def python(text: str) -> Iterator[tuple[int, int, str]]:
    lines = text.splitlines(keepends=True)
    commented = [(number, *line.partition("#")) for number, line in enumerate(lines, 1)]
    keep_rules = {number + (not code.strip()) for number, code, _, comment in commented if RULE.search(comment)}

    def span(first: ast.AST, last: ast.AST) -> tuple[int, int]:
        before = sum(map(len, lines[: first.lineno - 1])), sum(map(len, lines[: last.end_lineno - 1]))
        return before[0] + first.col_offset, before[1] + last.end_col_offset

    tree = ast.parse(text.encode("latin-1"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    deleted = {node for function in functions for node in statements(function, lines)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() if RULE.search(ast.get_docstring(node) or ""):
                yield *span(node.body[1], node), "return None"
            case ast.If() | ast.While() if node.lineno in keep_rules:
                yield *span(node.test, node.test), "True"
                yield *span(node.test, node.test), "False"
            case ast.stmt() if node in deleted:
                yield *span(node, node), "pass"
            case ast.Compare():
                start, end = span(node, node)
                yield start, end, f"(not ({text[start:end]}))"
            case ast.UnaryOp(op=ast.Not()):
                yield *span(node, node), f"bool({text[slice(*span(node.operand, node.operand))]})"


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]) -> Iterator[ast.stmt]:
    """Yield the statements of a function that do something. What runs at import is left out, because a fork has
    imported it; the return of a false constant at the end, because None is as false, and mypy sees it; and what stands
    alone under a condition that is only faster."""
    blocks = [function.body, *(handler.body for handler in getattr(function.body[-1], "handlers", ()))]
    left_out = {last for *_, last in blocks if isinstance(last, ast.Return) and is_false(last.value)}
    for node in ast.walk(function):
        match node:
            case ast.If(body=[alone]) if FASTER in lines[node.lineno - 1]:
                left_out.add(alone)
            case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
                pass  # a docstring, a type
            case ast.stmt() if isinstance(node, SIMPLE) and node not in left_out:
                yield node


def is_false(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and not value.value)
