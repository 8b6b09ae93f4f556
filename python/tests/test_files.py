"""safetensors files: all element types, there and back, and damaged files."""

import os

import numpy as np
import pytest

import heddle


def test_there_and_back(tmp_path):
    path = tmp_path / "x.safetensors"
    random = np.random.default_rng(0)
    names = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
             "bool"]
    tensors = {name: random.integers(0, 2, (3, 4)).astype(name) for name in names}
    tensors |= {"strided": np.arange(12.0).reshape(3, 4).T, "scalar": np.array(2.5), "empty": np.zeros((0, 3))}
    narrow = {name: heddle.Tensor.of(random.standard_normal(5)).to(name)
              for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    heddle.save(path, tensors | narrow, {"made by": "test_files.py"})
    file = heddle.load(str(path))
    assert file.metadata == {"made by": "test_files.py"} and not file.skipped
    assert set(file.tensors) == set(tensors) | set(narrow)
    for name, tensor in tensors.items():
        assert file.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(file.tensors[name], tensor)
    for name, tensor in narrow.items():
        assert file.tensors[name].dtype == name
        np.testing.assert_array_equal(file.tensors[name].numpy(), tensor.numpy())


def test_attention_of_a_file(tmp_path):
    x = heddle.Tensor.of(np.random.default_rng(0).standard_normal((1, 2, 9, 16))).to("bfloat16")
    heddle.save(tmp_path / "x", {"q": x, "k": x, "v": x})
    given = heddle.load(tmp_path / "x").tensors
    o = heddle.attention(given["q"], given["k"], given["v"])
    heddle.save(tmp_path / "o", {"o": o})
    assert heddle.check(x, x, x, heddle.load(tmp_path / "o").tensors["o"])


def test_damaged_and_missing_files(tmp_path):
    path = tmp_path / "x"
    heddle.save(path, {"x": np.arange(8.0)})
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:4], whole + b"x", b"\xff" * 16, b""):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match="x"):
            heddle.load(path)
    with pytest.raises(OSError, match="absent"):
        heddle.load(tmp_path / "absent")
    with pytest.raises(OSError, match="none"):
        heddle.save(tmp_path / "none" / "x", {})


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(TypeError, match="tensor 'x' is of type list"):
        heddle.save(tmp_path / "x", {"x": [1, 2]})
    with pytest.raises(TypeError, match="metadata..n.. is 3; text"):
        heddle.save(tmp_path / "x", {}, {"n": 3})
    with pytest.raises(NotImplementedError, match="x has complex"):
        heddle.save(tmp_path / "x", {"x": np.ones(2, np.complex64)})
    assert not (tmp_path / "x").exists()


def test_names_of_files_are_bytes(tmp_path):
    """Names need not be UTF-8. A byte 0 would end a name: the file of the shorter one is neither written nor read."""
    for path in (os.path.join(os.fsencode(tmp_path), b"\xff\xfe"), os.path.join(str(tmp_path), "\udcff")):
        heddle.save(path, {"x": np.ones(2)})
        assert os.path.exists(path) and heddle.load(path).tensors["x"].tolist() == [1, 1]
    with pytest.raises(OSError, match=r"cannot read .*\\xfd: No such file"):
        heddle.load(os.path.join(os.fsencode(tmp_path), b"\xfd"))
    heddle.save(tmp_path / "x", {"x": np.ones(2)})
    for call in (lambda: heddle.load(f"{tmp_path}/x\0y"), lambda: heddle.save(f"{tmp_path}/x\0y", {}),
                 lambda: heddle.use_archive(f"{tmp_path}/x\0y")):
        with pytest.raises(ValueError, match="path has a byte 0 behind '.*/x'"):
            call()
    assert heddle.load(tmp_path / "x").tensors["x"].tolist() == [1, 1]


def test_names_of_tensors_are_text(tmp_path):
    for tensors, metadata, said in (
            ({1: np.ones(2)}, None, "a key of tensors is 1; a str is accepted"),
            ({"\udcff": np.ones(2)}, None, "a key of tensors is '.*'; text of Unicode, without lone surrogates,"),
            ({}, {1: "x"}, "a key of metadata is 1"), ({}, {"x": "\udcff"}, r"metadata\['x'\] is .*; text of Unicode")):
        with pytest.raises(TypeError, match=said):
            heddle.save(tmp_path / "x", tensors, metadata)
    assert not (tmp_path / "x").exists()
