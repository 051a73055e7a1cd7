"""The BABILong task: trained on short samples, asked on longer ones that are streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch

from ablate.errors import UserError
from ablate.experiments.answers import Predictor, answers, join, loss
from ablate.experiments.babilong import scoring
from ablate.experiments.babilong.babi import Sample, load
from ablate.experiments.babilong.stream import Noise, noise_of, pieces, read_last, segments
from ablate.experiments.babilong.words import LABELS, Words
from ablate.experiments.babilong.world import FACTS, draw_sample
from ablate.experiments.prose import load_prose
from ablate.experiments.rows import Tokens, fingerprint, seeded
from ablate.experiments.task import UNSCORED, Batch, at_least, check_limits

QAName: TypeAlias = Literal["qa1", "qa2", "qa3", "qa4", "qa5"]
NOISE_SEEDS = 2**63
TRIES = 1_000
"""Draws in a row that may be too long or scored before a setting is called impossible."""


@dataclass(frozen=True, kw_only=True)
class BABILongTask:
    """Questions about facts in long noise (Kuratov et al. 2024; Atlas Figure 4).

    Args:
        qa: kinds of questions, trained and scored together.
        length: tokens that the model reads in training.
        test_lengths: tokens that it reads when scored; 0 is the facts alone.
        max_facts: most facts of a simulated sample.
        noise_words: tokens that all words outside the world are hashed to.
        prose: ``"pydoc"``, or the path of a text file or folder to take noise from.
        babi: folder with the real bAbI files; empty simulates them.
        band: part of the text that facts may stand in, as two shares.
        test_rows: questions of each kind, the same at each length.
        segment: tokens of a row that are fed at once when scored.
        data_seed: seed of the scored samples, the same in all trials of a study.
        batch: rows of a batch.
        tokens: training budget in tokens.

    Raises:
        UserError: sizes that do not fit together, missing files, or bAbI answers we do not know.
    """

    qa: tuple[QAName, ...] = ("qa1",)
    length: int = 128
    test_lengths: tuple[int, ...] = (0, 128, 256, 512)
    max_facts: int = 10
    noise_words: int = 128
    prose: str = "pydoc"
    babi: str = ""
    band: tuple[float, float] = (0.0, 1.0)
    test_rows: int = 100
    segment: int = 512
    data_seed: int = 0
    batch: int = 32
    tokens: int = 4_096_000

    name: ClassVar[str] = "babilong"

    def __post_init__(self) -> None:
        if not self.qa or len(set(self.qa)) < len(self.qa):
            raise UserError(f"task_args.qa={self.qa}: give each kind of question once.")
        for qa in self.qa:
            least = FACTS[qa][0]
            if not self.babi and self.max_facts < least:
                raise UserError(
                    f"task_args.max_facts={self.max_facts}: {qa} needs {least} facts or more."
                )
        check_limits(
            self, at_least(1, "length", "noise_words", "test_rows", "segment", "batch", "tokens")
        )
        if not self.test_lengths or min(self.test_lengths) < 0:
            raise UserError(f"task_args.test_lengths={self.test_lengths}: lengths of at least 0.")
        if not 0 <= self.band[0] <= self.band[1] <= 1:
            raise UserError(f"task_args.band={self.band}: two shares, the lower one first.")
        load_prose(self.prose)

    @cached_property
    def words(self) -> Words:
        """The tokens of this task."""
        return Words(self.noise_words)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.words.vocab

    @property
    def context(self) -> int:
        """Tokens that the model reads in training."""
        return self.length

    @cached_property
    def _noise(self) -> tuple[Noise, Noise]:
        train, held_out = load_prose(self.prose).split()
        return noise_of(train, self.words), noise_of(held_out, self.words)

    @cached_property
    def _room(self) -> int:
        return min(length for length in (self.length, *self.test_lengths) if length)

    @cached_property
    def _files(self) -> dict[tuple[str, str], list[Sample]]:
        """The real samples that fit, by kind and split."""
        found: dict[tuple[str, str], list[Sample]] = {}
        for qa in self.qa:
            for split in ("train", "test"):
                kept = [sample for sample in load(self.babi, qa, split) if self._fits(sample)]
                strange = {sample.answer for sample in kept} - set(LABELS[qa])
                if strange or not kept:
                    raise UserError(
                        f"task_args.babi={self.babi!r}: {qa} {split} has {len(kept)} samples of at "
                        f"most {self._room} tokens, and answers outside bAbI 1.2: "
                        f"{sorted(strange)}."
                    )
                found[qa, split] = kept
        return found

    def _fits(self, sample: Sample) -> bool:
        text = " ".join((*sample.facts, sample.question))
        return len(self.words.encode(text)) + 1 <= self._room

    def _draw(self, generator: np.random.Generator, qa: str, split: str) -> Sample:
        if self.babi:
            samples = self._files[qa, split]
            return samples[generator.integers(len(samples))]
        for _ in range(TRIES):
            sample = draw_sample(generator, qa, self.max_facts)
            if self._fits(sample):
                return sample
        raise UserError(
            f"No {qa} sample of at most {self._room} tokens in {TRIES} draws: make "
            "task_args.length and test_lengths larger."
        )

    @cached_property
    def test(self) -> list[Sample]:
        """The scored samples: the first of the real file, or different ones from our world."""
        if self.babi:
            return [one for qa in self.qa for one in self._files[qa, "test"][: self.test_rows]]
        found: list[Sample] = []
        for qa, stream in zip(self.qa, seeded(self.data_seed, len(self.qa)), strict=True):
            different: dict[Sample, None] = {}
            for _ in range(TRIES * self.test_rows):
                different.setdefault(self._draw(stream, qa, "test"))
                if len(different) == self.test_rows:
                    break
            found += different
        return found

    def training_samples(self, generator: np.random.Generator) -> Iterator[Sample]:
        """Samples without end; none of them has the facts and question of a scored one."""
        scored = {(sample.facts, sample.question) for sample in self.test}
        skipped = 0
        while True:
            sample = self._draw(generator, self.qa[generator.integers(len(self.qa))], "train")
            if (sample.facts, sample.question) not in scored:
                skipped = 0
                yield sample
            elif (skipped := skipped + 1) == TRIES:
                raise UserError("Every training sample is a scored one: use fewer test_rows.")

    def pieces(self, sample: Sample, *, length: int, seed: int, train: bool) -> Iterator[Tokens]:
        """A sample of `length` tokens, sentence by sentence."""
        noise = self._noise[0 if train else 1]
        return pieces(sample, self.words, noise, length=length, seed=seed, band=self.band)

    def data_identity(self) -> str:
        """Hash of the arguments, the prose, the real files if any, and one sample laid out."""
        (stream,) = seeded(self.data_seed, 1)
        sample = self._draw(stream, self.qa[0], "test")
        probe = self.pieces(sample, length=self.length, seed=self.data_seed, train=True)
        left_out = ("batch", "tokens", "prose", "babi", "segment")
        args = {key: value for key, value in asdict(self).items() if key not in left_out}
        files = repr(sorted(self._files.items())) if self.babi else ""
        digest = load_prose(self.prose).digest
        return fingerprint(args, digest.encode(), files.encode(), np.concatenate(list(probe)))

    def info(self) -> dict[str, float | str]:
        """Where facts and noise are from; chance among the labels, and the commonest answer's."""
        chance = [1 / len(LABELS[sample.qa]) for sample in self.test]
        commonest = Counter((sample.qa, sample.answer) for sample in self.test)
        best = [max(n for (kind, _), n in commonest.items() if kind == qa) for qa in self.qa]
        return {
            "facts": self.babi or "simulated",
            "noise": self.prose,
            "chance_accuracy": sum(chance) / len(chance),
            "majority_accuracy": sum(best) / len(self.test),
        }

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        kinds = [f"accuracy_{qa}" for qa in self.qa] if len(self.qa) > 1 else []
        leaves = ["accuracy", "loss", *kinds]
        lengths = dict.fromkeys(self.test_lengths)
        by_length = [f"val/{leaf}@{length}" for length in lengths for leaf in leaves]
        return ("val/loss", "val/accuracy", *by_length)

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Batches of new samples in new noise; the loss is taken on the answer only."""
        samples = self.training_samples(generator)
        while True:
            inputs = np.empty((self.batch, self.length), dtype=np.int64)
            targets = torch.full((self.batch, self.length), UNSCORED)
            for row in range(self.batch):
                sample = next(samples)
                seed = int(generator.integers(NOISE_SEEDS, dtype=np.uint64))
                parts = self.pieces(sample, length=self.length, seed=seed, train=True)
                inputs[row] = np.concatenate(list(parts))
                (targets[row, -1],) = self.words.encode(sample.answer)
            yield Batch(torch.from_numpy(inputs), targets)

    def score(self, model: Predictor) -> dict[str, float]:
        """Accuracy of the most likely next word, by length and kind, and the loss of the answer."""
        said = {length: self._read(model, length) for length in dict.fromkeys(self.test_lengths)}
        due = torch.tensor([self.words.encode(sample.answer)[0] for sample in self.test])
        rows = torch.arange(len(due))
        judged = {length: answers(logits, due, rows) for length, logits in said.items()}
        metrics = {"val/loss": loss(join(judged.values())), "val/accuracy": 0.0}
        for length, found in judged.items():
            words = [self.words.decode(token) for token in found.predicted.tolist()]
            metrics[f"val/accuracy@{length}"] = scoring.accuracy(words, self.test)
            metrics[f"val/loss@{length}"] = loss(found)
            for qa in self.qa if len(self.qa) > 1 else ():
                metrics[f"val/accuracy_{qa}@{length}"] = self._accuracy_of(qa, words)
        each = [metrics[f"val/accuracy@{length}"] for length in judged]
        return {**metrics, "val/accuracy": sum(each) / len(each)}

    def scored_tokens(self) -> int:
        """Tokens that a model reads each time it is scored; reading ten million takes a while."""
        lengths = dict.fromkeys(self.test_lengths)
        short = (
            sum(map(len, self.pieces(sample, length=0, seed=0, train=False)))
            for sample in (self.test if 0 in lengths else ())
        )
        return sum(short) + sum(lengths) * len(self.test)

    def _accuracy_of(self, qa: str, words: Sequence[str]) -> float:
        pairs = [pair for pair in zip(words, self.test, strict=True) if pair[1].qa == qa]
        return scoring.accuracy([word for word, _ in pairs], [sample for _, sample in pairs])

    def _read(self, model: Predictor, length: int) -> torch.Tensor:
        """Logits after each scored sample, streamed in batches."""
        found = []
        for start in range(0, len(self.test), self.batch):
            streams = [
                segments(
                    self.pieces(sample, length=length, seed=start + row, train=False), self.segment
                )
                for row, sample in enumerate(self.test[start : start + self.batch])
            ]
            found.append(read_last(model, streams))
        return torch.cat(found)


TASK = BABILongTask
