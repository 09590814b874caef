"""Kills processes of distributed training at random moments: `torchrun` starts them again, and no bit may be lost.

    python benchmarks/restarts.py --kills 50 --out benchmarks/results/restarts.json

A small tagger is trained on two processes by `torchrun --max-restarts` and `regard train`. In each job a random process
is killed (`kill -9`) several times, each time after some new steps. The job must end by itself, and its weights and the
states of its last checkpoint must be those of a job that nobody disturbed, bit for bit, with no half-written file left.
Jobs alternate between a fixed port and a port that torchrun chooses. A run that was stopped continues where the file of
its results ends.

    python benchmarks/restarts.py --gpus 1 --kills 2 --jobs 1

The same with a process for each GPU, over NCCL, trained through the Python API.

    python benchmarks/restarts.py --elastic --out benchmarks/results/restarts.json

An elastic job (`torchrun --nnodes 1:2`) starts with two nodes, of which one is killed with its launcher; then another
joins. The run must go on with one process, then with two, and end with the weights of one process to rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

WORDS = [("the", "DET"), ("cat", "NOUN"), ("sat", "VERB"), ("on", "ADP"), ("a", "DET"), ("mat", "NOUN")]
SETTINGS = {"dim": 16, "layers": 1, "heads": 2, "batch_tokens": 60, "warmup": 5, "save_every": 7, "evaluate_every": 25}
RANKS = 2
STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set to 1, torchrun makes a store for each start: a node that joins a running job does not find the shared one."""


def write_data(path: Path) -> Path:
    """A CoNLL-U file of sentences that turn the same words about."""
    blocks = []
    for n in range(60):
        words = WORDS[n % 6 :] + WORDS[: n % 6]
        rows = ["\t".join([str(i), w, "_", t, *["_"] * 6]) for i, (w, t) in enumerate(words, 1)]
        blocks.append("\n".join(rows) + "\n\n")
    path.write_text("".join(blocks), "utf8")
    return path


def start_job(data: Path, out: Path, steps: int, kills: int, fixed_port: bool, gpus: int) -> subprocess.Popen[bytes]:
    """Start torchrun with `regard train`, a process for each GPU if there are any."""
    address = f"--master_port={free_port()}" if fixed_port else "--standalone"
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={gpus or RANKS}", address]
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    program = "from regard.cli import main; main()"
    train = ["train", "tag", "--train", str(data), "--out", str(out), "--device", "cpu", "--steps", str(steps)]
    command = [sys.executable, "-c", program, *train, *settings]
    if gpus:
        command = [sys.executable, __file__, "--train", str(data), str(out), str(steps)]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [*launcher, f"--max-restarts={kills}", "--no-python", *command],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "false" if gpus else "true"},
            start_new_session=True,
        )


def train_on_gpu(data: Path, out: Path, steps: int) -> None:
    """Train the tagger in this process, one of those that torchrun has started."""
    import torch.distributed as dist

    from regard.train.run import RunConfig, read_data, train_run

    changes = {**SETTINGS, "device": "cuda", "steps": steps}
    config = RunConfig.from_changes("tag", changes, train=[data])
    examples = read_data(config, lambda faults: None)
    config = config.adapt(examples.train, out)
    task = config.prepare(examples.train)
    train_run(task, config.architecture, config.training, examples, out, config.files)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def worker_processes(job: int) -> list[int]:
    """The processes that torchrun has started and that run."""
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent, state = (folder / "stat").read_text().rpartition(")")[2].split()[1::-1]
        except (OSError, ValueError):
            continue
        if int(parent) == job and state != "Z":
            workers.append(int(folder.name))
    return sorted(workers)


def count_steps(out: Path) -> int:
    """Lines of the log; each step has one, and a restarted run cuts the log back to its checkpoint."""
    try:
        return (out / "log.jsonl").read_bytes().count(b'"kind": "step"')
    except OSError:
        return 0


def run_job(
    data: Path, out: Path, steps: int, kills: int, rng: random.Random, fixed_port: bool, gpus: int
) -> tuple[int, int]:
    """(exit status, kills that were made) of one job."""
    job = start_job(data, out, steps, kills, fixed_port, gpus)
    made, seen = 0, 0
    while job.poll() is None:
        before, wanted = count_steps(out), rng.randint(3, 12)
        while made < kills and job.poll() is None:
            steps_now = count_steps(out)
            if steps_now < before:  # resumed from the checkpoint
                before = steps_now
            if steps_now >= before + wanted and steps_now > seen - SETTINGS["save_every"]:
                break
            time.sleep(0.01)
        if made == kills or job.poll() is not None:
            job.wait()
            break
        time.sleep(rng.uniform(0, 0.1))
        workers = worker_processes(job.pid)
        if len(workers) == (gpus or RANKS):
            seen = count_steps(out)
            os.kill(rng.choice(workers), signal.SIGKILL)
            made += 1
            while set(worker_processes(job.pid)) & set(workers) and job.poll() is None:
                time.sleep(0.02)
    return job.returncode, made


def read_bits(out: Path) -> dict[str, bytes]:
    """Every tensor of the model and of the last checkpoint, as bytes."""
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    bits = {}
    for file in [out / "model" / "model.safetensors", *sorted(last.glob("*.safetensors"))]:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name).contiguous()
                bits[f"{file.parent.name}/{file.name}/{name}"] = tensor.numpy().tobytes()
    return bits


def half_written(out: Path) -> list[str]:
    """Files that a killed process has left and nobody removed."""
    patterns = (".writing-*", ".*.writing", ".*.tmp", ".tmp*")
    return [str(path.relative_to(out)) for pattern in patterns for path in out.rglob(pattern)]


def start_node(data: Path, out: Path, port: int, steps: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the launcher of one node of an elastic job, with one process."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "elastic"]
    waits = "last_call_timeout=15,keep_alive_interval=2,keep_alive_max_attempt=3,join_timeout=300"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", *meeting]
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    program = "from regard.cli import main; main()"
    train = ["train", "tag", "--train", str(data), "--out", str(out), "--device", "cpu", "--steps", str(steps)]
    own = ["--no-python", sys.executable, "-c", program, *train, *settings, "--set", "accumulate=2"]
    own += [
        "--epochs",
        "100000",
        "--set",
        "dropout=0",
        "--set",
        "dim=64",
        "--set",
        "layers=2",
        "--set",
        "save_every=20",
    ]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*launcher, "--rdzv-conf", waits, "--max-restarts=5", *own],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", STORES: "1"},
            start_new_session=True,
        )


def wait_for_steps(out: Path, more: int, *nodes: subprocess.Popen[bytes]) -> None:
    """Wait until all nodes have a process and so many steps were made since, or one has ended."""
    while not all(worker_processes(node.pid) for node in nodes) and all(node.poll() is None for node in nodes):
        time.sleep(0.05)
    least, count = count_steps(out), 0
    while count < least + more and all(node.poll() is None for node in nodes):
        time.sleep(0.05)
        count = count_steps(out)
        least = min(least, count)  # a run that resumes cuts its log back


def run_elastic(folder: Path, data: Path, steps: int) -> dict[str, object]:
    """One elastic job whose second node is killed, and another of which joins."""
    import numpy

    alone = start_node(data, folder / "alone", free_port(), steps, folder / "alone.log")
    alone.wait()
    out, port, started = folder / "elastic", free_port(), time.monotonic()
    first = start_node(data, out, port, steps, folder / "first.log")
    time.sleep(3)  # the first has the store
    second = start_node(data, out, port, steps, folder / "second.log")
    wait_for_steps(out, 20, first, second)
    for process in (second.pid, *worker_processes(second.pid)):  # the launcher first: it would report the other's end
        os.kill(process, signal.SIGKILL)
    second.wait()
    killed = time.monotonic()
    wait_for_steps(out, 10, first)
    resumed = time.monotonic() - killed
    third = start_node(data, out, port, steps, folder / "third.log")
    status = first.wait()
    third.wait()
    expected, found = read_bits(folder / "alone"), read_bits(out)
    weights = [name for name in expected if name.startswith("step-") and "/model.safetensors/" in name]
    pairs = [(numpy.frombuffer(found[n], "f4"), numpy.frombuffer(expected[n], "f4")) for n in weights]
    difference = max(float(abs(a - b).max()) for a, b in pairs if a.size)
    sizes = [(folder / f"{name}.log").read_text(errors="replace").count("Resuming") for name in ("first", "third")]
    return {
        "status": status,
        "seconds until it went on": round(resumed),
        "greatest difference of a weight": difference,
        "resumed": sizes,
        "half_written_files": len(half_written(out)),
        "seconds": round(time.monotonic() - started),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, default=0, help="processes on GPUs; without, two on CPUs")
    parser.add_argument("--elastic", action="store_true", help="a job whose nodes leave and come")
    given = parser.parse_args()
    if given.train:
        data, out, steps = given.train
        train_on_gpu(Path(data), Path(out), int(steps))
        return
    if given.elastic:
        with tempfile.TemporaryDirectory() as folder:
            data = write_data(Path(folder) / "train.conllu")
            elastic = run_elastic(Path(folder), data, given.steps)
            if elastic["status"]:
                print((Path(folder) / "first.log").read_text()[-4000:])
                print((Path(folder) / "third.log").read_text()[-2000:])
        print(json.dumps(elastic, indent=1))
        if given.out is not None:
            result = json.loads(given.out.read_text()) if given.out.is_file() else {}
            given.out.write_text(json.dumps({**result, "elastic": elastic}, indent=1) + "\n")
        sys.exit(bool(elastic["status"]))
    start = time.monotonic()
    gpus, backend = given.gpus, "nccl" if given.gpus else "gloo"
    command = "python benchmarks/restarts.py --kills N" + f" --gpus {gpus}" * bool(gpus)
    result = {"command": command, "ranks": gpus or RANKS, "backend": backend, "jobs": 0}
    result |= {"jobs_resumed": 0, "kills": 0, "same_bits": 0, "half_written_files": 0, "seconds": 0}
    if given.out is not None and given.out.is_file():
        earlier = json.loads(given.out.read_text())
        result |= earlier if earlier["command"] == command else {}
    before = result["seconds"]
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder) / "train.conllu")
        undisturbed = start_job(data, Path(folder) / "undisturbed", given.steps, 0, False, gpus)
        for number in range(result["jobs"], given.jobs):
            rng = random.Random(f"{given.seed} {number}")
            kills = given.kills // given.jobs + (number < given.kills % given.jobs)
            out = Path(folder) / f"job-{number}"
            status, made = run_job(data, out, given.steps, kills, rng, number % 2 == 0, gpus)
            if undisturbed.wait():
                sys.exit((Path(folder) / "undisturbed.log").read_text()[-3000:])
            same = status == 0 and read_bits(out) == read_bits(Path(folder) / "undisturbed")
            result["jobs"] += 1
            result["jobs_resumed"] += status == 0
            result["kills"] += made
            result["same_bits"] += same
            result["half_written_files"] += len(half_written(out))
            result["seconds"] = before + round(time.monotonic() - start)
            print(f"job {number}: {made} kills, status {status}, same bits: {same}", flush=True)
            if status:
                print(out.with_suffix(".log").read_text()[-2000:], flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(result["same_bits"] != result["jobs"])


if __name__ == "__main__":
    main()
