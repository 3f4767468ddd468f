"""Claim: on the CPU a six-layer encoder answers in fp32 at least 0.9 times as fast as ONNX Runtime on full rows and 1.2
times on ragged ones, and in bf16 on a processor with AMX 3 times as fast as in fp32 and 1.3 times as ONNX Runtime in
int8.

The model has 6 layers of 384 with 12 heads (feed-forward 1,536), 30,522 entries and random weights; the time is taken
from token ids to the last hidden states. The peer is `transformers`' model of the same weights, exported by
`torch.onnx.export`, in fp32 and with the weights in int8 (dynamic quantization); it has its own process and as many
threads. Ours runs as `unmask predict` and `unmask features` run it: weights laid out once, packed batches by length.

Full rows are 128 tokens long. Ragged ones are 40 long on average and at most 256, in batches of at most 2,048 tokens,
sorted by length on both sides and padded for the peer; every pass has different lengths. The crossover is the smallest
batch of rows of 16 tokens from which on we are as fast as int8, in our faster precision.

The hidden states are compared: with the peer's in fp32 within 1e-4, and ours in bf16 with ours in fp32 by a cosine over
.999 at every token. The exit code is 1 if that fails. The peer needs `pip install onnxruntime onnx onnxscript`.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measure import Row, compare, in_own_process, interleave, machine, num_cores, parser, report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PEER_PACKAGES = ("onnxruntime", "onnx", "onnxscript")
SIZES = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
VOCAB_SIZE = 30522
SEED = 0
FULL_LENGTH, FULL_ROWS = 128, (8, 16, 32, 64)
RAGGED_ROWS, RAGGED_MEAN, RAGGED_LONGEST, BATCH_TOKENS = 1000, 40, 256, 2048
SENTENCE_LENGTH = 12
CROSSOVER_LENGTH, CROSSOVER_ROWS = 16, (1, 2, 4, 8, 16, 32, 64, 128)
LARGEST_DIFFERENCE = 1e-4
"""Between hidden states in fp32, of size 1 after LayerNorm: sums are taken in another order, through six layers."""
SMALLEST_COSINE = 0.999

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Setup:
    """What a side is built from.

    Attributes:
        directory: with our `model/`, and `fp32.onnx` and `int8.onnx`.
        precision: `fp32` or `bf16` for ours, `fp32` or `int8` for the peer.
        threads: of PyTorch, or of ONNX Runtime.
    """

    directory: Path
    precision: str
    threads: int


@dataclass(frozen=True)
class Work:
    """Rows to be computed.

    Attributes:
        batches: for each batch, the lengths of its rows.
        seed: of the token ids.
        wants_states: True answers with the hidden states, False with the seconds.
    """

    batches: tuple[Lengths, ...]
    seed: int = SEED
    wants_states: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(map(sum, self.batches))

    def token_ids(self) -> list[list[NDArray[np.int64]]]:
        """The token ids of each row of each batch."""
        import numpy as np

        chance = np.random.default_rng(self.seed)
        return [[chance.integers(5, VOCAB_SIZE, length) for length in batch] for batch in self.batches]


def full(rows: int, length: int = FULL_LENGTH) -> Work:
    return Work(((length,) * rows,))


def ragged(seed: int) -> Work:
    """Rows of log-normal lengths, the longest first, in batches of at most `BATCH_TOKENS` tokens once padded."""
    import numpy as np

    chance, deviation = np.random.default_rng(seed), 0.8
    mean = np.log(RAGGED_MEAN) - deviation**2 / 2
    drawn = np.clip(np.round(chance.lognormal(mean, deviation, RAGGED_ROWS)), 3, RAGGED_LONGEST).astype(int)
    drawn[0] = RAGGED_LONGEST
    lengths = sorted(drawn.tolist(), reverse=True)
    batches, start = [], 0
    while start < len(lengths):
        batches.append(tuple(lengths[start : start + max(1, BATCH_TOKENS // lengths[start])]))
        start += len(batches[-1])
    return Work(tuple(batches), seed)


# ---- The two sides


def make_models(directory: Path, wants_peer: bool) -> None:
    """Saves the random model in our form and, exported, in the peer's."""
    import torch

    from unmask import save_model
    from unmask.models.bert import BertEncoder
    from unmask.models.settings import ModelSettings

    torch.manual_seed(SEED)
    save_model(directory / "model", BertEncoder(ModelSettings.model_validate(SIZES).resolve(VOCAB_SIZE), pooler=False))
    if wants_peer:
        _export(directory)


def _export(directory: Path) -> None:
    import onnxruntime.quantization as quantization
    import torch
    from transformers import BertModel

    # PyTorch's fused attention would be exported as more operators, with which int8 was a fifth slower.
    model = BertModel.from_pretrained(directory / "model", add_pooling_layer=False, attn_implementation="eager").eval()
    example = torch.full((2, 16), 7)
    inputs = {"input_ids": example, "attention_mask": torch.ones_like(example), "token_type_ids": example * 0}
    sizes = {0: torch.export.Dim("rows", min=1, max=4096), 1: torch.export.Dim("length", min=2, max=512)}
    torch.onnx.export(
        model,
        (),
        directory / "fp32.onnx",
        kwargs=inputs,
        input_names=list(inputs),
        output_names=["hidden"],
        dynamic_shapes=dict.fromkeys(inputs, sizes),
        external_data=False,
        dynamo=True,
        verbose=False,
    )
    quantization.quantize_dynamic(
        directory / "fp32.onnx", directory / "int8.onnx", weight_type=quantization.QuantType.QInt8
    )


def build_ours(setup: Setup) -> Callable[[Work], Any]:
    """Our side: a function that does work and returns the seconds."""
    import torch

    from unmask.batch import Batch, pack
    from unmask.inference.opening import freeze
    from unmask.models.hub.directory import load_encoder
    from unmask.training.device import choose_compute

    torch.set_num_threads(setup.threads)
    loaded = load_encoder(setup.directory / "model").encoder.eval()
    compute = freeze(loaded, choose_compute("cpu", setup.precision))

    @torch.inference_mode()
    def run(batch: Batch) -> torch.Tensor:
        with compute.autocast():
            hidden: torch.Tensor = loaded(batch)
        return hidden.float()

    def work(asked: Work) -> Any:
        batches = [pack([row.tolist() for row in rows]) for rows in asked.token_ids()]
        began = time.perf_counter()
        states = [run(batch) for batch in batches]
        seconds = time.perf_counter() - began
        return torch.cat(states).numpy() if asked.wants_states else seconds

    return work


def build_theirs(setup: Setup) -> Callable[[Work], Any]:
    """The same by ONNX Runtime, on padded rows."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = setup.threads, 1
    session = onnxruntime.InferenceSession(
        str(setup.directory / f"{setup.precision}.onnx"), options, providers=["CPUExecutionProvider"]
    )

    def padded(rows: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
        shape = (len(rows), max(map(len, rows)))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)], mask[number, : len(row)] = row, 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}

    def work(asked: Work) -> Any:
        batches = [padded(rows) for rows in asked.token_ids()]
        began = time.perf_counter()
        states = [session.run(None, batch)[0] for batch in batches]
        seconds = time.perf_counter() - began
        if not asked.wants_states:
            return seconds
        real = [batch["attention_mask"].astype(bool) for batch in batches]
        return np.concatenate([hidden[mask] for hidden, mask in zip(states, real, strict=True)])

    return work


# ---- What is measured

Sides = dict[str, Callable[[Work], Any]]


def time_sides(sides: Sides, works: Sequence[Work], repeats: int) -> dict[str, list[float]]:
    """Seconds of each side, one round per work after the first, which warms up; each is the median of the repeats."""

    def seconds(side: Callable[[Work], Any], work: Work) -> float:
        return median(side(work) for _ in range(repeats))

    for side in sides.values():
        seconds(side, works[0])
    coming = {name: iter(works[1:]) for name in sides}
    measures = {name: (lambda name=name: seconds(sides[name], next(coming[name]))) for name in sides}
    return interleave(measures, len(works) - 1)


def compare_sides(what: str, taken: dict[str, list[float]], targets: dict[str, float]) -> list[Row]:
    """The rows of one measurement: each of our precisions beside each of the peer's, and bf16 beside our fp32.

    Args:
        targets: by `ours/peer`, such as `fp32/onnx fp32`.
    """
    rows = []
    for ours in [name for name in taken if "onnx" not in name]:
        for peer in taken:
            if peer != ours and ("onnx" in peer or (ours, peer) == ("bf16", "fp32")):
                shown = f"onnxruntime {version('onnxruntime')} {peer[5:]}" if "onnx" in peer else "ours, fp32"
                at_least = targets.get(f"{ours}/{peer}")
                rows.append(compare(f"{what}, {ours}", taken[ours], shown, taken[peer], at_least))
        if len(taken) == 1:
            rows.append(Row(f"{what}, {ours}", median(taken[ours]), unit="s"))
    return rows


def find_crossover(sides: Sides, rounds: int) -> Row:
    """The first batch of rows of `CROSSOVER_LENGTH` tokens from which on our faster precision leads."""
    first = None
    for num_rows in CROSSOVER_ROWS:
        work = full(num_rows, CROSSOVER_LENGTH)
        taken = time_sides(sides, [work] * (rounds + 1), repeats=5)
        ours = min(median(taken[name]) for name in taken if "onnx" not in name)
        leads = ours <= median(taken["onnx int8"])
        first = (first or work.num_tokens) if leads else None
    what = f"crossover: tokens a batch, rows of {CROSSOVER_LENGTH}, from which on we lead"
    peer = f"onnxruntime {version('onnxruntime')} int8"
    if first is None:
        return Row(f"{what}: none up to {CROSSOVER_ROWS[-1] * CROSSOVER_LENGTH:,}", None, peer)
    return Row(what, float(first), peer, unit="tokens")


def check_states(sides: Sides) -> list[Row]:
    """Compares the hidden states of all sides on ragged rows."""
    import numpy as np

    asked = ragged(SEED)
    states = {name: side(Work(asked.batches[::6], wants_states=True)) for name, side in sides.items()}
    rows = []
    if "onnx fp32" in states:
        difference = float(np.abs(states["fp32"] - states["onnx fp32"]).max())
        target = f"at most {LARGEST_DIFFERENCE:g}"
        what, peer = "largest difference of hidden states, fp32", f"onnxruntime {version('onnxruntime')} fp32"
        rows.append(Row(what, difference, peer, target=target, met=difference <= LARGEST_DIFFERENCE))
    for name in (name for name in states if name in ("bf16", "onnx int8")):
        one, other = states["fp32"], states[name]
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        cosine = float(((one * other).sum(-1) / norms).min())
        is_ours = name == "bf16"
        target, met = (f"over {SMALLEST_COSINE:g}", cosine > SMALLEST_COSINE) if is_ours else ("", None)
        rows.append(Row(f"smallest cosine of a token's state to our fp32, {name}", cosine, target=target, met=met))
    return rows


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--threads", type=int, default=num_cores(), help="of each side; all cores where left out")
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--no-peer", action="store_true", help="ours alone")
    words.add_argument("--toy", action="store_true", help="one round of the smallest batches, to see that it runs")
    given = words.parse_args()
    missing = [name for name in PEER_PACKAGES if importlib.util.find_spec(name) is None]
    has_peer = not (missing or given.no_peer)
    if missing and not given.no_peer:
        print(f"no peer: pip install {' '.join(PEER_PACKAGES)} ({', '.join(missing)} not found)", file=sys.stderr)
    on = machine(given.threads)
    has_amx = "amx_bf16" in on["instructions"]
    has_bf16 = has_amx or "avx512_bf16" in on["instructions"]
    rounds = 1 if given.toy else given.rounds
    ours = {"fp32": "fp32", **({"bf16": "bf16"} if has_bf16 else {})}
    theirs = {"onnx fp32": "fp32", "onnx int8": "int8"} if has_peer else {}
    bf16_targets = {"bf16/fp32": 3.0, "bf16/onnx int8": 1.3} if has_amx else {}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        directory = Path(folder)
        make_models(directory, has_peer)
        sides: Sides = {
            name: processes.enter_context(in_own_process(build, Setup(directory, precision, given.threads)))
            for build, names in ((build_ours, ours), (build_theirs, theirs))
            for name, precision in names.items()
        }
        checks = check_states(sides)
        for num_rows in FULL_ROWS[:1] if given.toy else FULL_ROWS:
            work = full(num_rows)
            print(f"{num_rows} full rows", file=sys.stderr)
            taken = time_sides(sides, [work] * (rounds + 1), repeats=1)
            rows += compare_sides(f"{work.num_tokens:,} tokens, full", taken, {"fp32/onnx fp32": 0.9, **bf16_targets})
        print("ragged rows", file=sys.stderr)
        taken = time_sides(sides, [ragged(SEED + number) for number in range(rounds + 1)], repeats=1)
        what = f"{RAGGED_ROWS:,} ragged rows"
        rows += compare_sides(what, taken, {"fp32/onnx fp32": 1.2, **bf16_targets})
        print("one sentence", file=sys.stderr)
        taken = time_sides(sides, [full(1, SENTENCE_LENGTH)] * (rounds + 1), repeats=20)
        rows += compare_sides(f"one sentence of {SENTENCE_LENGTH} tokens", taken, {})
        if has_peer and not given.toy:
            print("crossover", file=sys.stderr)
            rows.append(find_crossover({name: sides[name] for name in (*ours, "onnx int8")}, rounds=3))
    notes = [
        f"L=6 H=384 A=12, {VOCAB_SIZE:,} entries, random weights; {rounds} rounds; each side in a process of its own",
        ", ".join(f"{name} {version(name)}" for name in (*PEER_PACKAGES, "transformers") if has_peer),
        "bf16: targets are set for processors with AMX" + ("" if has_amx else ", which this one has not"),
    ]
    report("Inference on the CPU", rows + checks, on, [note for note in notes if note], given.json)
    return 0 if all(row.met for row in checks if row.target) else 1


if __name__ == "__main__":
    sys.exit(main())
