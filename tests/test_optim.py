import copy

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from graphweft import optim
from graphweft._errors import ConfigError

SIZES = [(3, 5), (17,), (), (130, 33), (0, 4)]

CASES = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 5e-4, "betas": (0.8, 0.99), "eps": 1e-6}),
    ("Adam", {"lr": 0.01, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.003, "weight_decay": 0.2, "maximize": True}),
]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in SIZES]


def set_gradients(params, step):
    """A gradient that depends on the parameter, so that errors would grow, and that is the same for both sides."""
    generator = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = 0.1 * p.detach() + torch.randn(p.shape, generator=generator).to(p.dtype)


def run(optimizer, params, steps, start=0):
    for step in range(start, start + steps):
        set_gradients(params, step)
        if step == 40:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        optimizer.step()


def pair(name, options, dtype=torch.float32):
    mine, theirs = parameters(dtype), parameters(dtype)
    return mine, getattr(optim, name)(mine, **options), theirs, getattr(torch.optim, name)(theirs, **options)


def assert_same(mine, theirs, tolerance=1e-6):
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_equals_torch_after_100_steps(name, options):
    mine, ours, theirs, other = pair(name, options)
    run(ours, mine, 100)
    run(other, theirs, 100)
    assert_same(mine, theirs)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_groups_have_their_own_options(name):
    mine, theirs = parameters(), parameters()
    groups = [{"params": [0, 1], "weight_decay": 5e-4}, {"params": [2, 3, 4], "lr": 0.1, "weight_decay": 0.0}]
    sides = []
    for package, params in ((optim, mine), (torch.optim, theirs)):
        made = [{**group, "params": [params[i] for i in group["params"]]} for group in groups]
        sides.append(getattr(package, name)(made, lr=0.01))
    run(sides[0], mine, 60)
    run(sides[1], theirs, 60)
    assert_same(mine, theirs)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_state_moves_to_torch_and_back(name, options):
    mine, ours, theirs, other = pair(name, options)
    run(ours, mine, 10)
    run(other, theirs, 10)
    assert ours.state_dict().keys() == other.state_dict().keys()
    for group, group2 in zip(ours.state_dict()["param_groups"], other.state_dict()["param_groups"], strict=True):
        assert group.keys() == group2.keys()
    for key, state in other.state_dict()["state"].items():
        assert state.keys() == ours.state_dict()["state"][key].keys()
    saved, saved2 = copy.deepcopy(ours.state_dict()), copy.deepcopy(other.state_dict())
    swapped, swapped2 = getattr(torch.optim, name)(mine, lr=9.0), getattr(optim, name)(theirs, lr=9.0)
    swapped.load_state_dict(saved)
    swapped2.load_state_dict(saved2)
    run(swapped, mine, 40, start=10)
    run(swapped2, theirs, 40, start=10)
    assert_same(mine, theirs)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_resuming_from_state_gives_the_same_bits(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    straight, resumed = parameters(), parameters()
    first = getattr(optim, name)(straight, lr=0.01, **options)
    run(first, straight, 30)
    second = getattr(optim, name)(resumed, lr=0.01, **options)
    run(second, resumed, 12)
    third = getattr(optim, name)(resumed, lr=0.5, **options)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    run(third, resumed, 18, start=12)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_other_dtypes_take_torchs_path_in_the_same_step(name):
    mine, theirs = parameters(), parameters()
    mine[1], theirs[1] = (torch.nn.Parameter(p[1].detach().double()) for p in (mine, theirs))
    ours, other = getattr(optim, name)(mine, lr=0.01), getattr(torch.optim, name)(theirs, lr=0.01)
    run(ours, mine, 50)
    run(other, theirs, 50)
    assert mine[1].dtype == torch.float64
    assert_same(mine, theirs)
    assert torch.equal(mine[1], theirs[1])


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_gradients_and_parameters_in_other_orders(name):
    mine, theirs = (torch.nn.Parameter(torch.arange(12.0).reshape(3, 4)) for _ in range(2))
    turned, turned2 = (torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t()) for _ in range(2))
    ours = getattr(optim, name)([mine, turned], lr=0.1)
    other = getattr(torch.optim, name)([theirs, turned2], lr=0.1)
    for _ in range(5):
        for p in (mine, theirs, turned, turned2):
            p.grad = torch.arange(12.0).reshape(p.shape[::-1]).t()
        ours.step()
        other.step()
    assert_same([mine, turned], [theirs, turned2])


def test_parameters_without_gradient_stay_and_get_no_state():
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = optim.Adam([used, unused], lr=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(unused.detach(), torch.ones(2)) and unused not in optimizer.state
    assert optimizer.state[used]["step"].item() == 1.0


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_step_after_gradients_were_dropped_changes_nothing(name):
    mine, ours, theirs, other = pair(name, {"lr": 0.1})
    for params, optimizer in ((mine, ours), (theirs, other)):
        for step in range(2):
            set_gradients(params, step)
            optimizer.step()
        optimizer.zero_grad()
        noise = [torch.full(size, 1e9) for size in SIZES for _ in range(8)]  # takes the memory that gradients had
        optimizer.step()
        set_gradients(params[1:], 2)
        optimizer.step()
        del noise
    assert_same(mine, theirs)
    assert [int(ours.state[p]["step"]) for p in mine if "step" in ours.state[p]] == (
        [] if name == "SGD" else [2, *[3] * 4]
    )


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_numbers_of_a_gradient_may_move(name):
    mine, ours, theirs, other = pair(name, {"lr": 0.1})
    for params, optimizer in ((mine, ours), (theirs, other)):
        set_gradients(params, 0)
        optimizer.step()
        for p in params:
            p.grad.data = p.grad.data * 0.5 + 1.0
        optimizer.step()
    assert_same(mine, theirs)


@pytest.mark.parametrize("places", [3, 6])
def test_gradients_that_come_in_a_few_places_by_turns(places):
    """As recorded steps leave them, each class of sizes in its own memory."""
    mine, ours, theirs, other = pair("Adam", {"lr": 0.02})
    held = [[torch.empty_like(p) for p in mine] for _ in range(places)]
    for step in range(20):
        for params, optimizer, own in ((mine, ours, held[step % places]), (theirs, other, None)):
            set_gradients(params, step)
            if own is not None:
                for p, place in zip(params, own, strict=True):
                    p.grad = place.copy_(p.grad)
            if step == 12:
                optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()
    assert_same(mine, theirs)
    assert len(ours._known) <= 4


def test_state_may_be_cleared_or_replaced():
    mine, ours, theirs, other = pair("Adam", {"lr": 0.1})
    for params, optimizer in ((mine, ours), (theirs, other)):
        run(optimizer, params, 3)
        optimizer.state.clear()
        run(optimizer, params, 3)
        for p in params:
            optimizer.state[p]["exp_avg"] = optimizer.state[p]["exp_avg"] * 0.5
        run(optimizer, params, 2)
        gradients = [p.grad for p in params]
        optimizer.state.clear()
        assert all(p.grad is gradient for p, gradient in zip(params, gradients, strict=True))
        optimizer.step()  # of the same gradients, into new state
    assert_same(mine, theirs)
    assert [int(ours.state[p]["step"]) for p in mine] == [1] * len(SIZES)


def test_closure_is_evaluated_with_gradients_and_returned():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = optim.SGD([weight], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert weight.item() == 1.0


def test_schedulers_and_hooks_of_torch_apply():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(weight.item()))
    for _ in range(3):
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    assert seen == [0.0, -0.5, -0.75]


def test_large_tensors_have_the_same_bits_for_any_number_of_threads():
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            weight = torch.nn.Parameter(torch.linspace(-1, 1, 200_001))
            optimizer = optim.Adam([weight], lr=0.01)
            for _ in range(3):
                weight.grad = weight.detach().sin()
                optimizer.step()
            results.append(weight.detach())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_amsgrad_is_refused():
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match="amsgrad=False"):
        optim.Adam([weight], amsgrad=True)
    other = torch.optim.AdamW([weight], amsgrad=True)
    with pytest.raises(ConfigError, match="AdamW: expected amsgrad=False"):
        optim.AdamW([weight]).load_state_dict(other.state_dict())


def test_profilers_and_hooks_of_all_optimisers_see_a_step():
    weight, seen = torch.nn.Parameter(torch.ones(1)), []
    optimizer = optim.Adam([weight], lr=0.5)
    weight.grad = torch.ones(1)
    with torch.autograd.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#Adam.step" in {event.key for event in profile.key_averages()}
    handle = register_optimizer_step_pre_hook(lambda one, *_: seen.append(one))
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert seen == [optimizer]
