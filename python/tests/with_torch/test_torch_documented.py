"""Every public name of heddle.torch and heddle.hf has a docstring that names its arguments."""

import pytest
from documented import complaints, public_names

NAMES = [one for module in ("heddle.torch", "heddle.torch.serving", "heddle.hf") for one in public_names(module)]


@pytest.mark.parametrize("name, thing", NAMES, ids=[name for name, _ in NAMES])
def test_docstrings_name_all_arguments(name, thing):
    assert not list(complaints(name, thing))


def test_wrappers_of_flashinfer_have_docstrings():  # their arguments are FlashInfer's, whose documentation has them
    assert not [line for name, thing in public_names("heddle.torch.flashinfer") for line in complaints(name, thing)
                if "has no docstring" in line]
