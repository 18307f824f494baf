"""Packing: rows hold every sequence once, and a packed sequence is what it is alone."""

import pytest
import torch
from conftest import random_sequences

from milepost_trainer import pack, trainer


@pytest.mark.parametrize("limit", [1, 50, 128, 10_000])
def test_plan_holds_every_sequence_once_within_the_limit(limit):
    lengths = [len(s) * 7 % 90 + 1 for s in random_sequences(range(1, 60))]
    rows = pack.plan(lengths, limit)
    assert sorted(i for r in rows for i in r) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in r) <= limit or len(r) == 1 for r in rows)
    if limit >= max(lengths):
        assert len(rows) <= 2 * sum(lengths) / limit + 1


def test_plan_of_nothing():
    assert pack.plan([], 10) == []


def own_logprobs(net, s):
    """[T-1] by the model's own forward pass on one sequence."""
    return net(input_ids=s[None], use_cache=False).logits[0].log_softmax(-1)[:-1].gather(1, s[1:, None]).squeeze(1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_is_unpacked_in_logprobs_and_gradients(tiny, temperature):
    net = tiny.net
    sequences = random_sequences([5, 40, 2, 17, 33, 1])
    wanted = [(torch.arange(len(s)) % 3 != 0) for s in sequences]
    weights = random_sequences([len(s) for s in sequences], seed=9)

    row = pack.build(sequences, wanted, [3, 1, 5, 0, 2, 4])
    logprob, _ = pack.row_logprobs(net, row, temperature)
    picked = torch.cat([weights[i][row.time[row.sequence == k]] for k, i in enumerate(row.members)]) / 100
    (logprob * picked).sum().backward()
    packed_grads = {n: p.grad.clone() for n, p in net.named_parameters()}
    net.zero_grad()

    for k, i in enumerate(row.members):
        s, t = sequences[i], wanted[i].nonzero().flatten()
        logits = net(input_ids=s[None], use_cache=False).logits[0] / temperature
        alone = logits.log_softmax(-1)[t - 1].gather(1, s[t][:, None]).squeeze(1)
        assert torch.allclose(logprob[row.sequence == k], alone, atol=1e-5)
        (alone * weights[i][t] / 100).sum().backward()
    for n, p in net.named_parameters():
        assert torch.allclose(packed_grads[n], p.grad, atol=1e-5, rtol=1e-5), n


def test_neighbours_do_not_leak(tiny):
    a, b, c = random_sequences([30, 20, 20])
    wanted = [torch.arange(n) > 0 for n in (30, 20)]
    with torch.no_grad():
        first = pack.row_logprobs(tiny.net, pack.build([a, b], wanted, [0, 1]))[0]
        other = pack.row_logprobs(tiny.net, pack.build([a, c], wanted, [0, 1]))[0]
    assert torch.equal(first[:29], other[:29]) and not torch.allclose(first[29:], other[29:])


def test_head_in_chunks_is_the_head_at_once(tiny, monkeypatch):
    sequences = random_sequences([60])
    row = pack.build(sequences, [torch.arange(60) > 0], [0])

    def run():
        tiny.net.zero_grad()
        logprob, entropy = pack.row_logprobs(tiny.net, row, 1.0, entropy=True)
        logprob.sum().backward()
        return logprob.detach(), entropy, tiny.net.lm_head.weight.grad.clone()

    whole = run()
    monkeypatch.setattr(pack, "HEAD_ELEMENTS", 7 * tiny.net.config.vocab_size)
    for a, b in zip(whole, run(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_entropy_is_that_of_the_distribution(tiny):
    (s,) = random_sequences([12])
    _, entropy = pack.row_logprobs(tiny.net, pack.build([s], [torch.arange(12) > 0], [0]), 1.0, entropy=True)
    with torch.no_grad():
        p = tiny.net(input_ids=s[None], use_cache=False).logits[0, :-1].softmax(-1)
    assert torch.allclose(entropy, torch.distributions.Categorical(p).entropy(), atol=1e-5)


def test_score(tiny, monkeypatch):
    monkeypatch.setattr(trainer, "SCORE_TOKENS", 20)
    sequences = random_sequences([9, 1, 25])
    for s, got in zip(sequences, tiny.score([s.tolist() for s in sequences], 1.0, False), strict=True):
        assert got.shape == s.shape and got[0] == 0
        assert torch.allclose(got[1:], own_logprobs(tiny.net, s), atol=1e-5)
