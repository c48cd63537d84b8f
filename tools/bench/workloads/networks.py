"""The zoo: real network architectures with random weights, as torch modules with seeded inputs.

`NETWORKS` maps a name to its definition. torchvision, timm and transformers give the published
architectures; the U-Net is defined here. Building one needs those packages (`pip install
pyc-mlir[zoo]`); naming one needs nothing, so that tables and options work without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

CONVOLUTIONAL = "convolutional"
TRANSFORMER = "transformer"
OPSET = 20
_SEED = 2026
_CALIBRATION_IMAGES = 4
# ConvNeXt's residual branches are scaled by 1e-6 at first: their numbers would not be seen in the
# result. Trained networks have scales of this order.
_LAYER_SCALE = 0.3
# The Transformers keep their published widths with 2 layers and a smaller vocabulary, which only
# the embedding and the last product see.
_VOCABULARY = 8192
_LAYERS = 2
_TOKENS = 128


@dataclass(frozen=True)
class Network:
    """One architecture: `kind`, what it is, its input without the batch, and its builder.

    `shape` is that of float32 numbers, such as (channels, height, width), or (tokens,) of int64 ids
    below `_VOCABULARY`. `build` gives the torch module with default initial weights.
    """

    name: str
    kind: str
    description: str
    shape: tuple[int, ...]
    build: Callable[[], Any]


def make(network: Network) -> Any:
    """Make the module in evaluation mode with seeded weights, the same for every batch size.

    Batch norms take their statistics from one forward pass over random images, as the defaults (0
    and 1) would let the activations of deep residual networks grow from block to block.
    """
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(_SEED)
    module = network.build().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("layer_scale"):
                parameter.fill_(_LAYER_SCALE)
        norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = None  # averages: the one batch decides
            norm.train()
        if norms:
            module(*inputs(network, _CALIBRATION_IMAGES, _SEED + 1))
        for norm in norms:
            norm.eval()
    return module


def inputs(network: Network, batch: int, seed: int = _SEED) -> tuple[Any, ...]:
    """Draw inputs of that batch size as torch tensors."""
    import torch  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(seed)
    shape = (batch, *network.shape)
    if len(network.shape) > 1:
        return (torch.randn(shape, generator=generator),)
    return (torch.randint(0, _VOCABULARY, shape, generator=generator),)


def _torchvision(name: str) -> Callable[[], Any]:
    return lambda: getattr(_import_torchvision().models, name)(weights=None)


def _import_torchvision() -> Any:
    """torchvision; its binary operators, which no network here uses, need not load.

    They do not load beside another build of torch than theirs. The import then ends for want of
    their schemas, which are enough for it.
    """
    try:
        return import_module("torchvision")
    except RuntimeError:
        import torch  # pyright: ignore[reportMissingImports]

        library = torch.library.Library("torchvision", "DEF")
        for op in ("nms", "qnms"):
            library.define(f"{op}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _LIBRARIES.append(library)
        return import_module("torchvision")


_LIBRARIES: list[Any] = []  # schemas live as long as their library does


def _timm(name: str) -> Callable[[], Any]:
    def build() -> Any:
        _import_torchvision()
        import timm  # pyright: ignore[reportMissingImports]

        return timm.create_model(name, pretrained=False)

    return build


def _transformers(model: str, config: str, result: str, **sizes: Any) -> Callable[[], Any]:
    """Make a model of a configuration class that gives its tensor `result`, without a cache."""

    def build() -> Any:
        import torch  # pyright: ignore[reportMissingImports]

        _import_torchvision()
        import transformers  # pyright: ignore[reportMissingImports]

        class Bare(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                made = getattr(transformers, config)(vocab_size=_VOCABULARY, **sizes)
                made.use_cache = False
                self.model = getattr(transformers, model)(made)

            def forward(self, ids: Any, mask: Any = None) -> Any:
                return self.model(ids, attention_mask=mask, return_dict=True)[result]

        return Bare()

    return build


def _unet(widths: Sequence[int], classes: int) -> Callable[[], Any]:
    """Make the U-Net of Ronneberger et al. (2015) with padded convolutions and batch norms.

    Each level: twice (3x3 convolution, batch norm, relu), `widths` channels; max pooling 2x2 on the
    way down; on the way up a 2x2 transposed convolution of stride 2, whose result is concatenated
    behind the level's own; a 1x1 convolution to `classes` maps at the end.
    """

    def build() -> Any:
        import torch  # pyright: ignore[reportMissingImports]
        from torch import nn  # pyright: ignore[reportMissingImports]

        def level(before: int, after: int) -> Any:
            layers = []
            for channels in (before, after):
                layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False)]
                layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            return nn.Sequential(*layers)

        class UNet(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                pairs = list(zip((3, *widths), widths, strict=False))
                self.down = nn.ModuleList(level(a, b) for a, b in pairs)
                rising = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
                self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in rising)
                self.merge = nn.ModuleList(level(2 * b, b) for _, b in rising)
                self.pool = nn.MaxPool2d(2)
                self.head = nn.Conv2d(widths[0], classes, 1)

            def forward(self, x: Any) -> Any:
                skips = []
                for number, step in enumerate(self.down):
                    x = step(x if number == 0 else self.pool(x))
                    skips.append(x)
                for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
                    x = merge(torch.cat([skip, up(x)], 1))
                return self.head(x)

        return UNet()

    return build


def _encoder() -> Any:
    """Make two layers of BERT's encoder. Devlin et al., 2019."""
    from torch import nn  # pyright: ignore[reportMissingImports]

    sizes: dict[str, Any] = {"activation": "gelu", "batch_first": True}
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(768, 12, 3072, **sizes) for _ in range(_LAYERS))
    )


_IMAGE = (3, 224, 224)
_PUBLISHED = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50 (v1.5: stride in the 3x3)",
    "mobilenet_v2": "MobileNet-V2 1.0",
    "mobilenet_v3_small": "MobileNet-V3 small 1.0",
    "efficientnet_b0": "EfficientNet-B0",
    "squeezenet1_1": "SqueezeNet 1.1",
    "densenet121": "DenseNet-121",
    "convnext_tiny": "ConvNeXt-T",
}
_UNET = "U-Net, 5 levels of 32 to 512 channels, 256x256"
_LLAMA: dict[str, Any] = {
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
}


def _words(name: str, description: str, *classes: str, **sizes: Any) -> Network:
    """Describe a Transformer of words by the classes of its model and its configuration."""
    about = f"{description}, 2 layers, 128 tokens"
    return Network(name, TRANSFORMER, about, (_TOKENS,), _transformers(*classes, **sizes))


_ALL = (
    *(
        Network(name, CONVOLUTIONAL, about, _IMAGE, _torchvision(name))
        for name, about in _PUBLISHED.items()
    ),
    Network("unet", CONVOLUTIONAL, _UNET, (3, 256, 256), _unet((32, 64, 128, 256, 512), 2)),
    Network("vit_tiny", TRANSFORMER, "ViT-Ti/16", _IMAGE, _timm("vit_tiny_patch16_224")),
    _words("bert", "BERT-base's width", "BertModel", "BertConfig", "last_hidden_state",
           num_hidden_layers=_LAYERS),
    _words("gpt2", "GPT-2's width, logits of 8192 words", "GPT2LMHeadModel", "GPT2Config",
           "logits", n_layer=_LAYERS),
    _words("llama", "Llama, SmolLM2-360M's width, logits of 8192 words", "LlamaForCausalLM",
           "LlamaConfig", "logits", **_LLAMA),
)  # fmt: skip
NETWORKS = {network.name: network for network in _ALL}


# Two layers as they are, on numbers in place of words: what quantized models are made of.
_BERT2 = Network("bert2", TRANSFORMER, "two layers of BERT's encoder", (_TOKENS, 768), _encoder)
BY_NAME = {**NETWORKS, _BERT2.name: _BERT2}


def write(
    module: Any,
    arguments: tuple[Any, ...],
    opset: int,
    path: Path,
    axes: Mapping[int, str] | None = None,
) -> None:
    """Write a module as an ONNX model; `axes` of all arguments are dynamic. Raises as torch."""
    import torch  # pyright: ignore[reportMissingImports]

    with torch.no_grad():
        torch.onnx.export(
            module, arguments, path, dynamo=True, opset_version=opset, external_data=False,
            verbose=False, dynamic_shapes=None if axes is None else (dict(axes),) * len(arguments),
        )  # fmt: skip
