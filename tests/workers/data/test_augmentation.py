from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optimus_workers.data.augmentation import Crop, Cutout, Flip, augmented
from optimus_workers.data.examples import TensorExamples
from optimus_workers.errors import TaskError


def numbered(n: int, side: int = 6) -> Tensor:
    """Images (n, 2, side, side) in which every pixel is different and none is 0."""
    return torch.arange(1, n * 2 * side * side + 1, dtype=torch.float32).view(n, 2, side, side)


def is_shifted(image: Tensor, original: Tensor, padding: int) -> bool:
    padded = torch.nn.functional.pad(original, (padding,) * 4)
    side = original.shape[1]
    offsets = range(2 * padding + 1)
    return any(
        torch.equal(image, padded[:, top : top + side, left : left + side]) for top in offsets for left in offsets
    )


def test_crops_are_shifted_images() -> None:
    torch.manual_seed(0)
    images = numbered(20)
    cropped = Crop(2)(images)
    assert cropped.shape == images.shape
    assert all(is_shifted(new, old, 2) for new, old in zip(cropped, images, strict=True))
    assert len({tuple((new == 0).flatten().tolist()) for new in cropped}) > 5  # zeros at different edges


def test_about_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    images = numbered(200)
    flipped = Flip()(images)
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert 70 < int(mirrored.sum()) < 130


def test_holes_are_squares_inside_the_image() -> None:
    torch.manual_seed(0)
    images = numbered(50, side=12)
    holes = (Cutout(4)(images) == 0).all(1)  # in both colours at the same place
    rows, columns = holes.any(2).sum(1), holes.any(1).sum(1)
    assert torch.equal(holes.sum((1, 2)), rows * columns)
    assert int(rows.max()) == int(columns.max()) == 4
    assert int(rows.min()) >= 2


def test_copies_are_changed_one_by_one_and_keep_their_labels() -> None:
    images, labels = numbered(5), torch.arange(5)
    data = TensorExamples(lambda: (images, labels))
    collate = augmented(TensorExamples.collate, [Crop(2), Flip()], copies=3)
    torch.manual_seed(7)
    first = collate(data.__getitems__([4, 0]))
    torch.manual_seed(7)
    again = collate(data.__getitems__([4, 0]))
    assert first[1].tolist() == [4, 4, 4, 0, 0, 0]
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0][0], first[0][1])


def test_no_copies_is_a_mistake() -> None:
    with pytest.raises(TaskError, match="copies"):
        augmented(TensorExamples.collate, [], copies=0)
