"""Executes the cells of a notebook in this process. `python -m tests.notebooks FILE` writes their outputs into it.

Cells are plain Python. The output is the value of the last expression: text, HTML of a table, or PNG of a figure.
"""

import ast
import base64
import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output


def execute(notebook: NotebookNode) -> dict[str, Any]:
    """Execute all code cells in order and store their outputs in them; return the names that they define."""
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__notebook__"}
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run(cell.source, f"<cell {number}>", names)
        stream = [new_output("stream", name="stdout", text=printed.getvalue())] if printed.getvalue() else []
        shown = [] if value is None else [new_output("execute_result", _bundle(value), execution_count=number)]
        cell.outputs, cell.execution_count = stream + shown, number
    return names


def _run(source: str, where: str, names: dict[str, Any]) -> Any:
    """Execute one cell; return the value of its last statement, None if that is not an expression."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names) if last else None


def _bundle(value: Any) -> dict[str, str]:
    figure = value if hasattr(value, "savefig") else getattr(value, "figure", None)
    if figure is not None:
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=80, metadata={"Software": None})
        return {"text/plain": repr(figure), "image/png": base64.b64encode(png.getvalue()).decode()}
    html = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    return {"text/plain": repr(value)} | html


if __name__ == "__main__":
    path = Path(sys.argv[1])
    content = nbformat.read(path, as_version=4)
    execute(content)
    nbformat.write(content, path)
