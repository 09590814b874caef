"""Whole models on a GPU: one training step beside the same model of transformers or torch."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import regard as rg
from regard import machine
from regard.bench import translation
from regard.bench.measure import WrongNumbers, gpu_peak_memory
from regard.bench.result import BenchmarkResult, BenchmarkRow, format_quantity
from regard.models.model import compile_blocks
from regard.train.cuda_graph import CudaGraphStep

Batch = dict[str, Tensor]
Loss = Callable[..., Tensor]
"""Of a model and a batch."""
StepCall = Callable[[], Tensor]


@dataclass(frozen=True)
class TrainableModel:
    """A model, a batch in its format, and the loss."""

    module: nn.Module
    batch: Batch
    loss: Loss


@dataclass(frozen=True)
class ModelComparison:
    """Our model and the peer's, and the wanted speedup over the better of the peer's eager and compiled steps.

    `compile_blocks`: our blocks are compiled before the step is captured in a CUDA graph. `compile_peer`: the peer is
    also measured compiled. `fixed_inputs` are inputs whose contents are constant within a graph.
    """

    workload: str
    make_models: Callable[..., tuple[TrainableModel, TrainableModel]]
    sizes: dict[str, int]
    small_sizes: dict[str, int]
    goal: float
    peer: str = "transformers"
    compile_blocks: bool = True
    compile_peer: bool = True
    fixed_inputs: tuple[str, ...] = ()


def hidden_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that depends on every output and its position; a mean or a square would be constant after the norm."""
    output = model(**batch)
    hidden = output.hidden if hasattr(output, "hidden") else output.last_hidden_state
    weight = torch.arange(hidden.shape[1] * hidden.shape[2], device=hidden.device).sin().view(hidden.shape[1:])
    return (hidden.float() * weight).sum() / hidden.shape[0] / hidden.shape[1]


def model_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def transformers_models(
    family: str, inputs: Callable[..., tuple[Batch, Batch]], loss: Loss = hidden_loss, **settings: int
):
    """A function that builds our model and the transformers model of a family, without dropout so that both agree."""

    def make(**sizes: int) -> tuple[TrainableModel, TrainableModel]:
        import transformers

        config = getattr(transformers, f"{family}Config")(**settings)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}Model"
        options = {} if family == "GPT2" else {"add_pooling_layer": False}
        theirs = getattr(transformers, name)(config, **options)
        our_batch, their_batch = inputs(**sizes)
        with TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = rg.load(folder)
        return TrainableModel(ours, our_batch, loss), TrainableModel(theirs, their_batch, loss)

    return make


def translator_models(pairs: int, words: int, width: int) -> tuple[TrainableModel, TrainableModel]:
    """A small translator: ours, and one over `torch.nn.Transformer`."""
    ours, theirs = translation.build_translators(words, width)
    batch = translation.make_batch(pairs, words)
    return TrainableModel(ours, batch, translation.regard_loss), TrainableModel(theirs, batch, translation.torch_loss)


def text_batches(
    batch: int, tokens: int, vocabulary: int = 1000, labels: bool = False, global_first: bool = False
) -> tuple[Batch, Batch]:
    """A batch of tokens for ours and for theirs; with `global_first` the first token is global."""
    ids = torch.randint(5, vocabulary, (batch, tokens))
    ours, theirs = {"tokens": ids}, {"input_ids": ids}
    if labels:
        ours, theirs = {**ours, "labels": ids}, {**theirs, "labels": ids}
    if global_first:
        global_tokens = torch.zeros_like(ids, dtype=torch.bool)
        global_tokens[:, 0] = True
        ours = {**ours, "global_tokens": global_tokens}
        theirs = {**theirs, "global_attention_mask": global_tokens.long(), "attention_mask": torch.ones_like(ids)}
    return ours, theirs


def image_batches(batch: int, size: int) -> tuple[Batch, Batch]:
    x = torch.randn(batch, 3, size, size)
    return {"images": x}, {"pixel_values": x}


GRAPHS = ", CUDA graphs"
MODELS = (
    ModelComparison(
        "BERT-base",
        transformers_models("Bert", text_batches),
        {"batch": 32, "tokens": 512},
        {"batch": 2, "tokens": 64},
        1.2,
    ),
    ModelComparison(
        "ViT-B/16",
        transformers_models("ViT", image_batches),
        {"batch": 64, "size": 224},
        {"batch": 2, "size": 224},
        1.2,
    ),
    ModelComparison(
        "GPT-2 small with its loss",
        transformers_models("GPT2", lambda batch, tokens: text_batches(batch, tokens, labels=True), model_loss),
        {"batch": 16, "tokens": 1024},
        {"batch": 2, "tokens": 64},
        1.2,
    ),
    ModelComparison(
        "Longformer-base",
        transformers_models(
            "Longformer",
            lambda batch, tokens: text_batches(batch, tokens, global_first=True),
            max_position_embeddings=16386,
            attention_window=512,
            vocab_size=50265,
        ),
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 1024},
        8.0,
        compile_peer=False,
        fixed_inputs=("global_tokens",),
    ),
    ModelComparison(
        "BigBird-base",
        transformers_models("BigBird", text_batches, max_position_embeddings=16384),
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 2048},
        10.0,
        compile_peer=False,
    ),
    ModelComparison(
        "small translator, 4 + 4 layers",
        translator_models,
        {"pairs": 256, "words": 8000, "width": 128},
        {"pairs": 8, "words": 101, "width": 32},
        2.0,
        peer="nn.Transformer",
        compile_blocks=False,
    ),
)


def run(
    quick: bool = False,
    only: str = "",
    report: Callable[[str], None] = lambda _: None,
    save: Callable[[BenchmarkResult], None] = lambda _: None,
) -> BenchmarkResult:
    """Measure the steps of every model whose name contains `only`; `save` receives the result after each."""
    models = [model for model in MODELS if only.lower() in model.workload.lower()]
    if not models:
        names = "; ".join(model.workload for model in MODELS)
        raise rg.RegardError(f"No model has {only!r} in its name. They are: {names}.")
    rows: list[BenchmarkRow] = []
    notes: list[str] = []
    for model in models:
        report(model.workload)
        try:
            measured, description = compare_steps(model, quick, report)
            rows += measured
            notes.append(f"{model.workload}: {description}")
        except (WrongNumbers, torch.OutOfMemoryError, ImportError, ValueError) as error:
            notes.append(f"{model.workload}: {error}")
            report(notes[-1])
        reset_compiler()
        save(make_result(rows, notes, quick))
    return make_result(rows, notes, quick)


def make_result(rows: list[BenchmarkRow], notes: list[str], quick: bool) -> BenchmarkResult:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult(torch.cuda.get_device_name(), now, 1, quick, machine.versions(), tuple(rows), tuple(notes))


def reset_compiler() -> None:
    """Drop compiled functions and free memory."""
    gc.collect()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def compare_steps(model: ModelComparison, quick: bool, report: Callable[[str], None]) -> tuple[list[BenchmarkRow], str]:
    """Rows of the time and memory of a step beside each of the peer's variants, and a summary of all times.

    The goal is in the row of the better of the peer's eager and compiled steps.
    """
    sizes = model.small_sizes if quick else model.sizes
    torch.manual_seed(0)
    ours, theirs = (to_gpu(side) for side in model.make_models(**sizes))
    check_same_loss(ours, theirs)
    costs: dict[str, tuple[float, float]] = {}
    for name, make in step_variants(model, ours, theirs, quick):
        try:
            costs[name] = measure_step(make())
        except Exception as error:  # out of memory or a failed compilation: the other variants are still measured
            report(f"  {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        finally:
            reset_compiler()
        report(f"  {name}: {costs[name][0] * 1e3:.1f} ms, {costs[name][1] / 1e9:.1f} GB")
    ours_by_name = {name: cost for name, cost in costs.items() if name.startswith("Regard")}
    peers = {name: cost for name, cost in costs.items() if name not in ours_by_name}
    if not ours_by_name or not peers:
        raise WrongNumbers("our model or the peer's could not be run.")
    seconds, peak_bytes = ours_by_name[min(ours_by_name, key=lambda name: ours_by_name[name][0])]
    best = min((name for name in peers if GRAPHS not in name), key=lambda name: peers[name][0])
    shape = " ".join(f"{name[0].upper()}{size}" for name, size in sizes.items())
    workload, goal = f"{model.workload}, a step of training", None if quick else model.goal
    rows = [
        BenchmarkRow(workload, shape, "time", seconds, peer, cost[0], goal if peer == best else None)
        for peer, cost in peers.items()
    ]
    description = "; ".join(f"{name} {format_quantity(cost[0], 'time')}" for name, cost in costs.items())
    return [*rows, BenchmarkRow(workload, shape, "memory", peak_bytes, best, peers[best][1])], description


def to_gpu(side: TrainableModel) -> TrainableModel:
    """The same model and batch on the GPU, in training mode."""
    return TrainableModel(side.module.cuda().train(), {name: x.cuda() for name, x in side.batch.items()}, side.loss)


def step_variants(
    model: ModelComparison, ours: TrainableModel, theirs: TrainableModel, quick: bool
) -> Iterator[tuple[str, Callable[[], StepCall]]]:
    """The variants of a step by name. The last one compiles our model in place."""
    yield "Regard", lambda: eager_step(ours)
    yield model.peer, lambda: eager_step(theirs)
    if model.compile_peer and not quick:
        yield f"{model.peer}, compiled", lambda: eager_step(theirs, mode="default")
        yield f"{model.peer}, compiled{GRAPHS}", lambda: eager_step(theirs, mode="reduce-overhead")
    yield "Regard, CUDA graph", lambda: graphed_step(ours, model.fixed_inputs)
    if model.compile_blocks and model.compile_peer and not quick:
        yield "Regard, compiled, CUDA graph", lambda: graphed_step(ours, model.fixed_inputs, compiled=True)
    if model.compile_blocks and not quick:
        yield (
            "Regard, compiled blocks, CUDA graph",
            lambda: graphed_step(compile_model_blocks(ours), model.fixed_inputs),
        )


def compile_model_blocks(side: TrainableModel) -> TrainableModel:
    compile_blocks(side.module)
    return side


def check_same_loss(ours: TrainableModel, theirs: TrainableModel) -> None:
    """Raise `WrongNumbers` unless both give the same loss."""
    with torch.no_grad():
        a, b = (float(side.loss(side.module, side.batch)) for side in (ours, theirs))
    if not abs(a - b) <= 1e-3 * max(abs(b), 0.05):
        raise WrongNumbers(f"the loss is {a:.6g}, theirs {b:.6g}; the step is not timed.")


def make_update(
    side: TrainableModel, model: Callable[..., object], capturable: bool = False
) -> Callable[[Batch], Tensor]:
    """A function that makes one update for a batch: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(side.module.parameters(), lr=1e-5, fused=True, capturable=capturable)

    def step(batch: Batch) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = side.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def eager_step(side: TrainableModel, mode: str | None = None) -> StepCall:
    """The step in eager mode, or with the model compiled in `mode`."""
    step = make_update(side, side.module if mode is None else torch.compile(side.module, mode=mode))
    return lambda: step(side.batch)


def graphed_step(side: TrainableModel, fixed: tuple[str, ...], compiled: bool = False) -> StepCall:
    """The step captured in a CUDA graph and replayed."""
    model = torch.compile(side.module) if compiled else side.module
    graphed = CudaGraphStep(make_update(side, model, capturable=True), fixed=fixed)
    return lambda: graphed(side.batch)


def measure_step(step: StepCall, warmup: int = 4, count: int = 10) -> tuple[float, float]:
    """Median seconds of a step, and its peak bytes before the graph is captured."""
    for _ in range(2):
        step()
    peak = gpu_peak_memory(step)
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return median(seconds), peak
