#!/usr/bin/env python3
"""One timed training run of PyLate or sentence-transformers on the CPU, for compare.py.

    PYTHON reference.py prepare MODEL OUTPUT_DIR QUERY_LENGTH DOCUMENT_LENGTH    (PyLate's python)
    PYTHON reference.py pylate|sentence-transformers MODEL_DIR ROWS.tsv BATCH

`prepare` writes the starting point that all sides train: MODEL with a random projection, in
PyLate's layout. A training run goes once over the rows (query, positive, negative) with each
library's own trainer and contrastive loss: fp32, AdamW, clipping at 1, dropout as the model says,
in-batch documents and the negative. It prints one JSON line: the seconds of each step, and the
largest memory the process had.
"""
import json
import os
import resource
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402


class StepTimer(TrainerCallback):
    """Seconds from the end of one step to the end of the next, so that data loading counts."""

    def __init__(self):
        self.ends = []

    def on_train_begin(self, *_args, **_kwargs):
        self.ends.append(time.perf_counter())

    def on_step_end(self, *_args, **_kwargs):
        self.ends.append(time.perf_counter())

    def seconds(self):
        return [end - start for start, end in zip(self.ends, self.ends[1:])]


def arguments(output_dir, batch):
    """Each library's defaults are the same here, but for what disturbs a measurement."""
    return dict(
        output_dir=output_dir,
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        learning_rate=1e-4,
        max_grad_norm=1.0,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def pylate_trainer(model_dir, rows, batch, output_dir):
    from pylate import losses, models, utils
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = models.ColBERT(model_name_or_path=model_dir, device="cpu")
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**arguments(output_dir, batch)),
        train_dataset=rows,
        loss=losses.Contrastive(model=model),
        data_collator=utils.ColBERTCollator(model.tokenize),
    )


def sentence_transformers_trainer(model_dir, rows, batch, output_dir):
    from sentence_transformers import (
        MultiVectorEncoder,
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.multi_vector_encoder.losses import (
        MultiVectorMultipleNegativesRankingLoss,
    )

    model = MultiVectorEncoder(model_dir, device="cpu")
    prompts = {"query": model.prompts["query"]}
    prompts.update({name: model.prompts["document"] for name in ("positive", "negative")})
    return MultiVectorEncoderTrainer(
        model=model,
        args=MultiVectorEncoderTrainingArguments(prompts=prompts, **arguments(output_dir, batch)),
        train_dataset=rows,
        loss=MultiVectorMultipleNegativesRankingLoss(model),
    )


TRAINERS = {"pylate": pylate_trainer, "sentence-transformers": sentence_transformers_trainer}


def train(library, model_dir, rows_file, batch):
    with open(rows_file, encoding="utf-8", newline="\n") as file:
        columns = zip(*(line.rstrip("\n").split("\t") for line in file))
        rows = Dataset.from_dict(dict(zip(("query", "positive", "negative"), map(list, columns))))
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = TRAINERS[library](model_dir, rows, int(batch), output_dir)
        timer = StepTimer()
        trainer.add_callback(timer)
        loss = trainer.train().training_loss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_seconds": timer.seconds(), "peak_memory_bytes": peak, "loss": loss}))


def prepare(model, output_dir, query_length, document_length):
    from pylate import models

    models.ColBERT(
        model_name_or_path=model,
        query_length=int(query_length),
        document_length=int(document_length),
        device="cpu",
    ).save(output_dir)


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] == "prepare":
        prepare(*sys.argv[2:])
    elif len(sys.argv) == 5 and sys.argv[1] in TRAINERS:
        train(*sys.argv[1:])
    else:
        sys.exit(__doc__)
