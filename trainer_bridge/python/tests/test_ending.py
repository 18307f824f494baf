"""What a trainer does at its start and its end that no call shows."""

from types import SimpleNamespace

import pytest
import torch

from milepost_trainer import ranks, server
from milepost_trainer.errors import TrainerError


def test_the_device_of_one_process_has_an_index(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert ranks.start().device == torch.device("cuda", 3)


def test_queued_calls_are_refused_once_the_ranks_may_disagree():
    service, ran = server.Service(), []
    service.broken = True
    with pytest.raises(TrainerError, match="the ranks may disagree") as e:
        service.submit("score", SimpleNamespace(is_active=lambda: True), lambda: ran.append(1)).result()
    assert e.value.kind == "unavailable" and not ran
