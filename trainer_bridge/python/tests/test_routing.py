"""Routing replay: the recorded experts are used, and nothing else of the arithmetic changes."""

import shutil

import pytest
import torch
import torch.nn.functional as F
from conftest import random_sequences, rows_for, write_batch
from safetensors.torch import load_file
from test_ranks import launch
from transformers import AutoModelForCausalLM, DeepseekV3Config, MixtralConfig, OlmoeConfig, Qwen3MoeConfig

from milepost_trainer import checkpoint, model, optim, pack, policy, routing, trainer
from milepost_trainer.errors import TrainerError
from milepost_trainer.loss import LossConfig
from milepost_trainer.options import Options
from milepost_trainer.ranks import Ranks

LAYERS, EXPERTS, TOP_K = 3, 8, 2
LENGTHS = [20, 31, 12, 44, 25]
COMMON = {"num_experts_per_tok": TOP_K}
FAMILIES = {
    "qwen3_moe": (Qwen3MoeConfig, COMMON | {"num_experts": EXPERTS, "moe_intermediate_size": 48, "norm_topk_prob": True}),
    "mixtral": (MixtralConfig, COMMON | {"num_local_experts": EXPERTS}),
    "olmoe": (OlmoeConfig, COMMON | {"num_experts": EXPERTS}),
    "deepseek_v3": (  # its first layer is dense; groups of experts, a bias of the choice, shared experts
        DeepseekV3Config,
        COMMON | {
            "n_routed_experts": EXPERTS, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 48,
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        },
    ),
}  # fmt: skip


def write_model(out, tokenizer_from: str, family: str) -> str:
    kind, extra = FAMILIES[family]
    heads = {} if family == "deepseek_v3" else {"head_dim": 16}
    config = kind(
        vocab_size=330, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=2 if family == "deepseek_v3" else 1, max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.2, bos_token_id=None, eos_token_id=0, pad_token_id=0, **extra, **heads,
    )  # fmt: skip
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokenizer_from}/{name}", out)
    return str(out)


@pytest.fixture(scope="session")
def mixtures(tmp_path_factory, model_dir):
    d = tmp_path_factory.mktemp("mixtures")
    return {family: write_model(d / family, model_dir, family) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def net_of(mixtures, family: str, dtype=torch.float32):
    net = model.load(mixtures[family]).model.to(dtype)
    if dtype == torch.float64:
        net.config._experts_implementation = "eager"  # the grouped product has no float64
    return net


def other_routes(lengths, seed=0) -> list[torch.Tensor]:
    """Random experts, different ones for each token and layer; the last tokens are unknown."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n - 1, LAYERS, EXPERTS, generator=generator).argsort(-1)[..., :TOP_K].to(torch.uint8) for n in lengths]


def own_routes(net, ids: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the model chooses by itself; zeros in dense layers, as vLLM has them."""
    chosen: dict[int, torch.Tensor] = {}

    def watch(i):
        return lambda module, args, out: chosen.update({i: out[2]})

    hooks = [r.register_forward_hook(watch(i)) for i, x in enumerate(net.model.layers) if (r := routing.router_of(x)) is not None]
    with torch.no_grad():
        pack.row_logprobs(net, whole_row(ids))
    for h in hooks:
        h.remove()
    nothing = torch.zeros(sum(map(len, ids)), TOP_K, dtype=torch.long)
    together = torch.stack([chosen.get(i, nothing) for i in range(LAYERS)], 1).to(torch.uint8)
    return list(together.split([len(s) for s in ids]))


def whole_row(ids, routes=None) -> pack.Row:
    return pack.build(ids, [torch.arange(len(s)) > 0 for s in ids], list(range(len(ids))), routes)


def outcome(net, row) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logprobs, and the gradients of a weighted sum of them."""
    net.zero_grad()
    logprobs, _ = pack.row_logprobs(net, row)
    (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    return logprobs.detach(), {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


def by_hand(net, family: str, routes: torch.Tensor) -> None:
    """Replaces every mixture by a loop over tokens and their given experts [L, layers, K]."""

    def replaced(block, chosen):
        return lambda x: hand_block(family, block, x[0], chosen)[None]

    for i, layer in enumerate(net.model.layers):
        if routing.router_of(layer) is not None:
            layer.mlp.forward = replaced(layer.mlp, routes[:, i].long())


def hand_block(family: str, block, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    logits = F.linear(x, block.gate.weight) if family != "deepseek_v3" else F.linear(x.float(), block.gate.weight.float())
    scores = logits.sigmoid() if family == "deepseek_v3" else logits.float().softmax(-1)  # float32, as in transformers
    gates = torch.stack([scores[t, chosen[t]] for t in range(len(x))])
    if family != "olmoe":
        gates = gates / gates.sum(-1, keepdim=True)
    if family == "deepseek_v3":
        gates = gates * block.gate.routed_scaling_factor
    rows = []
    for t in range(len(x)):
        y = torch.zeros_like(x[t])
        for k, e in enumerate(chosen[t].tolist()):
            gate, up = (block.experts.gate_up_proj[e] @ x[t]).chunk(2)
            y = y + gates[t, k] * (block.experts.down_proj[e] @ (F.silu(gate) * up))
        rows.append(y)
    out = torch.stack(rows)
    return out + block.shared_experts(x) if family == "deepseek_v3" else out


def test_own_routes_change_nothing(mixtures, family):
    net, ids = net_of(mixtures, family), random_sequences([17, 9])
    routes = own_routes(net, ids)
    plain = outcome(net, whole_row(ids))
    routing.Replay(net)
    unrouted, replayed = outcome(net, whole_row(ids)), outcome(net, whole_row(ids, routes))
    for got in (unrouted, replayed):
        assert torch.equal(got[0], plain[0])
        assert got[1].keys() == plain[1].keys() and all(torch.equal(got[1][n], g) for n, g in plain[1].items())


def test_other_routes_are_those_of_a_forward_by_hand(mixtures, family):
    ids = random_sequences([14])
    routes = [torch.cat([r, r[:1]]) for r in other_routes([14])]  # all 14 known
    hand, net = net_of(mixtures, family, torch.float64), net_of(mixtures, family, torch.float64)
    by_hand(hand, family, routes[0])
    replay = routing.Replay(net)
    want, got = outcome(hand, whole_row(ids)), outcome(net, whole_row(ids, routes))
    assert replay.changed() > 10
    torch.testing.assert_close(got[0], want[0], rtol=2e-7, atol=1e-6)
    for name, g in want[1].items():
        torch.testing.assert_close(got[1][name], g, rtol=1e-5, atol=1e-6, msg=name)
    assert all(r.weight.grad.abs().max() > 1e-4 for r in replay.routers.values())


def test_packing_and_unknown_tails(mixtures, family):
    net, ids = net_of(mixtures, family), random_sequences(LENGTHS)
    placed = policy.Policy(net, routing_replay=True)
    routes = [r[:n] for r, n in zip(other_routes(LENGTHS), (19, 7, 0, 43, 24), strict=True)]
    wanted = [torch.arange(len(s)) > 0 for s in ids]
    alone = policy.evaluate(placed, ids, wanted, 1, 1.0, Ranks(), routes=routes)
    packed = policy.evaluate(placed, ids, wanted, 90, 1.0, Ranks(), routes=routes)
    unrouted = policy.evaluate(placed, ids, wanted, 90, 1.0, Ranks())
    for i, (a, b) in enumerate(zip(alone, packed, strict=True)):
        torch.testing.assert_close(a, b, rtol=0, atol=5e-6)
        if i == 2:  # nothing is known of it
            torch.testing.assert_close(b, unrouted[i], rtol=0, atol=5e-6)
        else:
            assert (b - unrouted[i]).abs().max() > 1e-2


def test_recomputed_layers_take_the_same_routes(mixtures, family):
    ids, routes = random_sequences([17, 9]), other_routes([17, 9])
    out = []
    for recompute in (False, True):
        placed = policy.Policy(net_of(mixtures, family), recompute=recompute, routing_replay=True)
        out.append(outcome(placed.net, whole_row(ids, routes)))
    assert torch.equal(out[0][0], out[1][0]) and all(torch.equal(out[1][1][n], g) for n, g in out[0][1].items())


# --- the trainer ---


def write_routed(path, rows: list[dict], routes: list[torch.Tensor], size=1, declared=None) -> str:
    packed = [r.numpy().astype("u1" if size == 1 else "<u2").tobytes() for r in routes]
    shape = declared or f"{LAYERS},{TOP_K},{size}"
    return write_batch(
        path, [r | {"routed_experts": p} for r, p in zip(rows, packed, strict=True)], metadata={"routed_experts": shape}
    )


def start(directory: str, replay=True, **fields) -> trainer.Trainer:
    t = trainer.Trainer()
    t.init(directory, "", "float32", 5, options=Options(routing_replay=replay), **fields)
    return t


def update(t: trainer.Trainer, path, digest, **fields) -> dict:
    config = trainer.UpdateConfig(loss=LossConfig(), optimizer=optim.OptimizerConfig(lr=1e-3), **fields)
    return t.update(f"b{t.updates}", str(path), digest, config)


def sampled_with(t: trainer.Trainer, rows: list[dict], routes) -> list[dict]:
    """The rows with the logprobs of a sampler that took these routes."""
    ids = [torch.tensor(r["tokens"]) for r in rows]
    wanted = [torch.arange(len(s)) > 0 for s in ids]
    known = policy.evaluate(t.policy, ids, wanted, 1000, 1.0, Ranks(), routes=routes)
    return [
        r | {"logprobs": [x if m else 0.0 for x, m in zip([0.0, *k.tolist()], r["mask"], strict=True)]}
        for r, k in zip(rows, known, strict=True)
    ]


@pytest.mark.parametrize("size", [1, 2])
def test_an_update_replays_the_routes_of_its_batch(mixtures, tmp_path, family, size):
    t, routes = start(mixtures[family]), other_routes(LENGTHS)
    rows = sampled_with(t, rows_for(t, LENGTHS), routes)
    digest = write_routed(tmp_path / "b.arrow", rows, routes, size)
    got = update(t, tmp_path / "b.arrow", digest)
    assert got["logprob_gap_mean"] < 1e-6 and got["routes_changed"] > 0.5
    assert got["routes_replayed"] == pytest.approx(1 - len(LENGTHS) / sum(LENGTHS))
    plain = update(start(mixtures[family], replay=False), tmp_path / "b.arrow", digest)
    assert plain["logprob_gap_mean"] > 1e-2 and "routes_replayed" not in plain


def test_the_pass_before_the_steps_takes_the_routes_too(mixtures, tmp_path):
    t, routes = start(mixtures["qwen3_moe"]), other_routes(LENGTHS)
    rows = sampled_with(t, rows_for(t, LENGTHS), routes)
    got = update(t, tmp_path / "b.arrow", write_routed(tmp_path / "b.arrow", rows, routes), epochs=2, minibatches=2)
    assert got["optimizer_steps"] == 4 and got["logprob_gap_mean"] < 1e-6


def test_values_take_the_routes(mixtures, tmp_path):
    t, routes = start(mixtures["qwen3_moe"], value_head=True), other_routes(LENGTHS)
    with torch.no_grad():
        t.head.weight.normal_(0, 9)
    rows = rows_for(t, LENGTHS)
    values = [
        t.values(str(tmp_path / "b.arrow"), write_routed(tmp_path / "b.arrow", rows, r), 100)
        for r in (routes, other_routes(LENGTHS, 1))
    ]
    assert (torch.cat(values[0]) - torch.cat(values[1])).abs().max() > 1e-2


def test_routes_that_do_not_fit_are_refused(mixtures, tmp_path):
    t, routes, path = start(mixtures["qwen3_moe"]), other_routes(LENGTHS), tmp_path / "b.arrow"
    rows = rows_for(t, LENGTHS)
    high, twice = [r.clone() for r in routes], [r.clone() for r in routes]
    high[1][3, 1, 0] = EXPERTS
    twice[2][3, 1] = 4
    for digest, words in (
        (lambda: write_batch(path, rows), "row 0 (episode 'e0'): routed_experts is missing"),
        (lambda: write_routed(path, rows, high), "row 1 (episode 'e1'): routed_experts names expert 8; allowed: 0 to 7"),
        (lambda: write_routed(path, rows, twice), "row 2 (episode 'e2'): routed_experts names an expert twice"),
        (lambda: write_routed(path, rows, [r[:, :2] for r in routes], declared="2,2,1"), "is of 2 layers and 2 experts"),
        (lambda: write_routed(path, rows, routes, declared="3,2"), "declares routed_experts as '3,2'"),
        (lambda: write_routed(path, rows, [torch.cat([r, r]) for r in routes]), "is null or no whole number of tokens"),
        (lambda: write_routed(path, rows, routes, declared="7,2,1"), "is null or no whole number of tokens"),
    ):  # fmt: skip
        with pytest.raises(TrainerError, match=words.replace("(", r"\(").replace(")", r"\)")):
            update(t, path, digest())


def test_a_model_without_experts_is_refused(model_dir):
    with pytest.raises(TrainerError, match="LlamaForCausalLM has no experts to choose from"):
        start(model_dir)


def test_a_router_that_chooses_twice_is_refused(mixtures):
    net, ids = net_of(mixtures, "qwen3_moe"), random_sequences([9])
    router = routing.router_of(net.model.layers[1])
    once = router.forward
    router.forward = lambda x: (once(x), once(x))[1]
    routing.Replay(net)
    with pytest.raises(TrainerError, match="chose its experts by torch.topk 2 times".replace(".", r"\.")):
        pack.row_logprobs(net, whole_row(ids, other_routes([9])))


def test_checkpoints_and_exports_of_a_mixture(mixtures, tmp_path, family):
    """A checkpoint goes on as the trainer does, and an export has the file's names, a tensor for each expert, not fused ones."""
    t, routes = start(mixtures[family]), other_routes(LENGTHS)
    digest = write_routed(tmp_path / "b.arrow", rows_for(t, LENGTHS), routes)
    checkpoint.export(t, str(tmp_path / "out"), "")
    before, after = load_file(f"{mixtures[family]}/model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(after[n], w) for n, w in before.items())
    assert any(".experts.7." in n for n in after)
    update(t, tmp_path / "b.arrow", digest)
    checkpoint.save(t, str(tmp_path / "saved"))
    again = trainer.Trainer()
    checkpoint.load(again, str(tmp_path / "saved"), "", options=Options(routing_replay=True))
    (a, b) = (update(x, tmp_path / "b.arrow", digest) for x in (t, again))
    assert a["grad_norm"] == b["grad_norm"] and a["routes_changed"] == b["routes_changed"]


def test_two_ranks_are_one(mixtures, tmp_path):
    t, routes = start(mixtures["qwen3_moe"]), other_routes(LENGTHS)
    rows = sampled_with(t, rows_for(t, LENGTHS), routes)
    digest = write_routed(tmp_path / "b.arrow", rows, routes)
    init = {"path": mixtures["qwen3_moe"], "reference": "", "dtype": "float32", "seed": 5, "options": {"routing_replay": True}}
    fields = {"path": str(tmp_path / "b.arrow"), "sha256": digest}
    steps = [
        ["init", init],
        ["update", fields | {"batch_id": "b0", "config": {"micro_tokens": 40}}],
        ["init", init | {"recompute": True}],
        ["update", fields | {"batch_id": "b1", "config": {"micro_tokens": 40, "epochs": 2, "minibatches": 2}}],
    ]
    one, two = (launch(world, steps, tmp_path / str(world)) for world in (1, 2))
    for a, b in zip(one["results"][1::2], two["results"][1::2], strict=True):
        for name in ("loss", "logprob_gap_mean", "grad_norm", "routes_replayed", "routes_changed"):
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-6), name
    assert one["results"][1]["logprob_gap_mean"] < 1e-6 and len(one["gradients"]) == 5
    for a, b in zip(one["gradients"], two["gradients"], strict=True):
        for name, g in a.items():
            torch.testing.assert_close(b[name], g, rtol=0, atol=1e-6, msg=name)
