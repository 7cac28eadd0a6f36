"""Settings of a point that override keys of the model file, such as the capacity factor of experts."""

from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import Need, Setting, Strict
from triplepoint.config.model import ModelConfig, MtpLayers
from triplepoint.config.software import HAS_EXPERTS

_USUAL_CAPACITY = (None, 0, 1.0)
"""Capacity factors that labels omit: none, and 1.0 as in the published study."""


class ModelChoices(Strict):
    """Settings that override keys of the model; a point has their values in its `model`. None: the model's own."""

    num_mtp_layers: Annotated[
        MtpLayers | None,
        Setting(
            "Layers of multi-token prediction, at the end of the last pipeline stage. None: the model's.",
            "1",
            "mtp{}",
            words=lambda row: f"{row['num_mtp_layers']} MTP" if row["num_mtp_layers"] else "",
            usual=0,
        ),
    ] = None
    capacity_factor: Annotated[
        Annotated[float, Field(ge=0)] | None,
        Setting(
            "Tokens an expert takes, over the even share; tokens beyond it are dropped. 0: none are dropped. None: the "
            "model's.",
            "1",
            "cf{}",
            words=lambda row: (
                f"capacity {row['capacity_factor']}" if row["capacity_factor"] not in _USUAL_CAPACITY else ""
            ),
            usual=1.0,
            needs=HAS_EXPERTS,
        ),
    ] = None
    pads_experts: Annotated[
        bool | None,
        Setting(
            "With a capacity factor, whether experts that have fewer tokens are filled up to it, as "
            "moe_pad_expert_input_to_capacity of Megatron-LM does. None: the model's.",
            label={False: "unpadded"},
            words={False: "unpadded experts"},
            needs=Need(
                lambda point: point.model.moe is not None and point.model.moe.capacity_factor is not None,
                "a model with experts and a capacity factor",
            ),
        ),
    ] = None

    def apply(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the chosen values; choices about experts have no effect on a dense model."""
        changes: dict[str, Any] = {}
        if self.num_mtp_layers is not None:
            changes["num_mtp_layers"] = self.num_mtp_layers
        moe_changes: dict[str, Any] = {}
        if self.capacity_factor is not None:
            moe_changes["capacity_factor"] = self.capacity_factor or None
        if self.pads_experts is not None:
            moe_changes["pads_experts"] = self.pads_experts
        if moe_changes and model.moe:
            changes["moe"] = model.moe.model_copy(update=moe_changes)
        return model.model_copy(update=changes) if changes else model


def choices_of(model: ModelConfig) -> dict[str, Any]:
    """Return the values of the settings of `ModelChoices` in a model, by name."""
    factor = model.moe.capacity_factor if model.moe else None
    pads = model.moe.pads_experts if model.moe and factor else None
    return {"num_mtp_layers": model.num_mtp_layers, "capacity_factor": factor, "pads_experts": pads}
