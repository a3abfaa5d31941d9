"""Makes the parity pack: what PyTorch computes, for tests that need no Python.

    python3 -m venv /tmp/pt && /tmp/pt/bin/pip install torch safetensors numpy
    /tmp/pt/bin/python tests/parity/make_parity.py

writes ops.safetensors (values and gradients of single ops, float64) and traces.safetensors (losses of 100 training
steps of a VAE and a DCGAN-like decoder under each optimizer and scheduler, float32 and float64) beside this file.
Everything is seeded; the files name the PyTorch that made them.
"""
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

# ---- single ops ------------------------------------------------------------------------------------------

tensors = {}


def case(name, f, *inputs, **named_shapes):
    """Stores name/in0.., name/out, name/cotangent and name/grad0.. of f at random inputs.

    An input is a shape (normal numbers), a tensor (taken as it is) or an integer tensor (no gradient).
    """
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * 7919 + len(name))
    xs = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            xs.append(x.clone())
        else:
            xs.append(torch.randn(*x, dtype=torch.float64, generator=generator))
    for x in xs:
        if x.is_floating_point():
            x.requires_grad_(True)
    y = f(*xs)
    cotangent = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    differentiable = [x for x in xs if x.is_floating_point()]
    grads = torch.autograd.grad(y, differentiable, cotangent)
    for i, x in enumerate(xs):
        tensors[f"{name}/in{i}"] = x.detach().contiguous()
    tensors[f"{name}/out"] = y.detach().contiguous()
    tensors[f"{name}/cotangent"] = cotangent.contiguous()
    k = 0
    for i, x in enumerate(xs):
        if x.is_floating_point():
            tensors[f"{name}/grad{i}"] = grads[k].contiguous()
            k += 1


def positive(*shape, seed=1):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1


def integers(high, *shape, seed=2):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def ops():
    convt = F.conv_transpose2d
    case("conv_transpose2d", lambda x, w, b: convt(x, w, b), (2, 3, 5, 4), (3, 4, 3, 2), (4,))
    case("conv_transpose2d_k4s2p1", lambda x, w, b: convt(x, w, b, 2, 1), (2, 6, 4, 7), (6, 5, 4, 4), (5,))
    case("conv_transpose2d_everything",
         lambda x, w, b: convt(x, w, b, (3, 2), (1, 2), (2, 1), 2, (2, 3)),
         (2, 4, 5, 6), (4, 3, 3, 4), (6,))
    case("conv_transpose2d_empty_phases", lambda x, w: convt(x, w, None, (5, 4), 1, 0, 1, (2, 2)),
         (2, 3, 4, 3), (3, 2, 3, 3))
    case("conv_transpose2d_depthwise", lambda x, w, b: convt(x, w, b, 2, 1, 0, 4), (2, 4, 5, 5), (4, 1, 4, 4), (4,))
    case("conv_transpose2d_unbatched", lambda x, w: convt(x, w, None, 2, 1, 1), (3, 4, 5), (3, 2, 3, 3))
    case("conv2d", lambda x, w, b: F.conv2d(x, w, b), (2, 3, 6, 5), (4, 3, 3, 2), (4,))
    case("conv2d_everything", lambda x, w, b: F.conv2d(x, w, b, (2, 3), (1, 2), (2, 1), 2),
         (2, 4, 9, 11), (6, 2, 3, 2), (6,))
    case("matmul", torch.matmul, (3, 4, 5), (5, 2))
    case("matmul_batched", torch.matmul, (2, 1, 4, 5), (3, 5, 2))
    case("linear", F.linear, (4, 5), (3, 5), (3,))
    case("div", torch.div, (3, 4), positive(4))
    case("exp", torch.exp, (3, 4))
    case("log", torch.log, positive(3, 4))
    case("sqrt", torch.sqrt, positive(3, 4))
    case("pow_scalar", lambda x: torch.pow(x, 2.5), positive(3, 4))
    case("pow_tensor", torch.pow, positive(3, 4), (3, 4))
    case("abs", torch.abs, (3, 4))
    case("minimum", torch.minimum, (3, 4), (3, 4))
    case("maximum", torch.maximum, (3, 4), (3, 4))
    case("clamp", lambda x: torch.clamp(x, -0.5, 0.7), (5, 4))
    case("where", lambda a, b: torch.where(a > b, a * 2, b), (3, 4), (3, 4))
    case("relu", F.relu, (5, 7))
    case("leaky_relu", lambda x: F.leaky_relu(x, 0.2), (5, 7))
    case("elu", lambda x: F.elu(x, 1.3), (5, 7))
    case("gelu", F.gelu, (5, 7))
    case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (5, 7))
    case("silu", F.silu, (5, 7))
    case("mish", F.mish, (5, 7))
    case("softplus", lambda x: F.softplus(x * 4, 1.5, 3), (5, 7))
    case("tanh", torch.tanh, (5, 7))
    case("sigmoid", torch.sigmoid, (5, 7))
    case("hardtanh", lambda x: F.hardtanh(x, -0.4, 0.6), (5, 7))
    case("softmax", lambda x: F.softmax(x, 1), (2, 5, 3))
    case("log_softmax", lambda x: F.log_softmax(x, -1), (2, 5, 3))
    case("logsumexp", lambda x: torch.logsumexp(x, (0, 2)), (2, 5, 3))
    case("sum", lambda x: x.sum((0, 2), keepdim=True), (2, 5, 3))
    case("mean", lambda x: x.mean((1,)), (2, 5, 3))
    case("var", lambda x: x.var((0, 2)), (2, 5, 3))
    case("var_biased", lambda x: x.var((1,), correction=0, keepdim=True), (2, 5, 3))
    case("max", lambda x: x.amax((1,)), (2, 5, 3))
    case("min", lambda x: x.amin((0, 2), keepdim=True), (2, 5, 3))
    case("permute", lambda x: x.permute(2, 0, 1), (2, 5, 3))
    case("cat", lambda a, b: torch.cat([a, b], 1), (2, 5, 3), (2, 2, 3))
    case("slice", lambda x: x[:, 1:5:2], (2, 6, 3))
    case("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), (2, 2, 3, 4))
    case("gather", lambda x, i: torch.gather(x, 1, i), (3, 5), integers(5, 3, 4))
    case("index_select", lambda x, i: torch.index_select(x, 0, i), (6, 3), integers(6, 9))
    running = lambda c: (torch.zeros(c, dtype=torch.float64), torch.ones(c, dtype=torch.float64))
    case("batch_norm", lambda x, w, b: F.batch_norm(x, *running(4), w, b, True, 0.1, 1e-5), (3, 4, 5, 2), (4,), (4,))
    case("batch_norm_eval", lambda x, w, b: F.batch_norm(x, *running(4), w, b, False, 0.1, 1e-5),
         (3, 4, 5, 2), (4,), (4,))
    case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5), (2, 6, 4, 3), (6,), (6,))
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (4, 3), w, b, 1e-5), (2, 6, 4, 3), (4, 3), (4, 3))
    case("max_pool2d", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2)), (2, 3, 7, 8))
    case("max_pool2d_ceil", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 6, 8))
    case("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1)), (2, 3, 7, 8))
    case("avg_pool2d_exclude_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (2, 3, 6, 8))
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (2, 3, 7, 8))
    case("upsample_nearest2d", lambda x: F.interpolate(x, size=(7, 9), mode="nearest"), (2, 3, 4, 5))
    case("upsample_bilinear2d", lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"), (2, 3, 4, 5))
    case("upsample_bilinear2d_corners",
         lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True), (2, 3, 4, 5))
    case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 12, 3, 4))
    case("mse_loss", F.mse_loss, (4, 5), (4, 5))
    case("l1_loss", F.l1_loss, (4, 5), (4, 5))
    case("huber_loss", lambda x, t: F.huber_loss(x, t, delta=0.7), (4, 5), (4, 5))
    case("bce_with_logits", F.binary_cross_entropy_with_logits, (4, 5), positive(4, 5) / 1.2)
    case("cross_entropy", lambda x, t: F.cross_entropy(x, t), (4, 5), integers(5, 4))
    case("cross_entropy_2d", lambda x, t: F.cross_entropy(x, t), (2, 5, 3, 4), integers(5, 2, 3, 4))
    case("kl_divergence_gaussian", lambda m, v: -0.5 * (1 + v - m * m - v.exp()).sum(1).mean(), (4, 3), (4, 3))
    save_file(tensors, os.path.join(HERE, "ops.safetensors"), {"torch": torch.__version__})


# ---- traces ----------------------------------------------------------------------------------------------


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.mu = nn.Linear(32, 4)
        self.logvar = nn.Linear(32, 4)
        self.decode = nn.Sequential(
            nn.Linear(4, 8 * 2 * 2), nn.ReLU(), nn.Unflatten(1, (8, 2, 2)),
            nn.ConvTranspose2d(8, 8, 3, 2, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 3, 1, 1))

    def loss(self, x, noise):
        h = self.encode(x.flatten(1))
        mu, logvar = self.mu(h), self.logvar(h)
        y = self.decode(mu + noise * (0.5 * logvar).exp())
        kl = -0.5 * (1 + logvar - mu * mu - logvar.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(y, x) + 0.01 * kl


class Dcgan(nn.Module):  # ELU, not ReLU: without a kink, float32 and float64 stay together for 100 steps
    def __init__(self):
        super().__init__()
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(6, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ELU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ELU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh())

    def loss(self, z, target):
        return F.mse_loss(self.decode(z), target)


RATE = {"vae": 1.0, "dcgan": 0.5}  # of the learning rates below: rates at which rounding does not grow
EPS = 1e-3  # large enough that the sign of a vanishing gradient does not decide a step
OPTIMIZERS = {
    "sgd": lambda p, r: torch.optim.SGD(p, 0.2 * r),
    "sgd_momentum": lambda p, r: torch.optim.SGD(p, 0.05 * r, momentum=0.9, weight_decay=1e-3),
    "sgd_nesterov": lambda p, r: torch.optim.SGD(p, 0.05 * r, momentum=0.9, nesterov=True),
    "adam": lambda p, r: torch.optim.Adam(p, 5e-3 * r, eps=EPS),
    "adam_weight_decay": lambda p, r: torch.optim.Adam(p, 1e-3 * r, eps=EPS, betas=(0.5, 0.99), weight_decay=1e-3),
    "adamw": lambda p, r: torch.optim.AdamW(p, 5e-3 * r, eps=EPS, weight_decay=0.05),
    "rmsprop": lambda p, r: torch.optim.RMSprop(p, 2e-4 * r, eps=EPS),
    "rmsprop_centered": lambda p, r: torch.optim.RMSprop(p, 3e-4 * r, eps=EPS, centered=True, momentum=0.5),
}
S = torch.optim.lr_scheduler
SCHEDULERS = {
    "step": lambda o: S.StepLR(o, 20, 0.5),
    "multi_step": lambda o: S.MultiStepLR(o, [15, 40, 70], 0.3),
    "exponential": lambda o: S.ExponentialLR(o, 0.97),
    "cosine": lambda o: S.CosineAnnealingLR(o, 80, 1e-4),
    "cosine_warm_restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 15, 2, 1e-4),
    "linear_warmup": lambda o: S.LinearLR(o, 0.1, 1.0, 25),
    "one_cycle": lambda o: S.OneCycleLR(o, 0.05, 100),
    "plateau": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=4, threshold=0.1),
}


def squares(channels, size):
    """Eight images of a bright square on a dark ground: something that can be learnt in 100 steps."""
    images = torch.zeros(8, channels, size, size)
    for i in range(8):
        y, x = (i % 4) * size // 6, (i // 4) * size // 3
        images[i, i % channels:, y:y + size // 2, x:x + size // 2] = 1
    return images


def traces():
    out = {}
    g = torch.Generator().manual_seed(11)
    data = {
        "vae": (squares(1, 8) * 0.9 + 0.05, torch.randn(100, 8, 4, generator=g)),
        "dcgan": (torch.randn(8, 6, 1, 1, generator=g), squares(3, 16) * 1.6 - 0.8),
    }
    for name, (a, b) in data.items():
        out[f"{name}/data0"], out[f"{name}/data1"] = a, b
        torch.manual_seed(5)
        model = {"vae": Vae, "dcgan": Dcgan}[name]()
        initial = {k: v.clone() for k, v in model.state_dict().items()}
        for k, v in initial.items():
            out[f"{name}/initial/{k}"] = v

        def run(dtype, optimizer, scheduler):
            m = {"vae": Vae, "dcgan": Dcgan}[name]().to(dtype)
            m.load_state_dict({k: v.to(dtype) if v.is_floating_point() else v for k, v in initial.items()})
            opt = OPTIMIZERS[optimizer](m.parameters(), RATE[name])
            sched = SCHEDULERS[scheduler](opt) if scheduler else None
            x, y = a.to(dtype), b.to(dtype)
            losses, rates = [], []
            for step in range(100):
                rates.append(opt.param_groups[0]["lr"])
                opt.zero_grad()
                loss = m.loss(x, y[step]) if name == "vae" else m.loss(x, y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
                if sched is not None:
                    sched.step(loss.item()) if scheduler == "plateau" else sched.step()
            return torch.tensor(losses, dtype=torch.float64), torch.tensor(rates, dtype=torch.float64)

        runs = [(o, None) for o in OPTIMIZERS] + [("sgd_momentum", s) for s in SCHEDULERS]
        for optimizer, scheduler in runs:
            key = f"{name}/{optimizer}" + (f"/{scheduler}" if scheduler else "")
            l32, _ = run(torch.float32, optimizer, scheduler)
            l64, rates = run(torch.float64, optimizer, scheduler)
            worst = ((l32 - l64).abs() / l64.abs()).max().item()
            assert worst < 3e-6, "this trace is too sensitive to rounding to be a test"
            cut = f"   lr {rates[0]:.4g} .. {rates[-1]:.4g}" if scheduler else ""
            print(f"{key:45s} {l64[0]:.5f} -> {l64[-1]:.5f}   float32 against float64: {worst:.1e}{cut}")
            out[f"{key}/losses_float32"], out[f"{key}/losses_float64"] = l32, l64
            if scheduler:
                out[f"{key}/lr"] = rates
    save_file(out, os.path.join(HERE, "traces.safetensors"), {"torch": torch.__version__})


ops()
traces()
