from __future__ import annotations

import torch

from examples.demo.model import make_model, make_optimizer, next_byte_loss

ROWS = torch.arange(8 * 33).reshape(8, 33).remainder(251).to(torch.uint8)


def losses(*, steps: int) -> list[float]:
    model = make_model()
    optimizer = make_optimizer(model)
    seen: list[float] = []
    for _ in range(steps):
        loss = next_byte_loss(model, ROWS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def test_two_trainings_over_the_same_rows_are_the_same() -> None:
    torch.manual_seed(3)
    first = losses(steps=3)
    torch.manual_seed(4)

    assert losses(steps=3) == first


def test_it_learns() -> None:
    seen = losses(steps=10)

    assert seen[-1] < seen[0] - 0.1


def test_a_batch_has_the_mean_loss_of_its_parts() -> None:
    model = make_model()

    parts = [next_byte_loss(model, part).item() for part in ROWS.chunk(4)]

    assert abs(sum(parts) / 4 - next_byte_loss(model, ROWS).item()) < 1e-6


def test_a_byte_does_not_see_those_after_it() -> None:
    model = make_model()
    changed = ROWS.clone()
    changed[:, 20:] = 7

    assert torch.equal(model(ROWS)[:, :20], model(changed)[:, :20])
    assert not torch.equal(model(ROWS)[:, 20:], model(changed)[:, 20:])


def test_making_a_model_leaves_the_random_state_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    make_model()

    assert torch.equal(torch.rand(3), expected)
