"""The contract of a task: how examples become batches, a loss, scores and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from torch import Tensor, nn

from ..data.json_values import JsonObject, JsonValue, ParsedObject
from ..data.reading import Reading, split
from ..data.tables import ColumnSpec
from ..errors import BadInput, Unsupported
from ..models.generation.rules import TokenRules
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training
from .architecture import Architecture
from .results import Result

if TYPE_CHECKING:
    from ..data.graphs import Graph
    from ..data.images import Picture
    from ..data.sound import Spoken
    from ..models.interfaces import ModelConfig
    from ..models.model import Model
    from .inputs.words.features import WordFeatures
    from .losses.targets import Target
    from .pretrained.embedder import Embedder
    from .pretrained.pretrained import Pretrained

S = TypeVar("S", bound=Settings)
E = TypeVar("E")
T = TypeVar("T")
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """The result of an evaluation: `metrics` by name, the name of the main one, and the prediction of each example."""

    metrics: dict[str, float]
    main: str
    higher: bool = True
    hypotheses: list[str] = field(default_factory=list, repr=False)
    details: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> float:
        """The main metric, negated if lower is better."""
        return self.metrics[self.main] if self.higher else -self.metrics[self.main]

    @property
    def loss(self) -> float:
        """The loss or perplexity, which decides between equal scores; 0 where there is none."""
        return self.metrics.get("loss", self.metrics.get("perplexity", 0.0))

    def with_summary(self, sentence: str) -> Scores:
        """The scores with a sentence more in their summary, which `train` prints at its end."""
        before = self.details.get("summary", [])
        summary = [*(before if isinstance(before, list) else []), sentence]
        return replace(self, details={**self.details, "summary": summary}) if sentence else self


class Task(ABC, Generic[S, E, T]):
    """A task whose settings, labels and vocabulary are known.

    `S` are its settings and `E` its examples, as `read` gives them. `T` is what batches are made of: the examples
    themselves, or what `epoch_examples` cuts them into.

    `read` and `prepare` make a task from files, `as_dict` and `from_dict` save and load it. `batch` takes what is
    random about a batch (cropping, noise) from `rng`, so that a batch is a function of its position in the order.
    `loss` is a sum over the batch's `count` labels: means are taken over whole updates.

    The members below the abstract methods are optional: each has a default that says that the task has no such ability.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Settings]]
    ARCHITECTURE: ClassVar[Architecture] = Architecture()
    TRAINING: ClassVar[Training] = Training()

    settings: S

    @classmethod
    @abstractmethod
    def read(cls, paths: Sequence[Path], settings: S) -> Reading[E]:
        """The examples in these files."""

    @classmethod
    @abstractmethod
    def prepare(cls, examples: Sequence[E], settings: S) -> Task[S, E, T]:
        """The task for these training examples: its labels, vocabulary and statistics come from them."""

    @classmethod
    def suggest_settings(cls, examples: Sequence[E], settings: S) -> dict[str, str | float]:
        """Defaults that suit these training examples, by name: settings of the task, the model or the training."""
        return {}

    @classmethod
    def prepare_from(cls, examples: Sequence[E], settings: S, pretrained: Pretrained) -> Task[S, E, T]:
        """The task for these training examples, whose model starts from a checkpoint and reads inputs as it does."""
        raise Unsupported(f"The task {cls.name!r} trains new models only; it does not start from a checkpoint.")

    @abstractmethod
    def as_dict(self) -> JsonObject:
        """What `from_dict` needs besides settings and tokenizer, as JSON."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: ParsedObject, settings: S, tokenizer: Tokenizer | None = None) -> Task[S, E, T]:
        """The task that `as_dict` wrote."""

    @abstractmethod
    def config(self, a: Architecture) -> ModelConfig:
        """The configuration of the model; its `build()` makes the model."""

    @abstractmethod
    def sizes(self, examples: Sequence[T]) -> list[int]:
        """How many tokens each example counts for in a batch."""

    @abstractmethod
    def batch(self, examples: Sequence[T], rng: Random | None = None) -> Batch:
        """Tensors of a batch, on the CPU; `rng` is None where nothing is to be random."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many labels a batch has."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of a batch's labels."""

    @abstractmethod
    def evaluate(self, model: Model, examples: Sequence[E]) -> Scores:
        """Scores of a model in evaluation mode."""

    def validate(self, model: Model, examples: Sequence[E]) -> Scores:
        """Scores on the validation data, on which a task may also tune something, such as thresholds."""
        return self.evaluate(model, examples)

    def tuned_values(self) -> JsonObject:
        """What `validate` tuned, as JSON; it is saved beside the best model."""
        return {}

    def restore_tuned(self, values: ParsedObject) -> None:
        """Set what `tuned_values` gave, when the run is opened."""

    compares_inputs: ClassVar[bool] = False
    """Whether `predict` compares its inputs with each other, so that it needs all of them at once."""

    columns: Mapping[str, str] = {}
    """The columns of the training tables by their role, which `predict` looks for first."""

    reads_rows: ClassVar[bool] = False
    """Whether an input of `predict` is a whole row of a table, as a dictionary or as JSON text."""

    input_column: str | None = None
    """Column of the inputs of `predict` in a table; None finds it by its name or values."""

    @property
    def row_columns(self) -> Sequence[ColumnSpec]:
        """The columns of texts that an input is made of, which may have any names; none where rows are read whole."""
        return ()

    def sentences_of(self, path: Path) -> Sequence[Sequence[str]] | None:
        """The sentences of words that a file has for `predict`; None where it has texts."""
        return None

    @property
    def input_files(self) -> tuple[str, ...]:
        """Extensions of the files that `predict` takes by their paths; empty where it takes texts."""
        return ()

    @abstractmethod
    def predict(self, model: Model, inputs: Sequence[object]) -> Sequence[Result]:
        """A result for each input: a text, the path of a file, or data in memory as `tasks/inputs/given.py` reads it.

        A task that `compares_inputs` may give another number of results.
        """

    def draw_predictions(self, model: Model, inputs: Sequence[str], out: Path) -> Sequence[Result] | None:
        """Results, with an image of each saved in the folder `out`; None where the task draws no images."""
        return None

    @abstractmethod
    def describe(self, examples: Sequence[E]) -> JsonObject:
        """Facts about examples that `regard check` shows."""

    # Data.

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes or tags."""
        return None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the texts; saved with the model."""
        return None

    @classmethod
    def split(cls, reading: Reading[E], share: float, seed: int) -> tuple[Reading[E], Reading[E]]:
        """(training data, validation data): about that share of the examples is held out at random."""
        return split(reading, share, seed)

    def example_records(self, examples: Sequence[E]) -> list[dict[str, str]]:
        """`input` and `gold` of each prediction that `evaluate` makes, as text; none where the task has no gold."""
        return []

    def unknown_labels(self, examples: Sequence[E]) -> Counter[str]:
        """Labels of these examples that the training data does not have, with their counts."""
        return Counter()

    def training_length(self, examples: Sequence[E]) -> int | None:
        """Tokens of the longest of these inputs, which a model is trained on; None where inputs have no length."""
        return None

    def choices(self, examples: Sequence[E]) -> list[str]:
        """What the task chose by its training data, and what it does not read of it, a sentence each."""
        return []

    # Training.

    def fit(self, a: Architecture, examples: Sequence[E]) -> Model | None:
        """A model that is fitted in closed form, such as n-gram counts; None where the model is trained by steps."""
        return None

    def initialize(self, model: nn.Module) -> None:
        """Give a new model weights that are known before training, such as word vectors."""

    def refit(self, model: nn.Module, examples: Sequence[E]) -> AbstractContextManager[str]:
        """While open, what is fitted in closed form is fitted to all of these examples; gives a sentence that says so.

        For the model that is saved, where the validation data is a part of the training files.
        """
        return nullcontext("")

    cuts_blocks: ClassVar[bool] = False
    """Whether `epoch_examples` cuts a running text into blocks; a last batch that is not full is then left out."""

    def epoch_examples(self, examples: Sequence[E], rng: Random) -> Sequence[T]:
        """The examples of an epoch, or what they are cut into; the same number in every epoch."""
        return cast(Sequence[T], examples)

    @classmethod
    def reads_parts(cls, settings: Any) -> bool:
        """Whether each of several launched processes reads a part of the files of its own."""
        return False

    def share_batches(self, examples: Sequence[E], validation: Sequence[E]) -> bool:
        """Whether the connected processes compute every batch together, each its part, as `batch` then gives it.

        Called once, by all of them. False where each computes batches of its own.
        """
        return False

    @property
    def token_inputs(self) -> tuple[str, ...]:
        """The tensors of a batch that have a column for each token, which processes can share out; none by default.

        With "labels" among them the loss is a sum over tokens.
        """
        return ()

    def pad_for_cuda_graph(self, batch: Batch) -> Batch:
        """The batch padded to one of few shapes, so that few CUDA graphs are captured."""
        return batch

    # Generation.

    @property
    def rules(self) -> TokenRules | None:
        """Start, end and suppressed tokens of the texts that the model writes."""
        return None

    beams: int = 1
    """Beams of the search that writes texts."""

    def embedder(self, model: Model) -> Embedder | None:
        """The vectors of a model that was trained for them; None where they are those of any checkpoint."""
        return None

    def generate(self, model: Model, sources: list[list[int]]) -> Tensor | None:
        """The tokens that the model writes for these source tokens; None where the task has no rule of its own."""
        return None

    # Inputs of single examples, for the lab.

    max_length: int | None = None
    """Tokens of a text that are read."""

    @property
    def word_features(self) -> WordFeatures | None:
        """Features of words, where tokens are words that are read by them."""
        return None

    @property
    def target(self) -> Target | None:
        """What is predicted for a whole input: one class, labels, or numbers; None where it is something else."""
        return None

    threshold: float = 0.5
    """Score that a detected box needs to be listed."""

    frames_per_token: int | None = None
    """Audio frames that are stacked into one token; None where the task reads no audio."""

    reads_frames: bool = False
    """Whether the audio inputs are feature frames instead of recordings."""

    def text_inputs(self, text: str) -> Batch | None:
        """The model's arguments for one text; None where the task reads no texts."""
        return None

    def image_inputs(self, image: Picture) -> Batch | None:
        """The model's arguments for one image; None where the task reads no images."""
        return None

    def audio_inputs(self, spoken: Spoken) -> Batch | None:
        """The model's arguments for one recording; None where the task reads no recordings."""
        return None

    def graph_inputs(self, graph: Graph) -> tuple[Tensor, Tensor] | None:
        """(node features, edges) of one graph; None where the task reads no such graphs."""
        return None

    def molecule_inputs(self, smiles: str) -> tuple[Tensor, Tensor] | None:
        """(node features, edges) of one molecule; None where the task reads no molecules."""
        return None


AnyTask: TypeAlias = Task[Any, Any, Any]
"""A task that was found by its name: the types of its settings and examples are known when the program runs."""


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of a saved run; `BadInput` where its folder has none."""
    if tokenizer is None:
        raise BadInput("The model has no tokenizer, which its task needs. Copy the whole folder of the run again.")
    return tokenizer
