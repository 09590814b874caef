"""The contract of a task: how examples become batches, a loss, scores and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from ..data.reading import Reading, split
from ..models.generation.rules import TokenRules
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training
from .architecture import Architecture

if TYPE_CHECKING:
    from ..data.graphs import Graph
    from ..data.images import Picture
    from ..data.sound import Spoken
    from .inputs.word_features import WordFeatures
    from .losses.targets import Target

S = TypeVar("S", bound=Settings)
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """The result of an evaluation: `metrics` by name, the name of the main one, and the prediction of each example."""

    metrics: dict[str, float]
    main: str
    higher: bool = True
    hypotheses: list[str] = field(default_factory=list, repr=False)
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> float:
        """The main metric, negated if lower is better."""
        return self.metrics[self.main] if self.higher else -self.metrics[self.main]

    @property
    def loss(self) -> float:
        """The loss or perplexity, which decides between equal scores; 0 where there is none."""
        return self.metrics.get("loss", self.metrics.get("perplexity", 0.0))


class Task(ABC, Generic[S]):
    """A task whose settings, labels and vocabulary are known.

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
    def read(cls, paths: Sequence[Path], settings: S) -> Reading[Any]:
        """The examples in these files."""

    @classmethod
    @abstractmethod
    def prepare(cls, examples: Sequence[Any], settings: S) -> Task[S]:
        """The task for these training examples: its labels, vocabulary and statistics come from them."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """What `from_dict` needs besides settings and tokenizer, as JSON."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: dict[str, Any], settings: S, tokenizer: Any = None) -> Task[S]:
        """The task that `as_dict` wrote."""

    @abstractmethod
    def config(self, a: Architecture) -> Any:
        """The configuration of the model; its `build()` makes the model."""

    @abstractmethod
    def sizes(self, examples: Sequence[Any]) -> list[int]:
        """How many tokens each example counts for in a batch."""

    @abstractmethod
    def batch(self, examples: Sequence[Any], rng: Random | None = None) -> Batch:
        """Tensors of a batch, on the CPU; `rng` is None where nothing is to be random."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many labels a batch has."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of a batch's labels."""

    @abstractmethod
    def evaluate(self, model: nn.Module, examples: Sequence[Any]) -> Scores:
        """Scores of a model in evaluation mode."""

    compares_inputs: ClassVar[bool] = False
    """Whether `predict` compares its inputs with each other, so that it needs all of them at once."""

    input_column: str | None = None
    """Column of the inputs of `predict` in a table; None finds it by its name or values."""

    @property
    def input_files(self) -> tuple[str, ...]:
        """Extensions of the files that `predict` takes by their paths; empty where it takes texts."""
        return ()

    @abstractmethod
    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[Any]:
        """Predictions for texts or for the paths of files, as JSON."""

    def draw_predictions(self, model: nn.Module, inputs: Sequence[str], out: Path) -> list[Any] | None:
        """Predictions, with an image of each saved in the folder `out`; None where the task draws no images."""
        return None

    @abstractmethod
    def describe(self, examples: Sequence[Any]) -> dict[str, Any]:
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
    def split(cls, reading: Reading[Any], share: float, seed: int) -> tuple[Reading[Any], Reading[Any]]:
        """(training data, validation data): about that share of the examples is held out at random."""
        return split(reading, share, seed)

    def example_records(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        """`input` and `gold` of each prediction that `evaluate` makes, as text; none where the task has no gold."""
        return []

    def unknown_labels(self, examples: Sequence[Any]) -> Counter[str]:
        """Labels of these examples that the training data does not have, with their counts."""
        return Counter()

    def choices(self, examples: Sequence[Any]) -> list[str]:
        """What the task chose by its training data, and what it does not read of it, a sentence each."""
        return []

    # Training.

    def fit(self, a: Architecture, examples: Sequence[Any]) -> nn.Module | None:
        """A model that is fitted in closed form, such as n-gram counts; None where the model is trained by steps."""
        return None

    def initialize(self, model: nn.Module) -> None:
        """Give a new model weights that are known before training, such as word vectors."""

    cuts_blocks: ClassVar[bool] = False
    """Whether `epoch_examples` cuts a running text into blocks; a last batch that is not full is then left out."""

    def epoch_examples(self, examples: Sequence[Any], rng: Random) -> Sequence[Any]:
        """The examples of an epoch, the same number in every epoch."""
        return examples

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

    def generate(self, model: nn.Module, sources: list[list[int]]) -> Tensor | None:
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
        """What is predicted for a whole graph: one class, several yes-or-no labels, or numbers."""
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
