"""Requests a second and latency of `regard serve` beside a plain FastAPI server of transformers.

Both serve the same classifier, a BERT of MiniLM's size with random weights, on the CPU with the same number of threads,
and get the same texts from the same number of clients. Labels are compared first: the servers must agree.

    python benchmarks/serve.py --seconds 10 --clients 1 8 32
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WORDS = [f"w{n}" for n in range(2000)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

PLAIN_SERVER = """
import sys
import torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

torch.set_num_threads(int(sys.argv[3]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
app = FastAPI()

class Text(BaseModel):
    input: str

@app.get("/health")
def health():
    return {"status": "ok"}

@app.post("/predict")
def predict(text: Text):
    with torch.no_grad():
        encoded = tokenizer([text.input], truncation=True, max_length=128, return_tensors="pt")
        probabilities = model(**encoded).logits.softmax(-1)[0].tolist()
    names = model.config.id2label
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return {"result": {"label": names[best], "probability": probabilities[best]}}

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error", access_log=False)
"""


def make_checkpoint(folder: Path) -> None:
    """A classifier of MiniLM's size (6 layers, 384 wide) with random weights and a word-piece vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    names = ["a", "b", "c", "d"]
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=1536, max_position_embeddings=512, id2label=dict(enumerate(names)),
        label2id={name: n for n, name in enumerate(names)}, initializer_range=0.2,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def make_texts(count: int = 500) -> list[str]:
    """Texts of 5 to 40 words."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 40))) for _ in range(count)]


def post(connection: http.client.HTTPConnection, text: str) -> dict[str, Any]:
    connection.request("POST", "/predict", json.dumps({"input": text}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {body[:200]!r}")
    return json.loads(body)["result"]


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used so far, its threads included; it hardly depends on other load."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, process: int, texts: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Requests a second, latencies and processor time of a request in milliseconds; clients send one after another."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    stop = time.monotonic() + seconds

    def work(n: int) -> None:
        connection, rng = http.client.HTTPConnection("127.0.0.1", port, timeout=60), random.Random(n)
        while time.monotonic() < stop:
            started = time.perf_counter()
            post(connection, rng.choice(texts))
            latencies[n].append(time.perf_counter() - started)

    started, cpu = time.monotonic(), cpu_seconds(process)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, every = time.monotonic() - started, sorted(x for row in latencies for x in row)
    return {
        "requests_per_second": round(len(every) / elapsed, 2),
        "p50_ms": round(1000 * every[len(every) // 2], 2),
        "p95_ms": round(1000 * every[int(0.95 * len(every))], 2),
        "cpu_ms_per_request": round(1000 * (cpu_seconds(process) - cpu) / len(every), 2),
        "requests": len(every),
    }


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RuntimeError(f"The server on port {port} ended with status {process.returncode}.")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"The server on port {port} does not answer.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "serve.json")
    given = parser.parse_args()
    texts = make_texts()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        make_checkpoint(checkpoint)
        (Path(folder) / "plain.py").write_text(PLAIN_SERVER)
        environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads), "TOKENIZERS_PARALLELISM": "false"}
        ours = [sys.executable, "-m", "regard.cli", "serve", str(checkpoint), "--port", "8731", "--log", "none"]
        plain = [sys.executable, str(Path(folder) / "plain.py"), str(checkpoint), "8732", str(given.threads)]
        servers = {"regard serve": (8731, [*ours, "--device", "cpu"]), "FastAPI + transformers": (8732, plain)}
        processes = {name: subprocess.Popen(line, env=environment) for name, (_, line) in servers.items()}
        try:
            for name, (port, _) in servers.items():
                wait_until_ready(port, processes[name])
            check_agreement([port for port, _ in servers.values()], texts[:50])
            ids = {name: process.pid for name, process in processes.items()}
            rows = compare(servers, ids, texts, given)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(30)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    document = {"command": "python benchmarks/serve.py", "machine": machine, "threads": given.threads,
                "seconds": given.seconds, "rounds": given.rounds, "load_average": os.getloadavg()[0],
                "model": "BERT, 6 layers, dim 384, random weights; texts of 5 to 40 words", "rows": rows}  # fmt: skip
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")


def check_agreement(ports: list[int], texts: list[str]) -> None:
    """Raise where the servers disagree on a label or by more than 1e-3 on a probability."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for port in ports]
    for text in texts:
        first, second = (post(connection, text) for connection in connections)
        if first["label"] != second["label"] or abs(first["probability"] - second["probability"]) > 1e-3:
            raise RuntimeError(f"The servers disagree: {first} and {second} for {text!r}.")


def compare(
    servers: dict[str, Any], ids: dict[str, int], texts: list[str], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """The best of several rounds for each server and number of clients; rounds alternate between the servers."""
    rows = []
    for clients in given.clients:
        best: dict[str, dict[str, float]] = {}
        for _ in range(given.rounds):
            for name, (port, _) in servers.items():
                result = measure(port, ids[name], texts, clients, given.seconds)
                if name not in best or result["requests_per_second"] > best[name]["requests_per_second"]:
                    best[name] = result
        rows.append({"clients": clients, **best})
        for name, result in best.items():
            print(f"{clients:3} clients  {name:24} {result}", flush=True)
    return rows


if __name__ == "__main__":
    main()
