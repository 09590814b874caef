"""A checkpoint that training starts from: where it is, its model, and the encoder that a task takes from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor, nn

from ...assets import resolve_folder
from ...errors import BadInput, Missing, Unsupported
from ...models.checkpoint.adapter import CONFIG as ADAPTER
from ...models.checkpoint.adapter import load_adapter, merge_lora
from ...models.checkpoint.checkpoint import load
from ...models.checkpoint.files import read_json
from ...models.config import EncoderDecoderConfig, SequenceConfig
from ...models.dual_encoder import DualEncoderConfig, TowerConfig
from ...models.ensemble import EnsembleConfig
from ...models.heads import ClassificationHeadConfig, HeadConfig, PoolerConfig
from ...models.interfaces import EmbeddingConfig, LayersConfig, ModelConfig
from ...models.model import Model
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.block import StackConfig
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.embeddings.waveform import MoonshineEmbeddingConfig, Wav2VecEmbeddingConfig
from ...nn.lora import is_head
from .texts import SubwordTexts

if TYPE_CHECKING:
    from ..architecture import Architecture
    from ..task import AnyTask

Reads = Literal["tokens", "images", "sound"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")
"""Files of a checkpoint on the Hub that are read here; none of them can run code."""

READ_NAMES = {"tokens": "texts", "images": "images", "sound": "recordings"}


@dataclass(frozen=True, eq=False)
class Encoder:
    """`embed → stack` of a checkpoint: its configuration, without a head, and its weights under our names."""

    config: SequenceConfig[Any, Any]
    weights: dict[str, Tensor]

    @property
    def dim(self) -> int:
        return self.config.stack.dim

    @property
    def max_length(self) -> int | None:
        """Tokens that its position embeddings allow; None where any number is allowed."""
        embed = self.config.embed
        return embed.max_positions if isinstance(embed, TextEmbeddingConfig | SoundEmbeddingConfig) else None

    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]:
        """(embedding, stack), with the dropout of the settings."""
        embed, stack = self.config.embed, self.config.stack
        if isinstance(stack, StackConfig):
            stack = replace(stack, dropout=a.dropout, parts=replace(stack.parts, dropout=a.attention_dropout))
        with_dropout = any(field.name == "dropout" for field in fields(embed))
        return (replace(embed, dropout=a.dropout) if with_dropout else embed), stack

    def with_head(self, head: HeadConfig) -> SequenceConfig[Any, Any]:
        """The configuration of the encoder with a new head; its pooler stays only where the head reads it."""
        reads_pooler = isinstance(head, ClassificationHeadConfig) and head.pool == "pooler"
        return replace(self.config, head=head, pooler=self.config.pooler if reads_pooler else None)

    def initialize(self, model: nn.Module) -> None:
        """Copy the weights into a model that was built with this encoder; the head keeps its own."""
        own = dict(model.state_dict())
        for name, weight in self.weights.items():
            if name in own:
                own[name].copy_(weight)
        missing = [name for name in own if name not in self.weights and not is_head(name)]
        if missing:
            raise BadInput(f"The checkpoint has no weights for {', '.join(missing[:5])}. Take another checkpoint.")
        if isinstance(model, Model):
            model.base_family = self.config.family


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model to start from, under the `name` it was given by; `task` is its task where it is a run of ours."""

    name: str
    folder: Path
    model: Model
    task: AnyTask | None = None

    @property
    def inputs(self) -> object | None:
        """What prepared the inputs of the run that the checkpoint is; None where it is none, or has no such part."""
        from ..target_task import TargetTask

        return self.task.inputs if isinstance(self.task, TargetTask) else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; `BadInput` where it has none."""
        if self.model.tokenizer is None and self.task is not None:
            raise BadInput(
                f"{self.name} is a run that reads words of its own list, and has no tokenizer for other tasks. "
                "Start from a checkpoint of Hugging Face, or from a run with unit=wordpiece or bpe."
            )
        if self.model.tokenizer is None:
            raise BadInput(
                f"{self.name} has no tokenizer: there is no tokenizer.json or vocabulary in {self.folder}. Copy the "
                "tokenizer's files of the original checkpoint into the folder."
            )
        return self.model.tokenizer

    def texts(self, max_length: int | None) -> SubwordTexts:
        """Texts as the checkpoint's tokenizer divides them, cut to what it reads and to `max_length` tokens."""
        limits = [limit for limit in (max_length, self.encoder("tokens").max_length) if limit is not None]
        return SubwordTexts(self.tokenizer, min(limits, default=None))

    def initialize(self, model: nn.Module) -> None:
        """Copy all weights into a model that was built with this checkpoint's configuration."""
        model.load_state_dict(self.model.state_dict())
        if isinstance(model, Model):
            model.base_family = self.model.config.family

    def encoder(self, reads: Reads) -> Encoder:
        """The encoder of the checkpoint for texts, images or recordings; `BadInput` where it has none."""
        config, prefix = find_encoder(self.model.config, reads)
        if config is not None and isinstance(config.embed, Wav2VecEmbeddingConfig | MoonshineEmbeddingConfig):
            raise Unsupported(
                f"{self.name} ({describe_model(self.model)}) reads samples, and training on recordings prepares "
                "spectrograms. Start from a Whisper checkpoint or a run, or train the model that rg.load returns."
            )
        if config is None:
            raise BadInput(
                f"{self.name} ({describe_model(self.model)}) does not read {READ_NAMES[reads]}, and this data holds "
                f"{READ_NAMES[reads]}. Start from a checkpoint that reads them."
            )
        state = self.model.state_dict()
        weights = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
        return Encoder(config, {name: x for name, x in weights.items() if not name.startswith(("head.", "decoder"))})


def find_encoder(config: ModelConfig, reads: Reads) -> tuple[SequenceConfig[Any, Any] | None, str]:
    """The encoder for these inputs inside a model's configuration, and the prefix of its weights."""
    if isinstance(config, EnsembleConfig):
        encoder, prefix = find_encoder(config.model, reads)
        return encoder, f"members.0.{prefix}"
    if isinstance(config, DualEncoderConfig):
        tower: TowerConfig[Any, Any] | None = config.image if reads == "images" else config.text
        if tower is None or reads == "sound":
            return None, ""
        return SequenceConfig(tower.embed, tower.stack), "image." if reads == "images" else "text."
    if not isinstance(config, SequenceConfig | EncoderDecoderConfig) or config.embed.reads != reads:
        return None, ""
    pooler: PoolerConfig | None = config.pooler if isinstance(config, SequenceConfig) else None
    return SequenceConfig(config.embed, config.stack, pooler, family=config.family), ""


def describe_model(model: Model) -> str:
    """The family of a model, or the class of its configuration."""
    return model.config.family or type(model.config).__name__.removesuffix("Config")


def resolve_checkpoint(name: str | Path) -> Path:
    """The folder that is meant: a path, a model of the package, or a Hub id (`owner/name`), which is downloaded.

    Nothing is downloaded unless the name is a Hub id and no such folder exists.
    """
    folder = resolve_folder(name)
    if folder.is_dir():
        return folder
    if folder.exists() or not HUB_ID.fullmatch(str(name)):
        raise BadInput(
            f"{name} {'is a file' if folder.exists() else 'does not exist'}. Give the folder of a checkpoint "
            "(config.json and *.safetensors), the folder of a run, the name of a shipped model, or a Hub id owner/name."
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Missing(f"{name} is no folder; to download it from the Hub: pip install huggingface_hub.") from None
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(FILES)))
    except (OSError, ValueError, RuntimeError) as error:  # no network, no such repository, no access
        reason = str(error).strip().split("\n")[0]
        raise BadInput(
            f"{name} is no folder here, and it could not be downloaded from the Hub: {reason:.200} Check the name and "
            "the network, or download it elsewhere and give its folder."
        ) from None


def open_checkpoint(name: str | Path) -> Pretrained:
    """A Hugging Face folder or a folder of `model.save` as something to start from; runs are opened by `train.run`.

    The folder of an adapter is its checkpoint with the adapter added to the weights.
    """
    folder = resolve_checkpoint(name)
    if (folder / ADAPTER).is_file() and not (folder / "config.json").is_file():
        base = str(read_json(folder / ADAPTER).get("base_model_name_or_path", ""))
        if (resolve_checkpoint(base) / ADAPTER).is_file():
            raise BadInput(f"{folder} is an adapter for {base}, which is an adapter too. Name its checkpoint.")
        pretrained = open_checkpoint(base)
        model = merge_lora(load_adapter(pretrained.model, folder))
        return replace(pretrained, name=str(name), model=cast(Model, model))
    refuse_pickles(folder)
    return Pretrained(str(name), folder, load(folder).float())


def refuse_pickles(folder: Path) -> None:
    """Raise `BadInput` for a checkpoint whose weights are only in files that can run code when they are read."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles and not any(folder.rglob("*.safetensors")):
        raise BadInput(
            f"{folder} has its weights only in {pickles[0]}, a pickle, which can run any code when it is read. Get the "
            "checkpoint as safetensors, or convert it where you trust it: "
            "AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER)."
        )
