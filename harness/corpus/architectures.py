"""Models of transformers, of diffusers and of a user's module factory, on the meta device.

No file is downloaded, and no weight is allocated. A model has its default configuration, except for the values in the
table of checkpoints. The names of the parameters of its `forward` determine the shapes of its arguments.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.corpus.candidates import FIRST_SIZES, SECOND_SIZES, CandidateModule, ModelSizes, candidate_modules
from harness.corpus.checkpoints import Checkpoint, ShapeSet, checkpoint_table
from harness.corpus.errors import SkippedError, error_summary
from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json_file
from harness.model.axes import evaluate

_INSTALL = "python -m pip install 'kernel-harness[extract]'"


@dataclass(frozen=True)
class Architecture:
    """A model from which problems are extracted."""

    name: str
    checkpoint: Checkpoint
    factory: str | None = None
    """`package.module:function` of a user's own module."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of a configuration file."""

    @property
    def dtype(self) -> str:
        """Dtype of the model: that of the checkpoint, or else of the family."""
        return self.checkpoint.dtype or checkpoint_table().families[self.checkpoint.family].dtype

    @property
    def shapes(self) -> ShapeSet:
        """Typical sizes of the family."""
        return checkpoint_table().families[self.checkpoint.family].shapes


@dataclass(frozen=True)
class BuiltModel:
    """Configuration and submodules of a model on the meta device in evaluation mode."""

    config: Mapping[str, Any]
    candidates: tuple[CandidateModule, ...]
    """Distinct submodules, outermost first."""


def known_architectures() -> dict[str, str]:
    """Return the name and the library of every architecture in the installed libraries, sorted by name.

    Raises:
        ConfigurationError: the extra `extract` is not installed.
    """
    with quiet_libraries():
        mapping = _library("transformers").CONFIG_MAPPING
        _library("diffusers")
    names = dict.fromkeys(sorted(mapping.keys()), "transformers")
    table = checkpoint_table().architectures
    names |= {name: entry.library for name, entry in table.items() if entry.library == "diffusers"}
    return dict(sorted(names.items()))


def resolve_architecture(word: str) -> Architecture:
    """Return the architecture of an argument: a name, a config.json, or `package.module:function`.

    Raises:
        ConfigurationError: the argument names no architecture.
    """
    table = checkpoint_table()
    if ":" in word:
        name = word.rpartition(":")[2]
        return Architecture(name, Checkpoint(family="custom"), factory=word)
    if word.endswith(".json"):
        config = load_json_file(Path(word))
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            raise ConfigurationError("no configuration of transformers: `model_type` is missing", where=word)
        entry = table.architectures.get(config["model_type"], Checkpoint(family="custom"))
        name = f"{config['model_type']}_{Path(word).stem}" if Path(word).stem != "config" else config["model_type"]
        return Architecture(name, entry.model_copy(update={"config": {}, "checkpoint": None}), config=config)
    if word in table.architectures:
        return Architecture(word, table.architectures[word])
    if word in known_architectures():
        return Architecture(word, Checkpoint(family="custom"))
    raise ConfigurationError(f"`{word}` is not an architecture", remedy="see `harness problems extract --list`")


def build_model(architecture: Architecture) -> BuiltModel:
    """Build a model on the meta device, run it at `FIRST_SIZES` and `SECOND_SIZES`, and return its submodules.

    Raises:
        SkippedError: the model cannot be built, the shape of an argument is unknown, or it does not run.
        ConfigurationError: the library is not installed, or the factory does not exist.
    """
    if architecture.factory is not None:
        return _from_factory(architecture.factory)
    dtype: torch.dtype = getattr(torch, architecture.dtype)
    try:
        with quiet_libraries():
            if architecture.checkpoint.library == "diffusers":
                module, config = _diffusers_model(architecture, dtype)
            else:
                module, config = _transformers_model(architecture, dtype)
    except ConfigurationError:
        raise
    except Exception as error:  # the library's own code
        raise SkippedError(f"it cannot be built without a download: {error_summary(error)}") from error
    module.eval()
    shapes = architecture.checkpoint.inputs or _argument_shapes(module, config)
    first, second = (_arguments(module, shapes, sizes, dtype) for sizes in (FIRST_SIZES, SECOND_SIZES))
    return BuiltModel(config, tuple(candidate_modules(module, first, second)))


def _transformers_model(architecture: Architecture, dtype: torch.dtype) -> tuple[nn.Module, Mapping[str, Any]]:
    transformers = _library("transformers")
    overrides = dict(architecture.config) or dict(architecture.checkpoint.config)
    model_type = overrides.pop("model_type", architecture.name)
    config_class = transformers.CONFIG_MAPPING[model_type]
    name = architecture.checkpoint.class_name
    build = getattr(transformers, name)._from_config if name else transformers.AutoModel.from_config  # noqa: SLF001 - the public way takes no class
    with torch.device("meta"):
        try:
            # The eager form of experts loops over values.
            config = _short_config(config_class, overrides)
            module = build(config, dtype=dtype, experts_implementation="grouped_mm")
        except ValueError:
            config = _short_config(config_class, overrides)  # the failed attempt changed the first configuration
            module = build(config, dtype=dtype)
    return module, config.to_dict()


_LAYERS = re.compile(r"^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|(en|de)coder_layers|depth)$")
_MAX_LAYERS = 10
"""Number of layers of a shortened model. Submodules repeat (in hybrid models every eight layers), so that more layers
take time and give no further problems."""


def _short_config(config_class: Any, overrides: Mapping[str, Any]) -> Any:  # noqa: ANN401 - untyped classes
    """Return a configuration with fewer layers, or the complete one if its class refuses that."""
    complete = config_class(**overrides)
    fewer_layers: dict[str, Any] = {
        name: _MAX_LAYERS
        for name, value in vars(complete).items()
        if _LAYERS.match(name) and isinstance(value, int) and value > _MAX_LAYERS and name not in overrides
    }
    for name, part_class in getattr(config_class, "sub_configs", {}).items():
        part = getattr(complete, name, None)
        if part is not None and name not in overrides and hasattr(part_class, "model_type"):
            layers = {key: _MAX_LAYERS for key, value in vars(part).items() if _LAYERS.match(key) and value}
            fewer_layers |= {name: {**part.to_diff_dict(), **layers}} if layers else {}
    if not fewer_layers:
        return complete
    try:
        return config_class(**{**fewer_layers, **overrides})
    except Exception:  # noqa: BLE001 - the class checks that its lists have one entry for each layer
        return complete


def _diffusers_model(architecture: Architecture, dtype: torch.dtype) -> tuple[nn.Module, Mapping[str, Any]]:
    diffusers = _library("diffusers")
    model_class = getattr(diffusers, architecture.checkpoint.class_name or architecture.name)
    with torch.device("meta"):
        module = model_class(**architecture.checkpoint.config).to(dtype)
    return module, dict(module.config)


def _from_factory(factory: str) -> BuiltModel:
    """Call a user's factory: `function(batch, sequence)` returns a module and the arguments of its `forward`."""
    module_name, _, function_name = factory.rpartition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as Python does for `python -m`
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"`{factory}` cannot be imported: {error}", remedy="name it package.module:function"
        ) from error
    finally:
        sys.path.pop(0)
    built: list[tuple[nn.Module, Mapping[str, Any]]] = []
    for size in (FIRST_SIZES, SECOND_SIZES):
        with torch.device("meta"):
            returned = function(size.batch, size.sequence)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], nn.Module)):
            raise ConfigurationError(
                f"`{factory}` returned {type(returned).__name__}",
                remedy="let `function(batch, sequence)` return (module, {parameter of forward: tensor})",
            )
        built.append(returned)
    module = built[0][0].to("meta").eval()
    first, second = (
        {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
        for _, arguments in built
    )
    config = {name: value for name, value in inspect.getmembers(module) if isinstance(value, int)}
    return BuiltModel(config, tuple(candidate_modules(module, first, second)))


def _library(name: str) -> Any:  # noqa: ANN401 - a module without types
    os.environ["HF_HUB_OFFLINE"] = "1"  # prevents downloads
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{name} is not installed: {error}", remedy=_INSTALL) from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the warnings and log lines of model libraries, which concern training and downloads."""
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled_level)


Shapes = Mapping[str, int | str | tuple[int | str, ...]]

_OFF = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}


def _argument_shapes(module: nn.Module, config: Mapping[str, Any]) -> Shapes:
    """Return the shape of each required argument of a model, which the table of checkpoints does not list."""
    parameters = inspect.signature(module.forward).parameters
    main = getattr(module, "main_input_name", "input_ids")
    names = [name for name in (main, "decoder_input_ids") if name in parameters]
    names += [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    return {name: _shape(name, config) for name in dict.fromkeys(names)}


def _shape(name: str, config: Mapping[str, Any]) -> tuple[int | str, ...]:  # noqa: PLR0911 - one rule each
    vision = {**config, **(config.get("vision_config") or {})}
    if name in {"input_ids", "decoder_input_ids", "token_type_ids", "attention_mask"}:
        return ("batch", "sequence", "int64")
    if name in {"pixel_values", "pixel_values_videos"}:
        image = (_first(vision, "num_channels", "in_channels", default=3), *_pair(vision.get("image_size", 224)))
        frames = vision.get("num_frames")
        return ("batch", int(frames), *image) if frames else ("batch", *image)
    if name == "input_features":
        length = config.get("max_source_positions")
        mel = _first(config, "num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
        return ("batch", mel, 2 * length) if length and "num_mel_bins" in config else ("batch", "sequence", mel)
    if name == "input_values":
        if "num_mel_bins" in config and "max_length" in config:
            return ("batch", config["max_length"], config["num_mel_bins"])
        return ("batch", "320*sequence+80")
    if name == "inputs_embeds":
        return ("batch", "sequence", _first(config, "hidden_size", "d_model", default=768))
    if name == "bbox":
        return ("batch", "sequence", 4, "int64")
    raise SkippedError(f"the table of checkpoints gives no shape for the argument `{name}`")


def _first(config: Mapping[str, Any], *names: str, default: int) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), default)


def _pair(size: Any) -> tuple[int, int]:  # noqa: ANN401 - a configuration's value
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def _arguments(module: nn.Module, shapes: Shapes, sizes: ModelSizes, dtype: torch.dtype) -> dict[str, Any]:
    """Return the keyword arguments of a model's `forward`, on the meta device, in `dtype` if the shape names none."""
    parameters = inspect.signature(module.forward).parameters
    arguments: dict[str, Any] = {name: value for name, value in _OFF.items() if name in parameters}
    for name, shape in shapes.items():
        if isinstance(shape, int | str):
            arguments[name] = _length(shape, sizes)
            continue
        words = list(shape)
        own = words.pop() if isinstance(words[-1], str) and hasattr(torch, words[-1]) else None
        lengths = [_length(word, sizes) for word in words]
        arguments[name] = torch.empty(lengths, dtype=getattr(torch, str(own)) if own else dtype, device="meta")
    return arguments


def _length(word: int | str, sizes: ModelSizes) -> int:
    try:
        return evaluate(str(word), vars(sizes))
    except FormatError as error:
        raise SkippedError(
            f"`{word}` is not a size; expected a number, batch, sequence, or such as 4*sequence+1"
        ) from error
