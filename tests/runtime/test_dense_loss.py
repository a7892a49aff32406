import pytest
import torch

from graphweft._errors import IndexRangeError, ShapeError
from graphweft.runtime.dense import cross_entropy

CLASSES = [1, 2, 5, 7, 15, 16, 17, 31, 32, 33, 40, 47, 64, 65, 121, 210]


def reference(logits, y, rows):
    leaf = logits.double().requires_grad_()
    picked, labels = (leaf, y) if rows is None else (leaf[rows], y[rows])
    loss = torch.nn.functional.cross_entropy(picked, labels)
    loss.backward()
    first = torch.from_numpy(picked.detach().numpy().argmax(1))
    return loss.detach(), int((first == labels).sum()), leaf.grad


def check(logits, y, rows):
    loss, correct, grad = cross_entropy(logits, y, rows)
    exact, right, gradient = reference(logits, y, rows)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)
    count = logits.shape[0] if rows is None else rows.shape[0]
    torch.testing.assert_close(grad.double(), gradient, rtol=1e-5, atol=3e-7 / count)
    assert correct == right
    again, same, none = cross_entropy(logits, y, rows, want_grad=False)
    assert none is None and same == correct and torch.equal(again, loss)


@pytest.mark.parametrize("c", CLASSES)
def test_equals_torch_in_float64(c):
    logits, y = 4 * torch.randn(700, c), torch.randint(0, c, (700,))
    check(logits, y, None)
    check(logits[:1], y[:1], None)
    wide = torch.randn(700, c + 3)
    check(wide[:, 1 : c + 1], y, torch.arange(0, 700, 3))


@pytest.mark.parametrize("c", [3, 40, 100])
def test_rows_in_any_order_and_repeated(c):
    logits, y = torch.randn(300, c), torch.full((300,), -1)
    rows = torch.randint(0, 300, (200,))
    y[rows] = torch.randint(0, c, (200,))
    check(logits, y, rows)


def test_ties_count_for_the_first_column_only():
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    assert cross_entropy(logits, torch.tensor([0, 1, 1]))[1] == 2


def test_large_and_infinite_logits_are_stable():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0], [float("-inf"), 0.0, 1.0]])
    y = torch.tensor([0, 1, 2])
    loss, _, grad = cross_entropy(logits, y)
    exact, _, gradient = reference(logits, y, None)
    torch.testing.assert_close(loss.double(), exact)
    torch.testing.assert_close(grad.double(), gradient, rtol=1e-5, atol=1e-7)
    assert cross_entropy(logits, torch.tensor([0, 1, 0]))[0].item() == float("inf")
    logits[0, 1] = float("nan")
    loss, _, grad = cross_entropy(logits, y)
    assert loss.isnan() and bool(grad[0].isnan().all()) and bool(grad[1:].isfinite().all())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_exponential_and_logarithm_are_as_exact_as_float32_allows(scale):
    """With two classes the loss is log(1 + exp(-d)), so one row each shows the error of both functions."""
    d = torch.linspace(0, 1, 4001) * scale
    logits = torch.stack([d, torch.zeros_like(d)], 1)
    y = torch.ones(4001, dtype=torch.int64)
    exact = torch.logaddexp(d.double(), torch.zeros(())).double()
    got = torch.tensor([cross_entropy(logits[i : i + 1], y[:1], None, False)[0].item() for i in range(0, 4001, 40)])
    assert ((got.double() - exact[::40]).abs() <= 3e-7 * exact[::40].clamp(min=1)).all()
    probability = cross_entropy(logits, y)[2][:, 0].double() * 4001
    assert ((probability - torch.sigmoid(d.double())).abs() <= 2.5e-7).all()


def test_same_bits_for_any_number_of_threads():
    logits, y = torch.randn(20000, 47), torch.randint(0, 47, (20000,))
    rows = torch.randperm(20000)[:9000]
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(cross_entropy(logits, y, rows))
    finally:
        torch.set_num_threads(threads)
    (loss, correct, grad), (loss2, correct2, grad2) = results
    assert torch.equal(loss, loss2) and correct == correct2 and torch.equal(grad, grad2)


def test_other_dtypes_have_the_same_meaning():
    logits, y = torch.randn(50, 6, dtype=torch.float64), torch.randint(0, 6, (50,))
    rows = torch.arange(0, 50, 2)
    loss, correct, grad = cross_entropy(logits, y, rows)
    exact, right, gradient = reference(logits, y, rows)
    assert loss.dtype == torch.float64 and correct == right
    torch.testing.assert_close(loss, exact)
    torch.testing.assert_close(grad, gradient)


def test_errors_name_the_position():
    logits, y = torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64)
    y[17] = 3
    with pytest.raises(IndexRangeError, match=r"labels in \[0, 3\), got 3 at position 17"):
        cross_entropy(logits, y)
    y[17] = -1
    with pytest.raises(IndexRangeError, match="got -1 at position 17"):
        cross_entropy(logits, y)
    cross_entropy(logits, y, torch.arange(17))
    with pytest.raises(IndexRangeError, match=r"rows in \[0, 20\), got 20 at position 1"):
        cross_entropy(logits, y, torch.tensor([0, 20]))
    with pytest.raises(ShapeError, match="at least one row"):
        cross_entropy(logits, y, torch.tensor([], dtype=torch.int64))
    with pytest.raises(ShapeError, match="20 int64 labels"):
        cross_entropy(logits, y[:5])
