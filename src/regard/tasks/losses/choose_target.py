"""Which target labels have: read off the labels of the training data, or off a saved run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from ...data.json_values import ParsedObject
from ...data.tables.label_types import LabelType, infer_label_type, parse_number, split_labels
from ...errors import BadInput
from ..metrics.classification import sort_labels
from .targets import (
    BinaryTarget,
    ClassTarget,
    InputTarget,
    Label,
    LabelsTarget,
    RegressionTarget,
    Target,
    as_tuple,
    number_table,
)


def infer_target(labels: Sequence[Label]) -> Target:
    """The target of graphs: numbers, binary labels where there are two classes, or one of several classes."""
    rows = [as_tuple(label) for label in labels]
    values = [value for row in rows for value in row if value is not None]
    if values and all(isinstance(value, float) for value in values):
        return RegressionTarget.fit(labels)
    names = sort_labels({str(value) for value in values})
    if len(names) == 2:
        return BinaryTarget(names, len(rows[0]))
    if len(names) < 2 or len(rows[0]) > 1:
        raise BadInput(f"The labels are {names[:5]}; wanted numbers, two classes, or one column of more classes.")
    return ClassTarget(names)


def make_target(
    labels: Sequence[str],
    target: LabelType | Literal["auto"],
    error: Literal["mse", "huber"] = "mse",
    balanced: bool = False,
) -> InputTarget:
    """The target for these labels of training examples; `auto` reads off the labels what they are."""
    target = infer_label_type(labels) if target == "auto" else target
    if target == "number":
        if balanced:
            raise BadInput("class_weights is 'balanced', and the labels are numbers. Leave it out.")
        return RegressionTarget.fit(labels, error)
    if target == "labels":
        made: ClassTarget | LabelsTarget = LabelsTarget(sort_labels({n for text in labels for n in split_labels(text)}))
        least = 1
    else:
        made, least = ClassTarget(sort_labels(set(labels))), 2
    if made.outputs < least:
        noun = "class" if made.outputs == 1 else "classes"
        wanted = "at least two" if least == 2 else "labels"
        raise BadInput(f"There is {made.outputs} {noun} in {len(labels)} examples: {made.labels}. Give {wanted}.")
    if balanced:
        made.balance(labels)
    return made


def target_from_dict(data: ParsedObject) -> Target:
    """The target that `as_dict` wrote."""
    targets = {target.kind: target for target in (ClassTarget, LabelsTarget, BinaryTarget, RegressionTarget)}
    return targets[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})


def input_target_from_dict(data: ParsedObject) -> InputTarget:
    """The target of an input that `as_dict` wrote."""
    target = target_from_dict(data)
    if isinstance(target, BinaryTarget):
        raise BadInput("The target is of graphs, and this task reads other inputs.")
    return target


def stratify_labels(labels: Sequence[str]) -> list[str]:
    """A stratum for each label, so that a split has the same share of each: its class, its rarest label, or its tenth
    of the numbers.

    >>> stratify_labels([str(n / 2) for n in range(30)])[::3]
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']
    """
    label_type = infer_label_type(labels)
    if label_type == "number":
        order = {value: n for n, value in enumerate(sorted(number_table(labels)[:, 0].tolist()))}
        return [str(10 * order[value] // len(labels)) for value in number_table(labels)[:, 0].tolist()]
    if label_type == "class":
        return list(labels)
    counts = Counter(name for label in labels for name in split_labels(label))
    return [min(split_labels(label), key=lambda name: (counts[name], name), default="") for label in labels]


def target_note(target: InputTarget, labels: Sequence[str]) -> str:
    """What the labels were taken for, and how to say otherwise; empty for plain classes."""
    if isinstance(target, RegressionTarget):
        different = len(set(labels))
        return (
            f"The labels are numbers ({different:,} different, mean {target.mean[0]:.4g}, deviation "
            f"{target.std[0]:.4g}): regression. Give target=class for a class each."
        )
    if isinstance(target, LabelsTarget):
        mean = sum(len(split_labels(label)) for label in labels) / max(1, len(labels))
        return (
            f"The labels are sets of {target.outputs} labels, {mean:.2f} an example. Give target=class to take each "
            "set as one class."
        )
    if all(parse_number(label) is not None for label in target.labels) and target.outputs > 2:
        return f"The labels are {target.outputs} classes with numbers for names. Give target=number for regression."
    return ""
