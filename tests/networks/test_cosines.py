"""Cosines of images, by scipy's DCT."""

import pytest
import torch
from scipy.fft import dctn

from gmmc.base.limits import IMAGE_SIDE
from gmmc.errors import InputError
from gmmc.networks.cosines import Cosines


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 12), (2, 8, 11)])
def test_there_and_back(shape, dtype):
    transform, x = Cosines(shape), torch.rand(5, *shape, dtype=dtype)
    c = transform(x)
    assert c.dtype == dtype
    assert c.numpy() == pytest.approx(dctn(x.numpy(), axes=(1, 2, 3), norm="ortho"), abs=1e-5)
    assert torch.allclose(transform.inverse(c), x, atol=1e-5)


def test_no_file_stores_them():
    assert not Cosines((3, 8, 8)).state_dict()


def test_a_long_side_is_refused():
    with pytest.raises(InputError, match=str(IMAGE_SIDE)):
        Cosines((1, 8, IMAGE_SIDE + 1))
