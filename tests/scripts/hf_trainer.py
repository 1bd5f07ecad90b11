"""Fine-tunes a tiny causal language model with the Trainer of transformers, as its documentation teaches: checkpoints
every few steps, and the newest one is gone on from. It knows nothing of Optimus.

    torchrun hf_trainer.py --output-dir out
"""

import argparse
import os
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Sequences(torch.utils.data.Dataset):
    def __init__(self, n_examples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        start = torch.randint(0, 50, (n_examples, 1), generator=generator)
        self.tokens = (start + torch.arange(16)) % 50

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Slow(TrainerCallback):
    def __init__(self, seconds: float, hold: str | None) -> None:
        self.seconds, self.hold = seconds, hold

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.seconds)
        while self.hold and state.global_step > int(Path(self.hold).read_text()):
            Path(self.hold + ".at").write_text(str(state.global_step))
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--epochs", type=float, help="instead of steps")
    parser.add_argument("--batch", type=int, help="examples of one step over all processes; else 8 of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        per_device_train_batch_size=options.batch // int(os.environ.get("WORLD_SIZE", "1")) if options.batch else 8,
        **({"max_steps": options.steps} if options.epochs is None else {"num_train_epochs": options.epochs}),
        logging_steps=5,
        save_steps=10,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        learning_rate=1e-3,
        seed=options.seed + 1,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Sequences(512),
        eval_dataset=Sequences(128),
        callbacks=[Slow(options.step_seconds, options.hold)],
    )
    found = get_last_checkpoint(options.output_dir) if os.path.isdir(options.output_dir) else None
    trainer.train(resume_from_checkpoint=found)
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
