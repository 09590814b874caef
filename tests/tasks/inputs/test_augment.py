"""What training changes about images: by angles that can be checked."""

from random import Random

import torch

from regard.tasks.inputs.augment import rotate_images


class Always(Random):
    """Draws the upper end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_a_quarter_turn_is_rot90() -> None:
    images = torch.rand(2, 3, 6, 6)
    found = rotate_images(images, Always(0), most=90.0, scale=0.0)
    either = [torch.rot90(images, k, (2, 3)) for k in (1, 3)]
    assert any(torch.allclose(found, one, atol=1e-5) for one in either)


def test_a_half_turn_of_an_oblong_is_flipped_both_ways() -> None:
    images = torch.rand(1, 1, 4, 7)
    torch.testing.assert_close(rotate_images(images, Always(0), 180.0, 0.0), images.flip(2, 3), atol=1e-5, rtol=0.0)


def test_no_turn_changes_nothing_and_scale_magnifies() -> None:
    images = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(rotate_images(images, Always(0), 0.0, 0.0), images, atol=1e-6, rtol=0.0)
    square = torch.zeros(1, 1, 20, 20)
    square[..., 5:15, 5:15] = 1.0
    assert float(rotate_images(square, Always(0), 0.0, 0.5).sum()) > 1.5 * float(square.sum())
    assert float(rotate_images(square, Random(3), 30.0).sum()) < 1.4 * float(square.sum())


def test_an_oblong_keeps_its_shape_under_a_turn() -> None:
    """A disc in an image wider than high stays a disc: as many pixels, and as wide as high."""
    rows, columns = torch.meshgrid(torch.arange(21.0), torch.arange(61.0), indexing="ij")
    disc = ((rows - 10) ** 2 + (columns - 30) ** 2 < 49).float()[None, None]
    found = rotate_images(disc, Always(0), 45.0, 0.0)
    assert abs(float(found.sum() - disc.sum())) < 0.03 * float(disc.sum())
    assert (found - disc).abs().mean() < 0.01
