"""Reproducers: a module and the pipeline that failed on it, in one file that can be rerun.

The form is mlir-opt's: the pipeline is a string under ``{-# external_resources: {
mlir_reproducer: ... } #-}``, which ``pyc-opt --run-reproducer`` (and mlir-opt, when no PyC pass
is in it) reads back.
"""

import re
from dataclasses import dataclass

_RESOURCES = re.compile(r"^[ \t]*\{-#.*?#-\}", re.S | re.M)
_PIPELINE = re.compile(r'mlir_reproducer\s*:\s*\{[^{}]*?pipeline\s*:\s*"((?:[^"\\]|\\.)*)"', re.S)
_VERIFY = re.compile(r"mlir_reproducer\s*:\s*\{.*?verify_each\s*:\s*(true|false)", re.S)
_ESCAPE = re.compile(r'\\(n|t|\\|"|[0-9A-Fa-f]{2})')


@dataclass(frozen=True)
class Reproducer:
    """The request of a reproducer: the pipeline's text, and whether to verify between passes."""

    pipeline: str
    verify_each: bool = True


def write_reproducer(module: str, wanted: Reproducer, command: str) -> str:
    """Write a reproducer: `module` unchanged, then the pipeline.

    `command` is the command line that failed, for people.
    """
    verify = "true" if wanted.verify_each else "false"
    return (
        f"{module.rstrip()}\n\n// configuration: {' '.join(command.split())}\n"
        "{-#\n  external_resources: {\n    mlir_reproducer: {\n"
        f'      pipeline: "{_quote(wanted.pipeline)}",\n'
        f"      disable_threading: true,\n      verify_each: {verify}\n"
        "    }\n  }\n#-}\n"
    )


def read_reproducer(text: str) -> Reproducer | None:
    """Read the last reproducer in `text`; None when it holds none."""
    text = "\n".join(_RESOURCES.findall(text))
    pipelines = _PIPELINE.findall(text)
    if not pipelines:
        return None
    verify = _VERIFY.findall(text)
    return Reproducer(_unquote(pipelines[-1]), verify[-1:] != ["false"])


def _quote(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return "".join(escapes.get(c, c) for c in text)


def _unquote(text: str) -> str:
    named = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}

    def plain(match: re.Match[str]) -> str:
        return named.get(match[1]) or chr(int(match[1], 16))

    return _ESCAPE.sub(plain, text)
