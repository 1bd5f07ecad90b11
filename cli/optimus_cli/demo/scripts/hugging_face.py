"""Trains a tiny language model with the Trainer of transformers, as its documentation teaches: checkpoints every few
steps, and the newest one is gone on from. It downloads nothing, and knows nothing of Optimus.

    torchrun hugging_face.py --output-dir out
"""

import argparse
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

WORDS, LENGTH = 200, 32


class Sentences(torch.utils.data.Dataset):
    """Each counts on from a word of its own."""

    def __init__(self, n_examples: int) -> None:
        start = torch.randint(0, WORDS, (n_examples, 1), generator=torch.Generator().manual_seed(0))
        self.tokens = (start + torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--steps", type=int, default=2400)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        per_device_train_batch_size=8,
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=50,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        seed=1,
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences(4096))
    found = get_last_checkpoint(options.output_dir) if os.path.isdir(options.output_dir) else None
    trainer.train(resume_from_checkpoint=found)


if __name__ == "__main__":
    main()
