"""Arguments of a model on the meta device; the names of the parameters of its `forward` determine their shapes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from harness.corpus.candidates import ModelSizes
from harness.corpus.errors import SkippedError

Shapes = Mapping[str, int | str | tuple[int | str, ...]]

_TERM = re.compile(
    r"^(?:(?P<factor>\d+)\*)?(?P<axis>batch|sequence|text)(?:\*(?P<other>sequence))?(?:\+(?P<plus>\d+))?$"
)
_OFF = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}


def argument_shapes(module: nn.Module, config: Mapping[str, Any], listed_shapes: Shapes) -> Shapes:
    """Return the shape of each required argument of a model.

    Args:
        module: the model.
        config: its configuration.
        listed_shapes: shapes from the table of checkpoints; if there are any, the parameters' names are not used.
    """
    if listed_shapes:
        return listed_shapes
    parameters = inspect.signature(module.forward).parameters
    main = getattr(module, "main_input_name", "input_ids")
    names = [main] if main in parameters else []
    if "decoder_input_ids" in parameters and main != "decoder_input_ids":
        names.append("decoder_input_ids")
    if main != "input_ids" and "input_ids" in parameters and parameters["input_ids"].default is inspect.Parameter.empty:
        names.append("input_ids")
    names += [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        and name not in names
    ]
    return {name: _shape(name, config) for name in names}


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


def model_arguments(module: nn.Module, shapes: Shapes, sizes: ModelSizes, dtype: torch.dtype) -> dict[str, Any]:
    """Return the keyword arguments of a model's `forward`, on the meta device.

    Args:
        module: the model.
        shapes: shape of each argument, as of `argument_shapes`.
        sizes: batch size and sequence lengths.
        dtype: dtype of arguments whose shape names none.

    Raises:
        SkippedError: a shape contains a word that is not a size.
    """
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
    if isinstance(word, int):
        return word
    match = _TERM.match(word)
    if match is None:
        raise SkippedError(f"`{word}` is not a size; expected a number, batch, sequence, or such as 4*sequence+1")
    value = int(match["factor"] or 1) * getattr(sizes, match["axis"])
    return int(value * (sizes.sequence if match["other"] else 1) + int(match["plus"] or 0))
