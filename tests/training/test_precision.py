from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from vhl.config.sections import Engine
from vhl.training.precision import Precision, choose_device

CPU, GPU = torch.device("cpu"), torch.device("cuda")
VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """What a deterministic run writes there goes with the test."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)


@pytest.fixture(params=[True, False], ids=["with bf16", "without bf16"])
def has_bf16(request, monkeypatch):
    """A GPU that has bf16 in hardware, or only as an emulation."""

    def is_supported(including_emulation=True):
        return request.param or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    return request.param


def test_where_nothing_is_set_the_device_decides(has_bf16):
    assert Precision.choose(Engine(), GPU) == Precision(GPU, "bf16" if has_bf16 else "fp32", False)
    assert Precision.choose(Engine(), CPU) == Precision(CPU, "fp32", False)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "tf32"])
def test_what_is_set_is_what_is_used(has_bf16, precision):
    for device in (GPU,) if precision == "tf32" else (CPU, GPU):
        found = Precision.choose(Engine(precision=precision, deterministic=True), device)
        assert found == Precision(device, precision, True)


def test_tf32_is_refused_on_a_cpu(complains):
    with complains("engine.precision = tf32", "CPU", "fp32", "bf16"):
        Precision.choose(Engine(precision="tf32"), CPU)


@pytest.mark.parametrize(
    ("precision", "dtype", "compute"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_types(precision, dtype, compute):
    kind = Precision(CPU, precision)
    assert (kind.dtype, kind.compute_dtype) == (dtype, compute)


@pytest.mark.parametrize(
    ("deterministic", "device", "before", "after"),
    [
        (True, GPU, None, ":4096:8"),
        (True, GPU, ":16:8", ":16:8"),  # the user's own choice
        (False, GPU, None, None),
        (True, CPU, None, None),
    ],
)
def test_workspace_of_cublas(monkeypatch, has_bf16, deterministic, device, before, after):
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    Precision.choose(Engine(deterministic=deterministic), device)
    assert os.environ.get(VARIABLE) == after


@pytest.mark.parametrize("wanted", ["nonsense", "meta", "mps", "cpu:x", "cuda:99"])
def test_devices_that_cannot_be_trained_on_are_refused(complains, wanted):
    with complains(f"device = '{wanted}'", "choose"):
        choose_device(wanted)


@pytest.mark.parametrize(("there", "kind"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_a_gpu_where_there_is_one(monkeypatch, there, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert choose_device("auto").type == kind
    assert choose_device("cpu").type == "cpu"


# --- lower precision in forward passes -----------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_autocast_lowers_layers_in_bf16_alone(precision):
    kind = Precision(CPU, precision)
    layer, x = nn.Linear(64, 8).to(kind.dtype), torch.rand(4, 64, dtype=kind.dtype)
    with torch.no_grad():
        exact = layer(x)
        with kind.autocast():
            found = layer(x)
    assert found.dtype == kind.compute_dtype and layer.weight.dtype == kind.dtype
    if precision == "bf16":
        assert not found.float().equal(exact)  # 8 bits, really
        assert torch.allclose(found.float(), exact, atol=0.02)
    else:
        assert found.equal(exact)


def test_weights_that_change_between_passes_are_cast_anew():
    """Autocast remembers the cast weights otherwise, and a captured step would replay the first ones."""
    layer = nn.Linear(3, 1, bias=False)
    with Precision(CPU, "bf16").autocast():
        outputs = []
        for weight in (1.0, 2.0):
            layer.weight.data.fill_(weight)
            outputs.append(layer(torch.ones(1, 3)).item())
    assert outputs == [3, 6]


# --- PyTorch's switches --------------------------------------------------------------------------------


def switches():
    cudnn = torch.backends.cudnn
    return {
        "products in tf32": torch.backends.cuda.matmul.allow_tf32,
        "convolutions in tf32": cudnn.allow_tf32,
        "benchmark": cudnn.benchmark,
        "deterministic convolutions": cudnn.deterministic,
        "cudnn": cudnn.enabled,
        "strict": torch.are_deterministic_algorithms_enabled(),
        "warns only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "precision of products": torch.get_float32_matmul_precision(),
    }


def check_tf32(precision):
    """By the newer names, which answer whatever else is set."""
    backends = torch.backends
    tf32 = {backends.cuda.matmul.fp32_precision == "tf32", backends.cudnn.conv.fp32_precision == "tf32"}
    assert tf32 == {precision == "tf32"}


@pytest.fixture
def restored():
    """Every switch as it was before the test."""
    before = switches()
    yield
    torch.set_float32_matmul_precision(before["precision of products"])
    torch.backends.cuda.matmul.allow_tf32 = before["products in tf32"]
    torch.backends.cudnn.allow_tf32 = before["convolutions in tf32"]
    torch.use_deterministic_algorithms(before["strict"], warn_only=before["warns only"])
    assert switches() == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16"])
@pytest.mark.parametrize("others", [True, False], ids=["others want tf32", "others want fp32"])
def test_switches_are_set_and_set_back(precision, deterministic, others):
    torch.backends.cuda.matmul.allow_tf32 = others
    before = switches()
    with Precision(GPU, precision, deterministic).active():
        check_tf32(precision)
        assert torch.backends.cudnn.benchmark is not deterministic
        assert torch.backends.cudnn.deterministic is deterministic
        assert torch.are_deterministic_algorithms_enabled() is deterministic
        assert torch.backends.cudnn.enabled
    assert switches() == before


@pytest.mark.usefixtures("restored")
def test_switches_are_set_back_after_an_error():
    before = switches()
    with pytest.raises(KeyboardInterrupt), Precision(GPU, "tf32", True).active():
        raise KeyboardInterrupt
    assert switches() == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("warn_only", [True, False])
def test_who_wants_strictness_or_warnings_keeps_them(warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    before = switches()
    with Precision(GPU, "fp32", False).active():
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    assert switches() == before


@pytest.mark.usefixtures("restored")
def test_a_cpu_needs_no_switch():
    before = switches()
    with Precision(CPU, "bf16", True).active():
        assert switches() == before
    assert switches() == before


@pytest.mark.usefixtures("restored")
def test_the_middle_precision_of_products_is_set_back():
    torch.set_float32_matmul_precision("medium")
    before = switches()
    with Precision(GPU, "fp32", False).active():
        check_tf32("fp32")
    assert switches() == before


@pytest.mark.usefixtures("restored")
def test_who_uses_the_newer_names_for_precision():
    products = torch.backends.cuda.matmul
    products.fp32_precision, before = "tf32", products.fp32_precision
    try:
        with Precision(GPU, "fp32", False).active():
            check_tf32("fp32")
        assert products.fp32_precision == "tf32"
    finally:
        products.fp32_precision = before
