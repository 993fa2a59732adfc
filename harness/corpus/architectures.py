"""Models of transformers, of diffusers and of a user's module factory, on the meta device.

No file is downloaded, and no weight is allocated. A model has its default configuration, except for the values in the
table of checkpoints.
"""

from __future__ import annotations

import importlib
import inspect
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

from harness.corpus.candidates import ModelSizes
from harness.corpus.captures import error_summary
from harness.corpus.checkpoints import Checkpoint, ShapeSet, checkpoint_table
from harness.corpus.errors import SkippedError
from harness.corpus.model_inputs import argument_shapes, model_arguments
from harness.errors import ConfigurationError
from harness.formats.bounded import load_json_file

_INSTALL = "python -m pip install 'kernel-harness[extract]'"


@dataclass(frozen=True)
class Architecture:
    """A model from which problems are extracted."""

    name: str
    family: str
    dtype: str
    shapes: ShapeSet
    checkpoint: Checkpoint
    factory: str | None = None
    """`package.module:function` of a user's own module."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of a configuration file."""


@dataclass(frozen=True)
class BuiltModel:
    """A model on the meta device in evaluation mode."""

    module: nn.Module
    config: Mapping[str, Any]
    arguments: Mapping[ModelSizes, Mapping[str, Any]]
    """Sizes -> keyword arguments of its `forward`."""


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
        return _architecture(name, Checkpoint(family="custom"), factory=word)
    if word.endswith(".json"):
        config = load_json_file(Path(word))
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            raise ConfigurationError("no configuration of transformers: `model_type` is missing", where=word)
        entry = table.architectures.get(config["model_type"], Checkpoint(family="custom"))
        name = f"{config['model_type']}_{Path(word).stem}" if Path(word).stem != "config" else config["model_type"]
        return _architecture(name, entry.model_copy(update={"config": {}, "checkpoint": None}), config=config)
    if word in table.architectures:
        return _architecture(word, table.architectures[word])
    if word in known_architectures():
        return _architecture(word, Checkpoint(family="custom"))
    raise ConfigurationError(f"`{word}` is not an architecture", remedy="see `harness problems extract --list`")


def _architecture(
    name: str, entry: Checkpoint, *, factory: str | None = None, config: Mapping[str, Any] | None = None
) -> Architecture:
    family = checkpoint_table().families[entry.family]
    return Architecture(name, entry.family, entry.dtype or family.dtype, family.shapes, entry, factory, config or {})


def build_model(architecture: Architecture, sizes: tuple[ModelSizes, ...]) -> BuiltModel:
    """Return a model on the meta device with its arguments for each of these sizes.

    Args:
        architecture: the model.
        sizes: sizes for which arguments are needed.

    Raises:
        SkippedError: the model cannot be built, or the shape of an argument is unknown.
        ConfigurationError: the library is not installed, or the factory does not exist.
    """
    if architecture.factory is not None:
        return _from_factory(architecture.factory, sizes)
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
    shapes = argument_shapes(module, config, architecture.checkpoint.inputs)
    arguments = {size: model_arguments(module, shapes, size, dtype) for size in sizes}
    return BuiltModel(module, config, arguments)


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


def _from_factory(factory: str, sizes: tuple[ModelSizes, ...]) -> BuiltModel:
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
    for size in sizes:
        with torch.device("meta"):
            returned = function(size.batch, size.sequence)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], nn.Module)):
            raise ConfigurationError(
                f"`{factory}` returned {type(returned).__name__}",
                remedy="let `function(batch, sequence)` return (module, {parameter of forward: tensor})",
            )
        built.append(returned)
    module = built[0][0].to("meta").eval()
    arguments = {
        size: {name: _on_meta(value) for name, value in call_arguments.items()}
        for size, (_, call_arguments) in zip(sizes, built, strict=True)
    }
    config = {name: value for name, value in inspect.getmembers(module) if isinstance(value, int)}
    return BuiltModel(module, config, arguments)


def _on_meta(value: Any) -> Any:  # noqa: ANN401 - an argument of any kind
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _library(name: str) -> Any:  # noqa: ANN401 - a module without types
    os.environ["HF_HUB_OFFLINE"] = "1"  # prevents downloads
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{name} is not installed: {error}", remedy=_INSTALL) from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the warnings and log lines of model libraries, which concern training and downloads."""
    import logging  # noqa: PLC0415

    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)
