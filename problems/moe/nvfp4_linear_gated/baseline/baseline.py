import torch


def run(x, weight_packed, weight_block_scale, input_scale, weight_scale):
    return expert(x, weight_packed, weight_block_scale, input_scale, weight_scale)


def expert(x, weight_packed, weight_block_scale, input_scale, weight_scale):
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=x.device)
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device)
    blocks = x.to(torch.float32).unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) / (6.0 * input_scale)).clamp(max=448.0).to(torch.float8_e4m3fn)
    steps = (scales.to(torch.float32) * input_scale).unsqueeze(-1)
    unit = torch.where(steps > 0, blocks / steps, torch.zeros_like(blocks))
    size = unit.abs().clamp(max=6.0)
    high = torch.bucketize(size, bounds, right=True)
    low = torch.bucketize(size, bounds, right=False)
    code = torch.where(high == low, high, torch.where(high % 2 == 0, high, low))
    activations = (torch.copysign(levels[code], unit) * steps).flatten(-2).to(torch.bfloat16)
    packed = weight_packed.view(torch.uint8).to(torch.int32)
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    signed = torch.cat((levels, -levels))[codes].unflatten(-1, (-1, 16))
    weight = (signed * (weight_block_scale.to(torch.float32) * weight_scale).unsqueeze(-1)).flatten(-2)
    gate, up = (activations @ weight.to(torch.bfloat16).t()).to(torch.float32).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(torch.bfloat16)
