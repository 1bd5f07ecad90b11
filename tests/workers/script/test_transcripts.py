# ruff: noqa: E501 - lines as libraries print them
"""What whole trainings print, in the manner of common libraries and tutorials: steps, ends, losses are what they were.

Each training here has three epochs of fifty steps and prints every tenth; `{i}` is the step, `{b}` the batch in its
epoch, both counted from 0, `{e}` the epoch from 0, `{loss}` the loss. Templates may compute, as format strings of
Python: `{i1}` is `i + 1`, `{b10}` is `b + 10`, `{examples}` are 64 a step.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from optimus_contract.readings.progress import Advance, Progress
from optimus_contract.readings.reading import NOTHING, Announced, Channel, Reading
from optimus_workers.script.channels.printed import Printed

N_EPOCHS, N_STEPS = 3, 50


class Training(NamedTuple):
    """How a training prints, and what is learned of it."""

    line: str
    last: int
    """The step that is known at its end."""
    total: int | None = None
    begins: str = ""
    """Printed before the first step."""
    epoch_begins: str = ""
    epoch_ends: str = ""
    announced: Announced = NOTHING


EPOCHS = Announced(total_epochs=N_EPOCHS)
STEPS = Announced(total_steps=N_EPOCHS * N_STEPS)
TRAININGS = {
    # examples and tutorials of PyTorch
    "imagenet": Training(
        "Epoch: [{e}][{b1:3d}/50]\tTime  0.1 ( 0.2)\tLoss {loss:.4e} (3.0e+00)\tAcc@1   0.00 (  0.00)", 141, 150,
        epoch_ends="Test: [ 1/10]\tTime 0.1\tLoss 9.0e+00 (9.0e+00)\n *   Acc@1 50.0 Acc@5 90.0", announced=EPOCHS),
    "mnist": Training(
        "Train Epoch: {e1} [{examples}/3200 ({percent}%)]\tLoss: {loss:.6f}", 8960, 9600,
        epoch_ends="\nTest set: Average loss: 9.1, Accuracy: 97/100 (97%)\n", announced=EPOCHS),
    "quickstart": Training(
        "loss: {loss:>7f}  [{examples1:>5d}/ 3200]", 9024, 9600, announced=EPOCHS,
        epoch_begins="Epoch {e1}\n-----------", epoch_ends="Test Error: \n Accuracy: 50.0%, Avg loss: 9.1 \n"),
    "dcgan": Training("[{e}/3][{b}/50]\tLoss_D: {loss}\tLoss_G: 4.3\tD(x): 0.5\tD(G(z)): 0.4 / 0.02", 140, 150),
    "reinforce": Training("Episode {i}\tLast reward: {b}.00\tAverage reward: 9.50\tloss {loss}", 140),
    "polynomial": Training("{i} {loss}", 140),
    "multi-GPU": Training("", 100, 150, epoch_begins="[GPU0] Epoch {e} | Batchsize: 32 | Steps: 50", announced=EPOCHS),
    # language models
    "nanoGPT": Training("iter {i}: loss {loss}, time 5.00ms, mfu -100.00%", 140, 150, announced=STEPS,
                        begins="tokens per iteration will be: 491,520\nnumber of parameters: 10.65M"),
    "minGPT": Training("iter_dt 5.00ms; iter {i}: train loss {loss}", 140),
    "build-nanogpt": Training("step {i:5d} | loss: {loss} | lr 1.0e-05 | norm: 15.1 | dt: 100.00ms | tok/sec: 9.0", 140),
    "modded-nanogpt": Training("step:{i1}/150 train_loss:{loss} train_time:9ms step_avg:100.00ms", 141, 150,
                               epoch_ends="step:{i1}/150 val_loss:10.8 train_time:9ms step_avg:nanms"),
    "torchtitan": Training("[titan] 2026-11-24 10:00:00,0 - root - INFO - step: {i}  loss: {loss}  memory: 10.2GiB(20%)", 140),
    "torchtune": Training("{e1}|{i1}|Loss: {loss}:  10%|#     | {b1}/50 [00:10<01:30,  1.0s/it]", 141, 150, announced=EPOCHS),
    "Megatron": Training(" iteration {i10:8d}/     150 | elapsed time per iteration (ms): 100.0 | lm loss: {loss} | "
                         "loss scale: 1.0 | number of skipped iterations:   0 |", 150, 150),
    "fairseq": Training('| INFO | train_inner | {{"epoch": {e1}, "update": 0.{e}, "loss": "{loss}", "num_updates": "{i10}"}}', 150),
    "llama-recipes": Training("Training Epoch: {e1}/3, step {b}/50 completed (loss: {loss}):  10%|#| {b1}/50 [00:10<01:30]", 140, 150),
    # vision and speech
    "timm": Training("Train: {e} [{b:4d}/50 ( 10%)]  Loss: {loss} (3.1)  Time: 0.3s,  100.00/s  LR: 1.0e-05", 140),
    "detectron2": Training("[11/24 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {i}  total_loss: {loss}  loss_cls: 9.5", 140),
    "mmengine": Training("11/24 10:00:00 - mmengine - INFO - Epoch(train)   [{e1}][{b10:3d}/50]  lr: 1e-02  loss: {loss}", 150),
    "DETR": Training("Epoch: [{e}]  [{b:2d}/50]  eta: 0:05:00  loss: {loss} (3.5)  loss_ce: 9.0 (9.1)  time: 0.3", 140,
                     epoch_ends="Averaged stats: lr: 0.000100  loss: 9.0 (9.5)"),
    "diffusers": Training("Steps:  10%|#    | {i1}/150 [00:10<01:30,  1.00it/s, lr=0.0001, step_loss={loss}]", 141, 150),
    "OpenCLIP": Training("2026-11-24,10:00:00 | INFO | Train Epoch: {e} [{examples1:>6}/3200 (2%)] Batch (t): 0.3, 200/s "
                         "Contrastive_loss: {loss} (9.2) Loss: {loss} (9.2)", 9024),
    "YOLO": Training("      {e1}/3      2.05G     {loss}     9.0321        640: 100%|####| {b10}/50 [00:10<00:00,  4.9it/s]", 150, 150,
                     begins="      Epoch    GPU_mem   box_loss   cls_loss       Size"),
    "U-Net": Training("Epoch {e1}/3:  20%|##    | {b10}/50 [00:02<00:08,  4.9img/s, loss (batch)={loss}]", 150, 150),
    # trainers
    "transformers": Training("{{'loss': {loss}, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.{b}}}\r"
                             " 20%|##        | {i10}/150 [00:02<00:08,  4.9it/s]", 150, 150,
                             epoch_ends="{{'eval_loss': 9.2, 'eval_runtime': 1.2, 'epoch': 3.0}}"),
    "transformers 5": Training("{{'loss': '{loss}', 'epoch': '{e1}'}}\r 20%|##        | {i10}/150 [00:02<00:08,  4.9it/s]", 150, 150,
                               begins=" 0%|          | 0/150 [00:00<?, ?it/s]\r 2%|#    | 3/150 [00:01<00:50, 2.9it/s]"),
    "Lightning": Training("Epoch {e}: 20%|##| {b10}/50 [00:00<00:00, 300.00it/s, train_loss_step={loss}, train_loss_epoch=9.3]",
                          150, 150, announced=EPOCHS),
    "Lightning, rich": Training("Epoch {e}/2  ━━━━━━ {b10}/50 0:00:03 • 0:00:00 12.73it/s train_loss_step: {loss}", 150, 150),
    "Lightning, rich, a narrow terminal": Training("Epoch {e}/2  ━━━━━━ {b10}/50 0:00:03 • 0:00:00 12.73it/s train_loss_step: \n 1.5", 150, 150),
    "Lightning, rich, steps": Training("Epoch {e}/-2 ━━━━━━ {b10}/50 0:00:03 • 0:00:00 12.73it/s train_loss_step: {loss}",
                                       150, 150, announced=STEPS),
    "Ignite": Training("Epoch[{e1}] Iteration[{b10}/50] Loss: {loss}", 150),
    "Ignite, all iterations": Training("Epoch[{e1}] Iteration[{i10}/50] Loss: {loss}", 150, 150, announced=EPOCHS,
                                       epoch_ends="Validation Results - Epoch[{e1}] Avg accuracy: 0.50 Avg loss: 9.10"),
    "Keras": Training("\x1b[1m{b10}/50\x1b[0m \x1b[32m━━━━\x1b[0m \x1b[1m1s\x1b[0m 12ms/step - accuracy: 0.1 - loss: {loss}",
                      150, 150, epoch_begins="Epoch {e1}/3"),
    "fastai": Training("", 3, epoch_ends="{e}         {loss}    9.500000    0.500000  00:01     ",
                       begins="epoch     train_loss  valid_loss  accuracy  time    "),
    "CLU": Training("I1124 10:00:00.0 140 logging_writer.py:48] [{i10}] accuracy=0.1, loss={loss}, steps_per_second=10", 150),
    "stable-baselines3": Training("|    total_timesteps      | 2048        |\n|    loss  | {loss}  |\n|    n_updates  | {i10}  |", 150),
    "CSV": Training("", 3, epoch_ends="{e},{loss},9.5,", begins="epoch,train_loss,val_loss,lr"),
    "CSV, two columns": Training("{i},{loss}", 140, begins="step,loss"),
    "spaCy": Training("  {e}  {i:6d}        {loss}     40.5    0.1", 140, begins="E    #       LOSS TOK2VEC  LOSS NER  ENTS_F"),
    # habits
    "nested bars": Training("  20%|##   | {b10}/50 [00:02<00:08,  4.9it/s, loss={loss}]", 150, 150,
                            epoch_begins="Epochs:  {e}%|###       | {e}/3 [00:10<00:20, 10.0s/it]"),
    "nested bars without names": Training("  20%|##   | {b10}/50 [00:02<00:08,  4.9it/s, loss={loss}]", 150, 150,
                                          epoch_begins=" {e}%|###       | {e}/3 [00:10<00:20, 10.0s/it]"),
    "bars with nothing": Training(" 20%|##   | {b10}/50 [00:02<00:08,  4.9it/s]", 150, 150, announced=EPOCHS,
                                  epoch_ends="epoch {e1}: train loss {loss} val loss 9.1"),
    "bars with nothing below headings": Training(" 20%|##   | {b10}/50 [00:02<00:08,  4.9it/s]", 150, 150,
                                                 epoch_begins="Epoch {e1}/3"),
    "bars with nothing, and of evaluations": Training(
        " 20%|##   | {b10}/50 [00:02<00:08,  4.9it/s]", 150, 150, announced=EPOCHS,
        epoch_ends=" 50%|##   | 5/10 [00:02<00:08,  4.9it/s]\r100%|##   | 10/10 [00:02<00:08,  4.9it/s]\nepoch {e1}: loss {loss}"),
    "bar of epochs": Training("", 3, 3, epoch_ends="Epochs:  {e}%|###   | {e1}/3 [00:10<00:20, 10.0s/it, loss={loss}]"),
    "one bar beside epochs": Training("Training ━━━━━━━━━━━━  {i10}/150 0:00:01 loss={loss}", 150, 150,
                                      epoch_ends="epoch {e} done\nTraining ━━━━━━━━━━━━  {i10}/150 0:00:01"),
    "JSON": Training('{{"step": {i1}, "total_steps": 150, "train/loss": {loss}, "lr": 0.001, "step_time_ms": 60}}', 141, 150),
    "JSON in JSON": Training('{{"epoch": {e}, "iteration": {i1}, "loss": {loss}, "val": {{"loss": 9.0}}}}', 141),
    "logging": Training("2026-11-24 10:00:00,1 - INFO - Epoch {e1}/3, Batch {b10}/50, loss={loss} lr=0.1 (256 samples/s)", 150, 150,
                        begins="Namespace(batch_size=64, epochs=3, lr=1.0)\nStarting training for 3 epochs with batch_size=16",
                        epoch_ends="Epoch {e1} finished: avg_loss=9.5 val_loss=9.1 acc=55%"),
    "progress": Training("\rProgress: {i1}/150 loss: {loss}  ", 141, 150),
    "loss first": Training("train loss: {loss} at step {i1}/150", 141, 150),
    "count in brackets": Training("[{i1:06d}] loss {loss} | 12.3k tok/s", 141),
    "told at the start": Training("step {i1} loss {loss}", 141, 150,
                                  begins="***** Running training *****\n  Num Epochs = 3\n  Total optimization steps = 150"),
    "German": Training("Epoche {e1}, Schritt {i1}: Verlust = {loss}", 141),
    "Chinese": Training("第{e1}轮 步 {i1} 损失：{loss}", 141),
    # nothing but epochs
    "epochs": Training("", 3, 3, epoch_ends="Epoch [{e1}/3], Loss: {loss}, Val Loss: 9.1"),
    "epochs from zero": Training("", 3, 3, announced=EPOCHS, epoch_ends="Epoch: {e} | Loss: {loss}, Acc: 50% | Test loss: 9.1"),
    "transfer learning": Training("", 3, 3, epoch_begins="Epoch {e}/2\n----------", announced=EPOCHS,
                                  epoch_ends="train Loss: {loss} Acc: 0.7\nval Loss: 9.2 Acc: 0.9"),
    "Flax": Training("", 3, epoch_ends="epoch: {e1:2d}, train_loss: {loss}, train_accuracy: 92.87, test_loss: 9.0570"),
    "Accelerate": Training("", 3, 3, epoch_ends="epoch {e}: {{'accuracy': 0.68, 'f1': 0.81}}", announced=EPOCHS),
}  # fmt: skip


def loss_at(i: int) -> float:
    return round(3 / (1 + i / 20), 3)


def text(template: str, i: int) -> bytes:
    e, b = divmod(i, N_STEPS)
    values = {"i": i, "i1": i + 1, "i10": i + 10, "b": b, "b1": b + 1, "b10": b + 10, "e": e, "e1": e + 1}
    values |= {"examples": 64 * b, "examples1": 64 * (b + 1), "percent": 2 * b}
    return (template.format(loss=loss_at(i), **values) + "\n").encode()


def bar(name: str, total: int) -> str:
    """A bar from its beginning to its end, as it is drawn over itself."""
    counts = range(0, total + 1, total // 10)
    return "".join(
        f"\r{name}{count * 100 // total:3d}%|##  | {count}/{total} [00:02<00:08, 4.9it/s]" for count in counts
    )


PREPARATIONS = {
    "nothing": "",
    "a bar": bar("", 500),
    "bars": bar("", 500) + bar("", 80),
    "named bars": bar("Loading training images: ", 500)
    + bar("Fitting tokenizer: ", 80)
    + bar("Generating train split: ", 50),
}
"""What is printed before a training, and is none of it."""


@pytest.mark.parametrize("seconds", [0.1, 20.0], ids=["quick", "slow"])
@pytest.mark.parametrize("preparation", PREPARATIONS)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_learned_from_what_it_prints(name: str, preparation: str, seconds: float) -> None:
    training = TRAININGS[name]
    printed, progress, at = Printed(), Progress(0.0, 0, announced=training.announced), 0.0
    losses: list[float] = []

    def prints(template: str, i: int) -> None:
        nonlocal at
        at += seconds
        for reading in printed.feed(text(template, i), at) if template else ():
            losses.extend(each.loss for each in progress.add(reading) if each.loss is not None)

    prints(PREPARATIONS[preparation], 0)
    prints(training.begins, 0)
    for epoch in range(N_EPOCHS):
        prints(training.epoch_begins, epoch * N_STEPS)
        for batch in range(0, N_STEPS, 10):
            prints(training.line, epoch * N_STEPS + batch)
        prints(training.epoch_ends, epoch * N_STEPS + N_STEPS - 10)
    losses.extend(each.loss for each in progress.settle() if each.loss is not None)
    assert progress.step == training.last
    if training.line or seconds > 1:  # else it has ended before epochs were taken for steps
        assert progress.learned.total_steps == training.total
    true = {loss_at(i) for i in range(0, N_EPOCHS * N_STEPS, 10)}
    assert set(losses) <= true, "no loss of an evaluation, no average"
    assert losses or "{loss" not in training.line + training.epoch_ends


def read(lines: list[tuple[float, str]]) -> tuple[Progress, list[Advance]]:
    """What is learned of lines, each printed at its moment."""
    printed, progress, found = Printed(), Progress(0.0, 0), list[Advance]()
    for at, line in lines:
        for reading in printed.feed(f"{line}\r".encode(), at):
            found += progress.add(reading)
    return progress, found


def test_one_bar_with_nothing_is_the_training_if_it_moves_for_20_s_or_nothing_else_comes() -> None:
    lines = [(1.0 * count, f" 20%|##   | {count}/150 [00:02<00:08,  1.0it/s]") for count in range(10, 151, 10)]
    for n_lines, step in [(2, None), (3, 30), (15, 150)]:
        progress, found = read(lines[:n_lines])
        assert progress.step == step
        found += progress.settle()
        assert [(each.step, each.at) for each in found] == [(10 * n, 10.0 * n) for n in range(1, n_lines + 1)]
        assert progress.learned.total_steps == 150


def test_a_preparation_longer_than_20_s_is_given_up_when_losses_come() -> None:
    lines = [(10.0 * count, f" 20%|##   | {count}/20 [00:02<00:08,  0.1it/s]") for count in range(21)]
    progress, found = read([*lines, *((300.0 + step, f"step {step}/90 loss 0.5") for step in range(5, 91, 5))])
    assert (found[-1].step, found[-1].loss, progress.learned.total_steps) == (90, 0.5, 90)


def test_a_bar_with_nothing_is_not_the_training_where_another_channel_tells_steps() -> None:
    progress, found = read([(1.0, bar("", 500))])
    for step in (10, 20):
        found += progress.add(Reading(channel=Channel.TENSORBOARD, at=1.0 + step, step=step, loss=0.5))
    assert [each.step for each in [*found, *progress.settle()]] == [10, 20]


def test_a_bar_with_nothing_is_the_training_where_another_channel_tells_its_epochs() -> None:
    printed, progress, found = Printed(), Progress(0.0, 0), list[Advance]()
    for epoch in (1, 2, 3):
        for reading in printed.feed(bar("", 100).encode(), 10.0 * epoch):
            found += progress.add(reading)
        found += progress.add(Reading(channel=Channel.TENSORBOARD, at=10.0 * epoch + 1, step=epoch, loss=0.5 / epoch))
    assert [each.step for each in found if each.n_steps] == list(range(10, 300, 10))
    assert progress.learned.channel is Channel.PRINTED


def test_a_wrong_announcement_is_forgotten_when_steps_pass_it() -> None:
    printed, progress = Printed(), Progress(0.0, 0, announced=Announced(total_steps=100))
    totals = []
    for step in range(10, 160, 10):
        for reading in printed.feed(f"step {step} loss 1\n".encode(), float(step)):
            progress.add(reading)
        totals.append(progress.learned.total_steps)
    assert totals == [100] * 10 + [None] * 5


@pytest.mark.parametrize(
    "sentence",
    [
        "Warming up for 5 epochs, then cosine",
        "Freezing backbone for 3 epochs",
        "Early stopping if the validation loss does not improve for 4 epochs",
        "Training loss has not improved for 2 epochs",
        "Linear warmup for 5 steps",
    ],
)
@pytest.mark.parametrize("line", ["Epoch {epoch}/20 loss 0.5", "Epoch {epoch}: loss 0.5"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before the training", "in it"])
def test_a_sentence_about_some_epochs_tells_no_end(sentence: str, line: str, is_first: bool) -> None:
    lines = [line.format(epoch=epoch) for epoch in range(1, 9)]
    assert totals([sentence, *lines] if is_first else [*lines[:4], sentence, *lines[4:]], total_epochs=20) == {20}


@pytest.mark.parametrize("sentence", ["Starting training for 20 epochs", "Train the model for 20 epochs"])
def test_a_sentence_about_the_training_tells_its_end(sentence: str) -> None:
    assert totals([sentence, *(f"Epoch {epoch}: loss 0.5" for epoch in range(1, 9))]) == {20}


@pytest.mark.parametrize(("said", "first", "ends"), [(5, 1, 20), (20, 1, 20), (21, 0, 21)])
def test_the_end_in_a_line_of_an_epoch_counts_before_what_was_announced(said: int, first: int, ends: int) -> None:
    """Unless that is one more: `Epoch 0/20` may be the first of 21."""
    lines = [f"Epoch {epoch}/20 loss 0.5" for epoch in range(first, 12)]
    assert totals(lines, total_epochs=said) == {ends}


def totals(lines: list[str], total_epochs: int | None = None) -> set[int | None]:
    """The ends that are told while these lines are printed, one each three seconds."""
    printed, progress = Printed(), Progress(0.0, 0, announced=Announced(total_epochs=total_epochs))
    found = set[int | None]()
    for number, line in enumerate(lines):
        for reading in printed.feed(f"{line}\n".encode(), 3.0 * number):
            if progress.add(reading):
                found.add(progress.learned.total_steps)
    return found
