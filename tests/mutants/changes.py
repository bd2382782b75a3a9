"""What is changed in a file: each line that keeps a rule, as a comment before or behind it says, and each comparison
and `not`, in Python and in Lua, unless a comment says that it is `only faster`."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.__main__ import ROOT

FASTER = "only faster"  # a comment: both branches of a condition are right
RULE = re.compile(r"\brules?: \w+")
LUA = {"==": "~=", "~=": "==", "<=": ">", ">=": "<", " < ": " >= ", " > ": " <= ", "not ": ""}
LUA_CONDITION = re.compile("|".join(map(re.escape, LUA)))
LUA_RULES = [  # what takes the place of a line that keeps a rule, or of its condition or value
    ("true", re.compile(r"local \w+ = (.*)|if (.*) then$")),
    ("false", re.compile(r"if (.*) then$")),
    ("", re.compile(r"((?!local |else|end\b).*(?<! then)(?<! do)(?<![{(,]))$")),
]


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
        if FASTER not in text[start:].partition("\n")[0]:
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

    for node in ast.walk(ast.parse(text.encode("latin-1"))):
        match node:
            case ast.FunctionDef() if RULE.search(ast.get_docstring(node) or ""):
                yield *span(node.body[1], node), "return None"
            case ast.If() | ast.While() if node.lineno in keep_rules:
                yield *span(node.test, node.test), "True"
                yield *span(node.test, node.test), "False"
            case ast.stmt() if node.lineno in keep_rules:
                yield *span(node, node), "pass"
            case ast.Compare():
                start, end = span(node, node)
                yield start, end, f"(not ({text[start:end]}))"
            case ast.UnaryOp(op=ast.Not()):
                yield *span(node, node), f"bool({text[slice(*span(node.operand, node.operand))]})"
