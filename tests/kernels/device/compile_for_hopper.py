"""Compiles every kernel for compute capability 9.0, which takes no GPU; prints a line each. A process of its own, since
those that the other tests interpret can't be compiled."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.device import activation, cascade, decode, norm, prefill, rope, sample
from kernels.device.online_softmax import STAGES

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    **dict.fromkeys(
        ["q_ptr", "x_ptr", "residual_ptr", "weight_ptr", "q_weight_ptr", "k_weight_ptr", "out_ptr"], "*bf16"
    ),
    **dict.fromkeys(["qkv_ptr", "logits_ptr"], "*bf16"),
    **dict.fromkeys(["part_ptr", "lse_ptr", "scales_ptr", "cos_ptr", "sin_ptr"], "*fp32"),
    **dict.fromkeys(["temperature_ptr", "top_p_ptr", "min_p_ptr"], "*fp32"),
    **dict.fromkeys(["table_ptr", "lens_ptr", "skip_ptr", "start_ptr", "pages_ptr", "top_k_ptr"], "*i32"),
    **dict.fromkeys(["positions_ptr", "slots_ptr"], "*i32"),
    "points_ptr": "*fp64",
}
SCALARS = {"factor": "fp32", "eps": "fp32"}
ATTENTION = {"KV_HEADS": 3, "GROUP": 3, "DIM": 64, "DIM_PADDED": 64, "PAGE": 16, "BLOCK": 64, "UPCAST": False}
DRAW = {"WIDTH": 49152, "BLOCK": 1024}


def compile_for_hopper(
    name: str, kernel: Any, constants: dict[str, Any], stored: str = "*bf16", **options: int
) -> None:
    types = POINTERS | SCALARS | {"keys_ptr": stored, "values_ptr": stored}
    if name.startswith(("draw", "argmax")):
        types["out_ptr"] = "*i64"
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in kernel.arg_names}
    places = {n: (kernel.arg_names.index(n),) for n in kernel.arg_names}
    aligned = {places[n]: [["tt.divisibility", 16]] for n, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(kernel, signature, {places[n]: value for n, value in constants.items()}, aligned)
    compiled = triton.compile(source, target=HOPPER, options=options)
    assert compiled.asm["cubin"] and compiled.metadata.shared <= 227 * 1024, compiled.metadata.shared
    print(name, compiled.metadata.shared)


def main() -> None:
    for stored in ("*bf16", "*fp8e4nv"):
        common = ATTENTION | {"FP8": stored != "*bf16"} | ({"scales_ptr": None} if stored == "*bf16" else {})
        split = {"GROUP_PADDED": 16, "SPLITS": 4, "WINDOW": False, "SKIP": True}
        compile_for_hopper("decode", decode.split_kernel, common | split, stored, num_warps=4, num_stages=STAGES)
        tile = {"TILE": 128, "WINDOW": stored == "*bf16"}
        compile_for_hopper("prefill", prefill.prefill_kernel, common | tile, stored, num_warps=8, num_stages=STAGES)
        prefix = {"SPLITS": 4, "TILE": 64, "GROUPS": 60, "GROUPS_PADDED": 64}
        compile_for_hopper("prefix", cascade.prefix_kernel, common | prefix, stored, num_warps=4, num_stages=STAGES)
        turn: dict[str, Any] = {
            "Q_HEADS": 9,
            "KV_HEADS": 3,
            "HEADS_PADDED": 16,
            "HALF": 32,
            "HALF_PADDED": 32,
            "PAGE": 16,
        }
        turn |= {"FP8": common["FP8"], "FP8_TOP": 448.0} | ({"scales_ptr": None} if stored == "*bf16" else {})
        compile_for_hopper("rope_write_kv", rope.rope_write_kv_kernel, turn, stored)
    merge = {"HEADS": 9, "PARTS": 5, "SHARED_PARTS": 2, "PARTS_PADDED": 8, "DIM": 64, "DIM_PADDED": 64}
    compile_for_hopper("merge", decode.merge_kernel, merge, num_warps=2)
    compile_for_hopper("norm", norm.norm_kernel, {"WIDTH": 576, "WIDTH_PADDED": 1024, "ADD": True})
    heads = {"Q_HEADS": 9, "HEADS": 12, "HEADS_PADDED": 16, "DIM": 64, "DIM_PADDED": 64}
    compile_for_hopper("norm_heads", norm.norm_heads_kernel, heads)
    compile_for_hopper("silu_mul", activation.silu_mul_kernel, {"WIDTH": 1536, "BLOCK": 1024})
    compile_for_hopper("argmax", sample.argmax_kernel, DRAW | {"BLOCK": 4096}, num_warps=8)
    compile_for_hopper("draw", sample.draw_kernel, DRAW | {"PIVOTS": 16, "DIGITS": 4}, num_warps=8)


if __name__ == "__main__":
    main()
