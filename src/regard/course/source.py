"""The Python of a step as text: the values of its controls, then its NumPy, then the same in Regard."""

from __future__ import annotations

import ast
import json
import textwrap

import numpy as np

from ..experiments.experiment import Language
from .controls import MaskGrid, Numbers, Value
from .step import Step

IMPORTS = "import numpy as np\nimport torch\n\nimport regard as rg"
WIDTH = 88


def write_values(step: Step, language: Language) -> str:
    """Assignments of the start values of the controls."""
    return "\n".join(write_assignment(name, value) for name, value in step.read({}, language).items())


def write_assignment(name: str, value: Value) -> str:
    """`name = value`, an array with a row a line where it is long.

    >>> print(write_assignment("keys", np.array([[2.0, 0.6], [1.9, 0.4]])))
    keys = np.array([[2.0, 0.6], [1.9, 0.4]])
    """
    if not isinstance(value, np.ndarray):
        return f"{name} = {json.dumps(value, ensure_ascii=False)}"
    line = f"{name} = np.array({value.tolist()})"
    if len(line) <= WIDTH:
        return line
    if value.ndim > 1:
        return f"{name} = np.array(\n    [\n" + "".join(f"        {row},\n" for row in value.tolist()) + "    ]\n)"
    lines = textwrap.wrap(str(value.tolist())[1:-1], WIDTH - 8)
    return f"{name} = np.array(\n    [\n" + "".join(f"        {line}\n" for line in lines) + "    ]\n)"


def write_numpy(step: Step, language: Language) -> str:
    """The values and the NumPy of a step: a program that stands alone after `IMPORTS`."""
    return "\n\n".join(filter(None, (write_values(step, language), step.numpy_code)))


def write_regard(step: Step) -> str:
    """The same in Regard, after the program of `write_numpy`; it ends with the tensor `output`."""
    arrays = [control.name for control in step.controls if isinstance(control, Numbers | MaskGrid)]
    lines = [f"{name} = torch.from_numpy({name})" for name in arrays]
    return "\n".join([*lines, step.regard_code.rstrip()])


def find_printed(step: Step) -> str:
    """The name that a notebook prints: the answer, or where there is none the last entry that the NumPy assigns."""
    result = step.run()
    if step.answer in result:
        return step.answer
    names = [node.id for node in ast.walk(ast.parse(step.numpy_code)) if isinstance(node, ast.Name)]
    return next(name for name in reversed(names) if name in result)
