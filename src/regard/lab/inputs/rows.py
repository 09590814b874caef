"""Rows of a table as model inputs: every column is a token."""

from __future__ import annotations

from ...errors import Unsupported
from ...models.model import Output
from ...tasks.tables.table import Tabular
from ..inspect.predictions import PredictionFields, class_prediction
from .model_input import ModelInput, Token


def row_input(task: Tabular, text: str) -> ModelInput:
    """A row as JSON text, `{"column": value, …}`; the tokens are the row itself, then its columns."""
    arguments, names = task.row_inputs(text)
    tokens = [Token(name, n, n + 1, special=n == 0) for n, name in enumerate(names)]
    labels = task.labels

    def read_output(output: Output) -> PredictionFields:
        if output.logits is None:
            raise Unsupported("This model of tables has no head. Train it with `regard train table`.")
        if labels is not None:
            return class_prediction(output.logits[0], labels)
        result = task.target.predictions([text], output.logits.float().cpu())[0]
        return {"type": "text", "text": f"{result.to_dict()['value']}", "items": []}

    return ModelInput(arguments, {"source": tokens}, "source", {"labels": labels}, read_output)
