"""`torch.compile(backend="pyc")` and a module's tensors: a call sees what they are then."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pyc_mlir.torch as pyc_torch  # noqa: E402

nn = torch.nn
WIDTH = 64
SIZE = (WIDTH, WIDTH)


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    pyc_torch.reset_stats()


def compiled(module, **options):
    return torch.compile(module, backend="pyc", options={"cache": False, **options})


class Holder(nn.Module):
    """A tensor of each kind that a module can hold."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(*SIZE)
        self.listed = nn.ModuleList([nn.Linear(*SIZE, bias=False)])
        self.register_buffer("scale", torch.ones(WIDTH))
        self.shift, self.kept = torch.ones(WIDTH), [torch.ones(WIDTH)]

    def forward(self, x):
        return self.listed[0](self.first(x) * self.scale + self.shift) * self.kept[0]


def replace(module, path, value):
    *parents, name = path.split(".")
    setattr(module.get_submodule(".".join(parents)), name, value)


def loaded(module, **how):
    module.load_state_dict({k: torch.randn_like(v) for k, v in module.state_dict().items()}, **how)


def from_vector(module):
    count = sum(p.numel() for p in module.parameters())
    nn.utils.vector_to_parameters(torch.randn(count), module.parameters())


# Every way to change what a module computes that torch's own compiler sees.
CHANGES = {
    "parameter": lambda m: replace(m, "first.weight", nn.Parameter(torch.randn(SIZE))),
    "buffer": lambda m: replace(m, "scale", torch.randn(WIDTH)),
    "submodule": lambda m: replace(m, "first", nn.Linear(*SIZE)),
    "submodule of a list": lambda m: m.listed.__setitem__(0, nn.Linear(*SIZE, bias=False)),
    "plain tensor": lambda m: replace(m, "shift", torch.randn(WIDTH)),
    "entry of a list": lambda m: m.kept.__setitem__(0, torch.randn(WIDTH)),
    "table of parameters": lambda m: m.first._parameters.update(bias=nn.Parameter(m.shift + 3)),
    "load_state_dict": loaded,
    "load_state_dict, assigned": lambda m: loaded(m, assign=True),
    "vector_to_parameters": from_vector,
    "data": lambda m: setattr(m.first.weight, "data", torch.randn(SIZE)),
    "in data": lambda m: m.first.weight.data.add_(torch.randn(SIZE)),
    "in data of a buffer": lambda m: m.scale.data.mul_(2),
    "swapped": lambda m: torch.utils.swap_tensors(m.first.bias, nn.Parameter(torch.ones(WIDTH))),
    "to bf16 and back": lambda m: m.to(torch.bfloat16).to(torch.float32),
    "in place": lambda m: m.first.weight.mul_(2),
    "through a view": lambda m: m.first.weight.view(-1)[5:9].add_(9),
    "through numpy": lambda m: m.first.weight.detach().numpy()[3].__iadd__(9),
    "one element in data": lambda m: m.first.weight.data[3, 7].add_(100),
    "other memory": lambda m: m.first.weight.set_(torch.randn(SIZE)),
}


@torch.no_grad()
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_call_sees_what_the_module_holds_then(mode):
    module, x = Holder(), torch.randn(3, WIDTH)
    model = mode()(compiled(module))
    model(x)
    for name, change in CHANGES.items():
        before = module(x)
        change(module)
        want = module(x)
        assert not torch.equal(before, want), name
        torch.testing.assert_close(model(x), want, atol=1e-2, rtol=1e-4, msg=name)
    stats = pyc_torch.stats()
    assert (stats.graphs, stats.refrozen) == (1, 0)


FROZEN = ("parameter", "buffer", "load_state_dict, assigned", "in data", "to bf16 and back")


@torch.no_grad()
def test_frozen_weights_are_compared_at_each_call():
    module, x = Holder(), torch.randn(3, WIDTH)
    model = torch.inference_mode()(compiled(module, freeze=True))
    model(x)
    for name in FROZEN:
        CHANGES[name](module)
        torch.testing.assert_close(model(x), module(x), atol=1e-2, rtol=1e-4, msg=name)
        model(x)
    assert pyc_torch.stats().refrozen == len(FROZEN)


class Stateful(nn.Module):
    """Writes a buffer, and replaces a tensor, in each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight, self.last = nn.Parameter(torch.ones(3)), torch.zeros(3)

    def forward(self, x):
        self.total.add_(x)
        self.last = self.last * 0.5 + x
        return self.total * self.weight, self.last + 0


@torch.no_grad()
@pytest.mark.parametrize(("freeze", "again"), [(False, 0), (True, 1)])
def test_state_that_each_call_writes_is_not_compiled_each_time(freeze, again):
    module, x = Stateful(), torch.ones(3)
    model = compiled(module, freeze=freeze)
    got = [[float(v[0]) for v in model(x)] for _ in range(4)]
    assert got == [[1, 1], [2, 1.5], [3, 1.75], [4, 1.875]]
    stats = pyc_torch.stats()
    assert (stats.graphs, stats.refrozen) == (1, again)


@torch.no_grad()
@pytest.mark.parametrize("freeze", [False, True])
def test_results_do_not_share_the_memory_of_weights(freeze):
    weight = nn.Parameter(torch.ones(64, 64))
    got = compiled(lambda: (weight.clone(), weight[1:].clone(), weight * 1), freeze=freeze)()
    for result in got:
        result.zero_()
    assert (weight == 1).all()
